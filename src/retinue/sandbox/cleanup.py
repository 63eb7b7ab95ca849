"""Clean up after a command: rename the files that it created at closed paths."""

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from msgspec import Struct, field

from retinue.domain.permissions import git_paths
from retinue.domain.permissions.scope import Scope
from retinue.sandbox.files.closed_path_scan import (
    PathKind,
    ScanResult,
    is_path_too_long,
    scan_closed_paths,
)
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.files.pattern_roots import is_readable
from retinue.sandbox.git.repository_state import RepositoryState, find_unsafe_files, restore_head
from retinue.sandbox.reopen import containing_tree, open_folder, restore_owner_access

UNLIMITED_NAMES = 1 << 62
"""No limit: creating a name takes longer than scanning it, and an unscanned file may take effect."""

NEEDS_USER = "tell the user: "
"""Prefix of a note about something that only the user can restore."""

_MAX_TRIES = 8
_MAX_NOTES = 8
_MAX_PASSES = 512
"""More than the levels of folders that a path can have in which something new is found when the level above is moved."""


class FileSnapshot(Struct, frozen=True, kw_only=True):
    """State before a command, needed to clean up after it."""

    scope: Scope
    writable: tuple[str, ...]
    """Folders that the command may change."""
    closed_paths: dict[str, PathKind] = field(name="sight")
    """Closed paths in those folders before the command; `sight` in records on disk."""
    links: dict[str, str]
    """Closed names that were links, with their targets."""
    repositories: dict[str, RepositoryState] = field(default_factory=dict[str, RepositoryState])
    """Git folders in the writable folders."""


def restore_closed_paths(snapshot: FileSnapshot) -> tuple[str, ...]:
    """Rename new closed paths, remove pipes and restore replaced links; return notes.

    Nothing is lost: new files stay next to their old place under a name that no program acts on. Paths that
    were closed before are not changed: the command could not reach them, so another program changed them.
    """
    notes: dict[str, None] = {}
    for _ in range(_MAX_PASSES):
        found = _restore_found_paths(snapshot)
        if notes.keys() >= set(found):
            break  # nothing is left, or only what cannot be restored
        notes |= dict.fromkeys(found)  # what was moved aside may have contained further closed paths
    return limit_notes([*notes])


def _restore_found_paths(snapshot: FileSnapshot) -> list[str]:
    notes: list[str] = []
    scan = _scan_after(snapshot)
    git_folders = (*scan.repositories, *filter(None, (snapshot.scope.common_git_dir,)))
    for path, kind in sorted(scan.closed_paths.items(), key=_path_depth, reverse=True):
        if path in snapshot.closed_paths or _is_part_of_new_repository(path, snapshot, scan.repositories):
            continue
        if kind is PathKind.UNREADABLE:
            notes.append(
                _move_to_top(path, snapshot.writable) if is_path_too_long(path) else _unreadable_note(path)
            )
        else:
            notes.append(_move_aside(path, kind, snapshot.writable, git_folders))
    for path, target in snapshot.links.items():
        if not _links_to(path, target):
            notes.append(_restore_link(path, target, snapshot.writable))
    for repository in scan.repositories:
        notes += _restore_repository(repository, snapshot)
    return notes


def _path_depth(entry: tuple[str, PathKind]) -> int:
    """Return the depth of a found path: what is inside a folder is renamed before the folder."""
    return entry[0].count("/")


def restore_path(path: str, snapshot: FileSnapshot) -> str | None:
    """Restore one closed path that has just appeared; None if it is unchanged or gone again."""
    if not os.path.lexists(path):
        return None
    if (target := snapshot.links.get(path)) is not None:
        return None if _links_to(path, target) else _restore_link(path, target, snapshot.writable)
    return None if path in snapshot.closed_paths else _move_aside(path, PathKind.FILE, snapshot.writable)


def _is_part_of_new_repository(path: str, snapshot: FileSnapshot, repositories: Iterable[str]) -> bool:
    """Return whether git itself puts this file into a repository that the command created."""
    owner = max((each for each in repositories if path.startswith(f"{each}/")), key=len, default=None)
    if (
        owner is None
        or owner in snapshot.repositories
        or not is_readable(snapshot.scope, path)
        or os.path.islink(path)  # noqa: PTH114
    ):
        return False
    return git_paths.is_inert_in_new_repository(path[len(owner) + 1 :]) or _is_empty_folder(path)


def _is_empty_folder(path: str) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _restore_repository(repository: str, snapshot: FileSnapshot) -> list[str]:
    """Move aside what git must not find in a git folder, such as an index that lists files of `.git`."""
    if not guards_repository(repository, snapshot.scope):
        return []
    before = snapshot.repositories.get(repository, RepositoryState())
    notes: list[str] = []
    for path, reason in find_unsafe_files(repository, before).items():
        notes.append(f"{reason}: {_move_aside(path, PathKind.FILE, snapshot.writable)}")
    with suppress(OSError):
        notes += [note] if (note := restore_head(repository, before)) else []
    return notes


def guards_repository(repository: str, scope: Scope) -> bool:
    if git_paths.is_git_folder_name(repository.rpartition("/")[2]):
        return scope.is_guarded(f"{repository}/index")
    return scope.guards_repository(repository)


def _scan_after(snapshot: FileSnapshot) -> ScanResult:
    """Scan for everything that is closed now.

    Files in a folder that cannot be listed still take effect for a program that knows their names: such a
    folder is made listable first, then the folders inside it.
    """
    scan = _scan_folders(snapshot, snapshot.writable)
    found, repositories = dict(scan.closed_paths), list(scan.repositories)
    tried = set[str](snapshot.closed_paths)
    opened_folders = _open_unreadable_folders(found, tried, snapshot.writable)
    while opened_folders:
        newly_found = _scan_folders(snapshot, opened_folders)
        found |= newly_found.closed_paths
        repositories += newly_found.repositories
        opened_folders = _open_unreadable_folders(newly_found.closed_paths, tried, snapshot.writable)
    return ScanResult(closed_paths=found, repositories=tuple(repositories), folders={})


def _scan_folders(snapshot: FileSnapshot, folders: Iterable[str]) -> ScanResult:
    return scan_closed_paths(snapshot.scope, folders, limit=UNLIMITED_NAMES, fail_on_races=False)


def _open_unreadable_folders(
    closed_paths: Mapping[str, PathKind], tried: set[str], trees: tuple[str, ...]
) -> list[str]:
    """Make unreadable folders listable again and return them. Each is tried once."""
    opened_folders: list[str] = []
    for path, kind in closed_paths.items():
        if kind is PathKind.UNREADABLE and path not in tried:
            tried.add(path)
            with suppress(OSError):
                make_listable(path, trees)
                opened_folders.append(path)
    return opened_folders


def make_listable(path: str, trees: tuple[str, ...]) -> None:
    """Give the owner access to a folder that cannot be listed.

    Raises OSError if its mode is not the reason.
    """
    folder = open_folder(path, trees)
    try:
        if not restore_owner_access(folder) and not os.access(f"/proc/self/fd/{folder}", os.R_OK | os.X_OK):
            raise OSError(errno.EACCES, "its mode is not the reason")
    finally:
        os.close(folder)


def _unreadable_note(path: str) -> str:
    if os.access(path, os.R_OK | os.X_OK):
        return f"{printable_path(path)} could not be listed: its mode was changed"
    return f"{NEEDS_USER}{printable_path(path)} cannot be listed, and other programs may run files in it"


def _move_aside(path: str, kind: PathKind, trees: tuple[str, ...], git_folders: tuple[str, ...] = ()) -> str:
    """Rename a new closed path, or remove it if it is a pipe; return a note."""
    new_name = f"{git_paths.ASIDE_PREFIX}{secrets.token_hex(4)}"

    is_removed = kind is PathKind.PIPE or (kind is PathKind.LINK and _is_in_git_folder(path, git_folders))

    def remove_entry(folder: int, name: str) -> None:
        if is_removed:
            os.unlink(name, dir_fd=folder)
        else:
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=folder)

    try:
        mode_note = _run_in_parent(path, trees, remove_entry)
    except FileNotFoundError:
        return f"{printable_path(path)} is a closed path; the command created and deleted it"
    except OSError as error:
        return f"{NEEDS_USER}{printable_path(path)} is a closed path, and the file that the command created there could not be renamed: {error.strerror}"
    if kind is PathKind.PIPE:
        return f"{printable_path(path)} was a pipe, which blocks programs that open it: it was removed{mode_note}"
    if is_removed:
        return f"{printable_path(path)} was a link, and git writes through it: it was removed{mode_note}"
    if _is_operation_state(path):
        mode_note += "; a merge, rebase or cherry-pick must end in the command that begins it"
    return f"{printable_path(path)} is a closed path: the file that the command created there was renamed to {printable_path(f'{_parent_path(path)}/{new_name}')}{mode_note}"


def _move_to_top(path: str, trees: tuple[str, ...]) -> str:
    """Move a folder whose path is too long to search it to the top of its tree, where it is searched next."""
    tree = containing_tree(path, trees)
    new_name = f"{git_paths.ASIDE_PREFIX}{secrets.token_hex(4)}"

    def move_entry(folder: int, name: str) -> None:
        top = open_folder(tree, trees)
        try:
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(top)

    try:
        _run_in_parent(path, trees, move_entry)
    except OSError as error:
        return f"{NEEDS_USER}the path of {printable_path(path)} is too long to search the folder, and it could not be moved: {error.strerror}"
    return f"the path of {printable_path(path)} is too long to search the folder: it was moved to {printable_path(f'{tree}/{new_name}')}"


def _is_in_git_folder(path: str, git_folders: tuple[str, ...]) -> bool:
    """Return whether a file renamed in this place would still mean something to git."""
    return any(path.startswith(f"{each}/") for each in git_folders) or any(
        git_paths.is_git_folder_name(part) for part in path.split("/")[:-1]
    )


def _is_operation_state(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return git_paths.is_git_folder_name(folder.rpartition("/")[2]) and git_paths.is_operation_state(name)


def _restore_link(path: str, target: str, trees: tuple[str, ...]) -> str:
    notes = [_move_aside(path, PathKind.LINK, trees)] if os.path.lexists(path) else []
    try:
        _run_in_parent(path, trees, lambda folder, name: os.symlink(target, name, dir_fd=folder))
    except OSError as error:
        return "; ".join(
            (*notes, f"{NEEDS_USER}the link {printable_path(path)} could not be restored: {error.strerror}")
        )
    return "; ".join((*notes, f"the link {printable_path(path)} was restored"))


def _run_in_parent(path: str, trees: tuple[str, ...], action: Callable[[int, str], None]) -> str:
    """Run an action in the folder that contains this name; return a note if its mode was changed.

    The action is tried several times, because another command may close the folder again meanwhile.
    """
    mode_note = ""
    folder = open_folder(_parent_path(path), trees)
    try:
        for _ in range(_MAX_TRIES):
            try:
                action(folder, path.rpartition("/")[2])
            except PermissionError:
                if not restore_owner_access(folder):
                    raise
                mode_note = f"; {printable_path(_parent_path(path))} is writable again: its mode was changed"
            else:
                return mode_note
        raise PermissionError(errno.EACCES, "another process keeps changing the permissions of its folder")
    finally:
        os.close(folder)


def _parent_path(path: str) -> str:
    return path.rpartition("/")[0]


def _links_to(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target  # noqa: PTH115
    except OSError:
        return False


def limit_notes(notes: list[str]) -> tuple[str, ...]:
    """Return the first few notes, those that need the user first."""
    notes = sorted(notes, key=lambda note: NEEDS_USER not in note)
    omitted = len(notes) - _MAX_NOTES
    return (*notes[:_MAX_NOTES], f"and {omitted} more such paths") if omitted > 0 else tuple(notes)
