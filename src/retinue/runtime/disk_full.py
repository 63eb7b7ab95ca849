"""Room: what a full disk does not take now is tried again in place, and meanwhile the run waits for it.

What was heard of a model or done by a tool stays in hand until it is written, so that nothing is asked or done a second
time only because the disk was full for a while.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar, cast

from retinue.domain.agent import Agent
from retinue.domain.approval import Touch
from retinue.domain.change import replace
from retinue.domain.run import Run, Status, Waiting
from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Called, Entry, Returned
from retinue.errors import Cancelled, Held, NoRoom, RetinueError
from retinue.interfaces import Conversation, Ledger, Ports, Store, Tx
from retinue.runtime.run_creation import Claim, claim
from retinue.runtime.run_events import told

T = TypeVar("T")

RETRY_SECONDS = 2.0
MOMENT_SECONDS = 0.25
NOTE = "waits for room on the disk: {why}"


class Room:
    """One run's patience with the disk. `stopped` and `went_on` are told, so that no clock runs meanwhile."""

    def __init__(
        self, run: Run, ports: Ports, *, stopped: Callable[[], None], went_on: Callable[[timedelta], None]
    ) -> None:
        self._run = run
        self._raw = ports
        self._stopped = stopped
        self._went_on = went_on
        self._one = asyncio.Lock()
        """Of several calls at once that find no room, one tries again; the others follow."""
        self._work = asyncio.current_task()
        self._hurried = False
        self.ports = replace(
            ports, ledger=RoomyLedger(ports.ledger, self), store=RoomyStore(ports.store, self)
        )
        """What the run acts through: the same as given, with this patience."""

    @contextmanager
    def hurried(self) -> Generator[None]:
        """Inside, nothing is waited for: what cannot be written now is left."""
        self._hurried = True
        try:
            yield
        finally:
            self._hurried = False

    async def kept(self, write: Callable[[], Awaitable[T]], *, ledger: bool = False) -> T:
        """What `write` comes to, as soon as there is room for it. Only a full disk is waited for, and a `ledger` that
        another process keeps locked: a broken disk is an error at once."""
        try:
            return await write()
        except RetinueError as error:
            return await self.again(write, error, ledger=ledger)

    async def again(
        self, write: Callable[[], Awaitable[T]], error: RetinueError, *, ledger: bool = False
    ) -> T:
        """The same for what was tried already, and met this error."""
        if not self._passes(error, ledger=ledger):
            raise error
        async with self._one:
            return await self._patiently(write, ledger=ledger)

    def _passes(self, error: RetinueError, *, ledger: bool) -> bool:
        full = isinstance(error, NoRoom) and error.full
        return not self._given_up() and (full or (ledger and isinstance(error, Held)))

    def _given_up(self) -> bool:
        """A run that is being stopped waits no more, not even for what nobody may break off."""
        return self._hurried or (self._work is not None and self._work.cancelling() > 0)

    async def _pause(self) -> None:
        until = asyncio.get_running_loop().time() + RETRY_SECONDS
        while asyncio.get_running_loop().time() < until and not self._given_up():  # noqa: ASYNC110  (the disk tells nobody)
            await asyncio.sleep(MOMENT_SECONDS)

    async def _patiently(self, write: Callable[[], Awaitable[T]], *, ledger: bool) -> T:
        loop = asyncio.get_running_loop()
        since: float | None = None
        while True:
            try:
                done = await write()
                break
            except RetinueError as error:
                if not self._passes(error, ledger=ledger):
                    raise
                if since is None:
                    since = loop.time()
                    self._stopped()
                    self._tell(error)
                if not ledger:
                    await self._stands_aside(error)
            await self._pause()
            await self._still_wanted()
        if since is not None:
            await self._back(timedelta(seconds=loop.time() - since))
        return done

    def _tell(self, error: RetinueError) -> None:
        note = NOTE.format(why=self._raw.redact(str(error)))
        self._raw.emit(told("run.state", self._run, self._raw, phase=str(Waiting.DISK), note=note))

    async def _stands_aside(self, error: RetinueError) -> None:
        """Its slot is free. Where not even this can be written, nobody can take a slot either. What lacks the ledger's
        own room is no state of its row: the step that is tried again finds the run as it left it."""

        def step(tx: Tx) -> None:
            now = tx.run(self._run.id)
            if now is None or now.status is not Status.RUNNING:
                return
            waiting = replace(now.waits(Waiting.DISK), error=self._raw.redact(str(error)))
            tx.set_run(waiting)
            tx.emit(told("run.state", waiting, self._raw, phase=str(Waiting.DISK)))

        with suppress(RetinueError):
            await self._raw.ledger.do(step)

    async def _still_wanted(self) -> None:
        """A run that waits may have been ended by anybody."""
        now = None
        with suppress(RetinueError):
            now = await self._raw.ledger.look(lambda tx: tx.run(self._run.id))
        if now is not None and now.status.final:
            raise Cancelled(f"run {now.id} was ended while it waited for room on the disk ({now.status})")

    async def _back(self, waited: timedelta) -> None:
        """The time it waited is not the run's, and it takes a slot again like any other."""

        def step(tx: Tx) -> None:
            now = tx.run(self._run.id)
            if now is None or now.status.final:
                return
            if now.waiting_for is Waiting.DISK:
                tx.set_run(replace(now.answered(waited=waited), error=""))
            elif now.deadline_at is not None:
                tx.set_run(replace(now, deadline_at=now.deadline_at + waited))

        await self._until_told(lambda: self._raw.ledger.do(step))
        while await self._until_told(self._claimed) not in (Claim.TAKEN, Claim.GONE):  # noqa: ASYNC110  (another process may free the slot: nothing to wait on)
            await asyncio.sleep(MOMENT_SECONDS)
        await self._still_wanted()
        self._went_on(waited)

    async def _claimed(self) -> Claim:
        return await claim(self._run.id, self._raw)

    async def _until_told(self, act: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await act()
            except RetinueError as error:
                if not self._passes(error, ledger=True):
                    raise
            await self._pause()


async def freed(ports: Ports, alive: Callable[[str], bool]) -> None:
    """A dead process waits for no disk: its runs go back to the queue, like those it was working."""

    def left(tx: Tx) -> list[Run]:
        waiting = tx.runs(status=[Status.WAITING])
        return [run for run in waiting if run.waiting_for is Waiting.DISK and not alive(run.owner)]

    def step(tx: Tx) -> None:
        for run in left(tx):
            tx.set_run(run.requeued())

    if await ports.ledger.look(left):
        await ports.ledger.do(step)


class RoomyLedger:
    """A ledger that waits for room."""

    def __init__(self, ledger: Ledger, room: Room) -> None:
        self._ledger = ledger
        self._room = room

    async def do(self, step: Callable[[Tx], T], then: Callable[[T], None] | None = None) -> T:
        try:
            return await self._ledger.do(step, then)
        except RetinueError as error:
            return await self._room.again(lambda: self._ledger.do(step, then), error, ledger=True)

    async def look(self, step: Callable[[Tx], T]) -> T:
        try:
            return await self._ledger.look(step)
        except RetinueError as error:
            return await self._room.again(lambda: self._ledger.look(step), error, ledger=True)


class RoomyStore:
    """A store that waits for room."""

    def __init__(self, store: Store, room: Room) -> None:
        self._store = store
        self._room = room

    async def create(self, new: NewSession) -> Session:
        return await self._room.kept(lambda: self._store.create(new))

    async def find(self, ref: str) -> Session:
        return await self._store.find(ref)

    async def sessions(self, *, agent: str | None = None, children: bool = True) -> list[Session]:
        return await self._store.sessions(agent=agent, children=children)

    def open(self, session: Session) -> AbstractAsyncContextManager[Conversation]:
        return RoomyOpening(lambda: self._store.open(session), self._room)

    async def preset(self, session: Session) -> tuple[Agent, str]:
        return await self._store.preset(session)

    async def change(self, session: Session, **facts: Any) -> Session:
        return await self._room.kept(lambda: self._store.change(session, **facts))

    async def delete(self, session: Session) -> str:
        return await self._store.delete(session)

    async def recent(self, session: Session, *, after: str = "", before: str = "", limit: int) -> list[Entry]:
        return await self._store.recent(session, after=after, before=before, limit=limit)

    async def widen(self, session: Session, touch: Touch, pattern: str) -> None:
        await self._room.kept(lambda: self._store.widen(session, touch, pattern))


class RoomyOpening:
    """Opening writes too: what a crash cut short is put aside first. What finds no room is opened anew."""

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Conversation]], room: Room) -> None:
        self._opened = opened
        self._room = room
        self._open: AbstractAsyncContextManager[Conversation] | None = None

    async def __aenter__(self) -> Conversation:
        talk = await self._room.kept(self._entered)
        # The protocol has an attribute where this has a property: what is read is the same.
        return cast("Conversation", RoomyConversation(talk, self._room))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._open is None else await self._open.__aexit__(kind, error, trace)

    async def _entered(self) -> Conversation:
        opened = self._opened()
        talk = await opened.__aenter__()
        self._open = opened
        return talk


class RoomyConversation:
    """A conversation that waits for room before it is added to."""

    def __init__(self, talk: Conversation, room: Room) -> None:
        self._talk = talk
        self._room = room
        self.session = talk.session
        self.torn = talk.torn

    @property
    def memo(self) -> dict[str, Any]:
        return self._talk.memo

    @property
    def entries(self) -> Sequence[Entry]:
        return self._talk.entries

    @property
    def abridged(self) -> bool:
        return self._talk.abridged

    async def earlier(self, run: str) -> Sequence[Entry]:
        return await self._talk.earlier(run)

    async def append(self, *entries: Entry, sync: bool = True) -> None:
        try:
            await self._talk.append(*entries, sync=sync)
        except RetinueError as error:
            await self._room.again(lambda: self._talk.append(*entries, sync=sync), error)

    async def refresh(self) -> bool:
        return await self._room.kept(self._talk.refresh)

    def typed(self) -> str:
        return self._talk.typed()

    async def take_typed(self, said: Entry) -> None:
        await self._room.kept(lambda: self._talk.take_typed(said))

    async def rest(self) -> None:
        await self._room.kept(self._talk.rest)

    async def log_tool(self, called: Called, returned: Returned) -> None:
        await self._talk.log_tool(called, returned)
