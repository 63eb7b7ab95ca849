"""A look through folders for what a command must not reach: found by name alone, so that thousands of files cost little."""

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from functools import lru_cache

from retinue.domain.glob import compiled
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs, unescaped
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.sandbox.files.messages import shown
from retinue.sandbox.files.pattern_roots import is_readable

MAX_NAMES = 200_000

_GIT = ".git"
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
_TAIL = re.compile(r"(?:/\*\*)+\Z")
_RELIABLE = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"})
_SETTLED = 3_000_000_000
"""Nanoseconds: longer than the coarsest clock of these file systems."""
_REMEMBERED = 50_000
_NEVER = re.compile(r"(?!)")


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    """A link at a closed name: where it leads is another file's business."""
    POINTER = "pointer"
    """What other programs obey, or a `.git` that is no folder: readable, never to be changed by a command."""
    PIPE = "pipe"
    """A pipe, or something else that whoever opens it may wait for."""
    DARK = "dark"
    """A folder that cannot be looked into: what is in it is not known."""


Sight = Mapping[str, Kind]
"""What was found, by real path."""


@value
class Held:
    """What one folder holds of interest. True as long as its stamp is."""

    stamp: tuple[int, ...]
    count: int
    folders: tuple[str, ...]
    doubtful: tuple[tuple[str, Kind], ...]
    """Names that some pattern may mean: the scope is asked each time."""
    pipes: tuple[str, ...]
    written: str
    """All its files, in one string: thousands of folders are remembered."""
    settled: bool
    """Whether the same stamp means the same names: it is old enough, and of a file system that can be relied on."""

    def files(self) -> list[str]:
        return self.written.split("/") if self.written else []


@value
class Look:
    """All that one walk learned."""

    sight: Sight
    folders: Mapping[str, Held]
    """Those that were entered, by real path."""


@value
class Names:
    """Which names are worth a judgement: the last components of all patterns that close or deny."""

    words: frozenset[str]
    wild: re.Pattern[str]
    seen: dict[str, Held] = field(default_factory=dict[str, Held])
    """Folders already looked at, so that only those that changed are read again."""

    def means(self, name: str) -> bool:
        return not name.isascii() or name.lower() in self.words or self.wild.match(name) is not None


def survey(scope: Scope, trees: Iterable[str], *, limit: int = MAX_NAMES, calm: bool = True) -> Sight:
    """Every place below these folders that the scope closes, and what else must be watched. Closed folders are not
    entered, links not followed. Failed when there is more to look at than the limit; and, if it is to be calm there,
    when somebody exchanges a folder for a link meanwhile: what was in it may be anywhere."""
    found: dict[str, Kind] = {}
    for _ in _walked(scope, trees, found, limit=limit, calm=calm):
        pass
    return found


def looked(scope: Scope, trees: Iterable[str]) -> Look:
    """The same, and all that was seen on the way: who asks more of each file need not walk again."""
    found: dict[str, Kind] = {}
    folders = dict(_walked(scope, trees, found, limit=MAX_NAMES, calm=True))
    return Look(sight=found, folders=folders)


def _walked(
    scope: Scope, trees: Iterable[str], found: dict[str, Kind], *, limit: int, calm: bool
) -> Iterator[tuple[str, Held]]:
    """Each folder that is entered. What is closed is added to what was found."""
    names = worth(_closing(scope))
    steady = _steady()
    left = limit
    for top in trees:
        pending = [top]
        while pending:
            folder = pending.pop()
            try:
                held = _looked_into(folder, names, steady)
            except OSError as error:
                if error.errno == errno.ELOOP and calm:
                    raise Failed(
                        f"{shown(folder)} was being moved while a command was made ready: try again"
                    ) from error
                if error.errno not in (*_GONE, errno.ELOOP):
                    found[folder] = Kind.DARK
                continue
            left -= held.count
            if left < 0:
                raise Failed(
                    f"{shown(top)} holds more than {limit:,} names, too many to look through for what is closed: "
                    "let the agent work in a smaller folder"
                )
            pending += [f"{folder}/{name}" for name in held.folders]
            pending += _judged(scope, folder, held, found)
            yield folder, held


def _judged(scope: Scope, folder: str, held: Held, found: dict[str, Kind]) -> list[str]:
    """Adds to what was found; gives the folders of doubtful names that may be entered after all."""
    enter: list[str] = []
    for name in held.pipes:
        found[f"{folder}/{name}"] = Kind.PIPE
    for name, kind in held.doubtful:
        path = f"{folder}/{name}"
        if not is_readable(scope, path):
            found[path] = kind
            continue
        if kind is Kind.FOLDER:
            enter.append(path)
        if scope.guards(path) and not (kind is Kind.FOLDER and name.lower() == _GIT):
            found[path] = Kind.POINTER
    return enter


def _looked_into(folder: str, names: Names, steady: frozenset[int]) -> Held:
    """From memory while the folder's stamp is the same. The time of change in it is the kernel's own: no program can
    set it back. A folder that changed a moment ago may change again within the same tick, and is not remembered."""
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a link stands where a folder was")
    stamp = stamp_of(status)
    known = names.seen.get(folder)
    if known is not None and known.stamp == stamp:
        return known
    now = time.time_ns()
    settled = status.st_dev in steady and status.st_ctime_ns < now - _SETTLED
    held = _read(folder, names, stamp, settled=settled)
    if settled:
        if len(names.seen) >= _REMEMBERED:
            names.seen.clear()
        names.seen[folder] = held
    return held


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_dev,
        status.st_ino,
        status.st_ctime_ns,
        status.st_mtime_ns,
        status.st_nlink,
        status.st_size,
    )


def _read(folder: str, names: Names, stamp: tuple[int, ...], *, settled: bool) -> Held:
    words, wild = names.words, names.wild.match
    folders: list[str] = []
    doubtful: list[tuple[str, Kind]] = []
    pipes: list[str] = []
    files: list[str] = []
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            count += 1
            name = entry.name
            is_file = entry.is_file(follow_symlinks=False)
            if is_file:
                files.append(name)
            if not name.isascii() or name.lower() in words or wild(name):
                doubtful.append((name, _kind(entry)))
            elif not is_file and entry.is_dir(follow_symlinks=False):
                folders.append(name)
            elif not is_file and not entry.is_symlink():
                pipes.append(name)
    return Held(
        stamp=stamp,
        count=count,
        folders=tuple(folders),
        doubtful=tuple(doubtful),
        pipes=tuple(pipes),
        written="/".join(files),
        settled=settled,
    )


def _kind(entry: "os.DirEntry[str]") -> Kind:
    if entry.is_symlink():
        return Kind.LINK
    return Kind.FOLDER if entry.is_dir(follow_symlinks=False) else Kind.FILE


def _steady() -> frozenset[int]:
    """The devices of file systems whose times of change can be relied on."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123
        found = [line.split() for line in lines]
    return frozenset(
        os.makedev(*map(int, one[2].split(":"))) for one in found if one[one.index("-") + 1] in _RELIABLE
    )


def _closing(scope: Scope) -> Globs:
    """Every pattern that takes away. They only say where to look: the scope itself is asked."""
    above = tuple(pattern for ceiling in scope.ceilings for pattern in ceiling.deny)
    return (*scope.closed, *scope.deny, *scope.house, *scope.guarded, *above)


@lru_cache(maxsize=256)
def worth(patterns: Globs) -> Names:
    """`X/**` closes from X on, so X is the name to look for. A name that is all glob makes every name worth a look."""
    words, wild = {_GIT}, set[str]()
    for pattern in patterns:
        last = _TAIL.sub("", pattern).rpartition("/")[2]
        plain = unescaped(last)
        if "]" in last and "[" in pattern[: -len(last)]:
            wild.add("*")  # the bracket may have begun before the slash
        elif plain is not None:
            words.add(plain.lower())
        else:
            end = last.rpartition("**")[2]  # what stands before may be in a folder above
            wild.add(end if end == last else f"*{end}")
    if not wild:
        return Names(words=frozenset(words), wild=_NEVER)
    each = "|".join(f"(?:{compiled(one, ignore_case=True).pattern})" for one in sorted(wild))
    return Names(words=frozenset(words), wild=re.compile(each, re.DOTALL | re.IGNORECASE))
