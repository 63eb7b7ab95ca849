"""The gate in its details: what a call brings, what a tool is given, and what is kept of a question."""

import json
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.limits import MAX_ARGUMENT_BYTES
from retinue.domain.model_turn import Reply, StopReason, UnsavedToolCall
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Rule
from retinue.domain.run import Status
from retinue.errors import Failed, OutOfScope
from retinue.interfaces import Call, Tool, Transaction
from retinue.runtime import run_control
from retinue.runtime.tool_executor import check_tool_allowed, visible_tools
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

seen: list[Call] = []
made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    seen.clear()
    made.clear()


def looks(**more: Any) -> Tool:
    @tool(name="look", **more)
    async def look(call: Call, text: str = "") -> str:
        """Keeps what it was given."""
        seen.append(call)
        made.append(text)
        return f"saw {len(text)}"

    return look


async def approvals(process: RuntimeProcess) -> list[Approval]:
    def step(tx: Transaction) -> list[Approval]:
        return tx.find_approvals()

    return await process.context.ledger.read(step)


async def answer(process: RuntimeProcess, asked: Approval, said: Answer) -> None:
    await run_control.answer_approval(asked.id, said, process.context, by="ada", is_alive=lambda _: True)


async def test_a_call_that_came_in_pieces_is_not_made(runtime: RuntimeFixture):
    cut = Reply(
        text="",
        tool_calls=(UnsavedToolCall(tool="look", arguments="{}", invalid_reason="it was cut short"),),
        stop_reason=StopReason.TOOLS,
    )
    async with runtime.open(cut, text_reply("Done."), tools=[looks()]) as process:
        run = await process.run("Look.")
        (result,) = await process.tool_results(run)
        assert (result.ok, made) == (False, [])
        assert result.text == "This call did not run: it was cut short. Repeat the call in a smaller step."


async def test_without_any_tool_the_refusal_says_so(runtime: RuntimeFixture):
    runtime.write_agent("general", "tools: []\n")
    async with runtime.open(
        tool_call_reply(("nothing", "{}"), ("read", "{}")), text_reply("Done.")
    ) as process:
        run = await process.run("Look.")
        unknown, hidden = sorted(
            (json.loads(each.text) for each in await process.tool_results(run)), key=lambda it: it["tool"]
        )
        assert unknown == {
            "success": False, "error": "unknown_tool", "tool": "nothing", "resource": "",
            "allowed_patterns": [], "deny_patterns": [],
            "message": "Unknown tool 'nothing'. Your tools: none.",
        }  # fmt: skip
        assert hidden["message"] == 'Tool "read" is not allowed for this agent (tools: nothing allows it).'


async def test_no_arguments_are_an_empty_object_and_the_longest_are_taken(runtime: RuntimeFixture):
    most = "x" * (MAX_ARGUMENT_BYTES - len('{"text":""}'))
    script = [
        tool_call_reply(("look", "")),
        tool_call_reply(("look", json.dumps({"text": most}, separators=(",", ":")))),
        tool_call_reply(("look", json.dumps({"text": most + "x"}, separators=(",", ":")))),
        text_reply("Done."),
    ]
    async with runtime.open(*script, tools=[looks()]) as process:
        run = await process.run("Look.")
        results = await process.tool_results(run)
        assert [each.ok for each in results] == [True, True, False]
        assert made == ["", most]
        assert results[2].text == (
            f"Invalid arguments for look: {MAX_ARGUMENT_BYTES + 1:,} bytes; the limit is {MAX_ARGUMENT_BYTES:,}"
        )


async def test_what_did_not_work_is_told_in_its_own_words_and_letters(runtime: RuntimeFixture):
    @tool(effect="read")
    async def stumble(path: str) -> str:
        """Never works."""
        raise Failed(f"{path} is not there") if path == "x" else OutOfScope("für niemanden", resource=path)

    script = [
        tool_call_reply(("stumble", '{"path": "x"}')),
        tool_call_reply(("stumble", '{"path": "ü"}')),
        text_reply("Done."),
    ]
    async with runtime.open(*script, tools=[stumble]) as process:
        run = await process.run("Try.")
        failed, refused = await process.tool_results(run)
        assert (failed.ok, failed.text) == (False, "x is not there")
        assert not refused.ok
        assert refused.text.startswith(
            '{"success": false, "error": "out_of_scope", "tool": "stumble", "resource": "ü", "allowed_patterns": [], '
            '"deny_patterns": [], "message": "für niemanden If you need it, request it with request_scope_expansion;'
        )


async def test_half_a_character_in_the_arguments_is_no_reason_to_fall_over(runtime: RuntimeFixture):
    async with runtime.open(
        tool_call_reply(("look", '{"text": "a\udc80"}')), text_reply("Done."), tools=[looks()]
    ) as process:
        run = await process.run("Look.")
        assert (run.status, made) == (Status.DONE, ["a?"])


async def test_a_tool_knows_who_calls_and_what_a_person_answered(runtime: RuntimeFixture):
    script = [tool_call_reply(("look", "{}")), text_reply("Done.")]
    async with runtime.open(*script, tools=[looks()], approval_policy=ApprovalPolicy.ASK) as process:
        run = await process.run("Look.")
        (asked,) = await approvals(process)
        await answer(process, asked, Answer.ALLOW)
        run = await process.wait(run)
        (call,) = seen
        assert (call.run.id, call.session.id, call.id) == (run.id, run.session_id, asked.call)
        assert call.approval_answer is Answer.ALLOW
        assert call.ask_user == process.context.ask_user
        (result,) = await process.tool_results(run)
        assert (result.call_id, result.run, result.ok) == (asked.call, run.id, True)
        assert result.at
        assert 0 <= result.duration_ms < 600_000
        assert call.context is None
    async with runtime.open(*script, tools=[looks(asks="never", is_delegation=True)]) as process:
        await process.run("Look.")
        assert seen[-1].approval_answer is None
        assert seen[-1].context is not None
        assert seen[-1].context.tools is process.context.tools


async def test_a_question_is_a_row_and_an_event_with_everything_but_secrets(runtime: RuntimeFixture):
    """Shows: X06, L006."""
    script = [tool_call_reply(("write", '{"path": "hunter2222.txt", "content": "x"}')), text_reply("Done.")]
    async with runtime.open(*script, approval_policy=ApprovalPolicy.ASK) as process:
        run = await process.run("Write.")
        (asked,) = await approvals(process)
        assert (asked.run, asked.session, asked.agent) == (run.id, run.session_id, "general")
        assert (asked.tool, asked.access, asked.root) == ("write", "write", process.root)
        assert asked.resource == f"{process.root}/hunter2222.txt"
        assert asked.args == '{"path": "hunter2222.txt", "content": "x"}'
        assert len(asked.digest) == 64
        await answer(process, asked, Answer.DENY)
        await process.wait(run)

        def events(tx: Transaction) -> list[tuple[str, dict[str, Any]]]:
            told = [event for event in tx.find_events() if event.kind.startswith("approval")]
            return [(event.kind, dict(event.data)) for event in told]

        assert await process.context.ledger.read(events) == [
            ("approval.asked", {"approval": asked.id, "tool": "write", "resource": asked.resource}),
            ("approval.answered", {"approval": asked.id, "state": "denied"}),
        ]
        (result,) = await process.tool_results(run)
        assert json.loads(result.text) == {
            "success": False, "error": "approval_denied", "tool": "write", "resource": asked.resource,
            "allowed_patterns": [], "deny_patterns": [],
            "message": "write did not run: a person denied it. Continue without it, or explain why you need it.",
        }  # fmt: skip


async def test_a_secret_in_a_question_is_not_kept(runtime: RuntimeFixture):
    """Shows: X06."""
    async with runtime.open(
        tool_call_reply(
            (
                "request_scope_expansion",
                '{"tool": "read", "resource": "/etc/passwd", "reason": "It is s3cr3t-value"}',
            )
        ),
        secrets=["s3cr3t-value"],
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        await process.run("Ask.")
        assert not [each for each in await approvals(process) if "s3cr3t" in repr(each)]


async def test_the_chain_ends_somewhere(runtime: RuntimeFixture):
    """Shows: L006."""
    script = {"*": [text_reply("Hi."), text_reply("Hi."), text_reply("Hi."), tool_call_reply(("look", "{}"))]}
    async with runtime.open(by_agent=script, tools=[looks()], approval_policy=ApprovalPolicy.ASK) as process:
        above = None
        keys: list[str] = []
        for _ in range(4):
            run = await process.run(
                "Hi.", **({} if above is None else {"parent_run": above.id, "wait": True})
            )
            keys.append(run.session_key)
            above = run
        (asked,) = await approvals(process)
        assert asked.chain == ("person", *keys)


async def test_the_same_call_is_asked_once_however_often_its_run_is_taken_up(runtime: RuntimeFixture):
    """Shows: P11."""
    both = tool_call_reply(("look", '{"text": "a"}'), ("look", '{"text": "b"}'))
    async with runtime.open(
        both, text_reply("Done."), tools=[looks()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Look.")
        first, second = await approvals(process)
        await answer(process, first, Answer.ALLOW)
        waiting = await process.wait(run)
        assert (waiting.status, len(await approvals(process))) == (Status.WAITING, 2)
        await answer(process, second, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.state for each in await approvals(process)] == [ApprovalState.USED, ApprovalState.USED]
        assert sorted(made) == ["a", "b"]


DOORS: list[tuple[bool, dict[str, Any], bool]] = [
    (True, {}, True),
    (True, {"depth": 1}, False),
    (True, {"depth": 1, "is_orchestrator": True}, True),
    (True, {"depth": 2, "tools": Rule(allow=("look",))}, True),
    (True, {"depth": 1, "tools": Rule(allow=("l*",))}, False),
    (True, {"depth": 1, "tools": Rule(allow=("look",), deny=("look",))}, False),
    (True, {"tools": Rule(allow=())}, False),
    (False, {"depth": 1}, True),
    (False, {"depth": 1, "tools": Rule(deny=("look",))}, False),
]


@pytest.mark.parametrize(("door", "rights", "expected"), DOORS)
def test_below_the_top_only_a_definition_that_says_so_starts_agents(
    door: bool, rights: dict[str, Any], expected: bool
):
    scope, look = Scope(**rights), looks(is_delegation=door)
    assert check_tool_allowed(look, scope).ok is expected
    assert list(visible_tools({"look": look}, scope)) == (["look"] if expected else [])


def test_a_refused_door_says_what_a_definition_must_say():
    refused = check_tool_allowed(looks(is_delegation=True), Scope(depth=1))
    assert refused.rule == "a sub-agent's definition must list the tools that start agents"
    assert (
        check_tool_allowed(looks(is_delegation=True), Scope(depth=1, tools=Rule(allow=()))).rule
        == "tools: nothing allows it"
    )
