"""Plan the mounts of a sandboxed command: what its scope allows, and masks over closed paths."""

import os
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import PathPatterns
from retinue.domain.ceiling import Ceiling, FileAccess
from retinue.domain.permissions import git_paths
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs, literal_components, unescape_component
from retinue.domain.tmp_paths import TMP, is_under_tmp
from retinue.errors import Failed
from retinue.sandbox.files.closed_path_scan import (
    ClosedPaths,
    FolderScan,
    PathKind,
    ScanResult,
    scan_closed_paths,
)
from retinue.sandbox.files.hardlinks import can_be_denied, has_deny_rules, linked_files
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.files.pattern_roots import pattern_root
from retinue.sandbox.git.own_worktree import OwnWorktree, find_own_worktree

MAX_SINGLE_FILES = 256
"""Maximum number of single files that patterns other than `folder/**` may mount."""
MAX_SCANNED_NAMES = 20_000
MAX_MOUNTS = 1_000

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

_GIT_SETTINGS = frozenset({"config", "config.worktree", "hooks"})
"""Git fails if it cannot read these, but accepts them without content."""


class MountKind(Enum):
    READ = "read"
    WRITE = "write"
    MASKED_FILE = "masked file"
    """The file exists and cannot be opened."""
    MASKED_FOLDER = "masked folder"
    EMPTY_FILE = "empty file"
    """The file exists and is empty, except for git settings that run nothing."""
    EMPTY_FOLDER = "empty folder"
    GENERATED_FILE = "generated file"
    """A read-only file with the mount's content."""
    SCRATCH_FOLDER = "scratch folder"
    """An empty folder that a command may write; it lasts as long as the command."""
    MOUNT_PARENT = "mount parent"
    """A read-only folder that contains only what is mounted inside it."""


_MASK_KINDS = {
    (PathKind.FILE, False): MountKind.MASKED_FILE,
    (PathKind.FILE, True): MountKind.EMPTY_FILE,
    (PathKind.FOLDER, False): MountKind.MASKED_FOLDER,
    (PathKind.FOLDER, True): MountKind.EMPTY_FOLDER,
    (PathKind.UNREADABLE, False): MountKind.MASKED_FOLDER,
    (PathKind.UNREADABLE, True): MountKind.MASKED_FOLDER,
}


_NEW_FOLDER_KINDS = (MountKind.MOUNT_PARENT, MountKind.SCRATCH_FOLDER)
"""Kinds of folders that exist only in the sandbox, and contain what is mounted inside them."""


class Mount(Struct, frozen=True, kw_only=True):
    kind: MountKind
    target: str
    """Path inside the sandbox."""
    source: str = ""
    """Real path; empty for a mask."""
    content: bytes = b""
    """Of a generated file."""


class MountPlan(Struct, frozen=True, kw_only=True):
    """Mounts in the order in which they must be made."""

    mounts: tuple[Mount, ...]
    tmp_source: str
    """Real folder mounted as /tmp; empty: /tmp lasts only as long as the command."""
    cwd: str
    writable_folders: tuple[str, ...]
    """Folders that a command may change, to be scanned again afterwards; without the private /tmp."""
    closed_paths: ClosedPaths
    """Closed paths found before the command."""
    closed_links: dict[str, str]
    """Closed names that are symbolic links, with their targets: nothing can be mounted over a link."""
    scanned_folders: Mapping[str, FolderScan]
    """Every folder that the scan entered."""
    repositories: tuple[str, ...]
    """Git folders that a command may change in part."""
    missing_files: tuple[str, ...]
    """Files that must be created, empty, before they can be mounted."""
    notes: tuple[str, ...] = ()


def plan_mounts(scope: Scope) -> MountPlan:
    """Plan the mounts for a scope.

    Reads the machine's folders and changes nothing.
    """
    tmp = scope.tmp_folder if scope.is_private_tmp(TMP) and scope.check_path(TMP, "write").ok else ""
    trees = _allowed_trees(scope)
    own_git, notes = _own_git_folders(scope, trees)
    is_repository_hidden = own_git is not None and not _is_within(own_git.common_dir, trees)
    trees |= own_git.trees() if own_git else {}
    writable = _outermost_folders(tree for tree, can_write in trees.items() if can_write)
    shared_folders = _shared_folders(scope, trees)
    scanned_folders = dict.fromkeys(
        (*_outermost_folders(trees), *(own_git.trees() if own_git else ()), *shared_folders)
    )
    scan = scan_closed_paths(scope, scanned_folders)
    closed_paths = scan.closed_paths
    file_mounts, file_notes = _single_file_mounts(scope, trees)
    links = {
        path: os.readlink(path)  # noqa: PTH115
        for path in closed_paths
        if _is_link(path, closed_paths) and _is_within(path, writable)
    }
    mounts = [
        Mount(kind=MountKind.WRITE if can_write else MountKind.READ, target=path, source=path)
        for path, can_write in trees.items()
    ]
    mounts += file_mounts
    mounts += [Mount(kind=MountKind.READ, target=path, source=path) for path in shared_folders]
    mounts += _read_only_mounts(closed_paths, links, writable)
    repositories = tuple(each for each in scan.repositories if _is_within(each, writable))
    missing_files = tuple(_missing_packed_refs(repositories, closed_paths))
    mounts += [Mount(kind=MountKind.READ, target=path, source=path) for path in missing_files]
    mounts += _branch_mounts(repositories, closed_paths)
    searched = (*_outermost_folders(trees), *shared_folders) if has_deny_rules(scope) else writable
    mounts += _hard_link_mounts(scope, searched, writable, scan)
    mounts += _masks(closed_paths, shared_folders)
    mounts += _own_git_mounts(own_git, is_repository_hidden=is_repository_hidden)
    mounts += [
        Mount(kind=_mask_kind(closed_path), target=closed_path) for closed_path in _closed_system_paths(scope)
    ]
    mounts += _workspace_parent_mount(scope, mounts)
    mounts += _mounts_against_renaming(mounts, writable, tmp)
    if len(mounts) > MAX_MOUNTS:
        raise Failed(
            f"{printable_path(scope.root)} contains more than {MAX_MOUNTS:,} closed paths, hard-linked files and their parent "
            "folders: too many to hide from a command. Deny the folders that contain them"
        )
    return MountPlan(
        mounts=_sorted_mounts(mounts),
        tmp_source=tmp,
        cwd=_initial_folder(scope, mounts),
        writable_folders=writable,
        closed_paths=closed_paths,
        closed_links=links,
        scanned_folders=scan.folders,
        repositories=repositories,
        missing_files=missing_files,
        notes=(*notes, *file_notes),
    )


def _own_git_folders(scope: Scope, trees: dict[str, bool]) -> tuple[OwnWorktree | None, tuple[str, ...]]:
    """Return the git folders of the session's own worktree, or a note that explains why git does not work there."""
    if not _is_within(scope.root, trees):
        return None, ()
    try:
        return find_own_worktree(scope), ()
    except Failed as error:
        return None, (f"git does not work here: {error}",)


def _own_git_mounts(own_git: OwnWorktree | None, *, is_repository_hidden: bool) -> Iterator[Mount]:
    """Mount what git needs to work in the session's own worktree, besides the folders that it writes.

    Of a repository that the scope does not show, a command sees only this. Git creates lock files next to it: in
    a scratch folder, because nothing there may change.
    """
    if own_git is None:
        return
    yield Mount(kind=MountKind.READ, target=own_git.pointer, source=own_git.pointer)
    for path in own_git.branches_in_use() if own_git.is_writable else ():
        yield Mount(kind=MountKind.READ, target=path, source=path)
    if is_repository_hidden:
        yield Mount(kind=MountKind.SCRATCH_FOLDER, target=own_git.common_dir)
        yield Mount(kind=MountKind.MOUNT_PARENT, target=own_git.git_dir.rpartition("/")[0])
        for path in own_git.shared_files():
            yield Mount(kind=MountKind.READ, target=path, source=path)
        for path, content in own_git.generated_files().items():
            yield Mount(kind=MountKind.GENERATED_FILE, target=path, content=content)


def _allowed_trees(scope: Scope) -> dict[str, bool]:
    """Return the real folders that may be read whole, and whether each may be written.

    Closed paths inside them are masked. Only `folder/**` patterns are checked, so that an allowed folder is
    allowed as a whole. `/**` adds nothing but the workspace.
    """
    tree_scope = replace(
        scope,
        read=_tree_patterns(scope.read),
        write=_tree_patterns(scope.write),
        ceilings=tuple(_with_tree_patterns(each) for each in scope.ceilings),
        user_grants=PathPatterns(
            read=_tree_patterns(scope.user_grants.read or ()),
            write=_tree_patterns(scope.user_grants.write or ()),
        ),
    )
    ceiling_patterns = tuple(
        pattern for each in tree_scope.ceilings for pattern in (*(each.read or ()), *(each.write or ()))
    )
    anchors = {
        "/" + "/".join(literal_components(pattern))
        for pattern in (*tree_scope.read, *tree_scope.write, *ceiling_patterns)
    }
    found: dict[str, bool] = {}
    for anchor in sorted(anchors | {scope.root}):
        real = os.path.realpath(anchor)
        if (
            real == "/"
            or scope.is_private_tmp(real)
            or tree_scope.is_private_tmp(real)
            or not os.path.isdir(real)  # noqa: PTH112
        ):
            continue
        if tree_scope.check_path(real, "read").ok:
            found[real] = tree_scope.check_path(real, "write").ok
    return {
        path: can_write
        for path, can_write in found.items()
        if not _is_covered_by_parent(path, can_write, found)
    }


def _shared_folders(scope: Scope, trees: dict[str, bool]) -> tuple[str, ...]:
    """Return the shared folders that no tree includes.

    They are outside all trees, or the only open folder in a closed one.
    """
    return tuple(
        folder
        for folder in scope.shared_folders
        if (not _is_within(folder, trees) or scope.closing_rule(os.path.dirname(folder)))  # noqa: PTH120
        and scope.check_path(folder).ok
        and os.path.isdir(folder)  # noqa: PTH112
    )


def _is_covered_by_parent(path: str, can_write: bool, found: dict[str, bool]) -> bool:
    return any(
        other != path and _is_within(path, (other,)) and (other_writable or not can_write)
        for other, other_writable in found.items()
    )


def _tree_patterns(patterns: Globs) -> Globs:
    return tuple(pattern for pattern in patterns if _is_tree_pattern(pattern))


def _with_tree_patterns(ceiling: Ceiling) -> Ceiling:
    return replace(
        ceiling,
        read=None if ceiling.read is None else _tree_patterns(ceiling.read),
        write=None if ceiling.write is None else _tree_patterns(ceiling.write),
    )


def _is_tree_pattern(pattern: str) -> bool:
    """Return whether the pattern names a folder literally, with everything in it."""
    parts = pattern.split("/")
    while parts and parts[-1] == "**":
        parts.pop()
    return len(parts) < len(pattern.split("/")) and all(
        unescape_component(part) is not None for part in parts
    )


def _single_file_mounts(scope: Scope, trees: dict[str, bool]) -> tuple[list[Mount], tuple[str, ...]]:
    """Mount the files that a scope names one by one, or by a pattern that is not a whole folder."""
    found: dict[str, Mount] = {}
    patterns_by_access: tuple[tuple[FileAccess, MountKind, Globs], ...] = (
        ("read", MountKind.READ, scope.read),
        ("write", MountKind.WRITE, scope.write),
    )
    for access, kind, patterns in patterns_by_access:
        covered_trees = _outermost_folders(
            tree for tree, can_write in trees.items() if can_write or access == "read"
        )
        for pattern in patterns:
            if _is_tree_pattern(pattern) or not (anchor := pattern_root(pattern).folder):
                continue
            for real in _matching_files("/" + "/".join(anchor), pattern):
                if (
                    _is_within(real, covered_trees)
                    or scope.is_private_tmp(real)
                    or not _can_mount_file(scope, real, access)
                ):
                    continue
                if len(found) >= MAX_SINGLE_FILES and real not in found:
                    return list(found.values()), (
                        f"only the first {MAX_SINGLE_FILES} files that match {pattern} are mounted",
                    )
                found[real] = Mount(kind=kind, target=real, source=real)
    return list(found.values()), ()


def _can_mount_file(scope: Scope, real: str, access: FileAccess) -> bool:
    """Return whether a single file can be mounted with this access.

    A written file must be readable too: it cannot be mounted otherwise. Hard links count as in the file
    tools: a file with several names is not written, and not read where another name may be denied.
    """
    if not scope.check_path(real, "read").ok or not scope.check_path(real, access).ok:
        return False
    return os.lstat(real).st_nlink == 1 or (access == "read" and not can_be_denied(scope, real))


def _matching_files(anchor: str, pattern: str) -> Iterator[str]:
    """Yield the regular files below the pattern's folder, as deep as it can match.

    Links are not followed.
    """
    exact = "/" + "/".join(literal_components(pattern))
    if len(literal_components(pattern)) == len([part for part in pattern.split("/") if part]):
        real = os.path.realpath(exact)
        yield from (real,) if os.path.isfile(real) else ()  # noqa: PTH113
        return
    top = os.path.realpath(anchor)
    depth, scanned = pattern_root(pattern).max_depth, 0
    pending = [(top, 1)]
    while pending and scanned <= MAX_SCANNED_NAMES:
        folder, depth_here = pending.pop()
        try:
            with os.scandir(folder) as entries:
                children = sorted(entries, key=_entry_name)
        except OSError:
            continue
        scanned += len(children)
        yield from (entry.path for entry in children if entry.is_file(follow_symlinks=False))
        if depth is None or depth_here < depth:
            pending += [
                (entry.path, depth_here + 1) for entry in children if entry.is_dir(follow_symlinks=False)
            ]


def _entry_name(entry: "os.DirEntry[str]") -> str:
    return entry.name


def _masks(closed_paths: ClosedPaths, shared_folders: tuple[str, ...]) -> list[Mount]:
    """Mask every closed path.

    A closed folder that contains an open skill folder shows that folder and nothing else.
    """
    return [
        Mount(
            kind=MountKind.MOUNT_PARENT
            if any(_is_within(folder, (path,)) for folder in shared_folders)
            else kind_of_mask,
            target=path,
        )
        for path, kind in closed_paths.items()
        if (kind_of_mask := _MASK_KINDS.get((kind, _is_git_setting(path)))) is not None
    ]


def _is_git_setting(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name.lower() in _GIT_SETTINGS and (
        git_paths.is_git_folder_name(folder.rpartition("/")[2]) or os.path.lexists(f"{folder}/HEAD")
    )


def _read_only_mounts(
    closed_paths: ClosedPaths, links: dict[str, str], writable: tuple[str, ...]
) -> Iterator[Mount]:
    """Mount read-only: pointers to git repositories, and the targets of closed links."""
    for path, kind in closed_paths.items():
        if kind is PathKind.PROTECTED and path not in links and _is_within(path, writable):
            yield Mount(kind=MountKind.READ, target=path, source=path)
    for path in links:
        real = os.path.realpath(path)
        if (
            real not in closed_paths
            and real not in writable
            and _is_within(real, writable)
            and os.path.exists(real)  # noqa: PTH110
        ):
            yield Mount(kind=MountKind.READ, target=real, source=real)


def _branch_mounts(repositories: tuple[str, ...], closed_paths: ClosedPaths) -> Iterator[Mount]:
    """Mount the branches writable in the read-only references."""
    for repository in repositories:
        folder = f"{repository}/refs/heads"
        if (
            closed_paths.get(f"{repository}/refs") is PathKind.PROTECTED
            and os.path.realpath(folder) == folder
        ):
            yield from (
                [Mount(kind=MountKind.WRITE, target=folder, source=folder)] if os.path.isdir(folder) else []  # noqa: PTH112
            )


def _missing_packed_refs(repositories: tuple[str, ...], closed_paths: ClosedPaths) -> Iterator[str]:
    """Yield the `packed-refs` of guarded repositories that the scan did not find.

    Another command may have created one since: it is then used as if it had been found.
    Git would move the branches into a new one, which is no branch and would be moved aside. Where the file is
    mounted, git cannot replace it, and fails before it deletes a branch.
    """
    for repository in repositories:
        path = f"{repository}/packed-refs"
        if (
            closed_paths.get(f"{repository}/refs") is PathKind.PROTECTED
            and path not in closed_paths
            and os.access(repository, os.W_OK)
        ):
            yield path


def _hard_link_mounts(
    scope: Scope, trees: tuple[str, ...], writable: tuple[str, ...], scan: ScanResult
) -> Iterator[Mount]:
    """Protect files that have hard links elsewhere, or at a name that is read-only.

    Writing one would also change the file under its other name, and that name may be denied.
    """
    for file in linked_files(scan, trees):
        changeable = [path for path in file.paths if _is_changeable(path, writable, scan.closed_paths)]
        if file.is_linked_elsewhere:
            yield from (
                Mount(kind=MountKind.MASKED_FILE, target=path)
                if can_be_denied(scope, path)
                else Mount(kind=MountKind.READ, target=path, source=path)
                for path in file.paths
            )
        elif len(changeable) < len(file.paths):
            yield from (Mount(kind=MountKind.READ, target=path, source=path) for path in changeable)


def _is_changeable(path: str, writable: tuple[str, ...], closed_paths: ClosedPaths) -> bool:
    protected = (each for each in (path, *map(str, Path(path).parents)) if each in closed_paths)
    return _is_within(path, writable) and next(protected, None) is None


def _workspace_parent_mount(scope: Scope, mounts: list[Mount]) -> Iterator[Mount]:
    """Mount an empty parent for a workspace below /tmp of which only parts are visible.

    Without it, a file written next to those parts would appear to be in the workspace but land in the agent's
    private /tmp.
    """
    root = os.path.realpath(scope.root)
    targets = [mount.target for mount in mounts if mount.source]
    if (
        root != TMP
        and is_under_tmp(root)
        and not _is_within(root, targets)
        and any(_is_within(target, (root,)) for target in targets)
    ):
        yield Mount(kind=MountKind.MOUNT_PARENT, target=root)


def _closed_system_paths(scope: Scope) -> Iterator[str]:
    """Yield the paths inside the system's folders that the scope closes by their full name.

    The system's folders themselves are visible to every command.
    """
    ceiling_patterns = tuple(pattern for ceiling in scope.ceilings for pattern in ceiling.deny)
    for pattern in (*scope.deny, *scope.retinue_paths, *ceiling_patterns):
        path = "/" + "/".join(literal_components(pattern))
        is_exact = _is_tree_pattern(pattern) or unescape_component(pattern) is not None
        if (
            is_exact
            and path not in SYSTEM_FOLDERS
            and _is_within(path, SYSTEM_FOLDERS)
            and os.path.lexists(path)
        ):
            yield os.path.realpath(path)


def _mask_kind(path: str) -> MountKind:
    return MountKind.MASKED_FOLDER if os.path.isdir(path) else MountKind.MASKED_FILE  # noqa: PTH112


def _mounts_against_renaming(mounts: list[Mount], writable: tuple[str, ...], tmp: str) -> list[Mount]:
    """Bind-mount each writable folder that contains a mount onto itself, so that it cannot be renamed.

    A closed path in a renamed folder would be open to the next command.
    """
    targets = {mount.target for mount in mounts}
    folder_targets = tuple(
        mount.target
        for mount in mounts
        if mount.kind in _NEW_FOLDER_KINDS or os.path.isdir(mount.source)  # noqa: PTH112
    )
    mount_parents = tuple(mount.target for mount in mounts if mount.kind in _NEW_FOLDER_KINDS)
    found: dict[str, Mount] = {}
    for mount in mounts:
        tops = [
            top
            for top in (*writable, *((TMP,) if tmp else ()))
            if _is_within(mount.target, (top,)) and mount.target != top
        ]
        for top in tops:
            parents = mount.target[len(top) + 1 :].split("/")[:-1]
            for count in range(1, len(parents) + 1):
                relative = "/".join(parents[:count])
                folder = f"{top}/{relative}"
                if (
                    folder not in targets
                    and not _is_machine_tmp(folder, top, folder_targets)
                    and not _is_in_mount_parent(folder, top, mount_parents)
                ):
                    source = f"{tmp}/{relative}" if top == TMP and tmp else folder
                    found[folder] = Mount(
                        kind=_kind_of_outer_mount(folder, mounts), target=folder, source=source
                    )
    return list(found.values())


def _kind_of_outer_mount(folder: str, mounts: list[Mount]) -> MountKind:
    """Return whether the innermost mount around a folder lets a command write there."""
    outer = [mount for mount in mounts if _is_within(folder, (mount.target,))]
    innermost = max(outer, key=lambda mount: len(mount.target), default=None)
    return MountKind.READ if innermost is not None and innermost.kind is MountKind.READ else MountKind.WRITE


def _is_machine_tmp(path: str, top: str, folder_targets: tuple[str, ...]) -> bool:
    """Return whether a folder below /tmp belongs to the machine, not to the agent's private /tmp."""
    return top == TMP and TMP not in folder_targets and _is_within(path, folder_targets)


def _is_in_mount_parent(path: str, top: str, mount_parents: tuple[str, ...]) -> bool:
    """Return whether a path is in a mount parent or scratch folder.

    Nothing of the machine can be renamed there, and the machine's folder of that name is closed.
    """
    return any(
        _is_within(path, (parent,)) and parent != top and _is_within(parent, (top,))
        for parent in mount_parents
    )


def _sorted_mounts(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Sort outer paths before inner ones; the later of two mounts of the same path wins."""
    by_target = {mount.target: mount for mount in mounts}
    return tuple(by_target[target] for target in sorted(by_target, key=_path_parts))


def _path_parts(path: str) -> list[str]:
    return path.split("/")


def _initial_folder(scope: Scope, mounts: list[Mount]) -> str:
    """Return the workspace if any part of it is mounted, else /tmp."""
    root = os.path.realpath(scope.root)
    has_workspace = any(
        _is_within(root, (mount.target,)) or _is_within(mount.target, (root,))
        for mount in mounts
        if mount.source
    )
    return root if has_workspace else TMP


def _is_link(path: str, closed_paths: ClosedPaths) -> bool:
    return closed_paths[path] in (PathKind.LINK, PathKind.PROTECTED) and os.path.islink(path)  # noqa: PTH114


def _outermost_folders(folders: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(folders)
    return tuple(
        folder
        for folder in ordered
        if not any(other != folder and _is_within(folder, (other,)) for other in ordered)
    )


def _is_within(path: str, folders: Iterable[str]) -> bool:
    """Compare as text: all arguments are real paths."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
