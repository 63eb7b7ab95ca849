"""Who may ask whom: what agents_message reaches, what agents_list shows and what prompts say are one rule."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess
from transcript_entries import entry_texts

from retinue.domain.agent import PathPatterns
from retinue.domain.approval import Answer, ApprovalPolicy
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.limits import Limits, SubagentSettings
from retinue.domain.model_turn import Reply, Request
from retinue.domain.run import Run, Status, WaitReason
from retinue.domain.transcript import Notice
from retinue.interfaces import Transaction
from retinue.runtime import run_control
from retinue.runtime.spawn import create_session
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply

T = TypeVar("T")


def message(agent: str = "todo", content: str = "Add milk.", **more: Any) -> tuple[str, str]:
    return "agents_message", json.dumps({"agentId": agent, "content": content} | more)


async def all_runs(process: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await process.context.ledger.read(step)


async def rows(process: RuntimeProcess, step: Callable[[Transaction], list[T]]) -> list[T]:
    return await process.context.ledger.read(step)


async def quiet(process: RuntimeProcess) -> list[Run]:
    """Until nothing goes on any more."""
    while True:
        runs = await all_runs(process)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in runs):
            return runs
        await process.worker.wait_for_change()


async def settled(process: RuntimeProcess, run: Run) -> Run:
    """Until this one has ended, whoever it waited for."""
    while (now := await process.reload(run)).status.is_live:
        await process.worker.wait_for_change()
    return now


async def soon(true: Callable[[], Awaitable[object]]) -> None:
    while not await true():  # noqa: ASYNC110  (what is waited for is a row, and rows do not call)
        await asyncio.sleep(0.002)


async def stands_aside(process: RuntimeProcess, run: Run) -> None:
    """Until it has said what it had to say and waits for those it asked."""

    async def aside() -> bool:
        return (await process.reload(run)).is_suspended

    await soon(aside)


async def answers(process: RuntimeProcess, run: Run) -> list[Any]:
    return [json.loads(each.text) for each in await process.tool_results(run)]


async def fault(process: RuntimeProcess, run: Run) -> tuple[str, str]:
    (result,) = await process.tool_results(run)
    assert not result.ok
    error = json.loads(result.text)["error"]
    return error["code"], error["message"]


async def announced(process: RuntimeProcess, run: Run) -> list[str]:
    found = [each for each in await process.entries(run) if isinstance(each, Notice)]
    texts = [each.text for each in found if each.topic == "announcement"]
    return [re.findall(r"^<<<(\w+)\n(.*)\n\1>>>$", text, re.DOTALL | re.MULTILINE)[0][1] for text in texts]


@asynccontextmanager
async def pair(
    runtime: RuntimeFixture, main: Sequence[ScriptedStep], todo: Sequence[ScriptedStep], **more: Any
) -> AsyncGenerator[RuntimeProcess]:
    """Two agents: main asks, todo keeps lists."""
    if not (runtime.folder / "agents" / "main.md").exists():
        runtime.write_agent("main")
    if not (runtime.folder / "agents" / "todo.md").exists():
        runtime.write_agent("todo", "display_name: Todo List Manager\n", "You keep lists.")
    async with runtime.open(by_agent={"main": main, "todo": todo}, **more) as process:
        yield process


async def test_a_conversation_that_is_not_there_or_not_the_agents_own_is_refused(runtime: RuntimeFixture):
    """Shows: C035, C046, T13."""
    async with pair(runtime, [], [text_reply("Hello.")]) as process:
        mine = await process.create_session("main")
        (await process.run("a", agent="todo"))
        refs = ["nothing", mine.id, mine.slug]
        process.set_script(
            "main", [*(tool_call_reply(message(session=ref)) for ref in refs), text_reply("Done.")]
        )
        run = await settled(process, await process.submit("Go.", session=mine))
        found = [each["error"] for each in await answers(process, run)]
        assert found == [
            {"code": "agent_session_error", "message": "Session not found"},
            {"code": "agent_session_error", "message": "Session does not belong to this agent"},
            {"code": "agent_session_error", "message": "Session does not belong to this agent"},
        ]
        assert len(await all_runs(process)) == 2


async def test_no_path_leads_to_a_conversation_that_somebody_laid_somewhere(runtime: RuntimeFixture):
    """Shows: C035, T13."""
    async with pair(runtime, [], [text_reply("Hello."), text_reply("never")]) as process:
        known = await process.store.find((await process.run("a", agent="todo")).session_id)
        laid = runtime.workspace / "laid"
        laid.mkdir()
        for each in Path(known.path).iterdir():
            if each.is_file():
                (laid / each.name).write_bytes(each.read_bytes())
        refs = [str(laid), f"{laid}/session.md", known.path, known.id[:-4], known.slug[:-2]]
        process.set_script(
            "main", [*(tool_call_reply(message(session=ref)) for ref in refs), text_reply("Done.")]
        )
        run = await settled(process, await process.submit("Go.", agent="main"))
        found = [each["error"]["message"] for each in await answers(process, run)]
        assert found == ["Session not found"] * len(refs)


async def test_somebodys_child_takes_no_messages(runtime: RuntimeFixture):
    """Shows: C035, T13."""
    hand_on = ("PersistentAgent", json.dumps({"preset": "todo", "description": "d", "prompt": "Look."}))
    async with pair(
        runtime, [tool_call_reply(hand_on), text_reply("Done.")], [text_reply("Hello."), text_reply("never")]
    ) as process:
        await settled(process, await process.submit("Go.", agent="main"))
        child = (await all_runs(process))[1]
        process.set_script("other", [tool_call_reply(message(session=child.session_id)), text_reply("Done.")])
        runtime.write_agent("other")
        run = await settled(process, await process.submit("Go.", agent="other"))
        assert await fault(process, run) == ("agent_session_error", "Session not found")


@pytest.mark.parametrize(
    ("main", "todo", "ports"),
    [
        ("agent_deny: [todo]\n", "", {}),
        ("agent_allow: [journal]\n", "", {}),
        ("", "ui_visible: false\n", {}),
        ("", "", {"operator_policy": lambda: OperatorPolicy(deny_agents=("to*",))}),
        ("", "", {"subagent_settings": SubagentSettings(allow_agents=("journal",))}),
    ],
)
async def test_who_is_hidden_denied_or_not_allowed_is_not_reached_and_nothing_is_written(
    runtime: RuntimeFixture, main: str, todo: str, ports: dict[str, Any]
):
    """Shows: C036, C046, C064, C096, T13."""
    runtime.write_agent("main", main)
    runtime.write_agent("todo", todo)
    async with pair(runtime, [tool_call_reply(message()), text_reply("A pity.")], [], **ports) as process:
        before = await create_session("todo", process.root, process.context)
        text = Path(before.path, "session.md").read_bytes()
        run = await settled(process, await process.submit("Go.", agent="main"))
        assert await fault(process, run) == ("agent_not_accessible", "Agent not accessible: todo")
        assert Path(before.path, "session.md").read_bytes() == text
        assert [each.id for each in await process.store.sessions(agent="todo")] == [before.id]
        assert len(await all_runs(process)) == 1


async def test_without_lists_every_agent_is_reached(runtime: RuntimeFixture):
    """Shows: C092."""
    runtime.write_agent("journal")
    asked = [message("todo"), message("journal")]
    async with pair(runtime, [tool_call_reply(*asked), text_reply("Done.")], [text_reply("Yes.")]) as process:
        process.set_script("journal", [text_reply("Yes.")])
        run = await settled(process, await process.submit("Go.", agent="main"))
        assert [each["status"] for each in await answers(process, run)] == ["complete", "complete"]


async def test_an_agent_does_not_ask_itself(runtime: RuntimeFixture):
    """Shows: C095, C05."""
    async with pair(runtime, [tool_call_reply(message("main")), text_reply("No.")], []) as process:
        run = await settled(process, await process.submit("Go.", agent="main"))
        code, words = await fault(process, run)
        assert code == "agent_not_accessible"
        assert words == "Agent not accessible: main: it is at work above already: main > main"


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_whoever_waits_above_is_not_asked_from_below(runtime: RuntimeFixture, mode: str):
    """Shows: C095, C05."""
    runtime.write_agent("todo", "tools: [agents_message]\n")
    todo = [tool_call_reply(message("main", mode=mode)), text_reply("I may not.")]
    async with pair(runtime, [tool_call_reply(message()), text_reply("Done.")], todo) as process:
        run = await settled(process, await process.submit("Go.", agent="main"))
        asked = (await all_runs(process))[1]
        code, words = await fault(process, asked)
        assert code == "agent_not_accessible"
        assert "main > todo > main" in words
        assert run.status is Status.DONE
        assert len(await all_runs(process)) == 2


async def test_one_who_was_asked_asks_nobody_unless_its_definition_says_so(runtime: RuntimeFixture):
    """Shows: C090, C065."""
    runtime.write_agent("journal")
    todo = [tool_call_reply(message("journal")), text_reply("I may not.")]
    async with pair(runtime, [tool_call_reply(message()), text_reply("Done.")], todo) as process:
        await settled(process, await process.submit("Go.", agent="main"))
        asked = (await all_runs(process))[1]
        code, words = await fault(process, asked)
        assert code == "agent_not_accessible"
        assert "unless its definition names agents_message" in words
        (request,) = [
            each.request
            for each in process.provider.requests
            if entry_texts(each.entries[-1:]) == ["Add milk."]
        ]
        assert "agents_message" not in [each.name for each in request.tools]
        assert "Available agents" not in request.system


async def test_one_whose_definition_names_the_tool_asks_on_down_to_the_limit(runtime: RuntimeFixture):
    """Shows: C090, C095, C03."""
    runtime.write_agent("main")
    for name in ("todo", "journal"):
        runtime.write_agent(name, "tools: [agents_message]\n")
    by_agent = {
        "main": [tool_call_reply(message("todo")), text_reply("Done.")],
        "todo": [tool_call_reply(message("journal")), text_reply("Passed on.")],
        "journal": [tool_call_reply(message("writer", session="create")), text_reply("No deeper.")],
    }
    runtime.write_agent("writer")
    async with runtime.open(by_agent=by_agent, limits=Limits(max_depth=2)) as process:
        run = await settled(process, await process.submit("Go.", agent="main"))
        assert run.status is Status.DONE
        _, todo, journal = await all_runs(process)
        assert (todo.depth, journal.depth, journal.root_id) == (1, 2, run.id)
        code, words = await fault(process, journal)
        assert code == "agent_message_failed"
        assert "2 is the limit" in words
        assert await process.store.sessions(agent="writer") == []


async def test_for_a_message_an_agent_may_do_no_more_than_its_asker_can_hand_on(runtime: RuntimeFixture):
    """Shows: L024, F19."""
    (runtime.workspace / "secret").mkdir()
    (runtime.workspace / "secret" / "s.txt").write_text("hidden")
    runtime.write_agent("main", "paths: {deny: ['**/secret/**']}\n")
    read = ("read", json.dumps({"path": str(runtime.workspace / "secret" / "s.txt")}))
    todo = [tool_call_reply(read), text_reply("Seen."), tool_call_reply(read), text_reply("Not seen.")]
    async with pair(runtime, [tool_call_reply(message()), text_reply("Done.")], todo) as process:
        own = await process.run("Look.", agent="todo")
        await settled(process, await process.submit("Go.", agent="main"))
        mine, asked = await process.tool_results(own)
        assert (mine.ok, asked.ok) == (True, False)
        assert "denies **/secret/**" in asked.text


async def test_what_a_person_once_allowed_a_conversation_they_did_not_allow_those_who_write_to_it(
    runtime: RuntimeFixture,
):
    """Shows: L024."""
    outside = runtime.folder / "outside.txt"
    outside.write_text("private")
    read = ("read", json.dumps({"path": str(outside)}))
    runtime.write_agent("todo", f"paths: {{read: ['{outside}', './**']}}\n")
    todo = [tool_call_reply(read), text_reply("Seen."), tool_call_reply(read), text_reply("Not seen.")]
    async with pair(runtime, [tool_call_reply(message()), text_reply("Done.")], todo) as process:
        session = await process.create_session("todo")
        session = await process.store.update(session, user_grants=PathPatterns(read=(str(outside),)))
        own = await process.run("Look.", session=session)
        await settled(process, await process.submit("Go.", agent="main"))
        mine, asked = await process.tool_results(own)
        assert (mine.ok, asked.ok) == (True, False)


async def test_what_a_person_adds_for_a_message_counts_for_it(runtime: RuntimeFixture):
    """Shows: A093."""
    outside = runtime.folder / "outside.txt"
    outside.write_text("private")
    more = {"tool": "read", "resource": str(outside), "reason": "I need it."}
    todo = [
        tool_call_reply(("request_scope_expansion", json.dumps(more))),
        tool_call_reply(("read", json.dumps({"path": str(outside)}))),
        text_reply("Seen."),
    ]
    async with pair(
        runtime, [tool_call_reply(message()), text_reply("Done.")], todo, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.submit("Go.", agent="main")

        async def asks() -> bool:
            return any(each.waiting_for is WaitReason.APPROVAL for each in await all_runs(process))

        await soon(asks)
        (asked,) = await rows(process, lambda tx: tx.find_approvals())
        await run_control.answer_approval(
            asked.id, Answer.ADD, process.context, by="person", is_alive=lambda _: True
        )
        await settled(process, run)
        _, seen = await process.tool_results((await all_runs(process))[1])
        assert (seen.ok, "private" in seen.text) == (True, True)


async def test_the_list_has_the_others_that_the_rights_let_be_known(runtime: RuntimeFixture):
    """Shows: C047, C064."""
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
    async with pair(runtime, main, []) as process:
        run = await settled(process, await process.submit("Go.", agent="main"))
        some, everyone = (each["agents"] for each in await answers(process, run))
        journal = {
            "agentId": "journal",
            "displayName": "Personal Journal",
            "description": "Helps.",
            "type": "external",
        }
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
        assert some == [journal, todo]
        assert everyone == [hidden, journal, todo]


async def test_the_list_takes_no_other_arguments(runtime: RuntimeFixture):
    """Shows: C046."""
    async with pair(
        runtime, [tool_call_reply(("agents_list", '{"includeAll": "yes"}')), text_reply("Done.")], []
    ) as process:
        run = await settled(process, await process.submit("Go.", agent="main"))
        assert (await fault(process, run))[0] == "invalid_arguments"


async def test_the_list_obeys_what_the_configuration_denies_now(runtime: RuntimeFixture):
    """Shows: C064, C096."""
    denied: list[str] = []
    main = [
        tool_call_reply(("agents_list", "{}")),
        tool_call_reply(("agents_list", '{"includeAll": false}')),
        text_reply("Done."),
    ]

    def now_denied(_: Request) -> Reply:
        denied.append("todo")
        return main[1]

    bounds = {"operator_policy": lambda: OperatorPolicy(deny_agents=tuple(denied))}
    async with pair(runtime, [main[0], now_denied, main[2]], [], **bounds) as process:
        run = await settled(process, await process.submit("Go.", agent="main"))
        first, second = ([row["agentId"] for row in each["agents"]] for each in await answers(process, run))
        assert ("todo" in first, "todo" in second) == (True, False)


async def test_the_prompt_names_the_others_and_how_to_ask_them(runtime: RuntimeFixture):
    """Shows: C064, C067, C071, C081, C082."""
    runtime.write_agent("main", "agent_allow: [main, todo, hidden]\n", "You are the main one.")
    runtime.write_agent("hidden", "ui_visible: false\n")
    section = (
        "\n\nAvailable agents you can delegate to:\n- todo: Todo List Manager - Helps.\n\n"
        "Use agents_message to ask another agent to perform a task."
    )
    async with pair(runtime, [text_reply("Hi."), text_reply("Hi.")], []) as process:
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
async def test_the_others_are_named_only_to_those_with_a_tool_to_ask_them(
    runtime: RuntimeFixture, tools: str, line: str | None
):
    """Shows: C065, C081."""
    runtime.write_agent("main", f"tools: {tools}\n")
    async with pair(runtime, [text_reply("Hi.")], []) as process:
        await process.run("Hi.", agent="main")
        (asked,) = process.provider.requests
        assert ("Available agents" in asked.request.system) is (line is not None)
        assert line is None or line in asked.request.system


async def test_what_the_prompt_says_of_others_grants_nothing(runtime: RuntimeFixture):
    """Shows: C075."""
    told = "Available agents you can delegate to:\n- todo: Todo List Manager"
    runtime.write_agent("main", "agent_deny: [todo]\n", told)
    async with pair(runtime, [tool_call_reply(message()), text_reply("No.")], []) as process:
        run = await settled(process, await process.submit("Go.", agent="main"))
        assert (await fault(process, run))[0] == "agent_not_accessible"


async def test_an_agent_without_the_capability_does_not_have_the_tools(runtime: RuntimeFixture):
    """Shows: C065."""
    runtime.write_agent("main", "capability_allow: ['agents.read']\n")
    async with pair(runtime, [text_reply("Hi.")], []) as process:
        await process.run("Hi.", agent="main")
        names = {each.name for each in process.provider.requests[0].request.tools}
        assert ("agents_list" in names, "agents_message" in names) == (True, False)
