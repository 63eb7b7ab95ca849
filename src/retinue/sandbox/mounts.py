"""What a command finds where: the folders and files of a scope, and what is laid over the places it closes."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum

from retinue.domain.agent import Paths
from retinue.domain.ceiling import Ceiling, Wish
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs, named, unescaped
from retinue.domain.tmp_paths import TMP, inside
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.sandbox.files.closed_path_scan import Held, Kind, Look, Sight, looked
from retinue.sandbox.files.hardlinks import denies, known_elsewhere, may_be_denied
from retinue.sandbox.files.messages import shown
from retinue.sandbox.files.pattern_roots import reach

MAX_FILES = 256
"""Single files that patterns other than `folder/**` may bring in."""
MAX_LOOKED = 20_000
MAX_COVERS = 1_000

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

_GITS_OWN = re.compile(r"/\.git/(?:.*/)?(?:config|hooks)\Z", re.IGNORECASE | re.DOTALL)
"""Git fails over a configuration that it may not read, and lives with an empty one."""


class How(Enum):
    READ = "read"
    WRITE = "write"
    SEALED_FILE = "sealed file"
    """There, and cannot be opened."""
    SEALED_FOLDER = "sealed folder"
    BLANK_FILE = "blank file"
    """There, and empty."""
    BLANK_FOLDER = "blank folder"
    FRAME = "frame"
    """A folder that holds what is laid in it, and takes nothing else."""


_COVERS = {
    (Kind.FILE, False): How.SEALED_FILE,
    (Kind.FILE, True): How.BLANK_FILE,
    (Kind.FOLDER, False): How.SEALED_FOLDER,
    (Kind.FOLDER, True): How.BLANK_FOLDER,
    (Kind.DARK, False): How.SEALED_FOLDER,
    (Kind.DARK, True): How.SEALED_FOLDER,
}


@value
class Mount:
    how: How
    at: str
    """Where the command finds it."""
    source: str = ""
    """The real place; empty for a cover."""


@value
class Plan:
    """In the order in which they are to be mounted."""

    mounts: tuple[Mount, ...]
    tmp: str
    """The real folder behind /tmp; empty: /tmp lasts only as long as the command."""
    cwd: str
    writable: tuple[str, ...]
    """The folders that a command may change, to be looked through again afterwards; the agent's own /tmp is not one."""
    sight: Sight
    """What was found closed before the command."""
    links: dict[str, str]
    """Closed names that are links, and where they led: nothing can be laid over a link."""
    folders: Mapping[str, Held]
    """All that were entered to find it."""
    notes: tuple[str, ...] = ()


def planned(scope: Scope) -> Plan:
    """Reads the machine's folders, changes nothing."""
    tmp = scope.tmp if scope.private(TMP) and scope.path(TMP, "write").ok else ""
    trees = _trees(scope)
    writable = _outermost(tree for tree, may in trees.items() if may)
    shelves = _shelves(scope, trees)
    look = looked(scope, (*_outermost(trees), *shelves))
    sight = look.sight
    files, notes = _single(scope, trees)
    links = {path: os.readlink(path) for path in sight if _is_link(path, sight) and _within(path, writable)}  # noqa: PTH115
    mounts = [Mount(how=How.WRITE if may else How.READ, at=one, source=one) for one, may in trees.items()]
    mounts += files
    mounts += [Mount(how=How.READ, at=one, source=one) for one in shelves]
    mounts += _guarded(sight, links, writable)
    mounts += _linked(scope, (*_outermost(trees), *shelves) if denies(scope) else writable, look)
    mounts += _covers(sight, shelves)
    mounts += [Mount(how=_sealing(place), at=place) for place in _closed_of_the_system(scope)]
    mounts += _frame(scope, mounts)
    mounts += _pins(mounts, writable, tmp)
    if len(mounts) > MAX_COVERS:
        raise Failed(
            f"{shown(scope.root)} holds more than {MAX_COVERS:,} closed places, files that have names elsewhere (hard "
            "links) and folders around them, too many to hide from a command: deny the folders that hold them"
        )
    return Plan(
        mounts=_ordered(mounts),
        tmp=tmp,
        cwd=_start(scope, mounts),
        writable=writable,
        sight=sight,
        links=links,
        folders=look.folders,
        notes=notes,
    )


def _trees(scope: Scope) -> dict[str, bool]:
    """Real folders that may be read with all that is in them but what is closed, and whether they may be written. The
    scope is asked with none but its `folder/**` patterns, so that a yes is a yes for the whole folder. `/**` brings
    in no more than the workspace."""
    whole = replace(
        scope,
        read=_only_trees(scope.read),
        write=_only_trees(scope.write),
        ceilings=tuple(_only_whole(each) for each in scope.ceilings),
        lifted=Paths(read=_only_trees(scope.lifted.read or ()), write=_only_trees(scope.lifted.write or ())),
    )
    above = tuple(pattern for each in whole.ceilings for pattern in (*(each.read or ()), *(each.write or ())))
    named_ones = {"/" + "/".join(named(pattern)) for pattern in (*whole.read, *whole.write, *above)}
    found: dict[str, bool] = {}
    for anchor in sorted(named_ones | {scope.root}):
        real = os.path.realpath(anchor)
        if real == "/" or scope.private(real) or whole.private(real) or not os.path.isdir(real):  # noqa: PTH112
            continue
        if whole.path(real, "read").ok:
            found[real] = whole.path(real, "write").ok
    return {one: may for one, may in found.items() if not _said_already(one, may, found)}


def _shelves(scope: Scope, trees: dict[str, bool]) -> tuple[str, ...]:
    """Folders of skills that no tree brings in: they are elsewhere, or alone are open in a place that is closed."""
    return tuple(
        each.folder
        for each in scope.shelf
        if (not _within(each.folder, trees) or scope.shut(os.path.dirname(each.folder)))  # noqa: PTH120
        and scope.path(each.folder).ok
        and os.path.isdir(each.folder)  # noqa: PTH112
    )


def _said_already(one: str, may: bool, found: dict[str, bool]) -> bool:
    return any(other != one and _within(one, (other,)) and (kind or not may) for other, kind in found.items())


def _only_trees(patterns: Globs) -> Globs:
    return tuple(pattern for pattern in patterns if _is_tree(pattern))


def _only_whole(ceiling: Ceiling) -> Ceiling:
    return replace(
        ceiling,
        read=None if ceiling.read is None else _only_trees(ceiling.read),
        write=None if ceiling.write is None else _only_trees(ceiling.write),
    )


def _is_tree(pattern: str) -> bool:
    """A folder by its name, and everything in it."""
    parts = pattern.split("/")
    while parts and parts[-1] == "**":
        parts.pop()
    return len(parts) < len(pattern.split("/")) and all(unescaped(part) is not None for part in parts)


def _single(scope: Scope, trees: dict[str, bool]) -> tuple[list[Mount], tuple[str, ...]]:
    """Files that stand in the scope by themselves, or by a pattern that is no whole folder."""
    found: dict[str, Mount] = {}
    hows: tuple[tuple[Wish, How, Globs], ...] = (
        ("read", How.READ, scope.read),
        ("write", How.WRITE, scope.write),
    )
    for wish, how, patterns in hows:
        already = _outermost(tree for tree, may in trees.items() if may or wish == "read")
        for pattern in patterns:
            if _is_tree(pattern) or not (anchor := reach(pattern).anchor):
                continue
            for real in _matches("/" + "/".join(anchor), pattern):
                if _within(real, already) or scope.private(real) or not _may(scope, real, wish):
                    continue
                if len(found) >= MAX_FILES and real not in found:
                    return list(found.values()), (f"only the first {MAX_FILES} files of {pattern} are there",)
                found[real] = Mount(how=how, at=real, source=real)
    return list(found.values()), ()


def _may(scope: Scope, real: str, wish: Wish) -> bool:
    """What is written must be readable too: there is no other way to lay it there. Other names of a file count as in
    the file tools: a file with several is not written, and not read where they may be denied."""
    if not scope.path(real, "read").ok or not scope.path(real, wish).ok:
        return False
    return os.lstat(real).st_nlink == 1 or (wish == "read" and not may_be_denied(scope, real))


def _matches(anchor: str, pattern: str) -> Iterator[str]:
    """Regular files below the pattern's folder, as deep as it can mean; links are not followed."""
    exact = "/" + "/".join(named(pattern))
    if len(named(pattern)) == len([part for part in pattern.split("/") if part]):
        real = os.path.realpath(exact)
        yield from (real,) if os.path.isfile(real) else ()  # noqa: PTH113
        return
    top = os.path.realpath(anchor)
    depth, looked = reach(pattern).depth, 0
    pending = [(top, 1)]
    while pending and looked <= MAX_LOOKED:
        folder, level = pending.pop()
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=_name)
        except OSError:
            continue
        looked += len(inside)
        yield from (entry.path for entry in inside if entry.is_file(follow_symlinks=False))
        if depth is None or level < depth:
            pending += [(entry.path, level + 1) for entry in inside if entry.is_dir(follow_symlinks=False)]


def _name(entry: "os.DirEntry[str]") -> str:
    return entry.name


def _covers(sight: Sight, shelves: tuple[str, ...]) -> list[Mount]:
    """A closed folder in which the folder of a skill is open holds that one and nothing else."""
    return [
        Mount(how=How.FRAME if any(_within(one, (path,)) for one in shelves) else cover, at=path)
        for path, kind in sight.items()
        if (cover := _COVERS.get((kind, _GITS_OWN.search(path) is not None))) is not None
    ]


def _guarded(sight: Sight, links: dict[str, str], writable: tuple[str, ...]) -> Iterator[Mount]:
    """Readable, but not to be changed: what says where git finds its own, and what closed links lead to."""
    for path, kind in sight.items():
        if kind is Kind.POINTER and path not in links and _within(path, writable):
            yield Mount(how=How.READ, at=path, source=path)
    for path in links:
        real = os.path.realpath(path)
        if real not in sight and real not in writable and _within(real, writable) and os.path.exists(real):  # noqa: PTH110
            yield Mount(how=How.READ, at=real, source=real)


def _linked(scope: Scope, trees: tuple[str, ...], look: Look) -> Iterator[Mount]:
    """A file that has names elsewhere would be changed there too; and there it may be denied."""
    for path in known_elsewhere(look, trees):
        if may_be_denied(scope, path):
            yield Mount(how=How.SEALED_FILE, at=path)
        else:
            yield Mount(how=How.READ, at=path, source=path)


def _frame(scope: Scope, mounts: list[Mount]) -> Iterator[Mount]:
    """A workspace below /tmp of which only parts are there: what a command wrote beside them would look as if it were
    in the workspace, and would be in the agent's own /tmp."""
    root = os.path.realpath(scope.root)
    laid = [mount.at for mount in mounts if mount.source]
    if root != TMP and inside(root) and not _within(root, laid) and any(_within(at, (root,)) for at in laid):
        yield Mount(how=How.FRAME, at=root)


def _closed_of_the_system(scope: Scope) -> Iterator[str]:
    """The system's own folders are there for every command; what is closed in them by its full name is hidden."""
    above = tuple(pattern for ceiling in scope.ceilings for pattern in ceiling.deny)
    for pattern in (*scope.deny, *scope.house, *above):
        place = "/" + "/".join(named(pattern))
        whole = _is_tree(pattern) or unescaped(pattern) is not None
        if whole and place not in SYSTEM and _within(place, SYSTEM) and os.path.lexists(place):
            yield os.path.realpath(place)


def _sealing(place: str) -> How:
    return How.SEALED_FOLDER if os.path.isdir(place) else How.SEALED_FILE  # noqa: PTH112


def _pins(mounts: list[Mount], writable: tuple[str, ...], tmp: str) -> list[Mount]:
    """A folder that holds a mount, inside one that may be written, is laid over itself: then it cannot be renamed,
    and no other can take its place. Without it a closed place would be open under its new name next time."""
    taken = {mount.at for mount in mounts}
    real = tuple(mount.at for mount in mounts if mount.how is How.FRAME or os.path.isdir(mount.source))  # noqa: PTH112
    frames = tuple(mount.at for mount in mounts if mount.how is How.FRAME)
    found: dict[str, Mount] = {}
    for mount in mounts:
        tops = [
            top
            for top in (*writable, *((TMP,) if tmp else ()))
            if _within(mount.at, (top,)) and mount.at != top
        ]
        for top in tops:
            inner = mount.at[len(top) + 1 :].split("/")[:-1]
            for count in range(1, len(inner) + 1):
                below = "/".join(inner[:count])
                at = f"{top}/{below}"
                if at not in taken and not _said_otherwise(at, top, real) and not _framed(at, top, frames):
                    source = f"{tmp}/{below}" if top == TMP and tmp else at
                    found[at] = Mount(how=How.WRITE, at=at, source=source)
    return list(found.values())


def _said_otherwise(at: str, top: str, real: tuple[str, ...]) -> bool:
    """A folder of the machine below /tmp, whether it may be written or not, is not part of the agent's own /tmp."""
    return top == TMP and TMP not in real and _within(at, real)


def _framed(at: str, top: str, frames: tuple[str, ...]) -> bool:
    """In a frame there is nothing to be renamed, and the machine's folder of that name is closed."""
    return any(_within(at, (frame,)) and frame != top and _within(frame, (top,)) for frame in frames)


def _ordered(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Outer before inner; of two at one place the later said counts."""
    last = {mount.at: mount for mount in mounts}
    return tuple(last[at] for at in sorted(last, key=_parts))


def _parts(path: str) -> list[str]:
    return path.split("/")


def _start(scope: Scope, mounts: list[Mount]) -> str:
    """The workspace, if any of it is there."""
    root = os.path.realpath(scope.root)
    there = any(_within(root, (mount.at,)) or _within(mount.at, (root,)) for mount in mounts if mount.source)
    return root if there else TMP


def _is_link(path: str, sight: Sight) -> bool:
    return sight[path] in (Kind.LINK, Kind.POINTER) and os.path.islink(path)  # noqa: PTH114


def _outermost(folders: Iterable[str]) -> tuple[str, ...]:
    every = sorted(folders)
    return tuple(one for one in every if not any(other != one and _within(one, (other,)) for other in every))


def _within(path: str, folders: Iterable[str]) -> bool:
    """In words: both are real names."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
