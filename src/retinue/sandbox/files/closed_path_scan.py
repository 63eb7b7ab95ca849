"""Scan folders for closed paths, by name alone, so that thousands of files cost little."""

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache

from msgspec import Struct, field

from retinue.domain.glob import compile_glob
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs, unescape_component
from retinue.errors import Failed
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.files.pattern_roots import is_readable

MAX_SCANNED_NAMES = 200_000

_GIT = ".git"
_GONE_ERRORS = frozenset({errno.ENOENT, errno.ENOTDIR})
_TRAILING_GLOBSTARS = re.compile(r"(?:/\*\*)+\Z")
_RELIABLE_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
)
_STABLE_AFTER_NS = 3_000_000_000
"""Nanoseconds: longer than the coarsest clock of these file systems."""
_MAX_CACHED_FOLDERS = 50_000
_MATCH_NOTHING = re.compile(r"(?!)")


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
    is_stable: bool
    """Whether an equal stamp means equal names: old enough, and on a reliable file system."""

    def file_names(self) -> list[str]:
        return self.joined_files.split("/") if self.joined_files else []


class ScanResult(Struct, frozen=True, kw_only=True):
    """Result of one scan."""

    closed_paths: ClosedPaths
    folders: Mapping[str, FolderScan]
    """Folders that were entered, by real path."""


class NameFilter(Struct, frozen=True, kw_only=True):
    """Names worth checking: the last components of all patterns that close or deny."""

    names: frozenset[str]
    pattern: re.Pattern[str]
    scans: dict[str, FolderScan] = field(default_factory=dict[str, FolderScan])
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
    found: dict[str, PathKind] = {}
    for _ in _scan_trees(scope, trees, found, limit=limit, fail_on_races=fail_on_races):
        pass
    return found


def scan_closed_paths(scope: Scope, trees: Iterable[str]) -> ScanResult:
    """Find closed paths and return the scanned folders too, so that callers need not walk them again."""
    found: dict[str, PathKind] = {}
    folders = dict(_scan_trees(scope, trees, found, limit=MAX_SCANNED_NAMES, fail_on_races=True))
    return ScanResult(closed_paths=found, folders=folders)


def _scan_trees(
    scope: Scope, trees: Iterable[str], found: dict[str, PathKind], *, limit: int, fail_on_races: bool
) -> Iterator[tuple[str, FolderScan]]:
    """Scan the trees; yield each entered folder and add closed paths to `found`."""
    name_filter = build_name_filter(_closing_patterns(scope))
    reliable_devices = _reliable_devices()
    remaining = limit
    for tree in trees:
        pending = [tree]
        while pending:
            folder = pending.pop()
            try:
                scan = _cached_scan(folder, name_filter, reliable_devices)
            except OSError as error:
                if error.errno == errno.ELOOP and fail_on_races:
                    raise Failed(
                        f"{printable_path(folder)} was moved while the sandbox was being built. Try again"
                    ) from error
                if error.errno not in (*_GONE_ERRORS, errno.ELOOP):
                    found[folder] = PathKind.UNREADABLE
                continue
            remaining -= scan.name_count
            if remaining < 0:
                raise Failed(
                    f"{printable_path(tree)} contains more than {limit:,} files and folders: too many to scan for closed "
                    "paths. Use a smaller folder as workspace"
                )
            pending += [f"{folder}/{name}" for name in scan.folders]
            pending += _classify_entries(scope, folder, scan, found)
            yield folder, scan


def _classify_entries(scope: Scope, folder: str, scan: FolderScan, found: dict[str, PathKind]) -> list[str]:
    """Add closed paths to `found`; return the candidate folders that may be entered after all."""
    folders: list[str] = []
    for name in scan.pipes:
        found[f"{folder}/{name}"] = PathKind.PIPE
    for name, kind in scan.candidates:
        path = f"{folder}/{name}"
        if not is_readable(scope, path):
            found[path] = kind
            continue
        if kind is PathKind.FOLDER:
            folders.append(path)
        if scope.is_guarded(path) and not (kind is PathKind.FOLDER and name.lower() == _GIT):
            found[path] = PathKind.PROTECTED
    return folders


def _cached_scan(folder: str, name_filter: NameFilter, reliable_devices: frozenset[int]) -> FolderScan:
    """Return the cached scan while the folder's stamp is unchanged.

    The ctime in the stamp is set by the kernel: no program can set it back. A folder that changed a moment
    ago may change again within the same clock tick and is not cached.
    """
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "the folder was replaced by a link")
    stamp = folder_stamp(status)
    cached = name_filter.scans.get(folder)
    if cached is not None and cached.stamp == stamp:
        return cached
    now = time.time_ns()
    is_stable = status.st_dev in reliable_devices and status.st_ctime_ns < now - _STABLE_AFTER_NS
    scan = _scan_folder(folder, name_filter, stamp, is_stable=is_stable)
    if is_stable:
        if len(name_filter.scans) >= _MAX_CACHED_FOLDERS:
            name_filter.scans.clear()
        name_filter.scans[folder] = scan
    return scan


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
    folder: str, name_filter: NameFilter, stamp: tuple[int, ...], *, is_stable: bool
) -> FolderScan:
    exact_names, matches_pattern = name_filter.names, name_filter.pattern.match
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
            if not name.isascii() or name.lower() in exact_names or matches_pattern(name):
                candidates.append((name, _entry_kind(entry)))
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
    names, globs = {_GIT}, set[str]()
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
