"""What was acknowledged when: the bytes of conversations, and the steps of the ledger, as far as they must outlive the power."""

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
from record import Cut, Data, Log, Names, Sync, Word

from retinue.torture.scenario import position_in

LEDGER = "home/ledger.db"
_OPEN_LINE = re.compile(rb"<!-- user id=\S+ -->\n\s*\Z")
_TALK = "/session.md"


@dataclass(slots=True)
class Promises:
    """Of each moment of a log, what must be there after it."""

    talks: list[tuple[int, str, bytes]] = field(default_factory=list[tuple[int, str, bytes]])
    """From which change on which conversation must begin with which bytes."""
    commits: list[int] = field(default_factory=list[int])
    """After which changes the ledger had said of a step that it is on disk."""
    ledgers: list[str] = field(default_factory=lambda: [""])
    """What it held after each of them; at first nothing."""

    def violations(self, state: State) -> list[str]:
        """Return what was acknowledged and is missing, before the home is opened again."""
        talks = [
            f"{path} has lost acknowledged entries"
            for path, text in self.acknowledged_texts(state.point).items()
            if not state.files.get(path, b"").startswith(text)
        ]
        least = bisect_right(self.commits, state.point - 1)
        held = contents(state.files)
        if held not in self.ledgers[least:]:
            earlier = self.ledgers.index(held) if held in self.ledgers else None
            talks.append(
                f"the ledger is as after commit {earlier}, and {least} were acknowledged: {held[:80]}"
            )
        return talks

    def acknowledged_texts(self, point: int) -> Mapping[str, bytes]:
        return {path: text for since, path, text in self.talks if since < point}


def promises(log: Log) -> Promises:
    """Follows the log. A conversation's first entry is acknowledged when the world saw something that rests on it, every
    later one as soon as its file is synced; a step of the ledger when its log is."""
    found = Promises()
    live = Log(root=log.root, files={inode: bytearray() for inode in log.files}, links=log.links)
    live.folders |= {inode: {} for inode in log.folders}
    synced: dict[str, bytes] = {}
    known: set[str] = set()
    for number, change in enumerate(log.changes):
        _apply_change(live, change)
        if isinstance(change, Sync) and (path := _path(live, change.inode)):
            if path.endswith(_TALK):
                synced[path] = _OPEN_LINE.sub(b"", bytes(live.files[change.inode]))
                if path in known:
                    found.talks.append((number, path, synced[path]))
            elif path == f"{LEDGER}-wal":
                found.commits.append(number)
                found.ledgers.append(contents(_ledger(live)))
        elif isinstance(change, Word):
            for path, text in synced.items():
                if path not in known and _rests(change, text):
                    known.add(path)
                    found.talks.append((number, path, text))
    return found


def _apply_change(live: Log, change: object) -> None:
    if isinstance(change, Names):
        for folder, name, inode in change.names:
            if inode is None:
                live.folders[folder].pop(name, None)
            else:
                live.folders[folder][name] = inode
    elif isinstance(change, Data):
        live.write(change.inode, change.data, change.at)
    elif isinstance(change, Cut):
        live.cut(change.inode, change.size)


def _path(live: Log, wanted: int, folder: int = 0, above: str = "") -> str:
    for name, inode in live.folders[folder].items():
        if inode == wanted:
            return f"{above}{name}"
        if inode in live.folders and (found := _path(live, wanted, inode, f"{above}{name}/")):
            return found
    return ""


def _rests(word: Word, talk: bytes) -> bool:
    """Whether that was told to the world on the ground of this conversation."""
    if word.kind == "said":
        return True
    if word.kind == "effect":
        return word.text.split()[-1] in talk
    return place_asked(word)[0] == position_in(talk.decode("utf-8", "replace"))


def place_asked(word: Word) -> tuple[str, int]:
    """Which place of the tree asked the model, and for which turn."""
    messages = json.loads(word.text.partition(b"\r\n\r\n")[2])["messages"]
    spoken = [each for each in messages if each["role"] != "system"]
    places = (position_in(each["content"] if isinstance(each["content"], str) else "") for each in spoken)
    return next(filter(None, places)), sum(each["role"] == "assistant" for each in messages)


def _ledger(live: Log) -> dict[str, bytes]:
    found = {
        path: live.find(f"{live.root}/{path}") for path in (LEDGER, f"{LEDGER}-wal", f"{LEDGER}-journal")
    }
    return {path: bytes(live.files[inode]) for path, inode in found.items() if inode is not None}


def contents(files: Mapping[str, bytes]) -> str:
    """A digest of every row of the ledger; empty when there is none."""
    mine = {
        path: data for path, data in files.items() if path.startswith(LEDGER) and not path.endswith("-shm")
    }
    return _contents(tuple(sorted(mine.items()))) if mine.get(LEDGER) else ""


@cache
def _contents(files: tuple[tuple[str, bytes], ...]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for path, data in files:
            (Path(folder) / Path(path).name).write_bytes(data)
        try:
            with closing(sqlite3.connect(Path(folder) / Path(LEDGER).name)) as connection:
                rows = "\n".join(connection.iterdump())
        except sqlite3.Error as error:
            return f"damaged: {error}"
    return hashlib.sha256(rows.encode()).hexdigest() if "CREATE" in rows else ""
