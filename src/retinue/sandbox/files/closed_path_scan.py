"""Scan folders for closed paths, by name alone, so that thousands of files cost little."""

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct, field

from retinue.domain.glob import compile_glob
from retinue.domain.permissions import git_paths
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs, unescape_component
from retinue.errors import Failed
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.files.pattern_roots import is_readable

MAX_SCANNED_NAMES = 200_000
MAX_PATH_BYTES = 3_584
"""Folders with longer paths are not entered: the kernel refuses 4,096 bytes, and the names inside are added to this."""

_GONE_ERRORS = frozenset({errno.ENOENT, errno.ENOTDIR})
_TRAILING_GLOBSTARS = re.compile(r"(?:/\*\*)+\Z")
_RELIABLE_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
)
_STABLE_AFTER_NS = 3_000_000_000
"""Nanoseconds: longer than the coarsest clock of these file systems."""
_MAX_CACHED_FOLDERS = 50_000
_MATCH_NOTHING = re.compile(r"(?!)")


class _Candidates(Enum):
    """Which entries of a folder are recorded, besides those whose names a pattern may match."""

    NONE = "none"
    LINKS = "links"
    """In a folder of git's references: git writes through links there."""
    ALL = "all"


class PathKind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    """A link at a closed name; its target is judged separately."""
    PROTECTED = "pointer"
    """Readable for a command, never writable.

    A file that other programs act on, or a `.git` that is not a folder.
    """
    PIPE = "pipe"
    """A pipe, or another special file on which a reader may block."""
    UNREADABLE = "dark"
    """A folder that cannot be read: its content is unknown."""


ClosedPaths = Mapping[str, PathKind]
"""Closed paths found, by real path."""


class FolderScan(Struct, frozen=True, kw_only=True):
    """Relevant content of one folder, valid while its stamp is unchanged."""

    stamp: tuple[int, ...]
    name_count: int
    folders: tuple[str, ...]
    candidates: tuple[tuple[str, PathKind], ...]
    """Names that some pattern may match; the scope decides."""
    pipes: tuple[str, ...]
    joined_files: str
    """All its file names in one string, because thousands of folders are cached."""
    is_repository: bool
    """Whether git accepts the folder as a repository."""
    is_stable: bool
    """Whether an equal stamp means equal names: old enough, and on a reliable file system."""

    def file_names(self) -> list[str]:
        return self.joined_files.split("/") if self.joined_files else []


class ScanResult(Struct, frozen=True, kw_only=True):
    """Result of one scan."""

    closed_paths: ClosedPaths
    folders: Mapping[str, FolderScan]
    """Folders that were entered, by real path."""
    repositories: tuple[str, ...]
    """Git folders, whatever their names; not those that git itself keeps inside another."""


class NameFilter(Struct, frozen=True, kw_only=True):
    """Names worth checking: the last components of all patterns that close or deny."""

    names: frozenset[str]
    pattern: re.Pattern[str]
    scans: dict[tuple[str, _Candidates], FolderScan] = field(
        default_factory=dict[tuple[str, _Candidates], FolderScan]
    )
    """Scans of folders, so that only changed folders are read again."""

    def may_match(self, name: str) -> bool:
        return not name.isascii() or name.lower() in self.names or self.pattern.match(name) is not None


def find_closed_paths(
    scope: Scope, trees: Iterable[str], *, limit: int = MAX_SCANNED_NAMES, fail_on_races: bool = True
) -> ClosedPaths:
    """Find every path below these folders that the scope closes or guards.

    Closed folders are not entered, links are not followed. Raises Failed beyond the limit. With
    `fail_on_races` also when a folder is replaced by a link meanwhile: its content may be anywhere.
    """
    return scan_closed_paths(scope, trees, limit=limit, fail_on_races=fail_on_races).closed_paths


def scan_closed_paths(
    scope: Scope, trees: Iterable[str], *, limit: int = MAX_SCANNED_NAMES, fail_on_races: bool = True
) -> ScanResult:
    """Find closed paths and return the scanned folders too, so that callers need not walk them again."""
    found: dict[str, PathKind] = {}
    repositories: list[str] = []
    scans = _scan_trees(scope, trees, found, repositories, limit=limit, fail_on_races=fail_on_races)
    return ScanResult(folders=dict(scans), closed_paths=found, repositories=tuple(repositories))


class _PendingFolder(NamedTuple):
    """A folder to scan."""

    path: str
    repository: str = ""
    """The git folder that contains it; empty outside of one."""

    @property
    def relative(self) -> str:
        """Path of this folder inside the git folder."""
        return self.path[len(self.repository) + 1 :]

    @property
    def is_managed_by_git(self) -> bool:
        """Return whether this is a git folder, or one that git itself keeps inside another."""
        return self.path == self.repository or (
            bool(self.repository) and git_paths.holds_repositories(self.relative)
        )

    @property
    def candidates(self) -> _Candidates:
        if not self.repository:
            return _Candidates.NONE
        if git_paths.holds_references(self.relative):
            return _Candidates.LINKS
        return _Candidates.ALL if git_paths.is_mixed_folder(self.relative) else _Candidates.NONE

    def child(self, name: str) -> "_PendingFolder":
        path = f"{self.path}/{name}"
        if not self.repository:
            return _PendingFolder(path, path if git_paths.is_git_folder_name(name) else "")
        relative = path[len(self.repository) + 1 :]
        is_inside = (
            git_paths.is_git_folder_name(self.repository.rpartition("/")[2])
            or git_paths.is_control_path(relative)
            or git_paths.is_live(relative, is_folder=True)
        )
        return _PendingFolder(path, self.repository) if is_inside else _PendingFolder(path)


def _scan_trees(
    scope: Scope,
    trees: Iterable[str],
    found: dict[str, PathKind],
    repositories: list[str],
    *,
    limit: int,
    fail_on_races: bool,
) -> Iterator[tuple[str, FolderScan]]:
    """Scan the trees; yield each entered folder and add closed paths to `found`."""
    name_filter = build_name_filter(_closing_patterns(scope))
    reliable_devices = _reliable_devices()
    remaining = limit
    for tree in trees:
        pending = [_PendingFolder(tree, _enclosing_repository(scope, tree))]
        while pending:
            folder = pending.pop()
            if folder.path == scope.git_dir:
                folder = _PendingFolder(folder.path, folder.path)
            try:
                scan = _cached_scan(folder.path, name_filter, reliable_devices, folder.candidates)
                if scan.is_repository and not folder.is_managed_by_git:
                    folder = _PendingFolder(folder.path, folder.path)
                    scan = _cached_scan(folder.path, name_filter, reliable_devices, folder.candidates)
            except OSError as error:
                if error.errno == errno.ELOOP and fail_on_races:
                    raise Failed(
                        f"{printable_path(folder.path)} was moved while the sandbox was being built. Try again"
                    ) from error
                if error.errno not in (*_GONE_ERRORS, errno.ELOOP):
                    found[folder.path] = PathKind.UNREADABLE
                continue
            remaining -= scan.name_count
            if remaining < 0:
                raise Failed(
                    f"{printable_path(tree)} contains more than {limit:,} files and folders: too many to scan for closed "
                    "paths. Use a smaller folder as workspace"
                )
            if folder.path == folder.repository:
                repositories.append(folder.path)
            pending += [folder.child(name) for name in scan.folders]
            pending += _classify_entries(scope, folder, scan, found)
            yield folder.path, scan


def _enclosing_repository(scope: Scope, tree: str) -> str:
    """Return the git folder that contains a path: that of the scope's own worktree, or the outermost `.git`."""
    for own_folder in filter(None, (scope.git_dir, scope.common_git_dir)):
        if f"{tree}/".startswith(f"{own_folder}/"):
            return own_folder
    parts = tree.split("/")
    depth = next((n for n, part in enumerate(parts, 1) if git_paths.is_git_folder_name(part)), 0)
    return "/".join(parts[:depth])


def _classify_entries(
    scope: Scope, folder: _PendingFolder, scan: FolderScan, found: dict[str, PathKind]
) -> list[_PendingFolder]:
    """Add closed paths to `found`; return the candidate folders that may be entered after all."""
    folders: list[_PendingFolder] = []
    for name in scan.pipes:
        found[f"{folder.path}/{name}"] = PathKind.PIPE
    for name, kind in scan.candidates:
        path = f"{folder.path}/{name}"
        if not is_readable(scope, path):
            found[path] = kind
            continue
        if kind is PathKind.FOLDER:
            folders.append(folder.child(name))
        if folder.repository:
            if (guarded_kind := _guarded_git_kind(scope, folder, path, kind, found)) is not None:
                found[path] = guarded_kind
        elif scope.is_guarded(path) and not (kind is PathKind.FOLDER and git_paths.is_git_folder_name(name)):
            found[path] = PathKind.PROTECTED
    return folders


def _guarded_git_kind(
    scope: Scope, folder: _PendingFolder, path: str, kind: PathKind, found: Mapping[str, PathKind]
) -> PathKind | None:
    """Return how a path in a git folder is guarded; None if a command may write it.

    What is in a protected folder is protected with it.
    """
    has_git_name = git_paths.is_git_folder_name(folder.repository.rpartition("/")[2])
    relative = path[len(folder.repository) + 1 :]
    if not (scope.is_guarded(path) if has_git_name else scope.guards_repository(folder.repository)):
        return None
    if git_paths.is_moved_aside(relative) and not git_paths.holds_references(relative):
        return None
    if kind is PathKind.LINK and git_paths.holds_references(relative):
        return PathKind.LINK
    if kind is not PathKind.LINK and git_paths.is_live(relative, is_folder=kind is PathKind.FOLDER):
        return None
    is_obeyed = has_git_name or folder.repository == scope.git_dir or git_paths.is_git_path(relative)
    return PathKind.PROTECTED if is_obeyed and found.get(folder.path) is not PathKind.PROTECTED else None


def _cached_scan(
    folder: str, name_filter: NameFilter, reliable_devices: frozenset[int], candidates: _Candidates
) -> FolderScan:
    """Return the cached scan while the folder's stamp is unchanged.

    The ctime in the stamp is set by the kernel: no program can set it back. A folder that changed a moment
    ago may change again within the same clock tick and is not cached.
    """
    if is_path_too_long(folder):
        raise OSError(errno.ENAMETOOLONG, "the path is too long")
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "the folder was replaced by a link")
    stamp = folder_stamp(status)
    key = (folder, candidates)
    cached = name_filter.scans.get(key)
    if cached is not None and cached.stamp == stamp:
        return cached
    now = time.time_ns()
    is_stable = status.st_dev in reliable_devices and status.st_ctime_ns < now - _STABLE_AFTER_NS
    scan = _scan_folder(folder, name_filter, stamp, candidates, is_stable=is_stable)
    if is_stable:
        if len(name_filter.scans) >= _MAX_CACHED_FOLDERS:
            name_filter.scans.clear()
        name_filter.scans[key] = scan
    return scan


def is_path_too_long(path: str) -> bool:
    return len(os.fsencode(path)) > MAX_PATH_BYTES


def folder_stamp(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_dev,
        status.st_ino,
        status.st_ctime_ns,
        status.st_mtime_ns,
        status.st_nlink,
        status.st_size,
    )


def _scan_folder(
    folder: str, name_filter: NameFilter, stamp: tuple[int, ...], recorded: _Candidates, *, is_stable: bool
) -> FolderScan:
    exact_names, matches_pattern = name_filter.names, name_filter.pattern.match
    all_names, all_links = recorded is _Candidates.ALL, recorded is _Candidates.LINKS
    markers: set[str] = set()
    folders: list[str] = []
    candidates: list[tuple[str, PathKind]] = []
    pipes: list[str] = []
    files: list[str] = []
    name_count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            name_count += 1
            name = entry.name
            is_file = entry.is_file(follow_symlinks=False)
            if is_file:
                files.append(name)
            if name in git_paths.REPOSITORY_MARKERS:
                markers.add(name)
            if (
                (all_names and (is_file or entry.is_dir(follow_symlinks=False) or entry.is_symlink()))
                or not name.isascii()
                or name.lower() in exact_names
                or matches_pattern(name)
            ):
                candidates.append((name, _entry_kind(entry)))
            elif all_links and entry.is_symlink():
                candidates.append((name, PathKind.LINK))
            elif not is_file and entry.is_dir(follow_symlinks=False):
                folders.append(name)
            elif not is_file and not entry.is_symlink():
                pipes.append(name)
    return FolderScan(
        stamp=stamp,
        name_count=name_count,
        folders=tuple(folders),
        candidates=tuple(candidates),
        pipes=tuple(pipes),
        joined_files="/".join(files),
        is_repository=git_paths.is_repository(markers),
        is_stable=is_stable,
    )


def _entry_kind(entry: "os.DirEntry[str]") -> PathKind:
    if entry.is_symlink():
        return PathKind.LINK
    return PathKind.FOLDER if entry.is_dir(follow_symlinks=False) else PathKind.FILE


def _reliable_devices() -> frozenset[int]:
    """Return the devices of file systems with reliable change times."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123
        mounts = [line.split() for line in lines]
    return frozenset(
        os.makedev(*map(int, one[2].split(":")))
        for one in mounts
        if one[one.index("-") + 1] in _RELIABLE_FILE_SYSTEMS
    )


def _closing_patterns(scope: Scope) -> Globs:
    """Return every pattern that closes or denies: only a hint, the scope itself decides."""
    ceiling_patterns = tuple(pattern for ceiling in scope.ceilings for pattern in ceiling.deny)
    return (*scope.closed_paths, *scope.deny, *scope.retinue_paths, *scope.guarded_paths, *ceiling_patterns)


@lru_cache(maxsize=256)
def build_name_filter(patterns: Globs) -> NameFilter:
    """Build the name filter of these patterns.

    `X/**` closes from X on, so X is the name to look for. A name that is all glob makes every name a
    candidate.
    """
    names, globs = {git_paths.GIT_FOLDER}, set[str]()
    for pattern in patterns:
        last = _TRAILING_GLOBSTARS.sub("", pattern).rpartition("/")[2]
        literal_name = unescape_component(last)
        if "]" in last and "[" in pattern[: -len(last)]:
            globs.add("*")  # the bracket expression may have begun before the slash
        elif literal_name is not None:
            names.add(literal_name.lower())
        else:
            suffix = last.rpartition("**")[2]  # the part before may match a parent folder
            globs.add(suffix if suffix == last else f"*{suffix}")
    if not globs:
        return NameFilter(names=frozenset(names), pattern=_MATCH_NOTHING)
    alternatives = "|".join(f"(?:{compile_glob(one, ignore_case=True).pattern})" for one in sorted(globs))
    return NameFilter(names=frozenset(names), pattern=re.compile(alternatives, re.DOTALL | re.IGNORECASE))
