"""Which agents an agent can reach: one rule for agents_message, agents_list and the system prompt."""

import json
from pathlib import Path
from typing import Any

import pytest
from agent_pairs import message_call, open_main_and_todo
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.domain.agent import PathPatterns
from retinue.domain.approval import Answer, ApprovalPolicy
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.limits import Limits, SubagentSettings
from retinue.domain.model_turn import ModelReply, ModelRequest
from retinue.domain.run import Status
from retinue.runtime.spawn import create_session
from retinue.testing.scripted_provider import text_reply, tool_call_reply


async def test_an_unknown_session_or_one_of_another_agent_is_refused(runtime: RuntimeFixture):
    """Shows: C035, C046, T13."""
    async with open_main_and_todo(runtime, [], [text_reply("Hello.")]) as process:
        own_session = await process.create_session("main")
        await process.run("a", agent="todo")
        refs = ["nothing", own_session.id, own_session.slug]
        process.set_script(
            "main", [*(tool_call_reply(message_call(session=ref)) for ref in refs), text_reply("Done.")]
        )
        run = await process.wait_until_ended(await process.submit("Go.", session=own_session))
        errors = [each["error"] for each in await process.tool_outputs(run)]
        assert errors == [
            {"code": "agent_session_error", "message": "Session not found"},
            {"code": "agent_session_error", "message": "Session does not belong to this agent"},
            {"code": "agent_session_error", "message": "Session does not belong to this agent"},
        ]
        assert len(await process.all_runs()) == 2


async def test_a_session_outside_the_store_cannot_be_selected_by_path(runtime: RuntimeFixture):
    """Shows: C035, T13."""
    async with open_main_and_todo(runtime, [], [text_reply("Hello."), text_reply("never")]) as process:
        known = await process.store.find((await process.run("a", agent="todo")).session_id)
        copy = runtime.workspace / "laid"
        copy.mkdir()
        for each in Path(known.path).iterdir():
            if each.is_file():
                (copy / each.name).write_bytes(each.read_bytes())
        refs = [str(copy), f"{copy}/session.md", known.path, known.id[:-4], known.slug[:-2]]
        process.set_script(
            "main", [*(tool_call_reply(message_call(session=ref)) for ref in refs), text_reply("Done.")]
        )
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        errors = [each["error"]["message"] for each in await process.tool_outputs(run)]
        assert errors == ["Session not found"] * len(refs)


async def test_a_child_session_cannot_be_selected(runtime: RuntimeFixture):
    """Shows: C035, T13."""
    spawn = ("PersistentAgent", json.dumps({"preset": "todo", "description": "d", "prompt": "Look."}))
    async with open_main_and_todo(
        runtime, [tool_call_reply(spawn), text_reply("Done.")], [text_reply("Hello."), text_reply("never")]
    ) as process:
        await process.wait_until_ended(await process.submit("Go.", agent="main"))
        child = (await process.all_runs())[1]
        process.set_script(
            "other", [tool_call_reply(message_call(session=child.session_id)), text_reply("Done.")]
        )
        runtime.write_agent("other")
        run = await process.wait_until_ended(await process.submit("Go.", agent="other"))
        assert await process.tool_error(run) == ("agent_session_error", "Session not found")


@pytest.mark.parametrize(
    ("main", "todo", "overrides"),
    [
        ("agent_deny: [todo]\n", "", {}),
        ("agent_allow: [journal]\n", "", {}),
        ("", "ui_visible: false\n", {}),
        ("", "", {"operator_policy": lambda: OperatorPolicy(deny_agents=("to*",))}),
        ("", "", {"subagent_settings": SubagentSettings(allow_agents=("journal",))}),
    ],
)
async def test_a_hidden_or_denied_agent_is_not_reached_and_its_sessions_stay_unchanged(
    runtime: RuntimeFixture, main: str, todo: str, overrides: dict[str, Any]
):
    """Shows: C036, C046, C064, C096, T13."""
    runtime.write_agent("main", main)
    runtime.write_agent("todo", todo)
    async with open_main_and_todo(
        runtime, [tool_call_reply(message_call()), text_reply("A pity.")], [], **overrides
    ) as process:
        before = await create_session("todo", process.root, process.context)
        text = Path(before.path, "session.md").read_bytes()
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        assert await process.tool_error(run) == ("agent_not_accessible", "Agent not accessible: todo")
        assert Path(before.path, "session.md").read_bytes() == text
        assert [each.id for each in await process.store.sessions(agent="todo")] == [before.id]
        assert len(await process.all_runs()) == 1


async def test_every_agent_is_reached_if_no_list_restricts_it(runtime: RuntimeFixture):
    """Shows: C092."""
    runtime.write_agent("journal")
    calls = [message_call("todo"), message_call("journal")]
    async with open_main_and_todo(
        runtime, [tool_call_reply(*calls), text_reply("Done.")], [text_reply("Yes.")]
    ) as process:
        process.set_script("journal", [text_reply("Yes.")])
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        assert [each["status"] for each in await process.tool_outputs(run)] == ["complete", "complete"]


async def test_an_agent_cannot_send_itself_a_message(runtime: RuntimeFixture):
    """Shows: C095, C05."""
    async with open_main_and_todo(
        runtime, [tool_call_reply(message_call("main")), text_reply("No.")], []
    ) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        code, message = await process.tool_error(run)
        assert code == "agent_not_accessible"
        assert message == "Agent not accessible: main: it is already running as an ancestor: main > main"


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_an_agent_cannot_message_its_waiting_parent(runtime: RuntimeFixture, mode: str):
    """Shows: C095, C05."""
    runtime.write_agent("todo", "tools: [agents_message]\n")
    todo = [tool_call_reply(message_call("main", mode=mode)), text_reply("I may not.")]
    async with open_main_and_todo(
        runtime, [tool_call_reply(message_call()), text_reply("Done.")], todo
    ) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        child = (await process.all_runs())[1]
        code, message = await process.tool_error(child)
        assert code == "agent_not_accessible"
        assert "main > todo > main" in message
        assert run.status is Status.DONE
        assert len(await process.all_runs()) == 2


async def test_a_child_agent_sends_messages_only_if_its_definition_names_the_tool(runtime: RuntimeFixture):
    """Shows: C090, C065."""
    runtime.write_agent("journal")
    todo = [tool_call_reply(message_call("journal")), text_reply("I may not.")]
    async with open_main_and_todo(
        runtime, [tool_call_reply(message_call()), text_reply("Done.")], todo
    ) as process:
        await process.wait_until_ended(await process.submit("Go.", agent="main"))
        child = (await process.all_runs())[1]
        code, message = await process.tool_error(child)
        assert code == "agent_not_accessible"
        assert "unless its definition lists agents_message" in message
        (request,) = [
            each.request
            for each in process.provider.requests
            if entry_texts(each.entries[-1:]) == ["Add milk."]
        ]
        assert "agents_message" not in [each.name for each in request.tools]
        assert "Available agents" not in request.system


async def test_agents_that_name_the_tool_send_messages_down_to_the_depth_limit(runtime: RuntimeFixture):
    """Shows: C090, C095, C03."""
    runtime.write_agent("main")
    for name in ("todo", "journal"):
        runtime.write_agent(name, "tools: [agents_message]\n")
    by_agent = {
        "main": [tool_call_reply(message_call("todo")), text_reply("Done.")],
        "todo": [tool_call_reply(message_call("journal")), text_reply("Passed on.")],
        "journal": [tool_call_reply(message_call("writer", session="create")), text_reply("No deeper.")],
    }
    runtime.write_agent("writer")
    async with runtime.open(by_agent=by_agent, limits=Limits(max_depth=2)) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        assert run.status is Status.DONE
        _, todo, journal = await process.all_runs()
        assert (todo.depth, journal.depth, journal.root_id) == (1, 2, run.id)
        code, message = await process.tool_error(journal)
        assert code == "agent_message_failed"
        assert "maximum depth is 2" in message
        assert await process.store.sessions(agent="writer") == []


async def test_a_messaged_agent_gets_no_more_permissions_than_its_caller(runtime: RuntimeFixture):
    """Shows: L024, F19."""
    (runtime.workspace / "secret").mkdir()
    (runtime.workspace / "secret" / "s.txt").write_text("hidden")
    runtime.write_agent("main", "paths: {deny: ['**/secret/**']}\n")
    read = ("read", json.dumps({"path": str(runtime.workspace / "secret" / "s.txt")}))
    todo = [tool_call_reply(read), text_reply("Seen."), tool_call_reply(read), text_reply("Not seen.")]
    async with open_main_and_todo(
        runtime, [tool_call_reply(message_call()), text_reply("Done.")], todo
    ) as process:
        run = await process.run("Look.", agent="todo")
        await process.wait_until_ended(await process.submit("Go.", agent="main"))
        own_read, messaged_read = await process.tool_results(run)
        assert (own_read.ok, messaged_read.ok) == (True, False)
        assert "denies **/secret/**" in messaged_read.text


async def test_permissions_granted_to_a_session_do_not_apply_to_messages_from_other_agents(
    runtime: RuntimeFixture,
):
    """Shows: L024."""
    outside = runtime.folder / "outside.txt"
    outside.write_text("private")
    read = ("read", json.dumps({"path": str(outside)}))
    runtime.write_agent("todo", f"paths: {{read: ['{outside}', './**']}}\n")
    todo = [tool_call_reply(read), text_reply("Seen."), tool_call_reply(read), text_reply("Not seen.")]
    async with open_main_and_todo(
        runtime, [tool_call_reply(message_call()), text_reply("Done.")], todo
    ) as process:
        session = await process.create_session("todo")
        session = await process.store.update(session, user_grants=PathPatterns(read=(str(outside),)))
        run = await process.run("Look.", session=session)
        await process.wait_until_ended(await process.submit("Go.", agent="main"))
        own_read, messaged_read = await process.tool_results(run)
        assert (own_read.ok, messaged_read.ok) == (True, False)


async def test_a_permission_granted_during_a_message_applies_to_it(runtime: RuntimeFixture):
    """Shows: A093."""
    outside = runtime.folder / "outside.txt"
    outside.write_text("private")
    expansion = {"tool": "read", "resource": str(outside), "reason": "I need it."}
    todo = [
        tool_call_reply(("request_scope_expansion", json.dumps(expansion))),
        tool_call_reply(("read", json.dumps({"path": str(outside)}))),
        text_reply("Seen."),
    ]
    async with open_main_and_todo(
        runtime,
        [tool_call_reply(message_call()), text_reply("Done.")],
        todo,
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await process.submit("Go.", agent="main")

        await process.answer_approval(await process.wait_for_approval(), Answer.ADD)
        await process.wait_until_ended(run)
        _, read_result = await process.tool_results((await process.all_runs())[1])
        assert (read_result.ok, "private" in read_result.text) == (True, True)


async def test_agents_list_shows_the_agents_that_the_scope_allows(runtime: RuntimeFixture):
    """An external agent is not listed, because it cannot be run yet.

    Shows: C047, C064.
    """
    runtime.write_agent(
        "journal",
        "display_name: Personal Journal\ntype: external\nexternal: {inputUrl: 'http://127.0.0.1:1'}\n",
    )
    runtime.write_agent("todo", "display_name: Todo List Manager\n")
    runtime.write_agent("hidden", "ui_visible: false\n")
    runtime.write_agent("secret")
    runtime.write_agent("main", "agent_allow: [main, todo, journal, hidden, secret]\nagent_deny: ['sec*']\n")
    main = [
        tool_call_reply(("agents_list", "{}"), ("agents_list", '{"includeAll": true}')),
        text_reply("Done."),
    ]
    async with open_main_and_todo(runtime, main, []) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        visible, everyone = (each["agents"] for each in await process.tool_outputs(run))
        todo = {
            "agentId": "todo",
            "displayName": "Todo List Manager",
            "description": "Helps.",
            "type": "chat",
        }
        hidden = {
            "agentId": "hidden",
            "displayName": "hidden",
            "description": "Helps.",
            "type": "chat",
            "uiVisible": False,
        }
        assert visible == [todo]
        assert everyone == [hidden, todo]


async def test_agents_list_validates_its_arguments(runtime: RuntimeFixture):
    """Shows: C046."""
    async with open_main_and_todo(
        runtime, [tool_call_reply(("agents_list", '{"includeAll": "yes"}')), text_reply("Done.")], []
    ) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        assert (await process.tool_error(run))[0] == "invalid_arguments"


async def test_agents_list_applies_a_deny_added_to_the_configuration_meanwhile(runtime: RuntimeFixture):
    """Shows: C064, C096."""
    denied: list[str] = []
    main = [
        tool_call_reply(("agents_list", "{}")),
        tool_call_reply(("agents_list", '{"includeAll": false}')),
        text_reply("Done."),
    ]

    def deny_todo(_: ModelRequest) -> ModelReply:
        denied.append("todo")
        return main[1]

    overrides = {"operator_policy": lambda: OperatorPolicy(deny_agents=tuple(denied))}
    async with open_main_and_todo(runtime, [main[0], deny_todo, main[2]], [], **overrides) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        first, second = (
            [row["agentId"] for row in each["agents"]] for each in await process.tool_outputs(run)
        )
        assert ("todo" in first, "todo" in second) == (True, False)


async def test_the_prompt_names_the_reachable_agents_and_the_tool_to_use(runtime: RuntimeFixture):
    """Shows: C064, C067, C071, C081, C082."""
    runtime.write_agent("main", "agent_allow: [main, todo, hidden]\n", "You are the main one.")
    runtime.write_agent("hidden", "ui_visible: false\n")
    section = (
        "\n\nAvailable agents you can delegate to:\n- todo: Todo List Manager - Helps.\n\n"
        "Use agents_message to ask another agent to perform a task."
    )
    async with open_main_and_todo(runtime, [text_reply("Hi."), text_reply("Hi.")], []) as process:
        run = await process.run("Hi.", agent="main")
        runtime.write_agent("main", "agent_allow: [main, todo, other]\n", "You are the main one.")
        runtime.write_agent("other")
        await process.run("Hi.", session=await process.store.find(run.session_id))
        before, after = (each.request.system for each in process.provider.requests)
        assert before.startswith("You are the main one.\n\nAvailable tools:\n")
        assert before.endswith(section)
        assert "- other: Helps.\n- todo: Todo List Manager - Helps." in after


@pytest.mark.parametrize(
    ("tools", "line"),
    [
        ("[read]", None),
        ("[agents_list]", None),
        ("[agents_message]", "Use agents_message to ask"),
        ("[PersistentAgent]", "Use PersistentAgent to ask"),
        ("[PersistentAgent, agents_message]", "Use agents_message to ask"),
    ],
)
async def test_the_prompt_names_other_agents_only_if_the_agent_has_a_tool_for_them(
    runtime: RuntimeFixture, tools: str, line: str | None
):
    """Shows: C065, C081."""
    runtime.write_agent("main", f"tools: {tools}\n")
    async with open_main_and_todo(runtime, [text_reply("Hi.")], []) as process:
        await process.run("Hi.", agent="main")
        (request,) = process.provider.requests
        assert ("Available agents" in request.request.system) is (line is not None)
        assert line is None or line in request.request.system


async def test_agents_named_in_the_prompt_text_are_not_reachable_by_that(runtime: RuntimeFixture):
    """Shows: C075."""
    prompt = "Available agents you can delegate to:\n- todo: Todo List Manager"
    runtime.write_agent("main", "agent_deny: [todo]\n", prompt)
    async with open_main_and_todo(
        runtime, [tool_call_reply(message_call()), text_reply("No.")], []
    ) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        assert (await process.tool_error(run))[0] == "agent_not_accessible"


async def test_an_agent_without_the_capability_lacks_the_tool(runtime: RuntimeFixture):
    """Shows: C065."""
    runtime.write_agent("main", "capability_allow: ['agents.read']\n")
    async with open_main_and_todo(runtime, [text_reply("Hi.")], []) as process:
        await process.run("Hi.", agent="main")
        names = {each.name for each in process.provider.requests[0].request.tools}
        assert ("agents_list" in names, "agents_message" in names) == (True, False)
