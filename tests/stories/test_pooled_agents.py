"""The tools agent and agent_ask as users see them: one result, follow-up questions, and the agent pool."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
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

REPORT = "It is in src/cron.py, line 12, and nothing else uses it."
POOL_FIELDS = {
    "key", "agent", "prompt_hash", "tools_hash", "agent_id", "session_id", "parent", "created_at", "last_used_at",
    "use_count", "in_use",
}  # fmt: skip


def sha8(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def task_call(task: str, **more: Any) -> tuple[str, Any]:
    return "agent", {"task_prompt": task} | more


Turn = FakeResponse | Callable[[list[dict[str, Any]]], FakeResponse]


def make_script(*turns: Turn) -> Script:
    """The main agent replies with these turns in order over all its runs; an agent with a task replies with a report."""
    remaining = list(turns)

    def answer(request: CapturedRequest) -> FakeResponse:
        messages = request.body["messages"]
        if "Your task:" in messages[0]["content"]:
            return text_reply(f"{REPORT} {sum(each['role'] == 'user' for each in messages)}")
        turn = remaining.pop(0)
        return turn(messages) if callable(turn) else turn

    return answer


def tool_results(messages: list[dict[str, Any]]) -> list[Any]:
    return [json.loads(each["content"]) for each in messages if each["role"] == "tool"]


def ask_again(messages: list[dict[str, Any]]) -> FakeResponse:
    return tool_call_reply(
        ("agent_ask", {"agent_id": tool_results(messages)[0]["agent_id"], "message": "Sure?"})
    )


async def test_a_task_without_an_agent_name_goes_to_the_general_agent_and_creates_its_file(
    machine: UserMachine,
):
    """Shows: B001, B009, B014, B015, B019, B020."""
    assert not (machine.agents / "general.md").exists()
    async with machine.serve_models(
        make_script(tool_call_reply(task_call("Find cron.")), text_reply("Found."))
    ) as server:
        run = await machine("run", "--json", "Where is cron?")
    assert (run.code, run.json["text"]) == (0, "Found.")
    assert (machine.agents / "general.md").exists()
    first, child, last = server.requests
    assert {"agent", "agent_ask", "explore", "plan"} <= set(machine.tool_names(first))
    assert machine.system_prompt(child).count("Your task:\nFind cron.") == 1
    assert machine.request_texts(child) == ["Execute this task: Find cron."]
    (answer,) = tool_results(last.messages)
    assert set(answer) == {"success", "result", "agent_used", "duration_seconds", "agent_id"}
    assert (answer["success"], answer["agent_used"]) == (True, "general")
    assert answer["result"].startswith(f"{REPORT} 1")
    shown = (await machine("sessions", "show", "--json", answer["agent_id"])).json
    assert (shown["agent"], shown["parent_session_id"]) == ("general", run.json["slug"])


async def test_without_a_pool_tasks_are_executed_and_no_agent_is_kept(machine: UserMachine):
    """Shows: B042."""
    machine.write_config(subagents={"pool": False})
    turns = [
        tool_call_reply(task_call("Find cron.")),
        tool_call_reply(("agent_ask", {"agent_id": "x", "message": "Sure?"})),
        text_reply("Found."),
    ]
    async with machine.serve_models(make_script(*turns)) as server, machine.open() as app:
        run = await app.run("Where is cron?", workspace=machine.folder)
        assert (run.status, run.text) == (Status.DONE, "Found.")
        assert (await list_pool_agents(app.context), [each.slug for each in await app.sessions.list()]) == (
            [],
            [run.slug],
        )
    answer, more = tool_results(server.requests[-1].messages)
    assert (answer["success"], "agent_id" in answer) == (True, False)
    assert answer["result"].startswith(REPORT)
    assert more["error"].startswith("Agent not found: x")
    logged = [json.loads(line) for line in (machine.home / "logs" / LOG_NAME).read_text().splitlines()]
    (warning,) = [line for line in logged if line["level"] == "warn"]
    assert "the agent pool is disabled (subagents.pool): general is not kept" in warning["event"]
    assert warning["run"] == run.id


async def test_the_pool_separates_versions_of_a_definition_and_counts_their_uses(machine: UserMachine):
    """Shows: B029, B030, B031, B033, B034, B035, B036, B040, B046."""
    machine.write_agent("scout", "tools: [read, grep]\n", "You look.")
    machine.write_agent("coder", "", "You write.")
    turns = [
        tool_call_reply(task_call("One.", agent_name="scout"), task_call("Two.", agent_name="scout")),
        tool_call_reply(task_call("Three.", agent_name="coder")),
        text_reply("Done."),
    ]
    more = [tool_call_reply(task_call("Four.", agent_name="scout")), text_reply("Done.")]
    third = [tool_call_reply(task_call("Five.", agent_name="scout")), text_reply("Done.")]
    async with machine.serve_models(make_script(*turns, *more, *third)) as server:
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
    assert all(set(row) == POOL_FIELDS for row in before)
    assert {(row["agent"], row["tools_hash"]) for row in before} == {("scout", tools), ("coder", sha8(""))}
    newest = [row["key"] for row in after[:2]]
    new_prompt = f"agent-scout@{sha8('You look twice.')}"
    assert newest == [f"{new_prompt}@{sha8('grep|ls|read')}", f"{new_prompt}@{tools}"]
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


async def test_an_agent_can_be_asked_again_until_it_is_removed_from_the_pool(machine: UserMachine):
    """Shows: B046, B048."""
    turns = [
        tool_call_reply(task_call("One.")),
        ask_again,
        text_reply("Sure."),
        ask_again,
        text_reply("Gone."),
    ]
    async with machine.serve_models(make_script(*turns)) as server:
        run = (await machine("run", "--json", "Go.")).json
        _, answer = tool_results(server.requests[-1].messages)
        assert answer["result"].startswith(f"{REPORT} 2")
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
        *_, refused = tool_results(server.requests[-1].messages)
        assert refused["error"] == (
            f"Agent not found: {row['agent_id']}. Agent may have been evicted from pool or ID is invalid."
        )
        assert (await machine("sessions", "show", row["agent_id"])).code == 0


async def test_clearing_the_pool_removes_every_idle_agent(machine: UserMachine):
    """Shows: B047."""
    turns = [tool_call_reply(task_call("One."), task_call("Two.", persist=False)), text_reply("Done.")]
    async with machine.serve_models(make_script(*turns)):
        await machine("run", "Go.")
        cleared = (await machine("pool", "clear", "--json")).json
        assert [row["agent"] for row in cleared] == ["general"]
        assert (await machine("pool", "list", "--json")).json == []
        assert "No idle agents" in (await machine("pool", "clear")).err


async def test_an_agent_can_be_imported_listed_shown_run_and_deleted(machine: UserMachine):
    """Shows: B047."""
    definition = machine.folder / "scout.md"
    definition.write_text("---\nname: scout\ndescription: Looks.\n---\n\nYou look.\n")
    async with machine.serve_models([text_reply("I have looked.")]):
        assert (await machine("agents", "import", str(definition))).code == 0
        assert "scout" in [row["name"] for row in (await machine("agents", "list", "--json")).json]
        assert "You look." in (await machine("agents", "show", "scout")).out
        used = await machine("run", "--agent", "scout", "Look.")
        assert (used.code, used.out.strip()) == (0, "I have looked.")
        assert (await machine("agents", "delete", "scout")).code == 0
        assert "scout" not in [row["name"] for row in (await machine("agents", "list", "--json")).json]


async def test_events_name_the_call_that_started_an_agent_and_its_end(machine: UserMachine):
    """Shows: B017, B018, B021, B051."""
    events: list[Event] = []
    turns = [tool_call_reply(task_call("One."), task_call("Two.")), text_reply("Done.")]
    async with machine.serve_models(make_script(*turns)), machine.open() as app:
        with app.listen(events.append):
            run = await app.run("Go.", workspace=machine.folder)
        call_ids = {event.data["call"] for event in events if event.kind == "tool.started"}
        queued_events = [
            event for event in events if event.kind == "run.queued" and event.parent_run == run.id
        ]
        assert {event.data["call"] for event in queued_events} == call_ids
        assert {(event.agent, event.data["entry_point"], event.data["task"]) for event in queued_events} == {
            ("general", "agent", f"Execute this task: {task}.") for task in ("One", "Two")
        }
        for event in queued_events:
            kinds = [each.kind for each in events if each.run == event.run]
            assert kinds.index("run.queued") < kinds.index("run.started") < kinds.index("run.ended")
            (end,) = [each for each in events if each.run == event.run and each.kind == "run.ended"]
            assert (end.agent, end.data["status"], end.parent_run) == ("general", "done", run.id)
            assert end.data["duration_ms"] >= 0
            assert (await app.runs.find(event.run)).text.startswith(REPORT)


async def test_running_agents_are_listed_and_cannot_be_removed_from_the_pool(machine: UserMachine):
    """Shows: B022, B026, B041."""
    parent_waits, gate = asyncio.Event(), asyncio.Event()

    def note_waiting_parent(event: Event) -> None:
        if event.kind == "run.state" and event.data["phase"] == "child":
            parent_waits.set()

    @tool(effect="read")
    async def ponder() -> str:
        """Waits for the gate."""
        await gate.wait()
        return "so"

    def answer(request: CapturedRequest) -> FakeResponse:
        messages = request.body["messages"]
        if messages[-1]["role"] == "tool":
            return text_reply(REPORT)
        is_child = "Your task:" in messages[0]["content"]
        return (
            tool_call_reply(("ponder", {}))
            if is_child
            else tool_call_reply(task_call("Find cron."), task_call("Find x.", persist=False))
        )

    async with machine.serve_models(answer), machine.open(tools=[ponder]) as app:
        with app.listen(note_waiting_parent):
            run = await app.runs.start("Go.", RunOptions(workspace=machine.folder))
            await parent_waits.wait()
        *children, parent = sorted(await app.runs.list(live=True), key=lambda each: each.id, reverse=True)
        assert {(each.agent, each.request.task, each.request.parent_run) for each in children} == {
            ("general", "Execute this task: Find cron.", run.id),
            ("general", "Execute this task: Find x.", run.id),
        }
        assert (parent.id, parent.waiting_for) == (run.id, WaitReason.CHILD)
        (pooled,) = await list_pool_agents(app.context)
        assert pooled.pooled_session.is_in_use
        with pytest.raises(Refused, match="is busy"):
            await retire_pool_agents(app.context, pooled.pooled_session.slug)
        assert await retire_pool_agents(app.context) == []
        gate.set()
        assert (await app.runs.wait(run.id)).status is Status.DONE
        assert await app.runs.list(live=True) == []
        (idle,) = await list_pool_agents(app.context)
        assert (idle.pooled_session.slug, idle.pooled_session.is_in_use) == (
            pooled.pooled_session.slug,
            False,
        )
        assert {each.slug for each in await app.sessions.list()} == {run.slug, pooled.pooled_session.slug}


async def test_a_copied_agent_can_be_asked_by_its_id_in_the_branch_and_the_original_stays_unchanged(
    machine: UserMachine,
):
    """Shows: A082, A083."""
    machine.write_agent("helper", "", "You help.\n")
    agent_ids: list[str] = []

    def script(request: CapturedRequest) -> FakeResponse:
        if "You help." in request.messages[0]["content"]:
            asked = str(request.messages[-1]["content"])
            return text_reply(f"I was asked {len(request.messages) // 2} times, now: {asked[:20]}")
        last = request.messages[-1]
        if last["role"] == "tool":
            agent_ids.append(str(json.loads(last["content"]).get("agent_id")))
            return text_reply(str(json.loads(last["content"]).get("result")))
        if last["content"] == "Begin.":
            return tool_call_reply(("agent", {"agent_name": "helper", "task_prompt": "Look."}))
        return tool_call_reply(("agent_ask", {"agent_id": agent_ids[0], "message": "And then?"}))

    async with machine.serve_models(script):
        first = (await machine("run", "--json", "Begin.")).json
        (original,) = [
            each
            for each in (await machine("sessions", "list", "--json")).json
            if each["parent"] == first["session_id"]
        ]
        before = Path(original["path"]).read_text()
        branch = (await machine("sessions", "branch", first["slug"], "--json")).json
        asked = (await machine("send", "--json", branch["session_id"], "Ask on.")).json
        again = (await machine("send", "--json", branch["session_id"], "Ask on.")).json
    assert asked["text"].startswith("I was asked 2 times, now: And then?"), asked
    assert again["text"].startswith("I was asked 3 times, now: And then?"), again
    assert Path(original["path"]).read_text() == before
