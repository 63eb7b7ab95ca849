"""The ledger in one SQLite file, with group commit.

Steps are collected, run on the event loop and committed together. The statements of a step touch memory only
and take microseconds, so they run on the loop's own thread: in another thread, each would wait for the
interpreter lock while the loop is busy. Blocking operations (the fsync of a commit, opening the file) run in
one writer thread while further steps are queued. When steps arrive one at a time there is nothing to
collect, so each is run and committed at once on the loop.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from retinue.domain.event import Event
from retinue.errors import Failed
from retinue.interfaces import Transaction
from retinue.ledger.database import (
    BUSY_RETRY_DELAYS_S,
    BUSY_TIMEOUT_S,
    is_busy_error,
    is_disk_failure,
    open_database,
    translate_sqlite_error,
    verify_disk,
)
from retinue.ledger.journal_mode import WAL, detect_filesystem_type
from retinue.ledger.transaction import ReadOnlyTransaction, SqliteTransaction, TransactionCache
from retinue.ledger.writer_thread import WriterThread

T = TypeVar("T")

SERIAL_BATCH_THRESHOLD = 3
"""Single-step batches in a row after which the next step is run without collecting others."""


@dataclass(slots=True, kw_only=True)
class _PendingStep:
    """A submitted step, the future its caller awaits, and the outcome before the commit."""

    step: Callable[[Transaction], Any]
    on_commit: Callable[[Any], None] | None
    future: asyncio.Future[Any]
    value: Any = None
    error: Exception | None = None
    events: list[Event] = field(default_factory=list[Event])


class _Batch(Struct, frozen=True, kw_only=True):
    pending_steps: list[_PendingStep]
    deadline: float
    """When to stop waiting for another process that has the file locked (monotonic time)."""


class SqliteLedger:
    """The ledger for one event loop.

    The file is opened on first use. `on_event` is called with each durable event after its commit.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_event: Callable[[Event], None] | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        detect_filesystem: Callable[[Path], str] = detect_filesystem_type,
    ) -> None:
        self.path = path
        self._detect_filesystem = detect_filesystem
        self._uses_wal = True
        self._busy_timeout_s = busy_timeout_s
        self._on_event = on_event
        self._writer_thread = WriterThread()
        self._open_future: asyncio.Future[None] | None = None
        self._connections: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        self._pending_steps: list[_PendingStep] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._release_done = asyncio.Event()
        """Cleared while the file is being released; new callers wait for it, or the release might never end."""
        self._release_done.set()
        self._closed = False
        self._is_ready = False
        """The file is open and not being released."""
        self._single_step_batches = 1
        """Consecutive batches with a single step; starts at 1, as the first batch has no predecessor."""
        self._ran_this_iteration = False
        """A step has already been run in the current iteration of the event loop."""
        self._data_version = -1
        self._must_verify = False
        """The disk failed: before the file is used again, all of it must reach the disk."""
        self._read_failure: sqlite3.Error | None = None
        """The disk failed to read during a commit."""
        self._read_transaction: ReadOnlyTransaction | None = None
        """The read transaction shared by all reads in the current iteration of the event loop."""

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        """Run a step in the next group commit and return its value once the commit is on disk.

        An exception in the step undoes that step alone. Cancelling the caller takes back neither the step nor
        the callback that follows its commit.
        """
        if not self._is_ready:
            await self._ensure_open()
        loop = asyncio.get_running_loop()
        pending = _PendingStep(step=step, on_commit=on_commit, future=loop.create_future())
        self._pending_steps.append(pending)
        if self._idle.is_set():
            self._idle.clear()
            if self._single_step_batches >= SERIAL_BATCH_THRESHOLD and not self._ran_this_iteration:
                # The last batches had one step each, so this step does not wait for others. Callers in the same
                # iteration of the loop are collected with it in the next batch.
                self._ran_this_iteration = True
                loop.call_soon(self._end_loop_iteration)
                self._start_batch()
            else:
                loop.call_soon(self._start_batch)
        return await pending.future

    def _end_loop_iteration(self) -> None:
        self._ran_this_iteration = False

    async def read(self, step: Callable[[Transaction], T]) -> T:
        """Run a read-only step on a consistent snapshot without waiting for a commit.

        A second connection is used while a commit is in progress. Everything committed earlier is always
        visible.
        """
        if not self._is_ready:
            await self._ensure_open()
        try:
            return self._run_read(step)
        except sqlite3.Error as error:
            deadline = time.monotonic() + self._busy_timeout_s
            attempt, last_error = 0, error
        while True:
            if not is_busy_error(last_error) or time.monotonic() >= deadline:
                self._stop_if_disk_failed(last_error)
                raise translate_sqlite_error(last_error, self.path) from last_error
            await asyncio.sleep(_retry_delay_s(attempt))
            attempt += 1
            try:
                return self._run_read(step)
            except sqlite3.Error as error:
                last_error = error

    def _run_read(self, step: Callable[[Transaction], T]) -> T:
        """Run a step on the current read transaction, beginning one if there is none.

        A caller that is alone gets a transaction of its own; under load, all reads of one loop iteration
        share one.
        """
        try:
            return step(self._read_transaction or self._begin_read())
        except sqlite3.Error:
            self._end_read()
            raise
        finally:
            if self._single_step_batches >= SERIAL_BATCH_THRESHOLD:
                self._end_read()

    def check_changed(self) -> bool:
        """Return whether this or another process has written since the previous call.

        Takes about a microsecond. Returns True if the database cannot be queried.
        """
        previous_version, self._data_version = self._data_version, -1
        self._end_read()
        if self._connections is not None:
            try:
                self._data_version = self._reader.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                self._stop_if_disk_failed(error)
        return self._data_version == -1 or self._data_version != previous_version

    async def close(self) -> None:
        """Finish every submitted step, then close the file."""
        self._closed, self._is_ready = True, False
        await self.release_file()
        self._writer_thread.join()

    async def release_file(self) -> None:
        """Finish every submitted step and close the file until the next use opens it again.

        In between, the file can be replaced by another.
        """
        if self._open_future is not None:
            await asyncio.wait([self._open_future])
        self._release_done.clear()
        self._is_ready = False
        try:
            while not self._idle.is_set():
                await self._idle.wait()  # callers that resumed in the same moment may have submitted more
            self._end_read()
            if self._connections is not None:
                connections, self._connections = self._connections, None
                closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._writer_thread.submit(
                    lambda: _close_connections(connections), lambda _, __: closed.set_result(None)
                )
                await closed
        finally:
            self._release_done.set()

    async def _ensure_open(self) -> None:
        if not self._release_done.is_set():
            await self._release_done.wait()
        if self._connections is None or self._closed:
            await self._open()

    async def _open(self) -> None:
        self._check_not_closed()
        if self._open_future is None:
            self._open_future = asyncio.get_running_loop().create_future()
            self._writer_thread.submit(self._open_connections, self._finish_opening)
        await asyncio.shield(self._open_future)
        self._check_not_closed()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise Failed(f"{self.path}: the ledger is closed")

    def _open_connections(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        writer = open_database(
            self.path, busy_timeout_s=self._busy_timeout_s, detect_filesystem=self._detect_filesystem
        )
        try:
            if self._must_verify:
                verify_disk(writer, self.path)
                self._must_verify = False
            self._uses_wal = writer.execute("PRAGMA journal_mode").fetchone()[0] == WAL
            return writer, open_database(
                self.path, busy_timeout_s=self._busy_timeout_s, detect_filesystem=self._detect_filesystem
            )
        except BaseException:
            writer.close()
            raise

    def _finish_opening(
        self, connections: tuple[sqlite3.Connection, sqlite3.Connection] | None, error: Exception | None
    ) -> None:
        """Store the connections, or pass the error to all callers that wait; the next use tries again."""
        open_future, self._open_future = self._open_future, None
        self._connections = connections
        self._is_ready = connections is not None and not self._closed and self._release_done.is_set()
        if open_future is None:
            return
        if error is None:
            open_future.set_result(None)
        else:
            open_future.set_exception(error)
            open_future.exception()

    def _start_batch(self) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        self._begin_batch(_Batch(pending_steps=self._take_pending_steps(), deadline=deadline), 0)

    def _begin_batch(self, batch: _Batch, attempt: int) -> None:
        self._end_read()
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if not is_busy_error(error) or time.monotonic() >= batch.deadline:
                self._finish_batch(batch, error)
                return
            asyncio.get_running_loop().call_later(
                _retry_delay_s(attempt), self._begin_batch, batch, attempt + 1
            )
            return
        self._run_batch(batch)

    def _run_batch(self, batch: _Batch) -> None:
        writer = self._writer
        is_single = len(batch.pending_steps) == 1
        changes_before = writer.total_changes
        cache = TransactionCache()
        try:
            for pending in batch.pending_steps:
                _run_step(pending, writer, SqliteTransaction(writer, self.path, cache), is_single=is_single)
                if pending.error is not None:
                    cache.clear()  # cached rows may have been undone
            rolled_back = is_single and batch.pending_steps[0].error is not None
            if unchanged := not rolled_back and writer.total_changes == changes_before:
                # Nothing to sync, so no reason to leave the loop.
                _commit_transaction(writer, batch.deadline)
        except sqlite3.Error as error:
            _roll_back(writer)
            self._finish_batch(batch, error)
            return
        except BaseException:
            _roll_back(writer)
            self._finish_batch(
                batch,
                Failed(f"{self.path}: a step was interrupted, so all steps of its transaction were undone"),
            )
            raise
        if rolled_back or unchanged:
            self._finish_batch(batch, None)
        elif self._should_commit_inline(batch):
            self._finish_batch(batch, _try_commit(writer, batch.deadline))
        else:
            self._writer_thread.submit(
                lambda: _commit_transaction(writer, batch.deadline),
                lambda _, error: self._finish_batch(batch, error),
            )

    def _should_commit_inline(self, batch: _Batch) -> bool:
        """Return whether to commit on the event loop instead of in the writer thread.

        Counts single-step batches. When steps arrive one at a time, nothing collects during the fsync, and a
        thread would cost more than it saves. Without a write-ahead log, a commit may have to wait for
        readers, which the loop must not do.
        """
        self._single_step_batches = (
            self._single_step_batches + 1 if len(batch.pending_steps) == 1 and self._uses_wal else 0
        )
        return self._single_step_batches > 1

    def _finish_batch(self, batch: _Batch, error: Exception | None) -> None:
        """Call the listeners, then resolve the futures, so that resumed callers can join the next batch."""
        self._end_read()
        read_failure, self._read_failure = self._read_failure, None
        if read_failure is not None or (error is not None and is_disk_failure(error, self.path)):
            self._discard_connections()
        try:
            for pending in batch.pending_steps if error is None else ():
                if self._on_event is not None:
                    for event in pending.events:
                        _call_listener(self._on_event, event)
                if pending.on_commit is not None and pending.error is None:
                    _call_listener(pending.on_commit, pending.value)
        finally:  # also if the process is interrupted now: close() must not hang
            for pending in batch.pending_steps:
                _resolve_future(pending, pending.error or error, self.path)
            if self._pending_steps and self._connections is None:
                self._finish_batch(
                    _Batch(pending_steps=self._take_pending_steps(), deadline=0), error or read_failure
                )
            elif self._pending_steps:
                asyncio.get_running_loop().call_soon(self._start_batch)
            else:
                self._idle.set()

    def _stop_if_disk_failed(self, error: sqlite3.Error) -> None:
        """After a read that failed, close the file as after a failed sync; a commit in progress is finished first."""
        if is_disk_failure(error, self.path):
            if not self._idle.is_set():
                self._read_failure = error
            elif self._connections is not None:
                self._discard_connections()

    def _discard_connections(self) -> None:
        """Close both connections after a disk failure; the next use opens the file anew and verifies it.

        Until the disk works again, every step and every read raises DiskError, so that no run continues whose state
        cannot be saved.
        """
        connections, self._connections = self._connections, None
        self._is_ready, self._must_verify = False, True
        if connections is not None:
            self._writer_thread.submit(lambda: _close_connections(connections), _ignore_result)

    def _take_pending_steps(self) -> list[_PendingStep]:
        pending_steps, self._pending_steps = self._pending_steps, []
        return pending_steps

    def _begin_read(self) -> ReadOnlyTransaction:
        # The writer has its own writes cached in memory; the reader would have to read them from the file again.
        reader = self._writer if self._idle.is_set() else self._reader
        reader.execute("BEGIN")
        self._read_transaction = ReadOnlyTransaction(reader, self.path)
        if self._single_step_batches < SERIAL_BATCH_THRESHOLD:
            asyncio.get_running_loop().call_soon(self._end_read)
        return self._read_transaction

    def _end_read(self) -> None:
        """End the shared read transaction, so that later reads see what has been committed since."""
        transaction, self._read_transaction = self._read_transaction, None
        if transaction is not None:
            transaction.roll_back()

    @property
    def _writer(self) -> sqlite3.Connection:
        return self._connection_pair()[0]

    @property
    def _reader(self) -> sqlite3.Connection:
        return self._connection_pair()[1]

    def _connection_pair(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        if self._connections is None:
            raise Failed(f"{self.path}: the ledger is closed")
        return self._connections


def _run_step(
    pending: _PendingStep, writer: sqlite3.Connection, tx: SqliteTransaction, *, is_single: bool
) -> None:
    """Run one step, in a savepoint of its own if others share the transaction.

    Raises only if the whole transaction is gone, as on a full disk.
    """
    if not is_single:
        writer.execute("SAVEPOINT step")
    try:
        pending.value = pending.step(tx)
    except Exception as error:
        if isinstance(error, sqlite3.Error) and not writer.in_transaction:
            raise
        pending.error = error
        writer.execute("ROLLBACK" if is_single else "ROLLBACK TO step")
    else:
        pending.events = tx.emitted_events
    if not is_single:
        writer.execute("RELEASE step")


def _call_listener(listener: Callable[[Any], None], argument: object) -> None:
    """Call a listener and report its exceptions to the loop.

    A failing listener stops neither the step nor other listeners.
    """
    try:
        listener(argument)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (reported by the loop's exception handler)
        context = {"message": "a callback after a ledger commit failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def _resolve_future(pending: _PendingStep, error: Exception | None, path: Path) -> None:
    if pending.future.done():
        return  # the caller was cancelled
    if error is None:
        pending.future.set_result(pending.value)
    else:
        pending.future.set_exception(_error_for_caller(error, path))


def _commit_transaction(writer: sqlite3.Connection, deadline: float) -> None:
    """Commit the transaction, retrying until the deadline while readers block it.

    With a write-ahead log, the file is never busy for the holder of the write lock. Without one, the commit
    waits for readers: the transaction stays open, and only COMMIT is repeated.
    """
    attempt = 0
    while True:
        try:
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            if writer.in_transaction and is_busy_error(error) and time.monotonic() < deadline:
                time.sleep(_retry_delay_s(attempt))
                attempt += 1
                continue
            _roll_back(writer)
            raise
        return


def _try_commit(writer: sqlite3.Connection, deadline: float) -> Exception | None:
    try:
        _commit_transaction(writer, deadline)
    except sqlite3.Error as error:
        return error
    return None


def _ignore_result(_value: object, _error: Exception | None) -> None:
    """Do nothing: closing a connection that failed may fail too."""


def _close_connections(connections: tuple[sqlite3.Connection, ...]) -> None:
    for connection in connections:
        connection.close()


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _error_for_caller(error: Exception, path: Path) -> Exception:
    if isinstance(error, sqlite3.Error):
        translated = translate_sqlite_error(error, path)
        translated.__cause__ = error
        return translated
    if isinstance(error, StopIteration):
        # A future cannot carry StopIteration: it would end the waiting coroutine as if it had returned.
        return RuntimeError(f"the step raised {error!r}")
    return error


def _retry_delay_s(attempt: int) -> float:
    return BUSY_RETRY_DELAYS_S[min(attempt, len(BUSY_RETRY_DELAYS_S) - 1)]
