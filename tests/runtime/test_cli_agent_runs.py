"""Agents that are programs: what lets one begin, what it is held to, and what is left of what it did by itself."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess
from transcript_entries import entry_texts

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.model_turn import ProviderToolCall, Reply, ReplyDelta, ReplyStep, Request
from retinue.domain.run import Reason, Run, Status, Usage, WaitReason
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.side_effect import SideEffect, SideEffectState
from retinue.domain.transcript import Message, Notice, ToolCall, ToolResult
from retinue.interfaces import Ledger, Transaction
from retinue.runtime import run_control
from retinue.runtime.cli_agents import INTERRUPTED_TURN_NOTICE
from retinue.testing.scripted_provider import text_reply

T = TypeVar("T")

PROGRAM = "driver: claude-cli\n"
LOOKED = ProviderToolCall(
    id="t1",
    tool="Bash",
    arguments='{"command":"ls"}',
    result="a file",
    ok=True,
    duration_ms=3,
    is_finished=True,
)
FAILED = ProviderToolCall(id="t2", tool="Edit", arguments="{}", result="no such file", is_finished=True)
WORKED = Reply(
    text="It is done.",
    steps=(ReplyStep(text="I look.", tool_calls=(LOOKED, FAILED)),),
    usage=Usage(input=9, output=2),
)


async def strict() -> SandboxLevel:
    return SandboxLevel.STRICT


async def rows(process: RuntimeProcess, step: Callable[[Transaction], Any]) -> Any:
    return await process.context.ledger.read(step)


async def asked(process: RuntimeProcess) -> list[Approval]:
    return await rows(process, lambda tx: tx.find_approvals(state=[ApprovalState.PENDING]))


async def deeds(process: RuntimeProcess, run: Run) -> list[SideEffect]:
    return await rows(process, lambda tx: tx.find_side_effects(run.id))


async def test_what_a_program_did_by_itself_stands_in_the_file_and_is_counted_and_never_made_again(
    runtime: RuntimeFixture,
):
    runtime.write_agent("coder", PROGRAM)
    async with runtime.open(WORKED, detect_level=strict) as process:
        run = await process.run("Do it.", agent="coder")
        assert (run.status, run.text, run.tool_calls, run.effective_calls) == (
            Status.DONE,
            "It is done.",
            2,
            1,
        )
        assert run.usage == Usage(input=9, output=2)
        task, said, one, two, first, second, last = await process.entries(run)
        assert entry_texts((task, said, last)) == ["Do it.", "I look.", "It is done."]
        assert isinstance(said, Message)
        assert isinstance(last, Message)
        assert (said.tool_call_count, last.tool_call_count) == (2, 0)
        assert isinstance(one, ToolCall)
        assert isinstance(two, ToolCall)
        assert (one.tool, one.args, two.tool) == ("Bash", '{"command":"ls"}', "Edit")
        assert (first, second) == (
            ToolResult(call_id=one.id, text="a file", duration_ms=3, at=first.at, run=run.id),
            ToolResult(call_id=two.id, text="no such file", ok=False, at=second.at, run=run.id),
        )
        (deed,) = await deeds(process, run)
        assert (deed.tool, deed.progress, deed.ok) == ("claude-cli", SideEffectState.ENDED, True)


class Onlooker:
    """A ledger that notes, whenever a program's turn has just ended in it, whether its reply was in the file by then."""

    def __init__(self, ledger: Ledger, file: Callable[[], str]) -> None:
        self._ledger = ledger
        self._file = file
        self.seen: list[bool] = []

    async def read(self, step: Callable[[Transaction], T]) -> T:
        return await self._ledger.read(step)

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        def watched(tx: Transaction) -> Any:
            before = self._over(tx)
            done = step(tx)
            if self._over(tx) > before:
                self.seen.append("It is done." in self._file())
            return done

        return await self._ledger.write(watched, on_commit)

    def _over(self, tx: Transaction) -> int:
        deeds = [each for run in tx.find_runs() for each in tx.find_side_effects(run.id)]
        return sum(each.progress is SideEffectState.ENDED for each in deeds)


async def test_a_turn_of_a_program_has_ended_only_when_its_reply_is_in_the_file(runtime: RuntimeFixture):
    """Whoever is killed in between leaves a turn that was begun, and no reply: it is not asked again blindly."""
    runtime.write_agent("coder", PROGRAM)

    def file() -> str:
        return "".join(each.read_text() for each in runtime.folder.rglob("session.md"))

    onlooker = Onlooker(runtime.ledger, file)
    async with runtime.open(WORKED, detect_level=strict, ledger=onlooker) as process:
        assert (await process.run("Do it.", agent="coder")).status is Status.DONE
    assert onlooker.seen == [True]


@pytest.mark.parametrize(
    ("front", "policy", "writes"),
    [
        ("", ApprovalPolicy.ASK, []),
        ("paths: {write: [out/**]}\n", ApprovalPolicy.ASK, ["out/**"]),
        ("", ApprovalPolicy.AUTO, ["**"]),
        ("workspace: {writable: false}\n", ApprovalPolicy.AUTO, []),
    ],
)
async def test_in_a_strict_cell_a_program_may_do_what_no_person_would_be_asked_for(
    runtime: RuntimeFixture, front: str, policy: ApprovalPolicy, writes: list[str]
):
    """Nobody is asked, and it can write only where a call of ours could without a yes."""
    runtime.write_agent("coder", PROGRAM + front)
    async with runtime.open(text_reply("Done."), detect_level=strict, approval_policy=policy) as process:
        assert (await process.run("Do it.", agent="coder")).status is Status.DONE
        request = process.provider.requests[0].request
        scope = request.scope
        assert scope is not None
        wanted = [f"{process.root}/{each}" for each in writes]
        assert [each for each in scope.write if scope.check_path(each, "write").ok] == wanted
        assert scope.check_path(f"{process.root}/a", "read").ok
        assert request.tools == ()
        assert ("change nothing" in request.system) == (not writes)
        assert await asked(process) == []


async def test_where_nothing_holds_a_program_a_person_is_asked_before_each_run(runtime: RuntimeFixture):
    """Also where the policy is auto: that speaks for strict cells."""
    runtime.write_agent("coder", PROGRAM)
    async with runtime.open(text_reply("Done."), text_reply("Again.")) as process:
        run = await process.wait(await process.submit("Do it.", agent="coder"))
        assert (run.status, run.waiting_for) == (Status.WAITING, WaitReason.APPROVAL)
        (approval,) = await asked(process)
        assert (approval.tool, approval.resource) == ("claude-cli", f"claude in {process.root}")
        assert (approval.level, "held by nothing" in approval.reason) == (SandboxLevel.NONE, True)
        assert process.provider.requests == []
        await run_control.answer_approval(
            approval.id, Answer.ALLOW, process.context, by="person", is_alive=lambda _: True
        )
        run = await process.wait(run)
        assert (run.status, run.text) == (Status.DONE, "Done.")
        session = await process.store.find(run.session_id)
        again = await process.wait(await process.submit("Once more.", session=session))
        (second,) = await asked(process)
        await run_control.answer_approval(
            second.id, Answer.DENY, process.context, by="person", is_alive=lambda _: True
        )
        again = await process.wait(again)
        assert (again.status, again.reason) == (Status.FAILED, Reason.CONFIG)
        assert "a person said no" in again.error
        assert len(process.provider.requests) == 1


@pytest.mark.parametrize(
    ("front", "why"),
    [
        ("tools: [read]\n", "this agent may run none"),
        ("tool_deny: [bash]\n", "this agent may run none"),
        ("shell_commands: {deny: ['*rm *']}\n", "cannot be kept from"),
        ("exits: [done]\n", "ends its runs by exits"),
        (
            "driver_settings: {hosts: [a.example]}\ncapability_deny: [network]\n",
            "may not reach the hosts that its settings name (capability network",
        ),
    ],
)
async def test_what_a_program_cannot_be_held_to_is_refused(runtime: RuntimeFixture, front: str, why: str):
    runtime.write_agent("coder", PROGRAM + front)
    async with runtime.open(text_reply("Done."), detect_level=strict) as process:
        run = await process.run("Do it.", agent="coder")
        assert (run.status, process.provider.requests) == (Status.FAILED, [])
        assert why in run.error


class Hanging:
    """Begins to act, and never comes to an end."""

    def __init__(self) -> None:
        self.acts = asyncio.Event()

    async def request_reply(self, request: Request, on_delta: Callable[[ReplyDelta], None]) -> Reply:
        on_delta(ReplyDelta(text="I look."))
        on_delta(
            ReplyDelta(
                provider_tool_call=ProviderToolCall(id="t1", tool="Bash", arguments='{"command":"ls"}')
            )
        )
        on_delta(ReplyDelta(provider_tool_call=LOOKED))
        on_delta(ReplyDelta(provider_tool_call=ProviderToolCall(id="t2", tool="Edit", arguments="{}")))
        self.acts.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        return


async def test_what_a_cancelled_program_had_done_is_told_as_it_happened_and_kept(runtime: RuntimeFixture):
    runtime.write_agent("coder", PROGRAM)
    async with runtime.open(provider=(driver := Hanging()), detect_level=strict) as process:
        run = await process.submit("Do it.", agent="coder")
        await driver.acts.wait()
        told = [(each.kind, each.data["tool"]) for each in process.events if each.kind.startswith("tool.")]
        assert told == [("tool.started", "Bash"), ("tool.ended", "Bash"), ("tool.started", "Edit")]
        await process.cancel(run)
        run = await process.wait(run)
        assert (run.status, run.tool_calls) == (Status.CANCELLED, 2)
        _, said, one, two, first, second, last = await process.entries(run)
        started = [each.data["call"] for each in process.events if each.kind == "tool.started"]
        assert [one.id, two.id] == started
        assert isinstance(said, Message)
        assert isinstance(first, ToolResult)
        assert isinstance(second, ToolResult)
        assert isinstance(last, Message)
        assert (said.tool_call_count, first.text, first.ok) == (2, "a file", True)
        assert (second.ok, "may have happened" in second.text) == (False, True)
        assert (last.text, last.stop_reason) == ("I look.", "cancelled")


async def test_a_program_that_a_kill_cut_off_is_told_so_before_it_goes_on(runtime: RuntimeFixture):
    """What it had done by then is done, and nobody knows how much that is: it looks before it does anything twice."""
    runtime.write_agent("coder", PROGRAM)
    async with runtime.open(provider=(driver := Hanging()), detect_level=strict) as process:
        run = await process.submit("Do it.", agent="coder")
        await driver.acts.wait()
    async with runtime.open(text_reply("Seen, and done."), detect_level=strict) as process:
        run = await process.resume(run)
        assert (run.status, run.text) == (Status.DONE, "Seen, and done.")
        notices = [each for each in process.request_entries(0) if isinstance(each, Notice)]
        assert [each.text for each in notices] == [INTERRUPTED_TURN_NOTICE]
        assert [each.text for each in process.request_entries(0) if isinstance(each, Message)] == ["Do it."]
        first, second = await deeds(process, run)
        assert (first.progress, second.progress) == (SideEffectState.UNKNOWN, SideEffectState.ENDED)
