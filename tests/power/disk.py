"""Possible disk states after a power failure: everything synced, and any part of the rest."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from record import ROOT, Change, Log, NameChange, Resize, Sync, WriteData, resize, write_at

SECTOR = 512
ChooseChange = Callable[[int, Change], Change | None]
"""Chooses what remains of an unsynced change: all of it, a part, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The files, links and folders of a home after a power failure."""

    point: int
    """Number of changes made before the power failure."""
    mode: str
    """How the remaining part of the unsynced changes was chosen."""
    files: Mapping[str, bytes]
    links: Mapping[str, str]
    folders: Sequence[str]

    def __str__(self) -> str:
        return f"after change {self.point}, {self.mode}"

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


MODES = ("lost", "kept", "empty", "zeros")


def make_state(log: Log, point: int, mode: str) -> State:
    """Return the disk state after the first `point` changes.

    Args:
        mode: What remains of unsynced changes. `lost`: nothing; `kept`: everything; `empty`: names without content;
            `zeros`: names and sizes. Any other value is a seed.
    """
    changes = log.changes[:point]
    synced = _synced_changes(changes)
    pick = _chooser(mode, changes)
    remaining: list[Change] = []
    for number, change in enumerate(changes):
        kept = change if number in synced else pick(number, change)
        if kept is not None:
            remaining.append(kept)
    return _build_state(log, remaining, point, mode)


def _synced_changes(changes: Sequence[Change]) -> set[int]:
    synced_until: dict[int, int] = {}
    for change in changes:
        if isinstance(change, Sync):
            synced_until[change.inode] = max(change.started_at_change, synced_until.get(change.inode, 0))
    return {
        number
        for number, change in enumerate(changes)
        if any(number < synced_until.get(inode, 0) for inode in _changed_inodes(change))
    }


def _changed_inodes(change: Change) -> Iterator[int]:
    if isinstance(change, WriteData | Resize):
        yield change.inode
    elif isinstance(change, NameChange):
        yield from (folder for folder, _, _ in change.names)


def _chooser(mode: str, changes: Sequence[Change]) -> ChooseChange:
    match mode:
        case "lost":
            return lambda _, __: None
        case "kept":
            return lambda _, change: change
        case "empty":
            return lambda _, change: change if isinstance(change, NameChange) else None
        case "zeros":
            return lambda _, change: (
                replace(change, data=bytes(len(change.data))) if isinstance(change, WriteData) else change
            )
        case _:
            return _random_chooser(random.Random(mode), len(changes))


def _random_chooser(rng: random.Random, count: int) -> ChooseChange:
    """Choose at random which unsynced changes remain.

    Name changes remain in order, as in a journal, or independently. The outcome of each file is chosen once: its writes
    in order up to a point, sector by sector, none, zeros or all.
    """
    journal = rng.randint(0, count) if rng.random() < 0.5 else None
    outcomes: dict[int, tuple[str, int]] = {}

    def pick(number: int, change: Change) -> Change | None:
        if isinstance(change, NameChange):
            kept = number < journal if journal is not None else rng.random() < 0.5
            return change if kept else None
        if not isinstance(change, WriteData | Resize):
            return change
        outcome, cutoff = outcomes.setdefault(
            change.inode,
            (
                rng.choice(("ordered", "ordered", "sectors", "gone", "zeros", "all")),
                rng.randint(0, count),
            ),
        )
        return _apply_power_loss(change, outcome, rng, is_before_cutoff=number < cutoff)

    return pick


def _apply_power_loss(
    change: WriteData | Resize, outcome: str, rng: random.Random, *, is_before_cutoff: bool
) -> Change | None:
    if outcome == "all" or (outcome == "ordered" and is_before_cutoff):
        return change
    if outcome in ("gone", "ordered"):
        return None
    if isinstance(change, Resize):
        return change if rng.random() < 0.5 else None
    if outcome == "zeros":
        return replace(change, data=bytes(len(change.data)))
    data = bytearray(change.data)
    for start in range(-(change.at % SECTOR), len(data), SECTOR):
        if rng.random() < 0.5:
            first, last = max(0, start), min(len(data), start + SECTOR)
            data[first:last] = bytes(last - first)
    return replace(change, data=bytes(data))


def _build_state(log: Log, remaining: Sequence[Change], point: int, mode: str) -> State:
    folders: dict[int, dict[str, int]] = {ROOT: {}}
    contents: dict[int, bytearray] = {}
    for change in remaining:
        if isinstance(change, NameChange):
            for folder, name, inode in change.names:
                names = folders.setdefault(folder, {})
                if inode is None:
                    names.pop(name, None)
                else:
                    names[name] = inode
        elif isinstance(change, WriteData):
            write_at(contents.setdefault(change.inode, bytearray()), change.at, change.data)
        elif isinstance(change, Resize):
            resize(contents.setdefault(change.inode, bytearray()), change.size)
    found: dict[str, int] = {}
    _collect_paths(log, folders, ROOT, "", found)
    return State(
        point=point,
        mode=mode,
        files={path: bytes(contents.get(inode, b"")) for path, inode in found.items() if inode in log.files},
        links={path: log.links[inode] for path, inode in found.items() if inode in log.links},
        folders=[path for path, inode in found.items() if inode in log.folders],
    )


def _collect_paths(
    log: Log, folders: Mapping[int, Mapping[str, int]], folder: int, parent: str, found: dict[str, int]
) -> None:
    for name, inode in sorted(folders.get(folder, {}).items()):
        found[f"{parent}{name}"] = inode
        if inode in log.folders:
            _collect_paths(log, folders, inode, f"{parent}{name}/", found)
