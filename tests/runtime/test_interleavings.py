"""Whatever happens in whichever order: no result is lost or told twice, no limit is passed, and in the end all is quiet."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from gates import make_gated_tool
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.app.composition import scheduler_callbacks
from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.model_turn import Reply, ReplyDelta, Request
from retinue.domain.run import Reason, Run, Status
from retinue.domain.transcript import Message, Notice
from retinue.errors import ModelFailed
from retinue.interfaces import Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import FakeProvider, RecordedRequest, text_reply, tool_call_reply
from retinue.worker.clock import system_clock

T = TypeVar("T")

HELPER = json.dumps({"preset": "main", "description": "look", "prompt": "Look."})
INTERLEAVE = Path(__file__).resolve().parents[1] / "interleave"


def played(*words: str) -> str:
    """What the cases said, if one of them broke a law."""
    done = subprocess.run(
        [sys.executable, "-B", INTERLEAVE, *words], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 and "cases" in done.stdout else done.stdout + done.stderr


def test_random_trees_in_random_order_keep_every_law():
    """Shows: C01, C07, C11, C12, L007, L012, L018, L020."""
    assert played("--cases", "150", "--known") == ""


def test_the_same_holds_on_the_ledger_that_is_kept():
    assert played("--cases", "25", "--first", "100000", "--sqlite", "--known") == ""


def spawns(task: str) -> tuple[str, str]:
    return "sessions_spawn", json.dumps({"task": task})


async def runs(process: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await process.context.ledger.read(step)


async def outbox(process: RuntimeProcess) -> list[Delivery]:
    def step(tx: Transaction) -> list[Delivery]:
        return tx.find_deliveries()

    return await process.context.ledger.read(step)


async def quiet(process: RuntimeProcess) -> list[Run]:
    while True:
        found = await runs(process)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in found):
            return found
        await process.worker.wait_for_change()


@dataclass(slots=True)
class Faltering(FakeProvider):
    """In its second turn the asker hears nothing until its worker has ended, and then fails; the worker speaks when that
    turn has begun, and not before."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def request_reply(self, request: Request, on_delta: Callable[[ReplyDelta], None]) -> Reply:
        asks = request.entries[0].text == "Go." if isinstance(request.entries[0], Message) else False
        if asks and len([each for each in self.requests if each.entries[0] == request.entries[0]]) == 1:
            self.requests.append(RecordedRequest(request=request, entries=tuple(request.entries)))
            self.begun.set()
            await self.ended.wait()
            raise ModelFailed("gone", reason="unreachable")
        if not asks:
            await self.begun.wait()
        # Not super(): a dataclass with slots is made a second time, and the one that super() knows is the first.
        return await FakeProvider.request_reply(self, request, on_delta)


async def test_what_comes_during_a_turn_that_then_fails_is_heard_by_one_that_is_woken(
    runtime: RuntimeFixture,
):
    """Shows: L012, E015."""
    runtime.write_agent("main")
    driver = Faltering(
        {
            "Go.": [tool_call_reply(spawns("Look.")), text_reply("Heard after all.")],
            "Look.": [text_reply("Found.")],
        }
    )
    async with runtime.open(provider=driver) as process:
        run = await process.submit("Go.", agent="main")
        while not (posted := await outbox(process)):
            await process.worker.wait_for_change()
        driver.ended.set()
        asked, _, woken = await quiet(process)
        assert (asked.status, woken.status, woken.text) == (Status.FAILED, Status.DONE, "Heard after all.")
        (delivery,) = await outbox(process)
        assert (delivery.id, delivery.state) == (posted[0].id, DeliveryState.DELIVERED)
        told = [each.id for each in await process.entries(run) if isinstance(each, Notice)]
        assert told == [delivery.id]


async def test_two_runs_born_at_one_time_of_the_clock_do_not_wait_for_each_other(runtime: RuntimeFixture):
    runtime.write_agent("main")
    gate = asyncio.Event()
    still = replace(system_clock(), now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    main = [
        tool_call_reply(spawns("Look.")),
        text_reply("Sent."),
        tool_call_reply(spawns("See.")),
        text_reply("Sent too."),
    ]
    by_agent = {
        "Go.": [*main, text_reply("Heard."), text_reply("Heard too.")],
        "Look.": [tool_call_reply(("ponder", "{}")), text_reply("Found.")],
        "See.": [tool_call_reply(("ponder", "{}")), text_reply("Seen.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)], clock=still) as process:
        first = await process.submit("Go.", agent="main")
        session = await process.store.find(first.session_id)
        second = await process.submit("And?", session=session)
        while not all([(await process.reload(run)).waits_between_turns for run in (first, second)]):
            await process.worker.wait_for_change()
        gate.set()
        found = await asyncio.wait_for(quiet(process), 60)
        assert {run.status for run in found} == {Status.DONE}


async def test_a_run_that_another_process_wants_stopped_does_not_wait_instead(runtime: RuntimeFixture):
    """The wish comes in the very moment in which the run would wait for its child: nobody would heed it there."""
    runtime.write_agent("main")
    gate = asyncio.Event()
    main = [tool_call_reply(("PersistentAgent", HELPER)), text_reply("Done.")]
    async with runtime.open(
        by_agent={"Go.": main, "Look.": [text_reply("Found.")]}, tools=[make_gated_tool(gate)]
    ) as process:
        ledger = process.context.ledger

        def wanted_gone(tx: Transaction) -> None:
            run = tx.find_runs(status=[Status.RUNNING], top_only=True)[0]
            tx.update_run(replace(run, reason=Reason.USER_CANCEL))

        class Late:
            """Lets the wish in just before the step in which the run is put aside."""

            read = ledger.read

            async def write(
                self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
            ) -> T:
                if step.__qualname__.startswith("suspend_in_tool_call."):
                    await ledger.write(wanted_gone)
                return await ledger.write(step, on_commit)

        process.context = replace(process.context, ledger=Late())
        process.worker.start(
            scheduler_callbacks(
                process.context, lambda _, error: process.crashes.append(error), lambda _: True
            )
        )
        run = await process.submit("Go.", agent="main")
        found = await quiet(process)
        assert (await process.reload(run)).status is Status.CANCELLED
        assert not any(each.status.is_live for each in found)
        assert [each.ok for each in await process.tool_results(run)] == [False]


async def test_what_a_call_had_taken_when_its_process_died_is_announced_if_somebody_else_has_answered_it(
    runtime: RuntimeFixture,
):
    """The result is taken in the ledger, and stands in no file yet; then a person's next words go first."""
    runtime.write_agent("main")
    fell = asyncio.Event()
    main = [tool_call_reply(("PersistentAgent", HELPER))]
    async with runtime.open(by_agent={"Go.": main, "Look.": [text_reply("Found.")]}) as process:
        ledger = process.context.ledger

        class Dying:
            read = ledger.read

            async def write(
                self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
            ) -> T:
                value = await ledger.write(step, on_commit)
                if step.__qualname__.startswith("take_child_result."):
                    fell.set()
                    await asyncio.Event().wait()
                return value

        process.context = replace(process.context, ledger=Dying())
        process.worker.start(
            scheduler_callbacks(
                process.context, lambda _, error: process.crashes.append(error), lambda _: True
            )
        )
        run = await process.submit("Go.", agent="main")
        await fell.wait()
    async with runtime.open(text_reply("Soon."), text_reply("Heard.")) as process:
        await process.run("And now?", session=await process.store.find(run.session_id))
        assert [each.ok for each in await process.tool_results(run)] == [False]
        assert (await process.resume(run)).text == "Heard."
        told = [each.text for each in await process.entries(run) if isinstance(each, Notice)]
        assert [("Found." in text) for text in told] == [True]

        def left(tx: Transaction) -> list[Delivery]:
            return tx.find_deliveries()

        (delivery,) = await process.context.ledger.read(left)
        assert (delivery.state, delivery.answers_call) == (DeliveryState.DELIVERED, False)


async def test_what_stands_in_the_file_of_a_run_that_is_cancelled_after_its_process_died_was_heard(
    runtime: RuntimeFixture,
):
    """The process dies between the notice in the file and the word in the ledger that it was heard."""
    runtime.write_agent("main")
    fell = asyncio.Event()
    main = [
        tool_call_reply(("sessions_spawn", json.dumps({"task": "Look."}))),
        text_reply("Sent."),
        text_reply("Heard."),
    ]
    async with runtime.open(by_agent={"Go.": main, "Look.": [text_reply("Found.")]}) as process:
        ledger = process.context.ledger

        class Dying:
            read = ledger.read

            async def write(
                self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
            ) -> T:
                if step.__qualname__.startswith("mark_delivered."):
                    fell.set()
                    await asyncio.Event().wait()
                return await ledger.write(step, on_commit)

        process.context = replace(process.context, ledger=Dying())
        process.worker.start(
            scheduler_callbacks(
                process.context, lambda _, error: process.crashes.append(error), lambda _: True
            )
        )
        run = await process.submit("Go.", agent="main")
        await fell.wait()
    async with runtime.open() as process:
        await run_control.cancel_run(run.id, process.context, is_alive=lambda _: False)

        def left(tx: Transaction) -> list[DeliveryState]:
            return [each.state for each in tx.find_deliveries()]

        assert await process.context.ledger.read(left) == [DeliveryState.DELIVERED]
