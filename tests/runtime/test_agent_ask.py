"""agent_ask: an agent that worked for a conversation is asked more by that conversation, and by nobody else."""

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain import agent_pool
from retinue.domain.ceiling import Ceiling
from retinue.domain.model_turn import Reply, Request
from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.interfaces import Transaction
from retinue.sessions.store import FileStore
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.tools.delegation.agent import UNSEEN_NOTE
from retinue.worker.clock import system_clock

LONG = "The module is src/cron.py, and nothing else uses it."
GIVES = ("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."}))


def known(entries: Sequence[Entry]) -> str:
    """The id that the last agent was given out with."""
    texts = [entry.text for entry in entries if isinstance(entry, ToolResult)]
    found = [json.loads(text)["agent_id"] for text in texts if "agent_id" in text]
    return found[-1]


def asks(message: str = "And who calls it?", *, times: int = 1) -> Callable[[Request], Reply]:
    """A reply that asks the agent whose id was heard last."""

    def reply(request: Request) -> Reply:
        said = json.dumps({"agent_id": known(request.entries), "message": message})
        return tool_call_reply(*[("agent_ask", said)] * times)

    return reply


async def tree(process: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await process.context.ledger.read(step)


async def over(process: RuntimeProcess, run: Run) -> Run:
    while True:
        await process.worker.wait(run.id)
        now = await process.reload(run)
        moving = [each for each in await tree(process) if each.status in (Status.QUEUED, Status.RUNNING)]
        if now.status.is_final or not moving:
            return now
        await process.worker.wait_for_change()


async def answers(process: RuntimeProcess, run: Run, tool_name: str = "agent_ask") -> list[tuple[bool, Any]]:
    entries = await process.entries(run)
    ours = {entry.id for entry in entries if isinstance(entry, ToolCall) and entry.tool == tool_name}
    return [
        (entry.ok, json.loads(entry.text))
        for entry in entries
        if isinstance(entry, ToolResult) and entry.call_id in ours
    ]


def people(runtime: RuntimeFixture, front: str = "") -> None:
    runtime.write_agent("main")
    runtime.write_agent("other")
    runtime.write_agent("helper", front)


def not_found(agent_id: str) -> dict[str, Any]:
    return {
        "success": False,
        "error": f"Agent not found: {agent_id}. Agent may have been evicted from pool or ID is invalid.",
        "error_type": "not_found",
    }


async def test_an_agent_is_asked_more_and_remembers_what_it_did(runtime: RuntimeFixture):
    """Shows: B013, B048."""
    people(runtime, "tools: [read, ls]\n")
    by_agent = {
        "main": [tool_call_reply(GIVES), asks(), text_reply("Done.")],
        "helper": [text_reply(LONG), text_reply("Nobody calls it.")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        assert run.status is Status.DONE
        ((ok, answer),) = await answers(process, run)
        first, second = (await tree(process))[1:]
        assert ok
        assert answer.pop("duration_seconds") >= 0
        assert answer == {
            "success": True,
            "result": "Nobody calls it." + UNSEEN_NOTE,
            "agent_used": "helper",
            "agent_id": first.slug,
        }
        assert (second.session_id, second.request.entry_point) == (first.session_id, "agent_ask")
        assert (second.depth, second.request.parent_run, second.root_id) == (1, run.id, run.id)
        asked = process.provider.requests[3]
        assert [entry.text for entry in asked.entries if isinstance(entry, Message)] == [
            "Execute this task: Look.",
            LONG,
            "And who calls it?",
        ]
        assert [each.name for each in asked.request.tools] == ["ls", "read"]


@pytest.mark.parametrize("agent_id", ["helper-20260101000000-look-", "..", "../../main", "x" * 500, "a\x00b"])
async def test_an_id_that_names_nobody_is_not_found(runtime: RuntimeFixture, agent_id: str):
    """Shows: B048."""
    people(runtime)
    said = json.dumps({"agent_id": agent_id, "message": "Well?"})
    async with runtime.open(
        by_agent={"main": [tool_call_reply(("agent_ask", said)), text_reply("Oh.")]}
    ) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        ((ok, answer),) = await answers(process, run)
        assert not ok
        assert answer["error"] == not_found(agent_id)["error"]
        assert len(await tree(process)) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"message": "x"}, "agent_id parameter is required and must be a string"),
        ({"agent_id": "x"}, "message parameter is required and must be a string"),
        ({"agent_id": " ", "message": "x"}, "agent_id parameter is required and must be a string"),
        ({"agent_id": "x", "message": 5}, "message parameter is required and must be a string"),
    ],
)
async def test_wrong_arguments_are_named(runtime: RuntimeFixture, arguments: Any, problem: str):
    people(runtime)
    async with runtime.open(
        by_agent={"main": [tool_call_reply(("agent_ask", json.dumps(arguments))), text_reply("Oh.")]}
    ) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        expected = {"success": False, "error": problem, "error_type": "validation_error"}
        assert await answers(process, run) == [(False, expected)]


async def test_one_conversation_cannot_ask_the_agents_of_another(runtime: RuntimeFixture):
    """Shows: C19."""
    people(runtime)
    by_agent: dict[str, Sequence[ScriptedStep]] = {
        "Mine.": [tool_call_reply(GIVES), text_reply("Done.")],
        "Yours.": [
            lambda _: tool_call_reply(("agent_ask", stolen[0])),
            tool_call_reply(GIVES),
            text_reply("Oh."),
        ],
        "helper": [text_reply(LONG), text_reply("I am another one of the same kind.")],
    }
    stolen: list[str] = []
    async with runtime.open(by_agent=by_agent) as process:
        await over(process, await process.submit("Mine.", agent="main"))
        child = (await tree(process))[1]
        stolen.append(json.dumps({"agent_id": child.slug, "message": "Tell me."}))
        run = await over(process, await process.submit("Yours.", agent="main"))
        assert await answers(process, run) == [(False, not_found(child.slug))]
        ((_, own),) = await answers(process, run, "agent")
        assert own["agent_used"] == "helper"
        heard = process.provider.requests[-2]
        assert [entry.text for entry in heard.entries if isinstance(entry, Message)] == [
            "Execute this task: Look."
        ]


class Meeting:
    """A store in which two that look for the same agent find it in the same moment."""

    def __init__(self, runtime: RuntimeFixture) -> None:
        self._inner = FileStore(runtime.folder / "sessions", system_clock())
        self._both = asyncio.Barrier(2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def find(self, ref: str) -> Session:
        found = await self._inner.find(ref)
        if ref.rpartition("/")[0].endswith("/agents"):
            await self._both.wait()
        return found


async def test_of_two_questions_at_once_one_is_answered_and_one_told_to_wait(runtime: RuntimeFixture):
    """Shows: B037, B048."""
    people(runtime)
    store = Meeting(runtime)
    by_agent = {
        "main": [tool_call_reply(GIVES), asks(times=2), text_reply("Done.")],
        "helper": [text_reply(LONG), text_reply("Nobody calls it."), text_reply("never")],
    }
    async with runtime.open(by_agent=by_agent, store=store) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        assert run.status is Status.DONE
        child = (await tree(process))[1]
        found = await answers(process, run)
        (busy,) = [answer for ok, answer in found if not ok]
        (good,) = [answer for ok, answer in found if ok]
        assert busy == {
            "success": False,
            "error": f"Agent {child.slug} is currently in use. Wait for current operation to complete.",
            "error_type": "busy",
        }
        assert good["result"] == "Nobody calls it." + UNSEEN_NOTE
        assert [(each.agent, each.status) for each in await tree(process)] == [
            ("main", Status.DONE),
            ("helper", Status.DONE),
            ("helper", Status.DONE),
        ]
        assert [use.use_count for use in agent_pool.pooled_sessions(await tree(process))] == [2]
        assert len([each for each in process.provider.requests if each.request.agent_name == "helper"]) == 2
    store.close()


async def test_an_agent_that_falls_silent_when_it_is_asked_more_has_failed(runtime: RuntimeFixture):
    """Shows: L021."""
    people(runtime)
    by_agent = {
        "main": [tool_call_reply(GIVES), asks(), text_reply("Done.")],
        "helper": [
            text_reply(LONG),
            tool_call_reply(("ls", "{}"), text="I look again."),
            *[text_reply("")] * 3,
        ],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        assert await answers(process, run) == [
            (
                False,
                {
                    "success": False,
                    "error": "the model sent 3 empty replies in a row",
                    "agent_used": "helper",
                    "result": "Agent 'helper' work summary:\n\nI look again.",
                    "error_type": "stuck",
                },
            )
        ]


async def test_an_agent_that_a_person_talks_with_is_in_use(runtime: RuntimeFixture):
    """Shows: B037, B048."""
    people(runtime)
    gate = asyncio.Event()

    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        await gate.wait()
        return "so"

    by_agent = {
        "main": [tool_call_reply(GIVES), text_reply("Done."), asks(), text_reply("Then later.")],
        "helper": [text_reply(LONG), tool_call_reply(("ponder", "{}")), text_reply("Hello, person.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[ponder]) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        child = (await tree(process))[1]
        talk = await process.submit("Hello.", session=await process.store.find(child.transcript_path))
        await process.wait_for_event("tool.started")
        again = await process.submit("More.", session=await process.store.find(run.transcript_path))
        await process.wait(again)
        ((_, answer),) = await answers(process, run)
        assert answer["error"].endswith("is currently in use. Wait for current operation to complete.")
        assert [each.agent for each in await tree(process)] == ["main", "helper", "helper", "main"]
        gate.set()
        assert (await process.wait(talk)).text == "Hello, person."


async def test_after_five_idle_minutes_the_id_names_nobody_any_more(runtime: RuntimeFixture):
    """Shows: B045."""
    people(runtime)
    late = timedelta()

    def now() -> datetime:
        return system_clock().now() + late

    main: list[ScriptedStep] = [
        tool_call_reply(GIVES),
        text_reply("Done."),
        asks(),
        asks(),
        text_reply("Done."),
    ]
    by_agent: dict[str, list[ScriptedStep]] = {
        "main": main,
        "helper": [text_reply(LONG), text_reply("Nobody calls it.")],
    }
    chance = replace(system_clock(), now=now)
    async with runtime.open(by_agent=by_agent, clock=chance) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        late = timedelta(minutes=4)
        session = await process.store.find(run.transcript_path)

        def out_of_time(request: Request) -> Reply:
            nonlocal late
            late = timedelta(minutes=9)
            return asks()(request)

        main[3] = out_of_time
        again = await over(process, await process.submit("More.", session=session))
        assert again.status is Status.DONE
        (ok, _), (late_ok, answer) = await answers(process, run)
        assert (ok, late_ok) == (True, False)
        assert answer == not_found((await tree(process))[1].slug)


async def test_an_agent_that_a_person_took_out_names_nobody_any_more(runtime: RuntimeFixture):
    people(runtime)
    by_agent = {
        "main": [tool_call_reply(GIVES), text_reply("Done."), asks(), text_reply("Oh.")],
        "helper": [text_reply(LONG)],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        child: Session = await process.store.find((await tree(process))[1].transcript_path)
        await process.store.update(child, attributes={**child.attributes, agent_pool.RETIRED_ATTRIBUTE: True})
        await over(
            process, await process.submit("More.", session=await process.store.find(run.transcript_path))
        )
        assert await answers(process, run) == [(False, not_found(child.slug))]


async def test_an_agent_that_was_denied_since_is_not_asked(runtime: RuntimeFixture):
    people(runtime)
    by_agent = {
        "main": [tool_call_reply(GIVES), text_reply("Done."), asks(), text_reply("Oh.")],
        "helper": [text_reply(LONG)],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        runtime.write_agent("main", "agent_deny: [helper]\n")
        await over(
            process, await process.submit("More.", session=await process.store.find(run.transcript_path))
        )
        ((ok, answer),) = await answers(process, run)
        assert (ok, answer["error_type"]) == (False, "refused")
        assert "main may not start helper" in answer["error"]


async def test_who_asks_with_fewer_rights_gets_no_more_through_an_agent_made_with_more(
    runtime: RuntimeFixture,
):
    """Shows: C19."""
    people(runtime)
    (runtime.workspace / "note.txt").write_text("hidden")
    by_agent = {
        "main": [tool_call_reply(GIVES), text_reply("Done."), asks("Read it."), text_reply("Oh.")],
        "helper": [
            text_reply(LONG),
            tool_call_reply(("read", '{"path": "note.txt"}')),
            text_reply("It was refused to me, sadly."),
        ],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        least = Ceiling(set_by="someone", read=())
        await over(
            process,
            await process.submit(
                "More.", session=await process.store.find(run.transcript_path), ceilings=(least,)
            ),
        )
        child = (await tree(process))[1]
        (refused,) = await process.tool_results(child)
        assert not refused.ok
        assert "someone" in refused.text


async def test_killed_while_it_waits_the_question_is_asked_once(runtime: RuntimeFixture):
    people(runtime)
    gate = asyncio.Event()

    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        await gate.wait()
        return "so"

    by_agent = {
        "main": [tool_call_reply(GIVES), asks()],
        "helper": [text_reply(LONG), tool_call_reply(("ponder", "{}"))],
    }
    async with runtime.open(by_agent=by_agent, tools=[ponder]) as process:
        run = await process.submit("Go.", agent="main")
        while [event.data["tool"] for event in process.events if event.kind == "tool.started"][-1:] != [
            "ponder"
        ]:
            await process.worker.wait_for_change()
    gate.set()
    async with runtime.open(
        by_agent={"main": [text_reply("Done.")], "helper": [text_reply("Nobody calls it.")]}, tools=[ponder]
    ) as process:
        for each in await tree(process):
            if each.status.is_live and each.status is not Status.WAITING:
                await process.resume(each)
        done = await over(process, run)
        assert done.status is Status.DONE
        ((ok, answer),) = await answers(process, run)
        assert (ok, answer["result"]) == (True, "Nobody calls it." + UNSEEN_NOTE)
        assert len(await tree(process)) == 3
