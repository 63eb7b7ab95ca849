"""The minimum durable system: the baseline with a ledger of all runs and a folder per session.

It contains nothing of Retinue: no permissions, limits, locks, listeners or recovery. It writes and syncs, in
as little code as possible, what must be on disk for Retinue's guarantees. The cost above it is Retinue's own.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from bench import baseline

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
_SCOPE_PLAN = b'version: "3.0"\nsession_id: x\ntype: agent\npreset: general\n'
_SESSION_JSON = msgspec.json.encode(
    {"id": "x" * 36, "agent": "general", "workspace": "/" * 60, "parent": "y" * 36}
)


class Conversation(baseline.Conversation):
    """A conversation whose user messages are not synced, because the ledger has the task."""

    def append(self, message: dict[str, Any]) -> None:
        if message["role"] == "user" and self._fd >= 0:
            line = msgspec.json.encode(message)
            os.write(self._fd, line + b"\n")
            self.append_encoded(line)
        else:
            super().append(message)


class GroupCommitLedger:
    """Commit all steps of one event-loop iteration in one transaction."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None)
        self._connection.executescript(_SCHEMA)
        self._steps: list[Callable[[sqlite3.Connection], object]] = []
        self._commit_done: asyncio.Future[None] | None = None

    async def write(self, step: Callable[[sqlite3.Connection], object]) -> None:
        self._steps.append(step)
        if self._commit_done is None:
            loop = asyncio.get_running_loop()
            self._commit_done = loop.create_future()
            loop.call_soon(self._commit)
        await asyncio.shield(self._commit_done)

    def _commit(self) -> None:
        steps, self._steps = self._steps, []
        commit_done, self._commit_done = self._commit_done, None
        self._connection.execute("BEGIN IMMEDIATE")
        for step in steps:
            step(self._connection)
        self._connection.execute("COMMIT")
        if commit_done is not None:
            commit_done.set_result(None)

    def close(self) -> None:
        self._connection.close()


class Subject(baseline.Subject):
    """The same workloads, with everything on disk that the guarantees need."""

    def __init__(self) -> None:
        super().__init__()
        self._ledger: GroupCommitLedger | None = None
        self._run_numbers = count()

    async def open(self, url: str, place: str, keep: bool = True) -> None:
        await super().open(url, place, keep)
        if keep:
            self._ledger = GroupCommitLedger(self._folder / "ledger.db")

    async def close(self) -> None:
        await super().close()
        if self._ledger is not None:
            self._ledger.close()

    def count_sessions(self) -> int:
        return len(
            [
                each
                for each in self._folder.glob("*/session.md")
                if each.parent.name.startswith(("child", "parent"))
            ]
        )

    def _open_conversation(self, name: str) -> Conversation:
        if not self._is_persistent:
            return Conversation(None)
        folder = self._folder / name
        folder.mkdir(mode=0o700)
        for file, data, sync in (
            ("preset.md", _PRESET, True),
            ("scope-plan.yml", _SCOPE_PLAN, False),
            ("session.json", _SESSION_JSON, True),
        ):
            _write_file(folder / file, data, sync=sync)
        conversation = Conversation(folder / "session.md")
        _sync_folder(folder)
        _sync_folder(self._folder)
        return conversation

    async def _run_turns(self, conversation: baseline.Conversation, text: str) -> str:
        if self._ledger is None:
            return await super()._run_turns(conversation, text)
        run_id = f"01M7{next(self._run_numbers):022}"
        session_json = _SESSION_JSON.decode()
        await self._ledger.write(lambda connection: _insert_run(connection, run_id, text, session_json))
        answer = await super()._run_turns(conversation, text)
        await self._ledger.write(lambda connection: _finish_run(connection, run_id, answer, session_json))
        return answer


def _insert_run(connection: sqlite3.Connection, run_id: str, text: str, session_json: str) -> None:
    connection.execute(
        "INSERT INTO runs VALUES (?, ?, 'running', ?, '', ?)", (run_id, run_id, text, session_json)
    )
    connection.execute(
        "INSERT INTO events (run, kind, facts) VALUES (?, 'run.started', ?)", (run_id, session_json)
    )


def _finish_run(connection: sqlite3.Connection, run_id: str, answer: str, session_json: str) -> None:
    connection.execute("UPDATE runs SET status = 'done', answer = ? WHERE id = ?", (answer, run_id))
    connection.execute(
        "INSERT INTO events (run, kind, facts) VALUES (?, 'run.ended', ?)", (run_id, session_json)
    )


def _write_file(file: Path, data: bytes, *, sync: bool) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, data)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
