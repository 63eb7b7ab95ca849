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
    world: RuntimeFixture, *steps: ScriptedStep, tools: tuple[Tool, ...] = ()
) -> AsyncGenerator[RuntimeProcess]:
    """A process that holds little of a conversation."""
    store = FileStore(world.folder / "sessions", system_clock(), window=WINDOW)
    async with world.open(*steps, tools=tools, store=store) as house:
        yield house
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


async def test_the_model_is_told_that_earlier_entries_are_left_out(world: RuntimeFixture):
    """Shows: P31."""
    async with small(world, *(text_reply("word " * 60) for _ in range(20))) as house:
        session = await house.begin()
        for number in range(20):
            assert (await house.run(f"Go on, {number}.", session=session)).status is Status.DONE
        asked = house.driver.requests
        found, _ = await house.store.read_entries(session)
    assert len(found) == 40
    systems = [each.request.system for each in asked]
    assert OMISSION_NOTICE not in systems[0]
    assert systems[-1].endswith(OMISSION_NOTICE)
    assert len(set(systems)) == 2
    assert isinstance(asked[-1].entries[0], Message)
    assert asked[-1].entries[0].by == "user"
    assert entry_texts(asked[-1].entries[-1:]) == ["Go on, 19."]
    firsts = [each.entries[0].id for each in asked]
    assert len(set(firsts)) < len(firsts) // 2


async def test_a_run_taken_up_again_counts_what_stands_before_the_entries_held(world: RuntimeFixture):
    """Its task is not said twice, and its turns are those of the whole file.

    Shows: P31.
    """
    begun = asyncio.Event()
    steps = [tool_call_reply(("act", f'{{"number": {number}}}'), text="Acting.") for number in range(21)]
    async with small(world, *steps, tools=(long_winded(begun, after=20),)) as house:
        run = await house.ask("Act for long.")
        await begun.wait()
    async with small(world, text_reply("Done at last."), tools=(long_winded(),)) as house:
        ended = await house.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Done at last.")
        assert (ended.turns, ended.tool_calls, ended.attempts) == (22, 21, 2)
        heard = house.heard(0)
        assert all(entry.id != run.id for entry in heard)
        assert isinstance(heard[0], Message)
        calls_heard = {entry.id for entry in heard if not isinstance(entry, ToolResult)}
        assert {entry.of for entry in heard if isinstance(entry, ToolResult)} <= calls_heard
        entries = await house.entries(run)
    assert [entry.id for entry in entries].count(run.id) == 1


async def test_a_run_that_had_its_last_word_before_the_entries_held_is_not_asked_again(world: RuntimeFixture):
    """The process died between the reply and the ledger, and a person pasted much behind it.

    Shows: P31.
    """
    async with small(world, text_reply("Half of this is heard.")) as house:
        run = await house.run("Speak.")
        session = await house.store.find(run.session_id)
        async with house.store.open(session) as talk:
            for number in range(40):
                await talk.append(Message(id=f"p{number}", by="user", text="pasted " * 40))
        await house.ports.ledger.write(running_again(run))
    async with small(world, text_reply("Never said.")) as house:
        ended = await house.resume(run)
        assert (ended.status, ended.text, ended.turns) == (Status.DONE, "Half of this is heard.", 1)
        assert house.driver.requests == []
