"""A conversation that is too long to be held: the model is told, and a run that goes on knows what it did before."""

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
async def small(
    runtime: RuntimeFixture, *steps: ScriptedStep, tools: tuple[Tool, ...] = ()
) -> AsyncGenerator[RuntimeProcess]:
    """A process that holds little of a conversation."""
    store = FileStore(runtime.folder / "sessions", system_clock(), window=WINDOW)
    async with runtime.open(*steps, tools=tools, store=store) as process:
        yield process
    store.close()


def running_again(run: Run) -> Callable[[Transaction], None]:
    """The ledger as it was before the end of a run reached it."""

    def step(tx: Transaction) -> None:
        tx.update_run(replace(run, status=Status.RUNNING, owner_id="gone", ended_at=None, turns=0, text=""))

    return step


def long_winded(begun: asyncio.Event | None = None, after: int = 0) -> Tool:
    made: list[int] = []

    @tool(effect="read")
    async def act(number: int) -> str:
        """Says much, and after some calls nothing for ever."""
        made.append(1)
        if begun is not None and len(made) > after:
            begun.set()
            await asyncio.Event().wait()
        return "much " * 200

    return act


async def test_the_model_is_told_that_earlier_entries_are_left_out(runtime: RuntimeFixture):
    """Shows: P31."""
    async with small(runtime, *(text_reply("word " * 60) for _ in range(20))) as process:
        session = await process.create_session()
        for number in range(20):
            assert (await process.run(f"Go on, {number}.", session=session)).status is Status.DONE
        asked = process.provider.requests
        found, _ = await process.store.read_entries(session)
    assert len(found) == 40
    systems = [each.request.system for each in asked]
    assert OMISSION_NOTICE not in systems[0]
    assert systems[-1].endswith(OMISSION_NOTICE)
    assert len(set(systems)) == 2
    assert isinstance(asked[-1].entries[0], Message)
    assert asked[-1].entries[0].role == "user"
    assert entry_texts(asked[-1].entries[-1:]) == ["Go on, 19."]
    firsts = [each.entries[0].id for each in asked]
    assert len(set(firsts)) < len(firsts) // 2


async def test_a_run_taken_up_again_counts_what_stands_before_the_entries_held(runtime: RuntimeFixture):
    """Its task is not said twice, and its turns are those of the whole file.

    Shows: P31.
    """
    begun = asyncio.Event()
    steps = [tool_call_reply(("act", f'{{"number": {number}}}'), text="Acting.") for number in range(21)]
    async with small(runtime, *steps, tools=(long_winded(begun, after=20),)) as process:
        run = await process.submit("Act for long.")
        await begun.wait()
    async with small(runtime, text_reply("Done at last."), tools=(long_winded(),)) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Done at last.")
        assert (ended.turns, ended.tool_calls, ended.attempts) == (22, 21, 2)
        heard = process.request_entries(0)
        assert all(entry.id != run.id for entry in heard)
        assert isinstance(heard[0], Message)
        calls_heard = {entry.id for entry in heard if not isinstance(entry, ToolResult)}
        assert {entry.call_id for entry in heard if isinstance(entry, ToolResult)} <= calls_heard
        entries = await process.entries(run)
    assert [entry.id for entry in entries].count(run.id) == 1


async def test_a_run_that_had_its_last_word_before_the_entries_held_is_not_asked_again(
    runtime: RuntimeFixture,
):
    """The process died between the reply and the ledger, and a person pasted much behind it.

    Shows: P31.
    """
    async with small(runtime, text_reply("Half of this is heard.")) as process:
        run = await process.run("Speak.")
        session = await process.store.find(run.session_id)
        async with process.store.open(session) as talk:
            for number in range(40):
                await talk.append(Message(id=f"p{number}", role="user", text="pasted " * 40))
        await process.context.ledger.write(running_again(run))
    async with small(runtime, text_reply("Never said.")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text, ended.turns) == (Status.DONE, "Half of this is heard.", 1)
        assert process.provider.requests == []
