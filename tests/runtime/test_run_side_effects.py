"""Side effects: recorded before and after a call, so that a crash never repeats one."""

import asyncio
import json
from pathlib import Path

from gates import PONDER_CALL, make_gated_tool
from intercepted_io import run_until_ledger_write
from mail_tool import make_mail_tool
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.run import Run, Status
from retinue.domain.side_effect import SideEffect, SideEffectState
from retinue.interfaces import Call, Transaction
from retinue.runtime.recovery import INTERRUPTED_RESULT
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


async def find_side_effects(process: RuntimeProcess, run: Run) -> list[SideEffect]:
    def step(tx: Transaction) -> list[SideEffect]:
        return tx.find_side_effects(run.id)

    return await process.context.ledger.read(step)


MAIL_CALL = ("mail", '{"to": "ann"}')


async def test_a_side_effect_is_recorded_before_the_call_and_completed_with_its_result(
    runtime: RuntimeFixture,
):
    rows_during_call: list[list[SideEffect]] = []

    @tool(name="mail", asks="never")
    async def mail(call: Call, to: str) -> str:
        """Sends a mail."""
        rows_during_call.append(await find_side_effects(process, call.run))
        return f"sent to {to}"

    async with runtime.open(tool_call_reply(MAIL_CALL), text_reply("Done."), tools=[mail]) as process:
        run = await process.submit("Go.")
        await process.worker.wait(run.id)
        (before,), (after,) = rows_during_call[0], await find_side_effects(process, run)
        assert (before.progress, before.tool, before.ended_at) == (SideEffectState.STARTED, "mail", None)
        assert (after.progress, after.ok, after.text) == (SideEffectState.ENDED, True, "sent to ann")
        assert after.digest == before.digest


async def test_the_run_row_counts_turns_and_calls_before_a_side_effect_starts(runtime: RuntimeFixture):
    counts: list[tuple[Status, int, int]] = []

    @tool(name="mail", asks="never")
    async def mail(call: Call, to: str) -> str:
        """Sends a mail."""
        row = await process.reload(call.run)
        counts.append((row.status, row.turns, row.tool_calls))
        return f"sent to {to}"

    async with runtime.open(
        tool_call_reply(MAIL_CALL), tool_call_reply(MAIL_CALL, MAIL_CALL), text_reply("Done."), tools=[mail]
    ) as process:
        await process.run("Go.")
    assert counts == [(Status.RUNNING, 1, 1), (Status.RUNNING, 2, 3), (Status.RUNNING, 2, 3)]


async def test_a_side_effect_interrupted_by_a_crash_is_reported_as_unknown_and_not_repeated(
    runtime: RuntimeFixture,
):
    """Shows: P10, P12."""
    sent: list[str] = []
    async with runtime.open(
        tool_call_reply(MAIL_CALL), tools=[make_mail_tool(sent, hold=asyncio.Event())]
    ) as process:
        run = await process.submit("Go.")
        await process.wait_for_event("tool.started")
        while not sent:  # noqa: ASYNC110  (a list cannot notify)
            await asyncio.sleep(0.001)
    async with runtime.open(text_reply("I asked ann."), tools=[make_mail_tool(sent)]) as process:
        run = await process.resume(run)
        assert (run.status, sent) == (Status.DONE, ["ann"])
        (result,) = await process.tool_results(run)
        assert (result.ok, result.text) == (False, INTERRUPTED_RESULT)
        (side_effect,) = await find_side_effects(process, run)
        assert side_effect.progress is SideEffectState.UNKNOWN


async def test_a_side_effect_that_never_started_runs_when_the_run_is_resumed(runtime: RuntimeFixture):
    """Shows: P10, P11."""
    sent: list[str] = []
    async with runtime.open(tool_call_reply(MAIL_CALL), tools=[make_mail_tool(sent)]) as process:
        run = await run_until_ledger_write(process, "record_start", is_committed=False)
    assert sent == []
    async with runtime.open(text_reply("Done."), tools=[make_mail_tool(sent)]) as process:
        run = await process.resume(run)
        assert (run.status, sent) == (Status.DONE, ["ann"])
        (result,) = await process.tool_results(run)
        assert result.text == "sent to ann"


async def test_a_side_effect_that_ended_before_the_crash_keeps_its_result(runtime: RuntimeFixture):
    """Shows: P10."""
    sent: list[str] = []
    async with runtime.open(tool_call_reply(MAIL_CALL), tools=[make_mail_tool(sent)]) as process:
        run = await run_until_ledger_write(process, "record_end", is_committed=True)
    async with runtime.open(text_reply("Done."), tools=[make_mail_tool(sent)]) as process:
        run = await process.resume(run)
        (result,) = await process.tool_results(run)
        assert (sent, result.ok, result.text) == (["ann"], True, "sent to ann")


async def test_an_interrupted_edit_is_applied_once_whether_or_not_the_file_was_written(
    runtime: RuntimeFixture,
):
    """Shows: P10."""
    for was_written in (True, False):
        path = Path(runtime.workspace) / "a.txt"
        path.write_text("old\n")
        edit_call = ("edit", json.dumps({"path": "a.txt", "old": "old", "new": "old old"}))
        async with runtime.open(tool_call_reply(edit_call)) as process:
            run = await run_until_ledger_write(process, "record_note", is_committed=True)
        if was_written:
            path.write_text("old old\n")
        async with runtime.open(text_reply("Done.")) as process:
            run = await process.resume(run)
            (result,) = await process.tool_results(run)
            assert (result.ok, path.read_text()) == (True, "old old\n")


async def test_a_read_only_call_records_no_side_effect(runtime: RuntimeFixture):
    async with runtime.open(
        tool_call_reply(("ls", "{}"), ("todo", '{"items": []}')), text_reply("Done.")
    ) as process:
        run = await process.run("Go.")
        assert await find_side_effects(process, run) == []


async def test_a_failed_side_effect_counts_as_work_after_a_crash(runtime: RuntimeFixture):
    """Shows: X05."""

    @tool(name="mail", asks="never")
    async def mail(to: str) -> str:
        """Fails while sending."""
        raise OSError(to)

    started = asyncio.Event()
    async with runtime.open(
        tool_call_reply(MAIL_CALL),
        PONDER_CALL,
        tools=[mail, make_gated_tool(asyncio.Event(), started)],
    ) as process:
        run = await process.submit("Go.")
        await started.wait()
    async with runtime.open(text_reply("Nobody there."), tools=[mail]) as process:
        run = await process.resume(run)
        assert [result.ok for result in await process.tool_results(run)] == [False, False]
        assert (run.status, run.effective_calls, run.did_no_work) == (Status.DONE, 1, False)
