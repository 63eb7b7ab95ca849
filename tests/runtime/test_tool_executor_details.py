"""Details of the tool executor: arguments of calls, what a tool receives, and what is stored of an approval."""

import json
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.limits import MAX_ARGUMENT_BYTES
from retinue.domain.model_turn import ModelReply, StopReason, UnsavedToolCall
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Rule
from retinue.domain.run import Status
from retinue.errors import Failed, OutOfScope
from retinue.interfaces import Call, Tool, Transaction
from retinue.runtime import run_control
from retinue.runtime.tool_executor import check_tool_allowed, visible_tools
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

calls: list[Call] = []
texts: list[str] = []


@pytest.fixture(autouse=True)
def clear_records() -> None:
    calls.clear()
    texts.clear()


def make_look_tool(**options: Any) -> Tool:
    @tool(name="look", **options)
    async def look(call: Call, text: str = "") -> str:
        """Records its call."""
        calls.append(call)
        texts.append(text)
        return f"saw {len(text)}"

    return look


async def answer_approval(process: RuntimeProcess, approval: Approval, decision: Answer) -> None:
    await run_control.answer_approval(
        approval.id, decision, process.context, by="ada", is_alive=lambda _: True
    )


async def test_a_truncated_call_is_not_executed(runtime: RuntimeFixture):
    truncated = ModelReply(
        text="",
        tool_calls=(UnsavedToolCall(tool="look", arguments="{}", invalid_reason="it was cut short"),),
        stop_reason=StopReason.TOOLS,
    )
    async with runtime.open(truncated, text_reply("Done."), tools=[make_look_tool()]) as process:
        run = await process.run("Look.")
        (result,) = await process.tool_results(run)
        assert (result.ok, texts) == (False, [])
        assert (
            result.text
            == "This call did not run: it was cut short. Correct and repeat it; if it was cut off, use smaller steps."
        )


async def test_an_unknown_tool_is_refused_with_the_note_that_there_are_no_tools(runtime: RuntimeFixture):
    runtime.write_agent("general", "tools: []\n")
    async with runtime.open(
        tool_call_reply(("nothing", "{}"), ("read", "{}")), text_reply("Done.")
    ) as process:
        run = await process.run("Look.")
        unknown, hidden = sorted(
            (json.loads(each.text) for each in await process.tool_results(run)),
            key=lambda refusal: refusal["tool"],
        )
        assert unknown == {
            "success": False, "error": "unknown_tool", "tool": "nothing", "resource": "",
            "allowed_patterns": [], "deny_patterns": [],
            "message": "Unknown tool 'nothing'. Your tools: none.",
        }  # fmt: skip
        assert hidden["message"] == 'Tool "read" is not allowed for this agent (tools: nothing allows it).'


async def test_missing_arguments_are_an_empty_object_and_the_longest_allowed_are_accepted(
    runtime: RuntimeFixture,
):
    longest = "x" * (MAX_ARGUMENT_BYTES - len('{"text":""}'))
    script = [
        tool_call_reply(("look", "")),
        tool_call_reply(("look", json.dumps({"text": longest}, separators=(",", ":")))),
        tool_call_reply(("look", json.dumps({"text": longest + "x"}, separators=(",", ":")))),
        text_reply("Done."),
    ]
    async with runtime.open(*script, tools=[make_look_tool()]) as process:
        run = await process.run("Look.")
        results = await process.tool_results(run)
        assert [each.ok for each in results] == [True, True, False]
        assert texts == ["", longest]
        assert results[2].text == (
            f"Invalid arguments for look: {MAX_ARGUMENT_BYTES + 1:,} bytes; the limit is {MAX_ARGUMENT_BYTES:,}"
        )


async def test_the_error_result_contains_the_tools_own_message_unescaped(runtime: RuntimeFixture):
    @tool(effect="read")
    async def fail_or_refuse(path: str) -> str:
        """Fails or refuses."""
        raise Failed(f"{path} is not there") if path == "x" else OutOfScope("für niemanden", resource=path)

    script = [
        tool_call_reply(("fail_or_refuse", '{"path": "x"}')),
        tool_call_reply(("fail_or_refuse", '{"path": "ü"}')),
        text_reply("Done."),
    ]
    async with runtime.open(*script, tools=[fail_or_refuse]) as process:
        run = await process.run("Try.")
        failed, refused = await process.tool_results(run)
        assert (failed.ok, failed.text) == (False, "x is not there")
        assert not refused.ok
        assert refused.text.startswith(
            '{"success": false, "error": "out_of_scope", "tool": "fail_or_refuse", "resource": "ü", "allowed_patterns": [], '
            '"deny_patterns": [], "message": "für niemanden If you need it, request it with request_scope_expansion;'
        )


async def test_a_lone_surrogate_in_the_arguments_is_replaced(runtime: RuntimeFixture):
    async with runtime.open(
        tool_call_reply(("look", '{"text": "a\udc80"}')), text_reply("Done."), tools=[make_look_tool()]
    ) as process:
        run = await process.run("Look.")
        assert (run.status, texts) == (Status.DONE, ["a?"])


async def test_a_tool_receives_its_run_session_call_id_and_the_answer_of_its_approval(
    runtime: RuntimeFixture,
):
    script = [tool_call_reply(("look", "{}")), text_reply("Done.")]
    async with runtime.open(*script, tools=[make_look_tool()], approval_policy=ApprovalPolicy.ASK) as process:
        run = await process.run("Look.")
        (approval,) = await process.approvals()
        await answer_approval(process, approval, Answer.ALLOW)
        run = await process.wait(run)
        (call,) = calls
        assert (call.run.id, call.session.id, call.id) == (run.id, run.session_id, approval.call)
        assert call.approval_answer is Answer.ALLOW
        assert call.ask_user == process.context.ask_user
        (result,) = await process.tool_results(run)
        assert (result.call_id, result.run, result.ok) == (approval.call, run.id, True)
        assert result.at
        assert 0 <= result.duration_ms < 600_000
        assert call.context is None
    async with runtime.open(*script, tools=[make_look_tool(asks="never", is_delegation=True)]) as process:
        await process.run("Look.")
        assert calls[-1].approval_answer is None
        assert calls[-1].context is not None
        assert calls[-1].context.tools is process.context.tools


async def test_an_approval_is_stored_as_a_row_and_as_events(runtime: RuntimeFixture):
    """Shows: X06, L006."""
    script = [tool_call_reply(("write", '{"path": "hunter2222.txt", "content": "x"}')), text_reply("Done.")]
    async with runtime.open(*script, approval_policy=ApprovalPolicy.ASK) as process:
        run = await process.run("Write.")
        (approval,) = await process.approvals()
        assert (approval.run, approval.session, approval.agent) == (run.id, run.session_id, "general")
        assert (approval.tool, approval.access, approval.root) == ("write", "write", process.root)
        assert approval.resource == f"{process.root}/hunter2222.txt"
        assert approval.args == '{"path": "hunter2222.txt", "content": "x"}'
        assert len(approval.digest) == 64
        await answer_approval(process, approval, Answer.DENY)
        await process.wait(run)

        def events(tx: Transaction) -> list[tuple[str, dict[str, Any]]]:
            approval_events = [event for event in tx.find_events() if event.kind.startswith("approval")]
            return [(event.kind, dict(event.data)) for event in approval_events]

        assert await process.context.ledger.read(events) == [
            ("approval.asked", {"approval": approval.id, "tool": "write", "resource": approval.resource}),
            ("approval.answered", {"approval": approval.id, "state": "denied"}),
        ]
        (result,) = await process.tool_results(run)
        assert json.loads(result.text) == {
            "success": False, "error": "approval_denied", "tool": "write", "resource": approval.resource,
            "allowed_patterns": [], "deny_patterns": [],
            "message": "write did not run: a person denied it. Continue without it, or explain why you need it.",
        }  # fmt: skip


async def test_a_secret_in_an_approval_request_is_not_stored(runtime: RuntimeFixture):
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
        assert not [each for each in await process.approvals() if "s3cr3t" in repr(each)]


async def test_the_chain_of_an_approval_lists_all_sessions_from_the_person_on(runtime: RuntimeFixture):
    """Shows: L006."""
    script = {"*": [text_reply("Hi."), text_reply("Hi."), text_reply("Hi."), tool_call_reply(("look", "{}"))]}
    async with runtime.open(
        by_agent=script, tools=[make_look_tool()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        parent = None
        keys: list[str] = []
        for _ in range(4):
            run = await process.run(
                "Hi.", **({} if parent is None else {"parent_run": parent.id, "wait": True})
            )
            keys.append(run.session_key)
            parent = run
        (approval,) = await process.approvals()
        assert approval.chain == ("person", *keys)


async def test_each_call_is_asked_for_once_however_often_its_run_continues(runtime: RuntimeFixture):
    """Shows: P11."""
    reply = tool_call_reply(("look", '{"text": "a"}'), ("look", '{"text": "b"}'))
    async with runtime.open(
        reply, text_reply("Done."), tools=[make_look_tool()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Look.")
        first, second = await process.approvals()
        await answer_approval(process, first, Answer.ALLOW)
        waiting = await process.wait(run)
        assert (waiting.status, len(await process.approvals())) == (Status.WAITING, 2)
        await answer_approval(process, second, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.state for each in await process.approvals()] == [
            ApprovalState.USED,
            ApprovalState.USED,
        ]
        assert sorted(texts) == ["a", "b"]


DELEGATION_RULES: list[tuple[bool, dict[str, Any], bool]] = [
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


@pytest.mark.parametrize(("is_delegation", "rights", "expected"), DELEGATION_RULES)
def test_a_child_agent_has_a_delegation_tool_only_if_its_definition_names_it(
    is_delegation: bool, rights: dict[str, Any], expected: bool
):
    scope, look = Scope(**rights), make_look_tool(is_delegation=is_delegation)
    assert check_tool_allowed(look, scope).ok is expected
    assert list(visible_tools({"look": look}, scope)) == (["look"] if expected else [])


def test_the_refusal_of_a_delegation_tool_reports_what_the_definition_must_list():
    refused = check_tool_allowed(make_look_tool(is_delegation=True), Scope(depth=1))
    assert refused.rule == "a sub-agent's definition must list the tools that start agents"
    assert (
        check_tool_allowed(make_look_tool(is_delegation=True), Scope(depth=1, tools=Rule(allow=()))).rule
        == "tools: nothing allows it"
    )
