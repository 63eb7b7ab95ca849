"""What a disk may hold when the power fails: all that was synced, and of the rest anything."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from record import ROOT, Change, Cut, Data, Log, Names, Sync, put, resize

SECTOR = 512
Chosen = Callable[[int, Change], Change | None]
"""What became of a change that was not synced: all of it, a part, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The files of a home after the power failed: text of files by path, targets of links, and folders."""

    point: int
    """How many changes had been made."""
    way: str
    """How it was chosen what is left of those that were not synced."""
    files: Mapping[str, bytes]
    links: Mapping[str, str]
    folders: Sequence[str]

    def __str__(self) -> str:
        return f"after change {self.point}, {self.way}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(
            repr((sorted(self.files.items()), self.links, self.folders)).encode()
        ).hexdigest()

    def write_to(self, root: Path) -> None:
        for name in self.folders:
            (root / name).mkdir(mode=0o700)
        for name, data in self.files.items():
            (root / name).write_bytes(data)
            (root / name).chmod(0o600)
        for name, target in self.links.items():
            (root / name).symlink_to(target)


WAYS = ("lost", "kept", "empty", "zeros")


def state(log: Log, point: int, way: str) -> State:
    """`lost`: nothing that was not synced is there; `kept`: all of it; `empty`: names, and nothing in the files; `zeros`:
    names and sizes. Any other word is a seed."""
    changes = log.changes[:point]
    safe = _synced_changes(changes)
    pick = _chooser(way, changes)
    left: list[Change] = []
    for number, change in enumerate(changes):
        kept = change if number in safe else pick(number, change)
        if kept is not None:
            left.append(kept)
    return _build_state(log, left, point, way)


def _synced_changes(changes: Sequence[Change]) -> set[int]:
    since: dict[int, int] = {}
    for change in changes:
        if isinstance(change, Sync):
            since[change.inode] = max(change.since, since.get(change.inode, 0))
    return {
        number
        for number, change in enumerate(changes)
        if any(number < since.get(inode, 0) for inode in _changed_inodes(change))
    }


def _changed_inodes(change: Change) -> Iterator[int]:
    if isinstance(change, Data | Cut):
        yield change.inode
    elif isinstance(change, Names):
        yield from (folder for folder, _, _ in change.names)


def _chooser(way: str, changes: Sequence[Change]) -> Chosen:
    match way:
        case "lost":
            return lambda _, __: None
        case "kept":
            return lambda _, change: change
        case "empty":
            return lambda _, change: change if isinstance(change, Names) else None
        case "zeros":
            return lambda _, change: (
                replace(change, data=bytes(len(change.data))) if isinstance(change, Data) else change
            )
        case _:
            return _random_chooser(random.Random(way), len(changes))


def _random_chooser(rng: random.Random, count: int) -> Chosen:
    """Names in the order in which they were given, as file systems with a journal keep them, or each for itself. Of each
    file, how it fares is chosen once: its bytes in order up to somewhere, or sector by sector, or gone, or zeros."""
    journal = rng.randint(0, count) if rng.random() < 0.5 else None
    fates: dict[int, tuple[str, int]] = {}

    def pick(number: int, change: Change) -> Change | None:
        if isinstance(change, Names):
            kept = number < journal if journal is not None else rng.random() < 0.5
            return change if kept else None
        if not isinstance(change, Data | Cut):
            return change
        fate, until = fates.setdefault(
            change.inode,
            (
                rng.choice(("ordered", "ordered", "sectors", "gone", "zeros", "all")),
                rng.randint(0, count),
            ),
        )
        return _apply_power_loss(change, fate, rng, kept=number < until)

    return pick


def _apply_power_loss(change: Data | Cut, fate: str, rng: random.Random, *, kept: bool) -> Change | None:
    if fate == "all" or (fate == "ordered" and kept):
        return change
    if fate in ("gone", "ordered"):
        return None
    if isinstance(change, Cut):
        return change if rng.random() < 0.5 else None
    if fate == "zeros":
        return replace(change, data=bytes(len(change.data)))
    data = bytearray(change.data)
    for start in range(-(change.at % SECTOR), len(data), SECTOR):
        if rng.random() < 0.5:
            first, last = max(0, start), min(len(data), start + SECTOR)
            data[first:last] = bytes(last - first)
    return replace(change, data=bytes(data))


def _build_state(log: Log, left: Sequence[Change], point: int, way: str) -> State:
    folders: dict[int, dict[str, int]] = {ROOT: {}}
    contents: dict[int, bytearray] = {}
    for change in left:
        if isinstance(change, Names):
            for folder, name, inode in change.names:
                names = folders.setdefault(folder, {})
                if inode is None:
                    names.pop(name, None)
                else:
                    names[name] = inode
        elif isinstance(change, Data):
            put(contents.setdefault(change.inode, bytearray()), change.at, change.data)
        elif isinstance(change, Cut):
            resize(contents.setdefault(change.inode, bytearray()), change.size)
    found: dict[str, int] = {}
    _collect_paths(log, folders, ROOT, "", found)
    return State(
        point=point,
        way=way,
        files={path: bytes(contents.get(inode, b"")) for path, inode in found.items() if inode in log.files},
        links={path: log.links[inode] for path, inode in found.items() if inode in log.links},
        folders=[path for path, inode in found.items() if inode in log.folders],
    )


def _collect_paths(
    log: Log, folders: Mapping[int, Mapping[str, int]], folder: int, above: str, found: dict[str, int]
) -> None:
    for name, inode in sorted(folders.get(folder, {}).items()):
        found[f"{above}{name}"] = inode
        if inode in log.folders:
            _collect_paths(log, folders, inode, f"{above}{name}/", found)
