"""Clean up after a command: rename the files that it created at closed paths."""

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field

from retinue.domain.permissions.scope import Scope
from retinue.sandbox.files.closed_path_scan import ClosedPaths, PathKind, find_closed_paths
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.reopen import open_folder, restore_owner_access

UNLIMITED_NAMES = 1 << 62
"""No limit: creating a name takes longer than scanning it, and an unscanned file may take effect."""

NEEDS_USER = "tell the user: "
"""Prefix of a note about something that only the user can restore."""

_MAX_TRIES = 8
_MAX_NOTES = 8


class FileSnapshot(Struct, frozen=True, kw_only=True):
    """State before a command, needed to clean up after it."""

    scope: Scope
    writable: tuple[str, ...]
    """Folders that the command may change."""
    closed_paths: dict[str, PathKind] = field(name="sight")
    """Closed paths in those folders before the command; `sight` in records on disk."""
    links: dict[str, str]
    """Closed names that were links, with their targets."""


def restore_closed_paths(snapshot: FileSnapshot) -> tuple[str, ...]:
    """Rename new closed paths, remove pipes and restore replaced links; return notes.

    Nothing is lost: new files stay next to their old place under a name that no program acts on. Paths that
    were closed before are left alone: the command could not reach them, so somebody else changed them.
    """
    notes: list[str] = []
    for path, kind in _scan_after(snapshot).items():
        if path in snapshot.closed_paths:
            continue
        if kind is PathKind.UNREADABLE:
            notes.append(_unreadable_note(path))
        else:
            notes.append(_move_aside(path, kind, snapshot.writable))
    for path, target in snapshot.links.items():
        if not _links_to(path, target):
            notes.append(_restore_link(path, target, snapshot.writable))
    return limit_notes(notes)


def restore_path(path: str, snapshot: FileSnapshot) -> str | None:
    """Restore one closed path that has just appeared; None if it is unchanged or gone again."""
    if not os.path.lexists(path):
        return None
    if (target := snapshot.links.get(path)) is not None:
        return None if _links_to(path, target) else _restore_link(path, target, snapshot.writable)
    return None if path in snapshot.closed_paths else _move_aside(path, PathKind.FILE, snapshot.writable)


def _scan_after(snapshot: FileSnapshot) -> ClosedPaths:
    """Scan for everything that is closed now.

    Files in a folder that cannot be listed still take effect for a program that knows their names: such a
    folder is made listable first, then the folders inside it.
    """
    found = dict(
        find_closed_paths(snapshot.scope, snapshot.writable, limit=UNLIMITED_NAMES, fail_on_races=False)
    )
    tried = set[str](snapshot.closed_paths)
    opened_folders = _open_unreadable_folders(found, tried, snapshot.writable)
    while opened_folders:
        newly_found = find_closed_paths(
            snapshot.scope, opened_folders, limit=UNLIMITED_NAMES, fail_on_races=False
        )
        found |= newly_found
        opened_folders = _open_unreadable_folders(newly_found, tried, snapshot.writable)
    return found


def _open_unreadable_folders(closed_paths: ClosedPaths, tried: set[str], trees: tuple[str, ...]) -> list[str]:
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


def _move_aside(path: str, kind: PathKind, trees: tuple[str, ...]) -> str:
    """Rename a new closed path, or remove it if it is a pipe; return a note."""
    new_name = f"taken-{secrets.token_hex(4)}"

    def remove_entry(folder: int, name: str) -> None:
        if kind is PathKind.PIPE:
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
    return f"{printable_path(path)} is a closed path: the file that the command created there was renamed to {printable_path(f'{_parent_path(path)}/{new_name}')}{mode_note}"


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
