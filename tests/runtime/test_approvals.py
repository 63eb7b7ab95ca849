"""Approvals: a call with side effects waits until a person approves exactly that call, once."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from gates import make_gated_tool
from mail_tool import make_mail_tool
from runtime_fixture import RuntimeFixture, RuntimeProcess, wait_until

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.limits import Limits
from retinue.domain.run import ClaimResult, Run, Status, WaitReason
from retinue.errors import NotFound, Refused
from retinue.interfaces import Tool, Transaction
from retinue.runtime import run_control
from retinue.runtime.run_creation import claim_run
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply

sent: list[str] = []


@pytest.fixture(autouse=True)
def clear_sent() -> None:
    sent.clear()


MAIL_CALL = ("mail", '{"to": "ada"}')


def open_with_mail(
    runtime: RuntimeFixture,
    *replies: ScriptedStep,
    hold: asyncio.Event | None = None,
    tools: Sequence[Tool] = (),
    limits: Limits | None = None,
) -> AbstractAsyncContextManager[RuntimeProcess]:
    """Open a process with the tool `mail`, whose calls require a person's approval."""
    return runtime.open(
        *replies,
        tools=[make_mail_tool(sent, hold=hold, asks=None), *tools],
        approval_policy=ApprovalPolicy.ASK,
        limits=limits or Limits(),
    )


async def approval_state(process: RuntimeProcess, asked: Approval) -> ApprovalState:
    def step(tx: Transaction) -> ApprovalState:
        found = tx.get_approval(asked.id)
        assert found is not None
        return found.state

    return await process.context.ledger.read(step)


async def as_coroutine(value: bool) -> bool:
    return value


async def refusals(process: RuntimeProcess, run: Run) -> list[dict[str, Any]]:
    return [json.loads(each.text) for each in await process.tool_results(run) if not each.ok]


async def test_a_run_that_waits_for_approval_holds_no_slot_and_its_call_runs_once(
    runtime: RuntimeFixture,
):
    """Shows: A006, B053, L006."""
    async with open_with_mail(runtime, tool_call_reply(MAIL_CALL), text_reply("Done.")) as process:
        run = await process.run("Write to Ada.")
        assert (run.status, run.waiting_for, sent) == (Status.WAITING, WaitReason.APPROVAL, [])
        (approval,) = await process.pending_approvals()
        assert (approval.tool, approval.args, approval.chain) == (
            "mail",
            MAIL_CALL[1],
            ("person", run.session_key),
        )
        await process.answer_approval(approval, Answer.ALLOW)
        ended = await process.wait(run)
        assert (ended.status, ended.text, sent) == (Status.DONE, "Done.", ["ada"])
        assert await approval_state(process, approval) is ApprovalState.USED
        assert [each.text for each in await process.tool_results(run)] == ["sent to ada"]
        assert ended.attempts == 1


async def test_a_denied_approval_is_a_tool_result_and_the_call_does_not_run(runtime: RuntimeFixture):
    """Shows: A007."""
    async with open_with_mail(runtime, tool_call_reply(MAIL_CALL), text_reply("I may not.")) as process:
        run = await process.run("Write to Ada.")
        await process.answer_only_approval(Answer.DENY)
        assert (await process.wait(run)).status is Status.DONE
        (refusal,) = await refusals(process, run)
        assert (refusal["success"], refusal["error"], sent) == (False, "approval_denied", [])


async def test_an_approval_can_be_answered_after_the_requesting_process_died(runtime: RuntimeFixture):
    """Shows: P11."""
    async with open_with_mail(runtime, tool_call_reply(MAIL_CALL)) as process:
        run = await process.run("Write to Ada.")
    async with open_with_mail(runtime, text_reply("Done.")) as process:
        await process.answer_only_approval(Answer.ALLOW)
        ended = await process.wait(run)
        assert (ended.status, ended.text, sent) == (Status.DONE, "Done.", ["ada"])


async def test_a_used_approval_is_not_used_again_after_a_crash_during_the_call(runtime: RuntimeFixture):
    """Shows: P10, P11."""
    never = asyncio.Event()
    async with open_with_mail(runtime, tool_call_reply(MAIL_CALL), hold=never) as process:
        run = await process.run("Write to Ada.")
        await process.answer_only_approval(Answer.ALLOW)
        await wait_until(lambda: as_coroutine(bool(sent)))
    async with open_with_mail(runtime, text_reply("It may have been sent.")) as process:
        ended = await process.resume(run)
        assert (ended.status, sent) == (Status.DONE, ["ada"])
        (result,) = await process.tool_results(run)
        assert "Outcome unknown" in result.text


async def test_all_approvals_of_a_reply_are_requested_at_once_and_its_calls_keep_their_order(
    runtime: RuntimeFixture,
):
    calls = tool_call_reply(("ls", "{}"), MAIL_CALL, ("todo", '{"items": ["x"]}'), ("mail", '{"to": "bob"}'))
    async with open_with_mail(runtime, calls, text_reply("Done.")) as process:
        run = await process.run("Write.")
        assert len(await process.tool_results(run)) == 1  # ls
        first, second = await process.pending_approvals()
        await process.answer_approval(second, Answer.ALLOW)
        waiting = await process.wait(run)
        assert (waiting.status, waiting.waiting_for, sent) == (Status.WAITING, WaitReason.APPROVAL, [])
        await process.answer_approval(first, Answer.DENY)
        assert (await process.wait(run)).status is Status.DONE
        assert sent == ["bob"]
        assert [each.ok for each in await process.tool_results(run)] == [True, False, True, True]


async def test_an_approval_answered_before_the_run_is_suspended_is_not_missed(runtime: RuntimeFixture):
    gate = asyncio.Event()
    calls = tool_call_reply(("ponder", "{}"), MAIL_CALL)
    async with open_with_mail(runtime, calls, text_reply("Done."), tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Write.")
        await wait_until(process.pending_approvals)
        await process.answer_only_approval(Answer.ALLOW)
        gate.set()
        assert (await process.wait(run)).status is Status.DONE
        assert sent == ["ada"]


async def test_an_approval_is_answered_once_and_only_with_an_offered_answer(runtime: RuntimeFixture):
    async with open_with_mail(runtime, tool_call_reply(MAIL_CALL), text_reply("Done.")) as process:
        run = await process.run("Write.")
        (approval,) = await process.pending_approvals()
        with pytest.raises(Refused, match="answer allow or deny"):
            await process.answer_approval(approval, Answer.ADD)
        await process.answer_approval(approval, Answer.ALLOW)
        with pytest.raises(Refused, match="cannot be answered any more"):
            await process.answer_approval(approval, Answer.ALLOW)
        with pytest.raises(NotFound, match="approvals list"):
            await run_control.answer_approval(
                "01NONE", Answer.ALLOW, process.context, by="person", is_alive=lambda _: True
            )
        await process.wait(run)
        assert sent == ["ada"]


async def test_an_approval_that_expires_is_denied(runtime: RuntimeFixture):
    """Shows: T12."""
    short_limits = Limits(approval_seconds=0.01)
    async with open_with_mail(
        runtime, tool_call_reply(MAIL_CALL), text_reply("Then not."), limits=short_limits
    ) as process:
        run = await process.run("Write.")
        await wait_until(lambda: run_control.expire_approvals(process.context, is_alive=lambda _: True))
        assert (await process.wait(run)).status is Status.DONE
        (refusal,) = await refusals(process, run)
        assert "not answered within 0.01 s" in refusal["message"]
        assert sent == []


async def test_waiting_for_approval_extends_the_deadline(runtime: RuntimeFixture):
    async with open_with_mail(runtime, tool_call_reply(MAIL_CALL), text_reply("Done.")) as process:
        run = await process.run("Write.", deadline_seconds=100)
        waiting = await process.reload(run)
        assert waiting.deadline_at is None
        assert waiting.time_left is not None
        await asyncio.sleep(0.02)
        await process.answer_only_approval(Answer.DENY)
        ended = await process.wait(run)
        assert ended.deadline_at is not None
        assert ended.started_at is not None
        assert ended.deadline_at > ended.started_at + timedelta(seconds=100)


async def test_a_session_whose_run_waits_for_approval_is_busy(runtime: RuntimeFixture):
    """Shows: C044."""
    replies = [tool_call_reply(MAIL_CALL), text_reply("First."), text_reply("Second.")]
    async with open_with_mail(runtime, *replies) as process:
        first = await process.run("Write.")
        session = await process.store.find(first.session_id)
        second = await process.submit("And then?", session=session)
        assert second.status is Status.QUEUED
        assert await claim_run(second.id, process.context) is ClaimResult.SESSION_BUSY
        await process.answer_only_approval(Answer.ALLOW)
        assert [run.text for run in (await process.wait(first), await process.wait(second))] == [
            "First.",
            "Second.",
        ]


@pytest.mark.parametrize(("policy", "expected"), [(ApprovalPolicy.AUTO, ["ada"]), (ApprovalPolicy.DENY, [])])
async def test_the_approval_policy_answers_without_a_person(
    runtime: RuntimeFixture, policy: ApprovalPolicy, expected: list[str]
):
    async with runtime.open(
        tool_call_reply(MAIL_CALL),
        text_reply("Done."),
        tools=[make_mail_tool(sent, asks=None)],
        approval_policy=policy,
    ) as process:
        run = await process.run("Write.")
        assert (run.status, sent) == (Status.DONE, expected)
        assert await process.pending_approvals() == []
        if not expected:
            assert "approvals = deny" in (await refusals(process, run))[0]["message"]


def expansion_call(path: Path, name: str = "read") -> tuple[str, str]:
    asked = {"tool": name, "resource": str(path), "reason": "The task needs it."}
    return "request_scope_expansion", json.dumps(asked)


def read_call(path: Path) -> tuple[str, str]:
    return "read", json.dumps({"path": str(path)})


async def test_a_scope_expansion_allowed_once_is_used_up_by_the_first_call(runtime: RuntimeFixture):
    """Shows: A090, A093, A094."""
    outside = runtime.folder / "outside.txt"
    outside.write_text("the answer")
    script = [
        tool_call_reply(read_call(outside)),
        tool_call_reply(expansion_call(outside)),
        tool_call_reply(read_call(outside)),
        tool_call_reply(read_call(outside)),
        text_reply("Done."),
    ]
    async with runtime.open(*script, approval_policy=ApprovalPolicy.AUTO) as process:
        run = await process.run("Read it.")
        (approval,) = await process.pending_approvals()
        assert (approval.access, approval.tool, approval.resource, approval.reason) == (
            "scope", "read", str(outside), "The task needs it.",
        )  # fmt: skip
        await process.answer_approval(approval, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        first, allowed, second, third = await process.tool_results(run)
        assert json.loads(first.text)["error"] == "out_of_scope"
        assert "request_scope_expansion" in json.loads(first.text)["message"]
        assert allowed.text.startswith("Allowed once")
        assert (second.ok, second.text) == (True, "the answer")
        assert not third.ok


async def test_a_scope_expansion_added_to_the_scope_is_saved_in_the_sessions_preset(runtime: RuntimeFixture):
    """Shows: A064, A093."""
    outside = runtime.folder / "other.txt"
    outside.write_text("more")
    script = [
        tool_call_reply(expansion_call(outside)),
        tool_call_reply(read_call(outside)),
        tool_call_reply(read_call(outside)),
        text_reply("Done."),
        tool_call_reply(read_call(outside)),
        text_reply("Again."),
    ]
    async with runtime.open(*script) as process:
        run = await process.run("Read it.")
        await process.answer_only_approval(Answer.ADD)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.text for each in await process.tool_results(run)][1:] == ["more", "more"]
        preset = (Path(run.transcript_path).parent / "preset.md").read_text()
        assert preset.count(str(outside)) == 1
        later_run = await process.run("Once more.", session=await process.store.find(run.session_id))
        assert [each.text for each in await process.tool_results(later_run)][-1] == "more"


async def test_a_protected_path_cannot_be_requested(runtime: RuntimeFixture):
    key = runtime.workspace / ".ssh" / "id"
    script = [
        tool_call_reply(expansion_call(key)),
        tool_call_reply(expansion_call(runtime.workspace / "x", "todo")),
        text_reply("Done."),
    ]
    async with runtime.open(*script) as process:
        run = await process.run("Read it.")
        assert run.status is Status.DONE
        protected, unsupported = await process.tool_results(run)
        assert "No approval can allow this: always closed **/.ssh/**" in protected.text
        assert "paths and commands" in unsupported.text


async def test_an_approval_given_under_another_scope_is_requested_again(runtime: RuntimeFixture):
    """Shows: T10."""
    async with open_with_mail(runtime, tool_call_reply(MAIL_CALL)) as process:
        run = await process.run("Write.")
        (approval,) = await process.pending_approvals()
    runtime.write_agent("general", "tool_deny: [bash]\n")
    async with open_with_mail(runtime, text_reply("Done.")) as process:
        await process.answer_approval(approval, Answer.ALLOW)
        waiting = await process.wait(run)
        assert (waiting.status, sent) == (Status.WAITING, [])
        (second,) = await process.pending_approvals()
        assert second.id != approval.id


async def test_cancelling_a_run_that_waits_for_approval_makes_the_approval_void(runtime: RuntimeFixture):
    async with open_with_mail(runtime, tool_call_reply(MAIL_CALL), text_reply("Next.")) as process:
        run = await process.run("Write.")
        (approval,) = await process.pending_approvals()
        assert (await process.cancel(run)).status is Status.CANCELLED
        with pytest.raises(Refused, match="cannot be answered any more: it is void"):
            await process.answer_approval(approval, Answer.ALLOW)
        session = await process.store.find(run.session_id)
        assert (await process.run("And now?", session=session)).text == "Next."
        assert sent == []
