"""Deeds: what must not happen twice is written down before and after, and a crash in between is told honestly."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.run import Run, Status
from retinue.domain.side_effect import SideEffect, SideEffectState
from retinue.interfaces import Call, Tool, Transaction
from retinue.runtime.recovery import INTERRUPTED_RESULT
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

T = TypeVar("T")


class LedgerDo(Protocol):
    async def __call__(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T: ...


async def deeds_of(process: RuntimeProcess, run: Run) -> list[SideEffect]:
    def step(tx: Transaction) -> list[SideEffect]:
        return tx.find_side_effects(run.id)

    return await process.context.ledger.read(step)


def mailer(sent: list[str], hold: asyncio.Event | None = None) -> Tool:
    @tool(name="mail", asks="never")
    async def mail(to: str) -> str:
        """Sends one."""
        sent.append(to)
        if hold is not None:
            await hold.wait()
        return f"sent to {to}"

    return mail


MAIL = ("mail", '{"to": "ann"}')


async def test_a_deed_is_on_disk_before_it_is_done_and_says_how_it_ended(runtime: RuntimeFixture):
    seen: list[list[SideEffect]] = []

    @tool(name="mail", asks="never")
    async def mail(call: Call, to: str) -> str:
        """Sends one."""
        seen.append(await deeds_of(process, call.run))
        return f"sent to {to}"

    async with runtime.open(tool_call_reply(MAIL), text_reply("Done."), tools=[mail]) as process:
        run = await process.submit("Go.")
        await process.worker.wait(run.id)
        (before,), (after,) = seen[0], await deeds_of(process, run)
        assert (before.progress, before.tool, before.ended_at) == (SideEffectState.STARTED, "mail", None)
        assert (after.progress, after.ok, after.text) == (SideEffectState.ENDED, True, "sent to ann")
        assert after.digest == before.digest


async def test_while_a_deed_is_done_its_runs_row_says_how_many_calls_were_made(runtime: RuntimeFixture):
    seen: list[tuple[Status, int, int]] = []

    @tool(name="mail", asks="never")
    async def mail(call: Call, to: str) -> str:
        """Sends one."""
        row = await process.reload(call.run)
        seen.append((row.status, row.turns, row.tool_calls))
        return f"sent to {to}"

    async with runtime.open(
        tool_call_reply(MAIL), tool_call_reply(MAIL, MAIL), text_reply("Done."), tools=[mail]
    ) as process:
        await process.run("Go.")
    assert seen == [(Status.RUNNING, 1, 1), (Status.RUNNING, 2, 3), (Status.RUNNING, 2, 3)]


async def test_a_deed_cut_off_by_a_death_is_never_done_again_and_told_as_unknown(runtime: RuntimeFixture):
    """Shows: P10, P12."""
    sent: list[str] = []
    async with runtime.open(tool_call_reply(MAIL), tools=[mailer(sent, asyncio.Event())]) as process:
        run = await process.submit("Go.")
        await process.wait_for_event("tool.started")
        while not sent:  # noqa: ASYNC110  (a list does not call)
            await asyncio.sleep(0.001)
    async with runtime.open(text_reply("I asked ann."), tools=[mailer(sent)]) as process:
        run = await process.resume(run)
        assert (run.status, sent) == (Status.DONE, ["ann"])
        (result,) = await process.tool_results(run)
        assert (result.ok, result.text) == (False, INTERRUPTED_RESULT)
        (deed,) = await deeds_of(process, run)
        assert deed.progress is SideEffectState.UNKNOWN


async def test_a_deed_that_was_never_begun_is_done_when_the_run_goes_on(runtime: RuntimeFixture):
    """Shows: P10, P11."""
    sent: list[str] = []
    async with runtime.open(tool_call_reply(MAIL), tools=[mailer(sent)]) as process:
        begin, reached = process.context.ledger.write, asyncio.Event()

        async def do(step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None) -> T:
            if "record_start" in getattr(step, "__qualname__", ""):
                reached.set()
                await asyncio.Event().wait()
            return await begin(step, on_commit)

        process.context.ledger.write = do
        run = await process.submit("Go.")
        await asyncio.wait_for(reached.wait(), 20)
    del runtime.ledger.write
    assert sent == []
    async with runtime.open(text_reply("Done."), tools=[mailer(sent)]) as process:
        run = await process.resume(run)
        assert (run.status, sent) == (Status.DONE, ["ann"])
        (result,) = await process.tool_results(run)
        assert result.text == "sent to ann"


async def test_a_deed_that_ended_before_the_death_keeps_its_result(runtime: RuntimeFixture):
    """Shows: P10."""
    sent: list[str] = []
    async with runtime.open(tool_call_reply(MAIL), tools=[mailer(sent)]) as process:
        ended = asyncio.Event()
        do = process.context.ledger.write

        async def then_dies(
            step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
        ) -> T:
            found = await do(step, on_commit)
            if "record_end" in getattr(step, "__qualname__", "") and "side_effects" in step.__module__:
                ended.set()
                await asyncio.Event().wait()
            return found

        process.context.ledger.write = then_dies
        run = await process.submit("Go.")
        await asyncio.wait_for(ended.wait(), 20)
    del runtime.ledger.write
    async with runtime.open(text_reply("Done."), tools=[mailer(sent)]) as process:
        run = await process.resume(run)
        (result,) = await process.tool_results(run)
        assert (sent, result.ok, result.text) == (["ann"], True, "sent to ann")


async def test_an_edit_knows_after_a_death_whether_it_has_happened(runtime: RuntimeFixture):
    """Shows: P10."""
    for written in (True, False):
        place = Path(runtime.workspace) / "a.txt"
        place.write_text("old\n")
        wish = ("edit", json.dumps({"path": "a.txt", "old": "old", "new": "old old"}))
        async with runtime.open(tool_call_reply(wish)) as process:
            noted = asyncio.Event()
            do = process.context.ledger.write

            async def then_dies(
                step: Callable[[Transaction], T],
                on_commit: Callable[[T], None] | None = None,
                do: LedgerDo = do,
                noted: asyncio.Event = noted,
            ) -> T:
                found = await do(step, on_commit)
                if "record_note" in getattr(step, "__qualname__", ""):
                    noted.set()
                    await asyncio.Event().wait()
                return found

            process.context.ledger.write = then_dies
            run = await process.submit("Go.")
            await asyncio.wait_for(noted.wait(), 20)
        del runtime.ledger.write
        if written:
            place.write_text("old old\n")
        async with runtime.open(text_reply("Done.")) as process:
            run = await process.resume(run)
            (result,) = await process.tool_results(run)
            assert (result.ok, place.read_text()) == (True, "old old\n")


async def test_reading_leaves_no_deed(runtime: RuntimeFixture):
    async with runtime.open(
        tool_call_reply(("ls", "{}"), ("todo", '{"items": []}')), text_reply("Done.")
    ) as process:
        run = await process.run("Go.")
        assert await deeds_of(process, run) == []


async def test_a_deed_is_work_also_when_it_failed_and_when_its_process_died_since(runtime: RuntimeFixture):
    """Shows: X05."""

    @tool(name="mail", asks="never")
    async def mail(to: str) -> str:
        """Sends one, and stumbles."""
        raise OSError(to)

    begun = asyncio.Event()
    async with runtime.open(
        tool_call_reply(MAIL), tool_call_reply(("ponder", "{}")), tools=[mail, _ponder(begun)]
    ) as process:
        run = await process.submit("Go.")
        await begun.wait()
    async with runtime.open(text_reply("Nobody there."), tools=[mail]) as process:
        run = await process.resume(run)
        assert [result.ok for result in await process.tool_results(run)] == [False, False]
        assert (run.status, run.effective_calls, run.did_no_work) == (Status.DONE, 1, False)


def _ponder(begun: asyncio.Event) -> Tool:
    @tool(effect="read", name="ponder")
    async def ponder() -> str:
        """Takes its time."""
        begun.set()
        await asyncio.Event().wait()
        return "so"

    return ponder
