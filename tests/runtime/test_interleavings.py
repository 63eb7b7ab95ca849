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

from gates import gated
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.app.composition import scheduler_callbacks
from retinue.domain.delivery import Delivery
from retinue.domain.delivery import DeliveryState as Delivered
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


async def runs(house: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await house.ports.ledger.read(step)


async def outbox(house: RuntimeProcess) -> list[Delivery]:
    def step(tx: Transaction) -> list[Delivery]:
        return tx.find_deliveries()

    return await house.ports.ledger.read(step)


async def quiet(house: RuntimeProcess) -> list[Run]:
    while True:
        found = await runs(house)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in found):
            return found
        await house.engine.wait_for_change()


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


async def test_what_comes_during_a_turn_that_then_fails_is_heard_by_one_that_is_woken(world: RuntimeFixture):
    """Shows: L012, E015."""
    world.agent("main")
    driver = Faltering(
        {
            "Go.": [tool_call_reply(spawns("Look.")), text_reply("Heard after all.")],
            "Look.": [text_reply("Found.")],
        }
    )
    async with world.open(driver=driver) as house:
        run = await house.ask("Go.", agent="main")
        while not (posted := await outbox(house)):
            await house.engine.wait_for_change()
        driver.ended.set()
        asked, _, woken = await quiet(house)
        assert (asked.status, woken.status, woken.text) == (Status.FAILED, Status.DONE, "Heard after all.")
        (delivery,) = await outbox(house)
        assert (delivery.id, delivery.state) == (posted[0].id, Delivered.DELIVERED)
        told = [each.id for each in await house.entries(run) if isinstance(each, Notice)]
        assert told == [delivery.id]


async def test_two_runs_born_at_one_time_of_the_clock_do_not_wait_for_each_other(world: RuntimeFixture):
    world.agent("main")
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
    async with world.open(by_agent=by_agent, tools=[gated(gate)], clock=still) as house:
        first = await house.ask("Go.", agent="main")
        session = await house.store.find(first.session_id)
        second = await house.ask("And?", session=session)
        while not all([(await house.now(run)).is_suspended for run in (first, second)]):
            await house.engine.wait_for_change()
        gate.set()
        found = await asyncio.wait_for(quiet(house), 60)
        assert {run.status for run in found} == {Status.DONE}


async def test_a_run_that_another_process_wants_stopped_does_not_wait_instead(world: RuntimeFixture):
    """The wish comes in the very moment in which the run would wait for its child: nobody would heed it there."""
    world.agent("main")
    gate = asyncio.Event()
    main = [tool_call_reply(("PersistentAgent", HELPER)), text_reply("Done.")]
    async with world.open(
        by_agent={"Go.": main, "Look.": [text_reply("Found.")]}, tools=[gated(gate)]
    ) as house:
        ledger = house.ports.ledger

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

        house.ports = replace(house.ports, ledger=Late())
        house.engine.start(
            scheduler_callbacks(house.ports, lambda _, error: house.crashes.append(error), lambda _: True)
        )
        run = await house.ask("Go.", agent="main")
        found = await quiet(house)
        assert (await house.now(run)).status is Status.CANCELLED
        assert not any(each.status.is_live for each in found)
        assert [each.ok for each in await house.results(run)] == [False]


async def test_what_a_call_had_taken_when_its_process_died_is_announced_if_somebody_else_has_answered_it(
    world: RuntimeFixture,
):
    """The result is taken in the ledger, and stands in no file yet; then a person's next words go first."""
    world.agent("main")
    fell = asyncio.Event()
    main = [tool_call_reply(("PersistentAgent", HELPER))]
    async with world.open(by_agent={"Go.": main, "Look.": [text_reply("Found.")]}) as house:
        ledger = house.ports.ledger

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

        house.ports = replace(house.ports, ledger=Dying())
        house.engine.start(
            scheduler_callbacks(house.ports, lambda _, error: house.crashes.append(error), lambda _: True)
        )
        run = await house.ask("Go.", agent="main")
        await fell.wait()
    async with world.open(text_reply("Soon."), text_reply("Heard.")) as house:
        await house.run("And now?", session=await house.store.find(run.session_id))
        assert [each.ok for each in await house.results(run)] == [False]
        assert (await house.resume(run)).text == "Heard."
        told = [each.text for each in await house.entries(run) if isinstance(each, Notice)]
        assert [("Found." in text) for text in told] == [True]

        def left(tx: Transaction) -> list[Delivery]:
            return tx.find_deliveries()

        (delivery,) = await house.ports.ledger.read(left)
        assert (delivery.state, delivery.answers) == (Delivered.DELIVERED, False)


async def test_what_stands_in_the_file_of_a_run_that_is_cancelled_after_its_process_died_was_heard(
    world: RuntimeFixture,
):
    """The process dies between the notice in the file and the word in the ledger that it was heard."""
    world.agent("main")
    fell = asyncio.Event()
    main = [
        tool_call_reply(("sessions_spawn", json.dumps({"task": "Look."}))),
        text_reply("Sent."),
        text_reply("Heard."),
    ]
    async with world.open(by_agent={"Go.": main, "Look.": [text_reply("Found.")]}) as house:
        ledger = house.ports.ledger

        class Dying:
            read = ledger.read

            async def write(
                self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
            ) -> T:
                if step.__qualname__.startswith("mark_delivered."):
                    fell.set()
                    await asyncio.Event().wait()
                return await ledger.write(step, on_commit)

        house.ports = replace(house.ports, ledger=Dying())
        house.engine.start(
            scheduler_callbacks(house.ports, lambda _, error: house.crashes.append(error), lambda _: True)
        )
        run = await house.ask("Go.", agent="main")
        await fell.wait()
    async with world.open() as house:
        await run_control.cancel_run(run.id, house.ports, is_alive=lambda _: False)

        def left(tx: Transaction) -> list[Delivered]:
            return [each.state for each in tx.find_deliveries()]

        assert await house.ports.ledger.read(left) == [Delivered.DELIVERED]
