"""Retry writes while the disk is full; the run waits meanwhile.

Model replies and tool results stay in memory until they are written, so nothing is requested or done twice
only because the disk was full for a while.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar, Unpack, cast

from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.approval import ToolAccess
from retinue.domain.run import ClaimResult, Run, Status, WaitReason
from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry, ToolCall, ToolResult
from retinue.errors import Cancelled, DiskError, RetinueError, SessionLocked
from retinue.interfaces import (
    Conversation,
    Ledger,
    RuntimeContext,
    SessionChanges,
    SessionStore,
    Transaction,
)
from retinue.runtime.recovery import time_of_death
from retinue.runtime.run_clock import start_parent_clocks, stop_idle_parent_clocks
from retinue.runtime.run_creation import claim_run
from retinue.runtime.run_events import make_event

T = TypeVar("T")

RETRY_SECONDS = 2.0
POLL_SECONDS = 0.25
WAITING_NOTE = "waiting for disk space: {why}"


class DiskFullRetry:
    """Retries one run's writes while the disk is full.

    `on_wait_start` and `on_wait_end` let the caller pause its timeouts.
    """

    def __init__(
        self,
        run: Run,
        context: RuntimeContext,
        *,
        on_wait_start: Callable[[], None],
        on_wait_end: Callable[[], None],
    ) -> None:
        self._run = run
        self._unwrapped = context
        self._on_wait_start = on_wait_start
        self._on_wait_end = on_wait_end
        self._retry_lock = asyncio.Lock()
        """Allows one failed call to retry at a time; the others wait until it has succeeded."""
        self._task = asyncio.current_task()
        self._no_wait = False
        self.context = replace(
            context, ledger=RetryingLedger(context.ledger, self), store=RetryingStore(context.store, self)
        )
        """The runtime context the run uses: the given one, with a retrying ledger and store."""

    @contextmanager
    def without_waiting(self) -> Generator[None]:
        """Disable retries inside the block: a write that fails is dropped."""
        self._no_wait = True
        try:
            yield
        finally:
            self._no_wait = False

    async def attempt(self, write: Callable[[], Awaitable[T]], *, ledger: bool = False) -> T:
        """Return the result of `write`, retried while the disk is full.

        Only a full disk is retried, and with `ledger` a database that another process has locked. Other disk
        errors are raised at once.
        """
        try:
            return await write()
        except RetinueError as error:
            return await self.retry_failed(write, error, ledger=ledger)

    async def retry_failed(
        self, write: Callable[[], Awaitable[T]], error: RetinueError, *, ledger: bool = False
    ) -> T:
        """Retry a write that has already failed with this error."""
        if not self._is_retryable(error, ledger=ledger):
            raise error
        async with self._retry_lock:
            return await self._retry_until_written(write, ledger=ledger)

    def _is_retryable(self, error: RetinueError, *, ledger: bool) -> bool:
        full = isinstance(error, DiskError) and error.is_full
        return not self._must_stop() and (full or (ledger and isinstance(error, SessionLocked)))

    def _must_stop(self) -> bool:
        """Return True if the run is being stopped; then no write is retried, not even a shielded one."""
        return self._no_wait or (self._task is not None and self._task.cancelling() > 0)

    async def _wait_before_retry(self) -> None:
        until = asyncio.get_running_loop().time() + RETRY_SECONDS
        while asyncio.get_running_loop().time() < until and not self._must_stop():  # noqa: ASYNC110  (a full disk sends no notification)
            await asyncio.sleep(POLL_SECONDS)

    async def _retry_until_written(self, write: Callable[[], Awaitable[T]], *, ledger: bool) -> T:
        loop = asyncio.get_running_loop()
        waiting_since: float | None = None
        while True:
            try:
                result = await write()
                break
            except RetinueError as error:
                if not self._is_retryable(error, ledger=ledger):
                    raise
                if waiting_since is None:
                    waiting_since = loop.time()
                    self._on_wait_start()
                    self._emit_waiting(error)
                if not ledger:
                    await self._suspend_run(error)
            await self._wait_before_retry()
            await self._check_not_ended()
        if waiting_since is not None:
            await self._resume_run(timedelta(seconds=loop.time() - waiting_since))
        return result

    def _emit_waiting(self, error: RetinueError) -> None:
        note = WAITING_NOTE.format(why=self._unwrapped.redact(str(error)))
        self._unwrapped.events.emit(
            make_event("run.state", self._run, self._unwrapped, phase=str(WaitReason.DISK), note=note)
        )

    async def _suspend_run(self, error: RetinueError) -> None:
        """Suspend the run, which frees its slot.

        If even this cannot be written, no run can claim a slot either. Called only when the store is out of
        space: if the ledger is, the retried transaction must find the run unchanged.
        """

        def step(tx: Transaction) -> None:
            current = tx.get_run(self._run.id)
            if current is None or current.status is not Status.RUNNING:
                return
            at = self._unwrapped.clock.now()
            suspended = current.suspend(WaitReason.DISK, at=at)
            tx.update_run(replace(suspended, error=self._unwrapped.redact(str(error))))
            stop_idle_parent_clocks(suspended, tx, at)
            tx.emit(make_event("run.state", suspended, self._unwrapped, phase=str(WaitReason.DISK)))

        with suppress(RetinueError):
            await self._unwrapped.ledger.write(step)

    async def _check_not_ended(self) -> None:
        """Raise Cancelled if the run was ended while it waited."""
        current = None
        with suppress(RetinueError):
            current = await self._unwrapped.ledger.read(lambda tx: tx.get_run(self._run.id))
        if current is not None and current.status.is_final:
            raise Cancelled(f"Run {current.id} was ended while it waited for disk space ({current.status}).")

    async def _resume_run(self, waited: timedelta) -> None:
        """Resume the run: it claims a slot like any other, and the wait does not count against its deadline."""

        def step(tx: Transaction) -> None:
            current = tx.get_run(self._run.id)
            if current is None or current.status.is_final:
                return
            if current.waiting_for is WaitReason.DISK:
                at = self._unwrapped.clock.now()
                tx.update_run(replace(current.requeue_after_wait(at=at), error=""))
                start_parent_clocks(current, tx, at)
            elif current.deadline_at is not None:
                tx.update_run(replace(current, deadline_at=current.deadline_at + waited))

        await self._retry_ledger(lambda: self._unwrapped.ledger.write(step))
        while await self._retry_ledger(self._try_claim) not in (ClaimResult.CLAIMED, ClaimResult.NOT_QUEUED):  # noqa: ASYNC110  (another process may free the slot: nothing to wait on)
            await asyncio.sleep(POLL_SECONDS)
        await self._check_not_ended()
        self._on_wait_end()

    async def _try_claim(self) -> ClaimResult:
        return await claim_run(self._run.id, self._unwrapped)

    async def _retry_ledger(self, operation: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await operation()
            except RetinueError as error:
                if not self._is_retryable(error, ledger=True):
                    raise
            await self._wait_before_retry()


async def requeue_disk_waiters(context: RuntimeContext, is_alive: Callable[[str], bool]) -> None:
    """Queue runs again that were waiting for disk space when their process died."""

    def orphaned(tx: Transaction) -> list[Run]:
        waiting = tx.find_runs(status=[Status.WAITING])
        return [run for run in waiting if run.waiting_for is WaitReason.DISK and not is_alive(run.owner_id)]

    def step(tx: Transaction) -> None:
        for run in orphaned(tx):
            tx.update_run(run.requeue_after_crash(died_at=time_of_death(run, context)))

    if await context.ledger.read(orphaned):
        await context.ledger.write(step)


class RetryingLedger:
    """Ledger that retries while the disk is full."""

    def __init__(self, ledger: Ledger, disk_retry: DiskFullRetry) -> None:
        self._ledger = ledger
        self._disk_retry = disk_retry

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        try:
            return await self._ledger.write(step, on_commit)
        except RetinueError as error:
            return await self._disk_retry.retry_failed(
                lambda: self._ledger.write(step, on_commit), error, ledger=True
            )

    async def read(self, step: Callable[[Transaction], T]) -> T:
        try:
            return await self._ledger.read(step)
        except RetinueError as error:
            return await self._disk_retry.retry_failed(lambda: self._ledger.read(step), error, ledger=True)


class RetryingStore:
    """Store that retries while the disk is full."""

    def __init__(self, store: SessionStore, disk_retry: DiskFullRetry) -> None:
        self._store = store
        self._disk_retry = disk_retry

    async def create(self, new: NewSession) -> Session:
        return await self._disk_retry.attempt(lambda: self._store.create(new))

    async def find(self, ref: str) -> Session:
        return await self._store.find(ref)

    async def sessions(self, *, agent: str | None = None, children: bool = True) -> list[Session]:
        return await self._store.sessions(agent=agent, children=children)

    def open(self, session: Session) -> AbstractAsyncContextManager[Conversation]:
        return RetryingConversationOpener(lambda: self._store.open(session), self._disk_retry)

    async def read_preset(self, session: Session) -> tuple[Agent, str]:
        return await self._store.read_preset(session)

    async def update(self, session: Session, **changes: Unpack[SessionChanges]) -> Session:
        return await self._disk_retry.attempt(lambda: self._store.update(session, **changes))

    async def delete(self, session: Session, *, at: datetime | None = None) -> str:
        return await self._store.delete(session, at=at)

    def path_in_trash(self, path: str, at: datetime) -> str:
        return self._store.path_in_trash(path, at)

    async def read_entry_page(
        self, session: Session, *, after: str = "", before: str = "", limit: int
    ) -> list[Entry]:
        return await self._store.read_entry_page(session, after=after, before=before, limit=limit)

    async def read_entry(self, session: Session, entry_id: str) -> Entry:
        return await self._store.read_entry(session, entry_id)

    async def grant_pattern(self, session: Session, access: ToolAccess, pattern: str) -> None:
        await self._disk_retry.attempt(lambda: self._store.grant_pattern(session, access, pattern))


class RetryingConversationOpener:
    """Opens a conversation, and opens it anew if the disk was full.

    Opening writes too: an incomplete tail left by a crash is moved to another file first.
    """

    def __init__(
        self, make_manager: Callable[[], AbstractAsyncContextManager[Conversation]], disk_retry: DiskFullRetry
    ) -> None:
        self._make_manager = make_manager
        self._disk_retry = disk_retry
        self._manager: AbstractAsyncContextManager[Conversation] | None = None

    async def __aenter__(self) -> Conversation:
        conversation = await self._disk_retry.attempt(self._enter_manager)
        # The protocol declares an attribute, and this class has a property: reading is the same.
        return cast("Conversation", RetryingConversation(conversation, self._disk_retry))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._manager is None else await self._manager.__aexit__(kind, error, trace)

    async def _enter_manager(self) -> Conversation:
        manager = self._make_manager()
        conversation = await manager.__aenter__()
        self._manager = manager
        return conversation


class RetryingConversation:
    """Conversation that retries writes while the disk is full."""

    def __init__(self, conversation: Conversation, disk_retry: DiskFullRetry) -> None:
        self._conversation = conversation
        self._disk_retry = disk_retry
        self.session = conversation.session
        self.torn_tail_path = conversation.torn_tail_path

    @property
    def provider_cache(self) -> dict[str, Any]:
        return self._conversation.provider_cache

    @property
    def entries(self) -> Sequence[Entry]:
        return self._conversation.entries

    @property
    def is_truncated(self) -> bool:
        return self._conversation.is_truncated

    async def read_earlier_entries(self, run_id: str) -> Sequence[Entry]:
        return await self._conversation.read_earlier_entries(run_id)

    async def append(self, *entries: Entry, sync: bool = True) -> None:
        try:
            await self._conversation.append(*entries, sync=sync)
        except RetinueError as error:
            await self._disk_retry.retry_failed(lambda: self._conversation.append(*entries, sync=sync), error)

    async def reload_if_edited(self) -> bool:
        return await self._disk_retry.attempt(self._conversation.reload_if_edited)

    def typed_text(self) -> str:
        return self._conversation.typed_text()

    async def save_typed_text(self, message: Entry) -> None:
        await self._disk_retry.attempt(lambda: self._conversation.save_typed_text(message))

    async def write_idle_prompt(self) -> None:
        await self._disk_retry.attempt(self._conversation.write_idle_prompt)

    async def log_tool_call(self, tool_call: ToolCall, tool_result: ToolResult) -> None:
        await self._conversation.log_tool_call(tool_call, tool_result)
