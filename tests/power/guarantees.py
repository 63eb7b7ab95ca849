"""What must survive a power failure at each moment: bytes of transcripts and transactions of the ledger."""

import hashlib
import json
import re
import sqlite3
import tempfile
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from disk import State
from record import Log, NameChange, Resize, Sync, VisibleEffect, WriteData

from retinue.torture.scenario import position_in

LEDGER = "home/ledger.db"
_OPEN_LINE = re.compile(rb"<!-- user id=\S+ -->\n\s*\Z")
_TRANSCRIPT = "/session.md"


@dataclass(slots=True)
class Guarantees:
    """For each moment of a log, what must be on the disk after a power failure."""

    transcripts: list[tuple[int, str, bytes]] = field(default_factory=list[tuple[int, str, bytes]])
    """Change number, path, and the bytes with which the transcript must begin from then on."""
    commits: list[int] = field(default_factory=list[int])
    """Numbers of the changes after which a ledger transaction was acknowledged."""
    ledgers: list[str] = field(default_factory=lambda: [""])
    """Digests of the ledger after each of them, beginning with the empty one."""

    def violations(self, state: State) -> list[str]:
        """Return what was acknowledged and is missing in a state, before the home is opened again."""
        violations = [
            f"{path} has lost acknowledged entries"
            for path, text in self.acknowledged_texts(state.point).items()
            if not state.files.get(path, b"").startswith(text)
        ]
        required = bisect_right(self.commits, state.point - 1)
        digest = ledger_digest(state.files)
        if digest not in self.ledgers[required:]:
            earlier = self.ledgers.index(digest) if digest in self.ledgers else None
            violations.append(
                f"the ledger contains {earlier} commits, and {required} were acknowledged: {digest[:80]}"
            )
        return violations

    def acknowledged_texts(self, point: int) -> Mapping[str, bytes]:
        return {path: text for since, path, text in self.transcripts if since < point}


def find_guarantees(log: Log) -> Guarantees:
    """Derive the guarantees from a log.

    The first entry of a transcript is acknowledged by the first visible effect that depends on it, later ones when the
    file is synced, and a ledger transaction when the write-ahead log is synced.
    """
    found = Guarantees()
    disk = Log(root=log.root, files={inode: bytearray() for inode in log.files}, links=log.links)
    disk.folders |= {inode: {} for inode in log.folders}
    synced: dict[str, bytes] = {}
    acknowledged: set[str] = set()
    for number, change in enumerate(log.changes):
        _apply_change(disk, change)
        if isinstance(change, Sync) and (path := _path(disk, change.inode)):
            if path.endswith(_TRANSCRIPT):
                synced[path] = _OPEN_LINE.sub(b"", bytes(disk.files[change.inode]))
                if path in acknowledged:
                    found.transcripts.append((number, path, synced[path]))
            elif path == f"{LEDGER}-wal":
                found.commits.append(number)
                found.ledgers.append(ledger_digest(_ledger_files(disk)))
        elif isinstance(change, VisibleEffect):
            for path, text in synced.items():
                if path not in acknowledged and _depends_on(change, text):
                    acknowledged.add(path)
                    found.transcripts.append((number, path, text))
    return found


def _apply_change(disk: Log, change: object) -> None:
    if isinstance(change, NameChange):
        for folder, name, inode in change.names:
            if inode is None:
                disk.folders[folder].pop(name, None)
            else:
                disk.folders[folder][name] = inode
    elif isinstance(change, WriteData):
        disk.write(change.inode, change.data, change.at)
    elif isinstance(change, Resize):
        disk.cut(change.inode, change.size)


def _path(disk: Log, wanted: int, folder: int = 0, parent: str = "") -> str:
    for name, inode in disk.folders[folder].items():
        if inode == wanted:
            return f"{parent}{name}"
        if inode in disk.folders and (found := _path(disk, wanted, inode, f"{parent}{name}/")):
            return found
    return ""


def _depends_on(effect: VisibleEffect, text: bytes) -> bool:
    """Return whether a visible effect depends on this transcript."""
    if effect.kind == "output":
        return True
    if effect.kind == "effect":
        return effect.text.split()[-1] in text
    return requested_position(effect)[0] == position_in(text.decode("utf-8", "replace"))


def requested_position(effect: VisibleEffect) -> tuple[str, int]:
    """Return the position in the run tree and the turn of a model request."""
    messages = json.loads(effect.text.partition(b"\r\n\r\n")[2])["messages"]
    messages_without_system = [each for each in messages if each["role"] != "system"]
    positions = (
        position_in(each["content"] if isinstance(each["content"], str) else "")
        for each in messages_without_system
    )
    return next(filter(None, positions)), sum(each["role"] == "assistant" for each in messages)


def _ledger_files(disk: Log) -> dict[str, bytes]:
    found = {
        path: disk.find(f"{disk.root}/{path}") for path in (LEDGER, f"{LEDGER}-wal", f"{LEDGER}-journal")
    }
    return {path: bytes(disk.files[inode]) for path, inode in found.items() if inode is not None}


def ledger_digest(files: Mapping[str, bytes]) -> str:
    """Return a digest of all rows of the ledger, or an empty string without a ledger."""
    ledger_files = {
        path: data for path, data in files.items() if path.startswith(LEDGER) and not path.endswith("-shm")
    }
    return _digest_of_files(tuple(sorted(ledger_files.items()))) if ledger_files.get(LEDGER) else ""


@cache
def _digest_of_files(files: tuple[tuple[str, bytes], ...]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for path, data in files:
            (Path(folder) / Path(path).name).write_bytes(data)
        try:
            with closing(sqlite3.connect(Path(folder) / Path(LEDGER).name)) as connection:
                rows = "\n".join(connection.iterdump())
        except sqlite3.Error as error:
            return f"damaged: {error}"
    return hashlib.sha256(rows.encode()).hexdigest() if "CREATE" in rows else ""
