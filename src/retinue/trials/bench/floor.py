"""What the promises cost at least: the bare calls, a ledger that knows every run, and for each session a folder.

Nothing of Retinue is in it: no rights, no limits, no lock, no listeners, no recovery. It writes and syncs what must be on
disk for them, in the least code, so that what Retinue takes beyond it is Retinue's own.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from retinue.trials.bench import bare

_SCHEMA = """
PRAGMA page_size=2048;
PRAGMA journal_mode=WAL;
PRAGMA synchronous=FULL;
CREATE TABLE runs (id TEXT PRIMARY KEY, session TEXT, status TEXT, ask TEXT, answer TEXT, facts TEXT) WITHOUT ROWID;
CREATE INDEX live ON runs (status, session) WHERE status <> 'done';
CREATE TABLE events (seq INTEGER PRIMARY KEY, run TEXT, kind TEXT, facts TEXT);
"""
_PRESET = (
    b"---\nname: general\ntools: [read, agent]\n---\n"
    + b"You do what you are told, and say what you did.\n" * 12
)
_PLAN = b'version: "3.0"\nsession_id: x\ntype: agent\npreset: general\n'
_FACTS = msgspec.json.encode({"id": "x" * 36, "agent": "general", "workspace": "/" * 60, "parent": "y" * 36})


class Talk(bare.Talk):
    """A conversation whose task is synced with what follows it: the ledger has it."""

    def add(self, message: dict[str, Any]) -> None:
        if message["role"] == "user" and self._file >= 0:
            line = msgspec.json.encode(message)
            os.write(self._file, line + b"\n")
            self.known(line)
        else:
            super().add(message)


class Ledger:
    """Steps that are asked for in one turn of the loop are one commit."""

    def __init__(self, file: Path) -> None:
        self._base = sqlite3.connect(file, isolation_level=None)
        self._base.executescript(_SCHEMA)
        self._steps: list[Callable[[sqlite3.Connection], object]] = []
        self._done: asyncio.Future[None] | None = None

    async def do(self, step: Callable[[sqlite3.Connection], object]) -> None:
        self._steps.append(step)
        if self._done is None:
            loop = asyncio.get_running_loop()
            self._done = loop.create_future()
            loop.call_soon(self._commit)
        await asyncio.shield(self._done)

    def _commit(self) -> None:
        steps, self._steps = self._steps, []
        done, self._done = self._done, None
        self._base.execute("BEGIN IMMEDIATE")
        for step in steps:
            step(self._base)
        self._base.execute("COMMIT")
        if done is not None:
            done.set_result(None)

    def close(self) -> None:
        self._base.close()


class Subject(bare.Subject):
    """The same work with the same things on disk."""

    def __init__(self) -> None:
        super().__init__()
        self._ledger: Ledger | None = None
        self._numbers = count()

    async def open(self, url: str, place: str, keep: bool = True) -> None:
        await super().open(url, place, keep)
        if keep:
            self._ledger = Ledger(self._place / "ledger.db")

    async def close(self) -> None:
        await super().close()
        if self._ledger is not None:
            self._ledger.close()

    def stored(self) -> int:
        return len(
            [
                each
                for each in self._place.glob("*/session.md")
                if each.parent.name.startswith(("child", "parent"))
            ]
        )

    def _talk(self, name: str) -> Talk:
        if not self._keep:
            return Talk(None)
        folder = self._place / name
        folder.mkdir(mode=0o700)
        for file, data, sync in (
            ("preset.md", _PRESET, True),
            ("scope-plan.yml", _PLAN, False),
            ("session.json", _FACTS, True),
        ):
            _written(folder / file, data, sync=sync)
        talk = Talk(folder / "session.md")
        _synced(folder)
        _synced(self._place)
        return talk

    async def _run(self, talk: bare.Talk, text: str) -> str:
        if self._ledger is None:
            return await super()._run(talk, text)
        run = f"01M7{next(self._numbers):022}"
        facts = _FACTS.decode()
        await self._ledger.do(lambda base: _born(base, run, text, facts))
        said = await super()._run(talk, text)
        await self._ledger.do(lambda base: _ended(base, run, said, facts))
        return said


def _born(base: sqlite3.Connection, run: str, text: str, facts: str) -> None:
    base.execute("INSERT INTO runs VALUES (?, ?, 'running', ?, '', ?)", (run, run, text, facts))
    base.execute("INSERT INTO events (run, kind, facts) VALUES (?, 'run.started', ?)", (run, facts))


def _ended(base: sqlite3.Connection, run: str, said: str, facts: str) -> None:
    base.execute("UPDATE runs SET status = 'done', answer = ? WHERE id = ?", (said, run))
    base.execute("INSERT INTO events (run, kind, facts) VALUES (?, 'run.ended', ?)", (run, facts))


def _written(file: Path, data: bytes, *, sync: bool) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, data)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _synced(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
