"""A disk on which one write fails: results of calls and children are still recorded truthfully."""

import asyncio
import json

import pytest
from failing_disk import FailingDisk, FailingStore, failing_ledger
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Notice, ToolResult
from retinue.errors import DiskError
from retinue.interfaces import Transaction
from retinue.runtime.recovery import UNKNOWN_OUTCOME
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

IO_ERROR = DiskError("Cannot write: Input/output error")


async def wait_until_all_ended(process: RuntimeProcess) -> tuple[list[Run], list[Delivery]]:
    """Wait until every run has ended, and return all runs and deliveries."""

    def step(tx: Transaction) -> tuple[list[Run], list[Delivery]]:
        return tx.find_runs(), tx.find_deliveries()

    while True:
        runs, deliveries = await process.context.ledger.read(step)
        if all(run.status.is_final for run in runs):
            return runs, deliveries
        await process.worker.wait_for_change()


async def test_a_call_result_that_could_not_be_saved_at_first_is_recorded_as_it_was(runtime: RuntimeFixture):
    """Shows: P08, P10."""

    @tool(name="mail", asks="never")
    async def mail() -> str:
        """Sends a mail."""
        return "sent to ann"

    async with runtime.open(tool_call_reply(("mail", "{}")), text_reply("Sent."), tools=[mail]) as process:
        session = await process.create_session()
        process.replace_parts(
            store=FailingStore(process.store, FailingDisk(2, IO_ERROR, only_once=True))
        )  # fails after the task and the reply
        run = await process.run("Send it.", session=session)
        assert run.status is Status.FAILED
        assert [(each.ok, each.text) for each in await process.tool_results(run)] == [(True, "sent to ann")]


async def test_a_side_effect_interrupted_by_a_cancel_is_reported_as_unknown(
    runtime: RuntimeFixture,
):
    """Shows: P10."""
    started = asyncio.Event()

    @tool(name="mail", asks="never")
    async def mail() -> str:
        """Sends a mail."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with runtime.open(tool_call_reply(("mail", "{}")), tools=[mail]) as process:
        run = await process.submit("Send it.")
        await started.wait()
        await process.cancel(run)
        (result,) = await process.tool_results(run)
        assert (result.ok, result.text) == (
            False,
            f"No result: the run was stopped before this call finished. {UNKNOWN_OUTCOME}",
        )


@pytest.mark.parametrize("writes", range(1, 8))
async def test_a_parent_that_ends_has_received_its_childs_result_whichever_ledger_write_fails(
    runtime: RuntimeFixture, writes: int
):
    """Shows: P08."""
    runtime.write_agent("one", "tools: [agent]\n")
    runtime.write_agent("two")
    ask_two = tool_call_reply(("agent", json.dumps({"agent_name": "two", "task_prompt": "Look."})))
    by_agent = {
        "one": [ask_two, *(text_reply(f"I have read it, and that is all ({time}).") for time in range(2))],
        "two": [text_reply("It came in 1993, I think.")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        session = await process.create_session("one")
        process.replace_parts(
            ledger=failing_ledger(process.context.ledger, FailingDisk(writes, IO_ERROR, only_once=True)),
        )
        run = await process.submit("Go.", session=session)
        runs, deliveries = await wait_until_all_ended(process)
        if (await process.reload(run)).status is Status.DONE and len(runs) > 1:
            assert [each.state for each in deliveries] == [DeliveryState.DELIVERED]
            received = [each for each in await process.entries(run) if isinstance(each, ToolResult | Notice)]
            assert sum("1993" in each.text for each in received) == 1
