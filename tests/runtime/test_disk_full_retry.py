"""A full disk: a run waits for room with what it has in hand, gives its slot up, and goes on by itself."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.app.composition import scheduler_callbacks
from retinue.domain.limits import Limits
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry, ToolResult
from retinue.errors import DiskError, RetinueError, SessionLocked
from retinue.interfaces import Conversation, Ledger, RuntimeContext, SessionStore, Transaction
from retinue.runtime import disk_full
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

T = TypeVar("T")

FULL = DiskError("Cannot write /home/x/session.md: No space left on device", is_full=True)
BROKEN = DiskError("Cannot write /home/x/session.md: Input/output error")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_full, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(disk_full, "POLL_SECONDS", 0.01)


class Disk:
    """A disk that takes so much and then no more, until somebody makes room."""

    def __init__(self, takes: int, error: RetinueError = FULL) -> None:
        self.takes = takes
        self.error = error
        self.refused = 0

    def write(self) -> None:
        self.takes -= 1
        if self.takes < 0:
            self.refused += 1
            raise self.error

    def make_room(self) -> None:
        self.takes = 1_000_000

    async def hit(self, times: int = 3) -> None:
        while self.refused < times:  # noqa: ASYNC110  (nobody tells of it)
            await asyncio.sleep(0.001)


class Files:
    """Conversations on that disk."""

    def __init__(self, store: SessionStore, disk: Disk) -> None:
        self._store = store
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, new: NewSession) -> Session:
        self._disk.write()
        return await self._store.create(new)

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncGenerator[Conversation]:
        async with self._store.open(session) as talk:
            add = talk.append

            async def append(*entries: Entry, sync: bool = True) -> None:
                self._disk.write()
                await add(*entries, sync=sync)

            talk.append = append
            yield talk


class Rows:
    """A ledger on that disk: looking costs no room."""

    def __init__(self, ledger: Ledger, disk: Disk) -> None:
        self._ledger = ledger
        self._disk = disk

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        self._disk.write()
        return await self._ledger.write(step, on_commit)

    async def read(self, step: Callable[[Transaction], T]) -> T:
        return await self._ledger.read(step)


def on(process: RuntimeProcess, **ports: Any) -> RuntimeContext:
    """The house goes on with other ports."""
    made = replace(process.context, **ports)
    process.worker.start(
        scheduler_callbacks(made, lambda _, error: process.crashes.append(error), lambda _: True)
    )
    process.context = made
    return made


async def waits(process: RuntimeProcess, run: Run) -> Run:
    while (now := await process.reload(run)).status is not Status.WAITING:  # noqa: ASYNC110  (the same)
        await asyncio.sleep(0.001)
    return now


@tool(effect="once")
async def mail() -> str:
    """Sends it."""
    SENT.append("mail")
    return "sent"


SENT: list[str] = []


@pytest.mark.parametrize("takes", range(5))
async def test_a_run_waits_for_room_and_goes_on_with_what_it_has_in_hand(runtime: RuntimeFixture, takes: int):
    """Every entry of it in turn finds the disk full: none is asked for or done a second time.

    Shows: P06.
    """
    SENT.clear()
    async with runtime.open(
        tool_call_reply(("mail", "{}"), text="I send it."), text_reply("Sent."), tools=[mail]
    ) as process:
        disk = Disk(takes)
        session = await process.create_session()
        on(process, store=Files(process.store, disk))
        run = await process.submit("Send it.", session=session)
        if takes < 4:
            now = await waits(process, run)
            assert (now.waiting_for, now.error) == (WaitReason.DISK, str(FULL))
            notes = [e.data["note"] for e in process.events if e.data.get("note")]
            assert notes == [f"waiting for disk space: {FULL}"]
            await disk.hit()
            disk.make_room()
        ended = await process.wait(run)
        assert (ended.status, ended.text, ended.error) == (Status.DONE, "Sent.", "")
        assert ended.attempts == 1
        assert (len(process.provider.requests), SENT) == (2, ["mail"])
        assert await process.agent_texts(run) == ["I send it.", "Sent."]
        assert [each.text for each in await process.tool_results(run)] == ["sent"]


@pytest.mark.parametrize("takes", range(4))
async def test_a_ledger_without_room_is_waited_for_and_nothing_is_done_twice(
    runtime: RuntimeFixture, takes: int
):
    """Shows: P06."""
    SENT.clear()
    async with runtime.open(
        tool_call_reply(("mail", "{}"), text="I send it."), text_reply("Sent."), tools=[mail]
    ) as process:
        disk = Disk(1 + takes)  # the run is born
        on(process, ledger=Rows(process.context.ledger, disk))
        run = await process.submit("Send it.")
        if takes < 3:
            await disk.hit()
            assert not (await process.reload(run)).status.is_final
            disk.make_room()
        ended = await process.wait(run)
        assert (ended.status, ended.text) == (Status.DONE, "Sent.")
        assert (len(process.provider.requests), SENT) == (2, ["mail"])
        assert await process.agent_texts(run) == ["I send it.", "Sent."]


async def test_a_ledger_that_another_process_keeps_locked_ends_no_run(runtime: RuntimeFixture):
    """Shows: P27."""
    async with runtime.open(tool_call_reply(("mail", "{}")), text_reply("Sent."), tools=[mail]) as process:
        disk = Disk(2, SessionLocked("ledger.db: the ledger is locked by another process"))
        on(process, ledger=Rows(process.context.ledger, disk))
        run = await process.submit("Send it.")
        await disk.hit(5)
        disk.make_room()
        assert (await process.wait(run)).status is Status.DONE


async def test_whoever_waits_for_room_holds_no_slot_and_takes_one_again(runtime: RuntimeFixture):
    """Shows: P06."""
    async with runtime.open(
        by_agent={"First.": [text_reply("One.")], "Second.": [text_reply("Two.")]}, limits=Limits(max_live=1)
    ) as process:
        disk = Disk(1)
        whole = process.context
        session = await process.create_session()
        on(process, store=Files(process.store, disk))
        first = await process.submit("First.", session=session)
        await waits(process, first)
        on(process, store=whole.store)
        second = await process.run("Second.")
        assert second.status is Status.DONE
        assert (await process.reload(first)).status is Status.WAITING
        disk.make_room()
        assert (await process.wait(first)).text == "One."


async def test_the_time_without_room_is_not_the_runs(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Done.")) as process:
        disk = Disk(1)
        session = await process.create_session()
        on(process, store=Files(process.store, disk))
        run = await process.submit("Go.", session=session, deadline_seconds=1)
        await waits(process, run)
        await asyncio.sleep(1.1)
        disk.make_room()
        ended = await process.wait(run)
        assert ended.status is Status.DONE
        assert ended.deadline_at is not None
        assert ended.started_at is not None
        assert ended.deadline_at - ended.started_at > timedelta(seconds=2)


async def test_a_run_that_waits_for_room_can_be_cancelled(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Never kept.")) as process:
        disk = Disk(1)
        session = await process.create_session()
        on(process, store=Files(process.store, disk))
        run = await process.submit("Go.", session=session)
        await waits(process, run)
        assert (await process.cancel(run)).status is Status.CANCELLED
        disk.make_room()
        ended = await process.wait(run)
        assert (ended.status, ended.reason) == (Status.CANCELLED, Reason.USER_CANCEL)


async def test_a_run_that_was_ended_elsewhere_while_it_waited_for_room_does_not_go_on(
    runtime: RuntimeFixture,
):
    async with runtime.open(tool_call_reply(("mail", "{}")), text_reply("Never."), tools=[mail]) as process:
        SENT.clear()
        disk = Disk(1)
        session = await process.create_session()
        on(process, store=Files(process.store, disk))
        run = await process.submit("Go.", session=session)
        now = await waits(process, run)
        gone = now.finish(Status.CANCELLED, at=process.context.clock.now(), reason=Reason.USER_CANCEL)

        def step(tx: Transaction) -> None:
            tx.update_run(gone)

        await process.context.ledger.write(step)
        disk.make_room()
        assert (await process.wait(run)).status is Status.CANCELLED
        assert SENT == []


async def test_a_process_that_dies_while_it_waits_for_room_leaves_a_run_that_can_be_resumed(
    runtime: RuntimeFixture,
):
    """Shows: P06."""
    async with runtime.open(text_reply("Lost with the process.")) as process:
        session = await process.create_session()
        on(process, store=Files(process.store, Disk(1)))
        run = await process.submit("Go.", session=session)
        await waits(process, run)
    async with runtime.open(text_reply("Here.")) as process:
        left = await process.reload(run)
        assert (left.status, left.waiting_for) == (Status.WAITING, WaitReason.DISK)
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Here.")


async def test_a_dead_process_that_waited_for_room_keeps_nobody_from_its_conversation(
    runtime: RuntimeFixture,
):
    async with runtime.open(text_reply("x")) as process:
        session = await process.create_session()
        on(process, store=Files(process.store, Disk(1)))
        first = await process.submit("Go.", session=session)
        await waits(process, first)
    async with runtime.open(text_reply("Heard.")) as process:
        second = await process.submit("And?", session=session)
        process.worker.start(
            scheduler_callbacks(
                process.context,
                lambda _, error: process.crashes.append(error),
                lambda o: o == process.context.owners.own_id,
            )
        )
        assert (await process.wait(second)).status is Status.DONE
        assert (await process.reload(first)).status is Status.QUEUED


async def test_a_child_is_made_once_there_is_room_for_it(runtime: RuntimeFixture):
    """Shows: P06."""
    runtime.write_agent("helper")
    asks = ("PersistentAgent", json.dumps({"preset": "helper", "description": "look", "prompt": "Look."}))
    by_agent = {"Go.": [tool_call_reply(asks), text_reply("Good.")], "Look.": [text_reply("Here.")]}
    async with runtime.open(by_agent=by_agent) as process:
        session = await process.create_session()
        disk = Disk(2)
        on(process, store=Files(process.store, disk))
        run = await process.submit("Go.", session=session)
        await waits(process, run)
        await disk.hit()
        disk.make_room()
        while not (ended := await process.reload(run)).status.is_final:
            await process.worker.wait_for_change()
        assert (ended.status, ended.text) == (Status.DONE, "Good.")
        assert len(ended.child_ids) == 1
        assert len(process.provider.requests) == 3


async def test_a_broken_disk_is_not_waited_for(runtime: RuntimeFixture):
    """Shows: P08."""
    async with runtime.open(text_reply("Never kept.")) as process:
        session = await process.create_session()
        on(process, store=Files(process.store, Disk(1, BROKEN)))
        run = await process.run("Go.", session=session)
        assert (run.status, run.reason, run.error) == (Status.FAILED, Reason.DISK, str(BROKEN))
        assert [type(each) for each in await process.entries(run) if isinstance(each, ToolResult)] == []
        assert await process.agent_texts(run) == []


async def test_a_process_that_ends_waits_for_no_room_and_the_next_one_goes_on(runtime: RuntimeFixture):
    """What was said stands in the file: the next process only has to write down that it is over.

    Shows: P06.
    """
    async with runtime.open(text_reply("Done.")) as process:
        disk = Disk(1)  # the run is born
        on(process, ledger=Rows(process.context.ledger, disk))
        run = await process.submit("Go.")
        await disk.hit()
        assert await process.agent_texts(run) == ["Done."]
    async with runtime.open(text_reply("Never.")) as process:
        assert (await process.reload(run)).status is Status.RUNNING
        ended = await process.resume(run)
        assert (ended.status, ended.text, process.provider.requests) == (Status.DONE, "Done.", [])
