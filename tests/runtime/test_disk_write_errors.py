"""A disk that refuses one write and takes the next: what was done is told as it was, and what was answered is heard."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.app.composition import scheduler_callbacks
from retinue.domain.delivery import Delivery
from retinue.domain.delivery import DeliveryState as Delivered
from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Notice, ToolResult
from retinue.errors import DiskError
from retinue.interfaces import Conversation, Ledger, SessionStore, Transaction
from retinue.runtime.recovery import UNKNOWN_OUTCOME
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

T = TypeVar("T")

BROKEN = DiskError("Cannot write: Input/output error")


class Disk:
    """Refuses the write after so many, and no other."""

    def __init__(self, takes: int) -> None:
        self.takes = takes

    def write(self) -> None:
        self.takes -= 1
        if self.takes == -1:
            raise BROKEN


class Rows:
    """A ledger on that disk."""

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


class Files:
    """Conversations on that disk."""

    def __init__(self, store: SessionStore, disk: Disk) -> None:
        self._store = store
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncGenerator[Conversation]:
        async with self._store.open(session) as talk:
            add = talk.append

            async def append(*entries: Entry, sync: bool = True) -> None:
                self._disk.write()
                await add(*entries, sync=sync)

            talk.append = append
            yield talk


def on(process: RuntimeProcess, **ports: Any) -> None:
    process.context = replace(process.context, **ports)
    process.worker.start(
        scheduler_callbacks(process.context, lambda _, error: process.crashes.append(error), lambda _: True)
    )


async def quiet(process: RuntimeProcess) -> tuple[list[Run], list[Delivery]]:
    """Until nothing goes on any more."""

    def step(tx: Transaction) -> tuple[list[Run], list[Delivery]]:
        return tx.find_runs(), tx.find_deliveries()

    while True:
        runs, told = await process.context.ledger.read(step)
        if all(run.status.is_final for run in runs):
            return runs, told
        await process.worker.wait_for_change()


async def test_a_deed_whose_result_the_disk_refused_is_told_as_it_ended(runtime: RuntimeFixture):
    """Shows: P08, P10."""

    @tool(name="mail", asks="never")
    async def mail() -> str:
        """Sends it."""
        return "sent to ann"

    async with runtime.open(tool_call_reply(("mail", "{}")), text_reply("Sent."), tools=[mail]) as process:
        session = await process.create_session()
        on(process, store=Files(process.store, Disk(2)))  # the task, the reply
        run = await process.run("Send it.", session=session)
        assert run.status is Status.FAILED
        assert [(each.ok, each.text) for each in await process.tool_results(run)] == [(True, "sent to ann")]


async def test_a_deed_that_a_person_stopped_is_told_as_unknown_and_one_not_begun_is_not(
    runtime: RuntimeFixture,
):
    """Shows: P10."""
    begun = asyncio.Event()

    @tool(name="mail", asks="never")
    async def mail() -> str:
        """Sends it."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with runtime.open(tool_call_reply(("mail", "{}")), tools=[mail]) as process:
        run = await process.submit("Send it.")
        await begun.wait()
        await process.cancel(run)
        (told,) = await process.tool_results(run)
        assert (told.ok, told.text) == (
            False,
            f"No result: the run was stopped before this call finished. {UNKNOWN_OUTCOME}",
        )


@pytest.mark.parametrize("takes", range(1, 8))
async def test_whichever_step_of_the_ledger_fails_whoever_is_done_has_heard_its_child(
    runtime: RuntimeFixture, takes: int
):
    """Shows: P08."""
    runtime.write_agent("one", "tools: [agent]\n")
    runtime.write_agent("two")
    asks = tool_call_reply(("agent", json.dumps({"agent_name": "two", "task_prompt": "Look."})))
    played = {
        "one": [asks, *(text_reply(f"I have heard it, and that is all ({time}).") for time in range(2))],
        "two": [text_reply("It came in 1993, I think.")],
    }
    async with runtime.open(by_agent=played) as process:
        session = await process.create_session("one")
        on(process, ledger=Rows(process.context.ledger, Disk(takes)))
        run = await process.submit("Go.", session=session)
        runs, told = await quiet(process)
        if (await process.reload(run)).status is Status.DONE and len(runs) > 1:
            assert [each.state for each in told] == [Delivered.DELIVERED]
            heard = [each for each in await process.entries(run) if isinstance(each, ToolResult | Notice)]
            assert sum("1993" in each.text for each in heard) == 1
