"""Conversations longer than the window: what the model is sent, and how runs are resumed."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess
from transcript_entries import entry_texts

from retinue.domain.run import Run, Status
from retinue.domain.system_prompt import OMISSION_NOTICE
from retinue.domain.transcript import Message, ToolResult
from retinue.interfaces import Tool, Transaction
from retinue.sessions.store import FileStore
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.worker.clock import system_clock

WINDOW = 6000


@asynccontextmanager
async def open_with_small_window(
    runtime: RuntimeFixture, *steps: ScriptedStep, tools: tuple[Tool, ...] = ()
) -> AsyncGenerator[RuntimeProcess]:
    """Open a process that keeps only the last 6 kB of a conversation in memory."""
    store = FileStore(runtime.folder / "sessions", system_clock(), window=WINDOW)
    async with runtime.open(*steps, tools=tools, store=store) as process:
        yield process
    store.close()


def mark_running(run: Run) -> Callable[[Transaction], None]:
    """Set the ledger back to before the end of a run was recorded."""

    def step(tx: Transaction) -> None:
        tx.update_run(replace(run, status=Status.RUNNING, owner_id="gone", ended_at=None, turns=0, text=""))

    return step


def make_verbose_tool(started: asyncio.Event | None = None, returning_calls: int = 0) -> Tool:
    call_count = 0

    @tool(effect="read")
    async def act(number: int) -> str:
        """Returns a long text, and after some calls never returns."""
        nonlocal call_count
        call_count += 1
        if started is not None and call_count > returning_calls:
            started.set()
            await asyncio.Event().wait()
        return "much " * 200

    return act


async def test_the_model_is_informed_that_earlier_entries_are_left_out(runtime: RuntimeFixture):
    """Shows: P31."""
    async with open_with_small_window(runtime, *(text_reply("word " * 60) for _ in range(20))) as process:
        session = await process.create_session()
        for number in range(20):
            assert (await process.run(f"Go on, {number}.", session=session)).status is Status.DONE
        requests = process.provider.requests
        entries, _ = await process.store.read_entries(session)
    assert len(entries) == 40
    systems = [each.request.system for each in requests]
    assert OMISSION_NOTICE not in systems[0]
    assert systems[-1].endswith(OMISSION_NOTICE)
    assert len(set(systems)) == 2
    assert isinstance(requests[-1].entries[0], Message)
    assert requests[-1].entries[0].role == "user"
    assert entry_texts(requests[-1].entries[-1:]) == ["Go on, 19."]
    firsts = [each.entries[0].id for each in requests]
    assert len(set(firsts)) < len(firsts) // 2


async def test_a_resumed_run_counts_the_turns_before_the_window(runtime: RuntimeFixture):
    """Its task is not appended again, and all turns of the file are counted.

    Shows: P31.
    """
    started = asyncio.Event()
    steps = [tool_call_reply(("act", f'{{"number": {number}}}'), text="Acting.") for number in range(21)]
    async with open_with_small_window(
        runtime, *steps, tools=(make_verbose_tool(started, returning_calls=20),)
    ) as process:
        run = await process.submit("Act for long.")
        await started.wait()
    async with open_with_small_window(
        runtime, text_reply("Done at last."), tools=(make_verbose_tool(),)
    ) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Done at last.")
        assert (ended.turns, ended.tool_calls, ended.attempts) == (22, 21, 2)
        sent = process.request_entries(0)
        assert all(entry.id != run.id for entry in sent)
        assert isinstance(sent[0], Message)
        sent_calls = {entry.id for entry in sent if not isinstance(entry, ToolResult)}
        assert {entry.call_id for entry in sent if isinstance(entry, ToolResult)} <= sent_calls
        entries = await process.entries(run)
    assert [entry.id for entry in entries].count(run.id) == 1


async def test_a_resumed_run_whose_final_reply_is_before_the_window_makes_no_new_request(
    runtime: RuntimeFixture,
):
    """The process died before the ledger recorded the end, and a person pasted a long text after the reply.

    Shows: P31.
    """
    async with open_with_small_window(runtime, text_reply("Half of this is heard.")) as process:
        run = await process.run("Speak.")
        session = await process.store.find(run.session_id)
        async with process.store.open(session) as conversation:
            for number in range(40):
                await conversation.append(Message(id=f"p{number}", role="user", text="pasted " * 40))
        await process.context.ledger.write(mark_running(run))
    async with open_with_small_window(runtime, text_reply("Never said.")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text, ended.turns) == (Status.DONE, "Half of this is heard.", 1)
        assert process.provider.requests == []
