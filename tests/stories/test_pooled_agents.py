"""A task for a named agent, as its users see it: one answer, an agent that can be asked more, and a pool to look at."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.app.agent_pool import list_pool_agents, retire_pool_agents
from retinue.app.log_file import LOG_NAME
from retinue.app.run_options import RunOptions
from retinue.domain.event import Event
from retinue.domain.run import Status, WaitReason
from retinue.errors import Refused
from retinue.testing.fake_model_server import CapturedRequest, Script
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply
from retinue.tools.define import tool

LONG = "It is in src/cron.py, line 12, and nothing else uses it."
FACTS = {
    "key", "agent", "prompt_hash", "tools_hash", "agent_id", "session_id", "parent", "created_at", "last_used_at",
    "use_count", "in_use",
}  # fmt: skip


def sha8(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def gives(task: str, **more: Any) -> tuple[str, Any]:
    return "agent", {"task_prompt": task} | more


Turn = FakeResponse | Callable[[list[dict[str, Any]]], FakeResponse]


def playing(*turns: Turn) -> Script:
    """The main agent plays these turns, one after the other over all its runs; whoever was given a task answers it."""
    left = list(turns)

    def answer(asked: CapturedRequest) -> FakeResponse:
        messages = asked.body["messages"]
        if "Your task:" in messages[0]["content"]:
            return text_reply(f"{LONG} {sum(each['role'] == 'user' for each in messages)}")
        turn = left.pop(0)
        return turn(messages) if callable(turn) else turn

    return answer


def results(messages: list[dict[str, Any]]) -> list[Any]:
    return [json.loads(each["content"]) for each in messages if each["role"] == "tool"]


def asks(messages: list[dict[str, Any]]) -> FakeResponse:
    return tool_call_reply(("agent_ask", {"agent_id": results(messages)[0]["agent_id"], "message": "Sure?"}))


async def test_a_task_without_a_name_goes_to_the_general_agent_which_is_there_from_then_on(
    machine: UserMachine,
):
    """Shows: B001, B009, B014, B015, B019, B020."""
    assert not (machine.agents / "general.md").exists()
    async with machine.serve_models(
        playing(tool_call_reply(gives("Find cron.")), text_reply("Found."))
    ) as server:
        run = await machine("run", "--json", "Where is cron?")
    assert (run.code, run.json["text"]) == (0, "Found.")
    assert (machine.agents / "general.md").exists()
    first, child, last = server.requests
    assert {"agent", "agent_ask", "explore", "plan"} <= set(machine.tool_names(first))
    assert machine.system_prompt(child).count("Your task:\nFind cron.") == 1
    assert machine.request_texts(child) == ["Execute this task: Find cron."]
    (answer,) = results(last.messages)
    assert set(answer) == {"success", "result", "agent_used", "duration_seconds", "agent_id"}
    assert (answer["success"], answer["agent_used"]) == (True, "general")
    assert answer["result"].startswith(f"{LONG} 1")
    shown = (await machine("sessions", "show", "--json", answer["agent_id"])).json
    assert (shown["agent"], shown["parent_session_id"]) == ("general", run.json["slug"])


async def test_without_a_pool_a_task_is_done_all_the_same_and_nobody_is_kept(machine: UserMachine):
    """Shows: B042."""
    machine.write_config(subagents={"pool": False})
    turns = [
        tool_call_reply(gives("Find cron.")),
        tool_call_reply(("agent_ask", {"agent_id": "x", "message": "Sure?"})),
        text_reply("Found."),
    ]
    async with machine.serve_models(playing(*turns)) as server, machine.open() as app:
        run = await app.run("Where is cron?", workspace=machine.folder)
        assert (run.status, run.text) == (Status.DONE, "Found.")
        assert (await list_pool_agents(app.context), [each.slug for each in await app.sessions.list()]) == (
            [],
            [run.slug],
        )
    answer, more = results(server.requests[-1].messages)
    assert (answer["success"], "agent_id" in answer) == (True, False)
    assert answer["result"].startswith(LONG)
    assert more["error"].startswith("Agent not found: x")
    logged = [json.loads(line) for line in (machine.home / "logs" / LOG_NAME).read_text().splitlines()]
    (warned,) = [line for line in logged if line["level"] == "warn"]
    assert "the agent pool is off (subagents.pool): general is not kept" in warned["event"]
    assert warned["run"] == run.id


async def test_the_pool_tells_definitions_apart_and_counts_what_each_was_given(machine: UserMachine):
    """Shows: B029, B030, B031, B033, B034, B035, B036, B040, B046."""
    machine.write_agent("scout", "tools: [read, grep]\n", "You look.")
    machine.write_agent("coder", "", "You write.")
    turns = [
        tool_call_reply(gives("One.", agent_name="scout"), gives("Two.", agent_name="scout")),
        tool_call_reply(gives("Three.", agent_name="coder")),
        text_reply("Done."),
    ]
    more = [tool_call_reply(gives("Four.", agent_name="scout")), text_reply("Done.")]
    again = [tool_call_reply(gives("Five.", agent_name="scout")), text_reply("Done.")]
    async with machine.serve_models(playing(*turns, *more, *again)) as server:
        await machine("run", "Go.")
        before = (await machine("pool", "list", "--json")).json
        machine.write_agent("scout", "tools: [grep, read]\n", "You look twice.")
        await machine("run", "Go.")
        machine.write_agent("scout", "tools: [grep, read, ls]\n", "You look twice.")
        await machine("run", "Go.")
        after = (await machine("pool", "list", "--json")).json
        stats = (await machine("pool", "stats", "--json")).json
    tools = sha8("grep|read")
    scout, coder = f"agent-scout@{sha8('You look.')}@{tools}", f"agent-coder@{sha8('You write.')}@{sha8('')}"
    assert sorted((row["key"], row["use_count"]) for row in before) == [(coder, 1), (scout, 2), (scout, 2)]
    assert len({row["agent_id"] for row in before}) == 3
    assert all(set(row) == FACTS for row in before)
    assert {(row["agent"], row["tools_hash"]) for row in before} == {("scout", tools), ("coder", sha8(""))}
    newest = [row["key"] for row in after[:2]]
    twice = f"agent-scout@{sha8('You look twice.')}"
    assert newest == [f"{twice}@{sha8('grep|ls|read')}", f"{twice}@{tools}"]
    assert (stats["total"], stats["in_use"], stats["available"], stats["max"]) == (5, 0, 5, 10)
    assert stats["oldest_age_seconds"] >= stats["newest_age_seconds"] >= 0
    systems = [
        machine.system_prompt(each) for each in server.requests if "Your task:" in machine.system_prompt(each)
    ]
    assert [each.rpartition("Your task:\n")[2].split("\n")[0] for each in systems[2:]] == [
        "Three.",
        "Four.",
        "Five.",
    ]


async def test_an_agent_is_asked_more_until_a_person_takes_it_out_of_the_pool(machine: UserMachine):
    """Shows: B046, B048."""
    turns = [tool_call_reply(gives("One.")), asks, text_reply("Sure."), asks, text_reply("Gone.")]
    async with machine.serve_models(playing(*turns)) as server:
        run = (await machine("run", "--json", "Go.")).json
        _, answer = results(server.requests[-1].messages)
        assert answer["result"].startswith(f"{LONG} 2")
        (row,) = (await machine("pool", "list", "--json")).json
        assert (row["agent_id"], row["use_count"], row["in_use"]) == (answer["agent_id"], 2, False)
        cleared = await machine("pool", "clear", row["agent_id"])
        assert (cleared.code, cleared.out) == (
            0,
            f"{row['agent_id']} was removed from the pool. Its conversation stays.\n",
        )
        assert (await machine("pool", "list", "--json")).json == []
        assert (await machine("pool", "clear", row["agent_id"])).code == 7
        await machine("send", run["slug"], "And now?")
        *_, refused = results(server.requests[-1].messages)
        assert refused["error"] == (
            f"Agent not found: {row['agent_id']}. Agent may have been evicted from pool or ID is invalid."
        )
        assert (await machine("sessions", "show", row["agent_id"])).code == 0


async def test_clearing_the_pool_takes_out_every_idle_agent(machine: UserMachine):
    """Shows: B047."""
    turns = [tool_call_reply(gives("One."), gives("Two.", persist=False)), text_reply("Done.")]
    async with machine.serve_models(playing(*turns)):
        await machine("run", "Go.")
        cleared = (await machine("pool", "clear", "--json")).json
        assert [row["agent"] for row in cleared] == ["general"]
        assert (await machine("pool", "list", "--json")).json == []
        assert "No idle agents" in (await machine("pool", "clear")).err


async def test_a_person_makes_lists_shows_uses_and_deletes_an_agent(machine: UserMachine):
    """Shows: B047."""
    written = machine.folder / "scout.md"
    written.write_text("---\nname: scout\ndescription: Looks.\n---\n\nYou look.\n")
    async with machine.serve_models([text_reply("I have looked.")]):
        assert (await machine("agents", "import", str(written))).code == 0
        assert "scout" in [row["name"] for row in (await machine("agents", "list", "--json")).json]
        assert "You look." in (await machine("agents", "show", "scout")).out
        used = await machine("run", "--agent", "scout", "Look.")
        assert (used.code, used.out.strip()) == (0, "I have looked.")
        assert (await machine("agents", "delete", "scout")).code == 0
        assert "scout" not in [row["name"] for row in (await machine("agents", "list", "--json")).json]


async def test_events_tell_which_call_began_an_agent_and_how_it_ended(machine: UserMachine):
    """Shows: B017, B018, B021, B051."""
    heard: list[Event] = []
    turns = [tool_call_reply(gives("One."), gives("Two.")), text_reply("Done.")]
    async with machine.serve_models(playing(*turns)), machine.open() as app:
        with app.listen(heard.append):
            run = await app.run("Go.", workspace=machine.folder)
        called = {event.data["call"] for event in heard if event.kind == "tool.started"}
        born = [event for event in heard if event.kind == "run.queued" and event.parent_run == run.id]
        assert {event.data["call"] for event in born} == called
        assert {(event.agent, event.data["entry_point"], event.data["task"]) for event in born} == {
            ("general", "agent", f"Execute this task: {task}.") for task in ("One", "Two")
        }
        for event in born:
            kinds = [each.kind for each in heard if each.run == event.run]
            assert kinds.index("run.queued") < kinds.index("run.started") < kinds.index("run.ended")
            (end,) = [each for each in heard if each.run == event.run and each.kind == "run.ended"]
            assert (end.agent, end.data["status"], end.parent_run) == ("general", "done", run.id)
            assert end.data["duration_ms"] >= 0
            assert (await app.runs.find(event.run)).text.startswith(LONG)


async def test_agents_at_work_are_listed_while_they_work_and_not_afterwards(machine: UserMachine):
    """Shows: B022, B026, B041."""
    waits, go = asyncio.Event(), asyncio.Event()

    def heard(event: Event) -> None:
        if event.kind == "run.state" and event.data["phase"] == "child":
            waits.set()

    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        await go.wait()
        return "so"

    def answer(asked: CapturedRequest) -> FakeResponse:
        messages = asked.body["messages"]
        if messages[-1]["role"] == "tool":
            return text_reply(LONG)
        at_work = "Your task:" in messages[0]["content"]
        return (
            tool_call_reply(("ponder", {}))
            if at_work
            else tool_call_reply(gives("Find cron."), gives("Find x.", persist=False))
        )

    async with machine.serve_models(answer), machine.open(tools=[ponder]) as app:
        with app.listen(heard):
            run = await app.runs.start("Go.", RunOptions(workspace=machine.folder))
            await waits.wait()
        *children, parent = sorted(await app.runs.list(live=True), key=lambda each: each.id, reverse=True)
        assert {(each.agent, each.request.task, each.request.parent_run) for each in children} == {
            ("general", "Execute this task: Find cron.", run.id),
            ("general", "Execute this task: Find x.", run.id),
        }
        assert (parent.id, parent.waiting_for) == (run.id, WaitReason.CHILD)
        (kept,) = await list_pool_agents(app.context)
        assert kept.pooled_session.is_in_use
        with pytest.raises(Refused, match="is busy"):
            await retire_pool_agents(app.context, kept.pooled_session.slug)
        assert await retire_pool_agents(app.context) == []
        go.set()
        assert (await app.runs.wait(run.id)).status is Status.DONE
        assert await app.runs.list(live=True) == []
        (free,) = await list_pool_agents(app.context)
        assert (free.pooled_session.slug, free.pooled_session.is_in_use) == (kept.pooled_session.slug, False)
        assert {each.slug for each in await app.sessions.list()} == {run.slug, kept.pooled_session.slug}
