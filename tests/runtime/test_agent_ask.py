"""The tool agent_ask: a session can send follow-up questions to an agent that worked for it, and no other can."""

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from gates import PONDER_CALL, make_gated_tool
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain import agent_pool
from retinue.domain.ceiling import Ceiling
from retinue.domain.model_turn import ModelReply, ModelRequest
from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply
from retinue.tools.delegation.agent import NOT_SHOWN_TO_USER_NOTE
from retinue.worker.clock import system_clock

REPORT = "The module is src/cron.py, and nothing else uses it."
AGENT_CALL = ("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."}))


def latest_agent_id(entries: Sequence[Entry]) -> str:
    """Return the agent id in the newest tool result."""
    texts = [entry.text for entry in entries if isinstance(entry, ToolResult)]
    found = [json.loads(text)["agent_id"] for text in texts if "agent_id" in text]
    return found[-1]


def ask_latest_agent(
    message: str = "And who calls it?", *, times: int = 1
) -> Callable[[ModelRequest], ModelReply]:
    """Return a scripted step that asks the agent whose id came last."""

    def reply(request: ModelRequest) -> ModelReply:
        arguments = json.dumps({"agent_id": latest_agent_id(request.entries), "message": message})
        return tool_call_reply(*[("agent_ask", arguments)] * times)

    return reply


async def outputs_with_ok(
    process: RuntimeProcess, run: Run, tool_name: str = "agent_ask"
) -> list[tuple[bool, Any]]:
    entries = await process.entries(run)
    ours = {entry.id for entry in entries if isinstance(entry, ToolCall) and entry.tool == tool_name}
    return [
        (entry.ok, json.loads(entry.text))
        for entry in entries
        if isinstance(entry, ToolResult) and entry.call_id in ours
    ]


def write_agents(runtime: RuntimeFixture, front: str = "") -> None:
    runtime.write_agent("main")
    runtime.write_agent("other")
    runtime.write_agent("helper", front)


def not_found_error(agent_id: str) -> dict[str, Any]:
    return {
        "success": False,
        "error": f"Agent not found: {agent_id}. Agent may have been evicted from pool or ID is invalid.",
        "error_type": "not_found",
    }


async def test_a_follow_up_question_continues_the_agents_session(runtime: RuntimeFixture):
    """Shows: B013, B048."""
    write_agents(runtime, "tools: [read, ls]\n")
    by_agent = {
        "main": [tool_call_reply(AGENT_CALL), ask_latest_agent(), text_reply("Done.")],
        "helper": [text_reply(REPORT), text_reply("Nobody calls it.")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.run_until_idle("Go.", agent="main")
        assert run.status is Status.DONE
        ((ok, output),) = await outputs_with_ok(process, run)
        first_run, second_run = (await process.all_runs())[1:]
        assert ok
        assert output.pop("duration_seconds") >= 0
        assert output == {
            "success": True,
            "result": "Nobody calls it." + NOT_SHOWN_TO_USER_NOTE,
            "agent_used": "helper",
            "agent_id": first_run.slug,
        }
        assert (second_run.session_id, second_run.request.entry_point) == (first_run.session_id, "agent_ask")
        assert (second_run.depth, second_run.request.parent_run, second_run.root_id) == (1, run.id, run.id)
        request = process.provider.requests[3]
        assert [entry.text for entry in request.entries if isinstance(entry, Message)] == [
            "Execute this task: Look.",
            REPORT,
            "And who calls it?",
        ]
        assert [each.name for each in request.request.tools] == ["ls", "read"]


@pytest.mark.parametrize("agent_id", ["helper-20260101000000-look-", "..", "../../main", "x" * 500, "a\x00b"])
async def test_an_unknown_agent_id_is_not_found(runtime: RuntimeFixture, agent_id: str):
    """Shows: B048."""
    write_agents(runtime)
    arguments = json.dumps({"agent_id": agent_id, "message": "Well?"})
    async with runtime.open(
        by_agent={"main": [tool_call_reply(("agent_ask", arguments)), text_reply("Oh.")]}
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        ((ok, output),) = await outputs_with_ok(process, run)
        assert not ok
        assert output["error"] == not_found_error(agent_id)["error"]
        assert len(await process.all_runs()) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"message": "x"}, "agent_id parameter is required and must be a string"),
        ({"agent_id": "x"}, "message parameter is required and must be a string"),
        ({"agent_id": " ", "message": "x"}, "agent_id parameter is required and must be a string"),
        ({"agent_id": "x", "message": 5}, "message parameter is required and must be a string"),
    ],
)
async def test_invalid_agent_ask_arguments_are_reported(
    runtime: RuntimeFixture, arguments: object, problem: str
):
    write_agents(runtime)
    async with runtime.open(
        by_agent={"main": [tool_call_reply(("agent_ask", json.dumps(arguments))), text_reply("Oh.")]}
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        expected = {"success": False, "error": problem, "error_type": "validation_error"}
        assert await outputs_with_ok(process, run) == [(False, expected)]


async def test_a_session_cannot_ask_the_agents_of_another_session(runtime: RuntimeFixture):
    """Shows: C19."""
    write_agents(runtime)
    by_agent: dict[str, Sequence[ScriptedStep]] = {
        "Mine.": [tool_call_reply(AGENT_CALL), text_reply("Done.")],
        "Yours.": [
            lambda _: tool_call_reply(("agent_ask", foreign_arguments[0])),
            tool_call_reply(AGENT_CALL),
            text_reply("Oh."),
        ],
        "helper": [text_reply(REPORT), text_reply("I am another one of the same kind.")],
    }
    foreign_arguments: list[str] = []
    async with runtime.open(by_agent=by_agent) as process:
        await process.run_until_idle("Mine.", agent="main")
        child = (await process.all_runs())[1]
        foreign_arguments.append(json.dumps({"agent_id": child.slug, "message": "Tell me."}))
        run = await process.run_until_idle("Yours.", agent="main")
        assert await outputs_with_ok(process, run) == [(False, not_found_error(child.slug))]
        ((_, own_output),) = await outputs_with_ok(process, run, "agent")
        assert own_output["agent_used"] == "helper"
        request = process.provider.requests[-2]
        assert [entry.text for entry in request.entries if isinstance(entry, Message)] == [
            "Execute this task: Look."
        ]


async def test_of_two_questions_in_one_reply_the_first_is_answered_and_the_second_is_busy(
    runtime: RuntimeFixture,
):
    """Shows: B037, B048."""
    write_agents(runtime)
    by_agent = {
        "main": [tool_call_reply(AGENT_CALL), ask_latest_agent(times=2), text_reply("Done.")],
        "helper": [text_reply(REPORT), text_reply("Nobody calls it."), text_reply("never")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.run_until_idle("Go.", agent="main")
        assert run.status is Status.DONE
        child = (await process.all_runs())[1]
        _, answered, busy = await process.tool_outputs(run)
        assert busy == {
            "success": False,
            "error": f"Agent {child.slug} is currently in use. Wait for current operation to complete.",
            "error_type": "busy",
        }
        assert answered["result"] == "Nobody calls it." + NOT_SHOWN_TO_USER_NOTE
        assert [(each.agent, each.status) for each in await process.all_runs()] == [
            ("main", Status.DONE),
            ("helper", Status.DONE),
            ("helper", Status.DONE),
        ]
        assert [use.use_count for use in agent_pool.pooled_sessions(await process.all_runs())] == [2]
        assert len([each for each in process.provider.requests if each.request.agent_name == "helper"]) == 2


async def test_an_empty_reply_to_a_follow_up_question_is_replaced_by_a_summary_of_the_work(
    runtime: RuntimeFixture,
):
    """Shows: B023."""
    write_agents(runtime)
    by_agent = {
        "main": [tool_call_reply(AGENT_CALL), ask_latest_agent(), text_reply("Done.")],
        "helper": [
            text_reply(REPORT),
            tool_call_reply(("ls", "{}"), text="I look again."),
            text_reply(""),
        ],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.run_until_idle("Go.", agent="main")
        ((ok, output),) = await outputs_with_ok(process, run)
        assert (ok, output["success"]) == (True, True)
        assert output["result"].startswith("Agent 'helper' work summary:\n\nI look again.")


async def test_an_agent_in_conversation_with_a_person_is_busy(runtime: RuntimeFixture):
    """Shows: B037, B048."""
    write_agents(runtime)
    gate = asyncio.Event()

    by_agent = {
        "main": [
            tool_call_reply(AGENT_CALL),
            text_reply("Done."),
            ask_latest_agent(),
            text_reply("Then later."),
        ],
        "helper": [text_reply(REPORT), PONDER_CALL, text_reply("Hello, person.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.run_until_idle("Go.", agent="main")
        child = (await process.all_runs())[1]
        person_run = await process.submit("Hello.", session=await process.store.find(child.transcript_path))
        await process.wait_for_event("tool.started")
        second_run = await process.submit("More.", session=await process.store.find(run.transcript_path))
        await process.wait(second_run)
        ((_, output),) = await outputs_with_ok(process, run)
        assert output["error"].endswith("is currently in use. Wait for current operation to complete.")
        assert [each.agent for each in await process.all_runs()] == ["main", "helper", "helper", "main"]
        gate.set()
        assert (await process.wait(person_run)).text == "Hello, person."


async def test_an_agent_leaves_the_pool_after_five_idle_minutes(runtime: RuntimeFixture):
    """Shows: B045."""
    write_agents(runtime)
    offset = timedelta()

    def now() -> datetime:
        return system_clock().now() + offset

    main: list[ScriptedStep] = [
        tool_call_reply(AGENT_CALL),
        text_reply("Done."),
        ask_latest_agent(),
        ask_latest_agent(),
        text_reply("Done."),
    ]
    by_agent: dict[str, list[ScriptedStep]] = {
        "main": main,
        "helper": [text_reply(REPORT), text_reply("Nobody calls it.")],
    }
    clock = replace(system_clock(), now=now)
    async with runtime.open(by_agent=by_agent, clock=clock) as process:
        run = await process.run_until_idle("Go.", agent="main")
        offset = timedelta(minutes=4)
        session = await process.store.find(run.transcript_path)

        def ask_after_five_minutes(request: ModelRequest) -> ModelReply:
            nonlocal offset
            offset = timedelta(minutes=9)
            return ask_latest_agent()(request)

        main[3] = ask_after_five_minutes
        second_run = await process.run_until_idle("More.", session=session)
        assert second_run.status is Status.DONE
        (ok, _), (late_ok, output) = await outputs_with_ok(process, run)
        assert (ok, late_ok) == (True, False)
        assert output == not_found_error((await process.all_runs())[1].slug)


def script_with_one_question() -> dict[str, list[ScriptedStep]]:
    """Return scripts with which main starts helper in its first run and asks it in its second one."""
    return {
        "main": [tool_call_reply(AGENT_CALL), text_reply("Done."), ask_latest_agent(), text_reply("Oh.")],
        "helper": [text_reply(REPORT)],
    }


async def test_an_agent_removed_from_the_pool_by_a_person_is_not_found(runtime: RuntimeFixture):
    write_agents(runtime)
    async with runtime.open(by_agent=script_with_one_question()) as process:
        run = await process.run_until_idle("Go.", agent="main")
        child: Session = await process.store.find((await process.all_runs())[1].transcript_path)
        await process.store.update(child, attributes={**child.attributes, agent_pool.RETIRED_ATTRIBUTE: True})
        await process.run_until_idle("More.", session=await process.store.find(run.transcript_path))
        assert await outputs_with_ok(process, run) == [(False, not_found_error(child.slug))]


async def test_an_agent_denied_meanwhile_is_refused(runtime: RuntimeFixture):
    write_agents(runtime)
    async with runtime.open(by_agent=script_with_one_question()) as process:
        run = await process.run_until_idle("Go.", agent="main")
        runtime.write_agent("main", "agent_deny: [helper]\n")
        await process.run_until_idle("More.", session=await process.store.find(run.transcript_path))
        ((ok, output),) = await outputs_with_ok(process, run)
        assert (ok, output["error_type"]) == (False, "refused")
        assert "main may not start helper" in output["error"]


async def test_a_caller_with_fewer_permissions_limits_the_agent_it_asks(
    runtime: RuntimeFixture,
):
    """Shows: C19."""
    write_agents(runtime)
    (runtime.workspace / "note.txt").write_text("hidden")
    by_agent = {
        "main": [
            tool_call_reply(AGENT_CALL),
            text_reply("Done."),
            ask_latest_agent("Read it."),
            text_reply("Oh."),
        ],
        "helper": [
            text_reply(REPORT),
            tool_call_reply(("read", '{"path": "note.txt"}')),
            text_reply("It was refused to me, sadly."),
        ],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.run_until_idle("Go.", agent="main")
        ceiling = Ceiling(set_by="someone", read=())
        await process.run_until_idle(
            "More.", session=await process.store.find(run.transcript_path), ceilings=(ceiling,)
        )
        child = (await process.all_runs())[1]
        (result,) = await process.tool_results(child)
        assert not result.ok
        assert "someone" in result.text


async def test_a_question_is_not_asked_twice_when_the_process_dies_while_the_caller_waits(
    runtime: RuntimeFixture,
):
    write_agents(runtime)
    gate = asyncio.Event()

    by_agent = {
        "main": [tool_call_reply(AGENT_CALL), ask_latest_agent()],
        "helper": [text_reply(REPORT), PONDER_CALL],
    }
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="main")
        while [event.data["tool"] for event in process.events if event.kind == "tool.started"][-1:] != [
            "ponder"
        ]:
            await process.worker.wait_for_change()
    gate.set()
    async with runtime.open(
        by_agent={"main": [text_reply("Done.")], "helper": [text_reply("Nobody calls it.")]},
        tools=[make_gated_tool(gate)],
    ) as process:
        await process.resume_executing_runs()
        ended = await process.wait_until_ended_or_idle(run)
        assert ended.status is Status.DONE
        ((ok, output),) = await outputs_with_ok(process, run)
        assert (ok, output["result"]) == (True, "Nobody calls it." + NOT_SHOWN_TO_USER_NOTE)
        assert len(await process.all_runs()) == 3
