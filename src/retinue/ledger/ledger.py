"""The ledger in one SQLite file: steps gather, run on the loop, and share one commit made aside.

A step's statements touch memory only and take microseconds, so they run on the loop's own thread: in another
thread each of them would wait for the interpreter's lock while the loop is busy. What may sleep, the commit's
fsync and the opening, happens in one thread aside, and the next steps gather meanwhile; where steps come one by
one, nothing would gather, and each is carried out and committed where it is asked for.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from retinue.domain.event import Event
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.interfaces import Tx
from retinue.ledger.database import PATIENCE_SECONDS, PAUSES, is_busy, meaning, opened
from retinue.ledger.journal_mode import WAL, kind_of
from retinue.ledger.transaction import Known, LookingTx, SqliteTx
from retinue.ledger.writer_thread import Aside

T = TypeVar("T")

FEW = 3
"""Steps that came one by one before the next is expected to."""


@dataclass(slots=True, kw_only=True)
class _Wish:
    """One step with the one who waits for it, and what became of it before the commit."""

    step: Callable[[Tx], Any]
    then: Callable[[Any], None] | None
    future: asyncio.Future[Any]
    value: Any = None
    error: Exception | None = None
    events: list[Event] = field(default_factory=list[Event])


@value
class _Batch:
    wishes: list[_Wish]
    until: float
    """When patience with another process ends."""


class SqliteLedger:
    """For one event loop. The file is opened at the first use; `listen` hears each durable event after its commit."""

    def __init__(
        self,
        path: Path,
        *,
        listen: Callable[[Event], None] | None = None,
        patience: float = PATIENCE_SECONDS,
        kind: Callable[[Path], str] = kind_of,
    ) -> None:
        self.path = path
        self._kind = kind
        self._logged = True
        self._patience = patience
        self._listen = listen
        self._aside = Aside()
        self._opening: asyncio.Future[None] | None = None
        self._connections: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        self._waiting: list[_Wish] = []
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._leaving = asyncio.Event()
        """Clear while the file is let go of: who comes then waits, or there would be no end of it."""
        self._leaving.set()
        self._closed = False
        self._steady = False
        """The file is open, and nobody lets go of it: there is nothing to wait for."""
        self._lonely = 1
        """How many batches in a row were of one step; the first has nothing to be compared with."""
        self._done_now = False
        """A step was carried out in this very round of the loop."""
        self._version = -1
        self._view: LookingTx | None = None
        """What those who look in this very round of the loop see: one transaction serves them all."""

    async def do(self, step: Callable[[Tx], T], then: Callable[[T], None] | None = None) -> T:
        """Runs the step in the next group commit; when this returns it is on disk. What the step raises undoes
        that step alone. Cancelling the wait does not take the step back, nor what is to happen `then`."""
        if not self._steady:
            await self._ready()
        loop = asyncio.get_running_loop()
        wish = _Wish(step=step, then=then, future=loop.create_future())
        self._waiting.append(wish)
        if self._quiet.is_set():
            self._quiet.clear()
            if self._lonely >= FEW and not self._done_now:
                # The last steps had no company, and this one waits for none. Whoever asks in the same round of the
                # loop is company: those gather.
                self._done_now = True
                loop.call_soon(self._round_over)
                self._gather()
            else:
                loop.call_soon(self._gather)
        return await wish.future

    def _round_over(self) -> None:
        self._done_now = False

    async def look(self, step: Callable[[Tx], T]) -> T:
        """Reads a consistent state, without waiting for any commit: by a second connection while one is made. What was
        committed before is always seen."""
        if not self._steady:
            await self._ready()
        try:
            return self._seen(step)
        except sqlite3.Error as error:
            until = time.monotonic() + self._patience
            attempt, met = 0, error
        while True:
            if not is_busy(met) or time.monotonic() >= until:
                raise meaning(met, self.path) from met
            await asyncio.sleep(_pause(attempt))
            attempt += 1
            try:
                return self._seen(step)
            except sqlite3.Error as error:
                met = error

    def _seen(self, step: Callable[[Tx], T]) -> T:
        """By whoever looks alone for that moment only; where many are at work, all of one round of the loop share it."""
        try:
            return step(self._view or self._viewed())
        except sqlite3.Error:
            self._looked()
            raise
        finally:
            if self._lonely >= FEW:
                self._looked()

    def changed(self) -> bool:
        """Whether anybody, here or elsewhere, has written anything since this was asked last: a matter of a microsecond.
        What cannot be asked counts as changed."""
        seen, self._version = self._version, -1
        self._looked()
        if self._connections is not None:
            with suppress(sqlite3.Error):
                self._version = self._reader.execute("PRAGMA data_version").fetchone()[0]
        return self._version == -1 or self._version != seen

    async def close(self) -> None:
        """Finishes every step that was given before, then lets go of the file."""
        self._closed, self._steady = True, False
        await self.let_go()
        self._aside.end()

    async def let_go(self) -> None:
        """Finishes as well, and the next use opens the file anew: between the two another may stand in its place."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        self._leaving.clear()
        self._steady = False
        try:
            while not self._quiet.is_set():
                await self._quiet.wait()  # whoever went on in the same moment may have asked for more
            self._looked()
            if self._connections is not None:
                connections, self._connections = self._connections, None
                gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._aside.do(lambda: _let_go(connections), lambda _, __: gone.set_result(None))
                await gone
        finally:
            self._leaving.set()

    async def _ready(self) -> None:
        if not self._leaving.is_set():
            await self._leaving.wait()
        if self._connections is None or self._closed:
            await self._open()

    async def _open(self) -> None:
        self._refuse_when_closed()
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            self._aside.do(self._connect, self._connected)
        await asyncio.shield(self._opening)
        self._refuse_when_closed()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Failed(f"{self.path}: the ledger is closed")

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        writer = opened(self.path, patience=self._patience, kind=self._kind)
        try:
            self._logged = writer.execute("PRAGMA journal_mode").fetchone()[0] == WAL
            return writer, opened(self.path, patience=self._patience, kind=self._kind)
        except BaseException:
            writer.close()
            raise

    def _connected(
        self, connections: tuple[sqlite3.Connection, sqlite3.Connection] | None, error: Exception | None
    ) -> None:
        """A failure is told to all who wait, and the next use tries again."""
        opening, self._opening = self._opening, None
        self._connections = connections
        self._steady = connections is not None and not self._closed and self._leaving.is_set()
        if opening is None:
            return
        if error is None:
            opening.set_result(None)
        else:
            opening.set_exception(error)
            opening.exception()

    def _gather(self) -> None:
        batch = _Batch(wishes=self._waiting, until=time.monotonic() + self._patience)
        self._waiting = []
        self._begin(batch, 0)

    def _begin(self, batch: _Batch, attempt: int) -> None:
        self._looked()
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() >= batch.until:
                self._settle(batch, error)
                return
            asyncio.get_running_loop().call_later(_pause(attempt), self._begin, batch, attempt + 1)
            return
        self._work(batch)

    def _work(self, batch: _Batch) -> None:
        writer = self._writer
        alone = len(batch.wishes) == 1
        before = writer.total_changes
        known = Known()
        try:
            for wish in batch.wishes:
                _stepped(wish, writer, SqliteTx(writer, self.path, known), alone=alone)
                if wish.error is not None:
                    known.forget()  # what was read of it may have been undone
            undone = alone and batch.wishes[0].error is not None
            if unchanged := not undone and writer.total_changes == before:
                # There is nothing to sync, and so no reason to leave the loop.
                _commit(writer, batch.until)
        except sqlite3.Error as error:
            _rolled_back(writer)
            self._settle(batch, error)
            return
        except BaseException:
            _rolled_back(writer)
            self._settle(
                batch, Failed(f"{self.path}: a step was interrupted, and those beside it were undone")
            )
            raise
        if undone or unchanged:
            self._settle(batch, None)
        elif self._alone(batch):
            self._settle(batch, _committed(writer, batch.until))
        else:
            self._aside.do(lambda: _commit(writer, batch.until), lambda _, error: self._settle(batch, error))

    def _alone(self, batch: _Batch) -> bool:
        """Steps come one by one: nothing gathers while this one is synced, and a thread would cost more than it saves.
        Without a log a commit may have to wait for readers, which the loop must not."""
        self._lonely = self._lonely + 1 if len(batch.wishes) == 1 and self._logged else 0
        return self._lonely > 1

    def _settle(self, batch: _Batch, error: Exception | None) -> None:
        """Listeners hear before those who waited go on, and those who go on can join the next batch."""
        self._looked()
        try:
            for wish in batch.wishes if error is None else ():
                if self._listen is not None:
                    for event in wish.events:
                        _tell(self._listen, event)
                if wish.then is not None and wish.error is None:
                    _tell(wish.then, wish.value)
        finally:  # also when the process is told to end in this moment: somebody will want to close
            for wish in batch.wishes:
                _answer(wish, wish.error or error, self.path)
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._gather)
            else:
                self._quiet.set()

    def _viewed(self) -> LookingTx:
        # What the writer has written is in its memory, and only the other would have to read it from the file again.
        reader = self._writer if self._quiet.is_set() else self._reader
        reader.execute("BEGIN")
        self._view = LookingTx(reader, self.path)
        if self._lonely < FEW:
            asyncio.get_running_loop().call_soon(self._looked)
        return self._view

    def _looked(self) -> None:
        """Whoever looks from here on sees what has been committed meanwhile."""
        view, self._view = self._view, None
        if view is not None:
            view.end()

    @property
    def _writer(self) -> sqlite3.Connection:
        return self._pair()[0]

    @property
    def _reader(self) -> sqlite3.Connection:
        return self._pair()[1]

    def _pair(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        if self._connections is None:
            raise Failed(f"{self.path}: the ledger is closed")
        return self._connections


def _stepped(wish: _Wish, writer: sqlite3.Connection, tx: SqliteTx, *, alone: bool) -> None:
    """In a savepoint of its own, where others share the transaction. Raises only when the whole transaction is gone, as
    it is on a full disk."""
    if not alone:
        writer.execute("SAVEPOINT step")
    try:
        wish.value = wish.step(tx)
    except Exception as error:
        if isinstance(error, sqlite3.Error) and not writer.in_transaction:
            raise
        wish.error = error
        writer.execute("ROLLBACK" if alone else "ROLLBACK TO step")
    else:
        wish.events = tx.emitted
    if not alone:
        writer.execute("RELEASE step")


def _tell(heard: Callable[[Any], None], what: object) -> None:
    """Whoever hears of a step is not the step: what goes wrong there keeps nobody else from hearing."""
    try:
        heard(what)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (the loop tells of it, as of all that it calls)
        context = {"message": "what was to follow a step of the ledger failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def _answer(wish: _Wish, failure: Exception | None, path: Path) -> None:
    if wish.future.done():
        return  # nobody waits any more
    if failure is None:
        wish.future.set_result(wish.value)
    else:
        wish.future.set_exception(_meant(failure, path))


def _commit(writer: sqlite3.Connection, until: float) -> None:
    """Whoever holds the write lock of a file with a log cannot be told that it is busy. Without a log, those who read
    are waited for: the transaction stands, and only its last word is said again."""
    attempt = 0
    while True:
        try:
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            if writer.in_transaction and is_busy(error) and time.monotonic() < until:
                time.sleep(_pause(attempt))
                attempt += 1
                continue
            _rolled_back(writer)
            raise
        return


def _committed(writer: sqlite3.Connection, until: float) -> Exception | None:
    try:
        _commit(writer, until)
    except sqlite3.Error as error:
        return error
    return None


def _let_go(connections: tuple[sqlite3.Connection, ...]) -> None:
    for connection in connections:
        connection.close()


def _rolled_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _meant(error: Exception, path: Path) -> Exception:
    if isinstance(error, sqlite3.Error):
        meant = meaning(error, path)
        meant.__cause__ = error
        return meant
    if isinstance(error, StopIteration):
        # A future cannot carry it: it would end the coroutine that waits as if it had returned.
        return RuntimeError(f"the step raised {error!r}")
    return error


def _pause(attempt: int) -> float:
    return PAUSES[min(attempt, len(PAUSES) - 1)]
