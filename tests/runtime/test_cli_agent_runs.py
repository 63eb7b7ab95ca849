"""Runs of CLI agents: when one may start, what restricts it, and how its own tool calls are recorded."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess
from transcript_entries import entry_texts

from retinue.domain.approval import Answer, ApprovalPolicy
from retinue.domain.model_turn import ModelReply, ModelRequest, ProviderToolCall, ReplyDelta, ReplyStep
from retinue.domain.run import Reason, Run, Status, Usage, WaitReason
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.side_effect import SideEffect, SideEffectState
from retinue.domain.transcript import Message, Notice, ToolCall, ToolResult
from retinue.interfaces import Ledger, Transaction
from retinue.runtime.cli_agents import INTERRUPTED_TURN_NOTICE
from retinue.testing.scripted_provider import text_reply

T = TypeVar("T")

CLI_AGENT = "driver: claude-cli\n"
LIST_CALL = ProviderToolCall(
    id="t1",
    tool="Bash",
    arguments='{"command":"ls"}',
    result="a file",
    ok=True,
    duration_ms=3,
    is_finished=True,
)
FAILED_CALL = ProviderToolCall(id="t2", tool="Edit", arguments="{}", result="no such file", is_finished=True)
REPLY_WITH_CALLS = ModelReply(
    text="It is done.",
    steps=(ReplyStep(text="I look.", tool_calls=(LIST_CALL, FAILED_CALL)),),
    usage=Usage(input=9, output=2),
)


async def detect_strict() -> SandboxLevel:
    return SandboxLevel.STRICT


async def find_side_effects(process: RuntimeProcess, run: Run) -> list[SideEffect]:
    return await process.context.ledger.read(lambda tx: tx.find_side_effects(run.id))


async def test_tool_calls_that_a_cli_agent_executed_are_saved_and_counted_but_not_executed_again(
    runtime: RuntimeFixture,
):
    runtime.write_agent("coder", CLI_AGENT)
    async with runtime.open(REPLY_WITH_CALLS, detect_level=detect_strict) as process:
        run = await process.run("Do it.", agent="coder")
        assert (run.status, run.text, run.tool_calls, run.effective_calls) == (
            Status.DONE,
            "It is done.",
            2,
            1,
        )
        assert run.usage == Usage(input=9, output=2)
        task, message, first_call, second_call, first_result, second_result, last = await process.entries(run)
        assert entry_texts((task, message, last)) == ["Do it.", "I look.", "It is done."]
        assert isinstance(message, Message)
        assert isinstance(last, Message)
        assert (message.tool_call_count, last.tool_call_count) == (2, 0)
        assert isinstance(first_call, ToolCall)
        assert isinstance(second_call, ToolCall)
        assert (first_call.tool, first_call.args, second_call.tool) == ("Bash", '{"command":"ls"}', "Edit")
        assert (first_result, second_result) == (
            ToolResult(call_id=first_call.id, text="a file", duration_ms=3, at=first_result.at, run=run.id),
            ToolResult(
                call_id=second_call.id, text="no such file", ok=False, at=second_result.at, run=run.id
            ),
        )
        (side_effect,) = await find_side_effects(process, run)
        assert (side_effect.tool, side_effect.progress, side_effect.ok) == (
            "claude-cli",
            SideEffectState.ENDED,
            True,
        )


class ObservedLedger:
    """A ledger that records, each time a side effect ends in it, whether the reply is in the file already."""

    def __init__(self, ledger: Ledger, read_file: Callable[[], str]) -> None:
        self._ledger = ledger
        self._read_file = read_file
        self.reply_was_saved: list[bool] = []

    async def read(self, step: Callable[[Transaction], T]) -> T:
        return await self._ledger.read(step)

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        def observed_step(tx: Transaction) -> T:
            before = self._count_ended(tx)
            result = step(tx)
            if self._count_ended(tx) > before:
                self.reply_was_saved.append("It is done." in self._read_file())
            return result

        return await self._ledger.write(observed_step, on_commit)

    def _count_ended(self, tx: Transaction) -> int:
        side_effects = [each for run in tx.find_runs() for each in tx.find_side_effects(run.id)]
        return sum(each.progress is SideEffectState.ENDED for each in side_effects)


async def test_a_cli_agents_turn_ends_in_the_ledger_only_after_its_reply_is_in_the_file(
    runtime: RuntimeFixture,
):
    """A crash in between leaves a started turn without a reply, so the turn is not blindly repeated."""
    runtime.write_agent("coder", CLI_AGENT)

    def read_conversations() -> str:
        return "".join(path.read_text() for path in runtime.folder.rglob("session.md"))

    ledger = ObservedLedger(runtime.ledger, read_conversations)
    async with runtime.open(REPLY_WITH_CALLS, detect_level=detect_strict, ledger=ledger) as process:
        assert (await process.run("Do it.", agent="coder")).status is Status.DONE
    assert ledger.reply_was_saved == [True]


@pytest.mark.parametrize(
    ("front", "policy", "writes"),
    [
        ("", ApprovalPolicy.ASK, []),
        ("paths: {write: [out/**]}\n", ApprovalPolicy.ASK, ["out/**"]),
        ("", ApprovalPolicy.AUTO, ["**"]),
        ("workspace: {writable: false}\n", ApprovalPolicy.AUTO, []),
    ],
)
async def test_a_cli_agent_in_the_strict_sandbox_writes_only_where_no_approval_is_required(
    runtime: RuntimeFixture, front: str, policy: ApprovalPolicy, writes: list[str]
):
    runtime.write_agent("coder", CLI_AGENT + front)
    async with runtime.open(
        text_reply("Done."), detect_level=detect_strict, approval_policy=policy
    ) as process:
        assert (await process.run("Do it.", agent="coder")).status is Status.DONE
        request = process.provider.requests[0].request
        scope = request.scope
        assert scope is not None
        expected = [f"{process.root}/{pattern}" for pattern in writes]
        assert [each for each in scope.write if scope.check_path(each, "write").ok] == expected
        assert scope.check_path(f"{process.root}/a", "read").ok
        assert request.tools == ()
        assert ("not change them" in request.system) == (not writes)
        assert await process.pending_approvals() == []


async def test_each_run_of_a_cli_agent_without_a_sandbox_requires_approval(runtime: RuntimeFixture):
    """Policy `auto` does not change this: it applies to the strict sandbox only."""
    runtime.write_agent("coder", CLI_AGENT)
    async with runtime.open(text_reply("Done."), text_reply("Again.")) as process:
        run = await process.wait(await process.submit("Do it.", agent="coder"))
        assert (run.status, run.waiting_for) == (Status.WAITING, WaitReason.APPROVAL)
        (approval,) = await process.pending_approvals()
        assert (approval.tool, approval.resource) == ("claude-cli", f"claude in {process.root}")
        assert (approval.level, "would run unrestricted" in approval.reason) == (SandboxLevel.NONE, True)
        assert process.provider.requests == []
        await process.answer_approval(approval, Answer.ALLOW)
        run = await process.wait(run)
        assert (run.status, run.text) == (Status.DONE, "Done.")
        session = await process.store.find(run.session_id)
        again = await process.wait(await process.submit("Once more.", session=session))
        (second,) = await process.pending_approvals()
        await process.answer_approval(second, Answer.DENY)
        again = await process.wait(again)
        assert (again.status, again.reason) == (Status.FAILED, Reason.CONFIG)
        assert "a person denied it" in again.error
        assert len(process.provider.requests) == 1


@pytest.mark.parametrize(
    ("front", "error"),
    [
        ("tools: [read]\n", "this agent may not run commands"),
        ("tool_deny: [bash]\n", "this agent may not run commands"),
        ("shell_commands: {deny: ['*rm *']}\n", "cannot be denied"),
        ("exits: [done]\n", "has exit tools"),
        (
            "driver_settings: {hosts: [a.example]}\ncapability_deny: [network]\n",
            "may not connect to the hosts in its settings (capability network",
        ),
    ],
)
async def test_a_cli_agent_is_refused_if_its_restrictions_cannot_be_enforced(
    runtime: RuntimeFixture, front: str, error: str
):
    runtime.write_agent("coder", CLI_AGENT + front)
    async with runtime.open(text_reply("Done."), detect_level=detect_strict) as process:
        run = await process.run("Do it.", agent="coder")
        assert (run.status, process.provider.requests) == (Status.FAILED, [])
        assert error in run.error


class HangingProvider:
    """Streams two tool calls of a CLI agent and never finishes its reply."""

    def __init__(self) -> None:
        self.calls_streamed = asyncio.Event()

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        on_delta(ReplyDelta(text="I look."))
        on_delta(
            ReplyDelta(
                provider_tool_call=ProviderToolCall(id="t1", tool="Bash", arguments='{"command":"ls"}')
            )
        )
        on_delta(ReplyDelta(provider_tool_call=LIST_CALL))
        on_delta(ReplyDelta(provider_tool_call=ProviderToolCall(id="t2", tool="Edit", arguments="{}")))
        self.calls_streamed.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        return


async def test_tool_calls_of_a_cancelled_cli_agent_are_reported_as_events_and_saved(runtime: RuntimeFixture):
    runtime.write_agent("coder", CLI_AGENT)
    async with runtime.open(provider=(provider := HangingProvider()), detect_level=detect_strict) as process:
        run = await process.submit("Do it.", agent="coder")
        await provider.calls_streamed.wait()
        events = [(each.kind, each.data["tool"]) for each in process.events if each.kind.startswith("tool.")]
        assert events == [("tool.started", "Bash"), ("tool.ended", "Bash"), ("tool.started", "Edit")]
        await process.cancel(run)
        run = await process.wait(run)
        assert (run.status, run.tool_calls) == (Status.CANCELLED, 2)
        _, message, first_call, second_call, first_result, second_result, last = await process.entries(run)
        started = [each.data["call"] for each in process.events if each.kind == "tool.started"]
        assert [first_call.id, second_call.id] == started
        assert isinstance(message, Message)
        assert isinstance(first_result, ToolResult)
        assert isinstance(second_result, ToolResult)
        assert isinstance(last, Message)
        assert (message.tool_call_count, first_result.text, first_result.ok) == (2, "a file", True)
        assert (second_result.ok, "may or may not have taken effect" in second_result.text) == (False, True)
        assert (last.text, last.stop_reason) == ("I look.", "cancelled")


async def test_a_cli_agent_resumed_after_a_crash_is_informed_that_its_turn_was_interrupted(
    runtime: RuntimeFixture,
):
    """Nobody knows which of its actions took effect, so it should check before it repeats one."""
    runtime.write_agent("coder", CLI_AGENT)
    async with runtime.open(provider=(provider := HangingProvider()), detect_level=detect_strict) as process:
        run = await process.submit("Do it.", agent="coder")
        await provider.calls_streamed.wait()
    async with runtime.open(text_reply("Seen, and done."), detect_level=detect_strict) as process:
        run = await process.resume(run)
        assert (run.status, run.text) == (Status.DONE, "Seen, and done.")
        notices = [each for each in process.request_entries(0) if isinstance(each, Notice)]
        assert [each.text for each in notices] == [INTERRUPTED_TURN_NOTICE]
        assert [each.text for each in process.request_entries(0) if isinstance(each, Message)] == ["Do it."]
        interrupted, resumed = await find_side_effects(process, run)
        assert (interrupted.progress, resumed.progress) == (
            SideEffectState.UNKNOWN,
            SideEffectState.ENDED,
        )
