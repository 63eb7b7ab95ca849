"""Approvals: a call that acts on the world waits for a person's yes to exactly that call, and the yes counts once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.limits import Limits
from retinue.domain.run import Run, Status, WaitReason
from retinue.errors import NotFound, Refused
from retinue.interfaces import Tool, Transaction
from retinue.runtime import run_control
from retinue.runtime.run_creation import ClaimResult, claim_run
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

sent: list[str] = []


@pytest.fixture(autouse=True)
def nothing_was_sent() -> None:
    sent.clear()


def mail(*, hold: asyncio.Event | None = None) -> Tool:
    @tool(name="mail")
    async def send(to: str) -> str:
        """Sends a mail."""
        sent.append(to)
        if hold is not None:
            await hold.wait()
        return f"sent to {to}"

    return send


WISH = ("mail", '{"to": "ada"}')


async def pending(process: RuntimeProcess) -> list[Approval]:
    def step(tx: Transaction) -> list[Approval]:
        return tx.find_approvals(state=[ApprovalState.PENDING])

    return await process.context.ledger.read(step)


async def state_of(process: RuntimeProcess, asked: Approval) -> ApprovalState:
    def step(tx: Transaction) -> ApprovalState:
        found = tx.get_approval(asked.id)
        assert found is not None
        return found.state

    return await process.context.ledger.read(step)


async def answer(process: RuntimeProcess, asked: Approval, said: Answer, *, alive: bool = True) -> Approval:
    return await run_control.answer_approval(
        asked.id, said, process.context, by="person", is_alive=lambda _: alive
    )


async def soon(true: Callable[[], Awaitable[Any]]) -> None:
    """Until something is so: another task makes it so."""
    while not await true():  # noqa: ASYNC110  (what is waited for is a row, and rows do not call)
        await asyncio.sleep(0.002)


async def nothing(value: bool) -> bool:
    return value


async def refusals(process: RuntimeProcess, run: Run) -> list[dict[str, Any]]:
    return [json.loads(each.text) for each in await process.tool_results(run) if not each.ok]


async def test_a_call_waits_for_a_yes_without_a_slot_and_happens_once_when_it_has_one(
    runtime: RuntimeFixture,
):
    """Shows: A006, B053, L006."""
    async with runtime.open(
        tool_call_reply(WISH), text_reply("Done."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write to Ada.")
        assert (run.status, run.waiting_for, sent) == (Status.WAITING, WaitReason.APPROVAL, [])
        (asked,) = await pending(process)
        assert (asked.tool, asked.args, asked.chain) == ("mail", WISH[1], ("person", run.session_key))
        await answer(process, asked, Answer.ALLOW)
        done = await process.wait(run)
        assert (done.status, done.text, sent) == (Status.DONE, "Done.", ["ada"])
        assert await state_of(process, asked) is ApprovalState.USED
        assert [each.text for each in await process.tool_results(run)] == ["sent to ada"]
        assert done.attempts == 1


async def test_a_no_is_an_answer_and_nothing_happens(runtime: RuntimeFixture):
    """Shows: A007."""
    async with runtime.open(
        tool_call_reply(WISH), text_reply("I may not."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write to Ada.")
        await answer(process, (await pending(process))[0], Answer.DENY)
        assert (await process.wait(run)).status is Status.DONE
        (refused,) = await refusals(process, run)
        assert (refused["success"], refused["error"], sent) == (False, "approval_denied", [])


async def test_a_question_outlives_the_process_that_asked_it(runtime: RuntimeFixture):
    """Shows: P11."""
    async with runtime.open(
        tool_call_reply(WISH), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write to Ada.")
    async with runtime.open(
        text_reply("Done."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        await answer(process, (await pending(process))[0], Answer.ALLOW, alive=False)
        done = await process.wait(run)
        assert (done.status, done.text, sent) == (Status.DONE, "Done.", ["ada"])


async def test_a_yes_that_was_used_is_used_when_the_process_dies_meanwhile(runtime: RuntimeFixture):
    """Shows: P10, P11."""
    never = asyncio.Event()
    async with runtime.open(
        tool_call_reply(WISH), tools=[mail(hold=never)], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write to Ada.")
        await answer(process, (await pending(process))[0], Answer.ALLOW)
        await soon(lambda: nothing(bool(sent)))
    async with runtime.open(
        text_reply("It may have been sent."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        done = await process.resume(run)
        assert (done.status, sent) == (Status.DONE, ["ada"])
        (result,) = await process.tool_results(run)
        assert "Outcome unknown" in result.text


async def test_what_needs_no_yes_goes_on_beside_what_does(runtime: RuntimeFixture):
    both = tool_call_reply(WISH, ("todo", '{"items": ["x"]}'), ("mail", '{"to": "bob"}'))
    async with runtime.open(
        both, text_reply("Done."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write.")
        assert [each.text for each in await process.tool_results(run)] == ["1. [ ] x"]
        first, second = await pending(process)
        await answer(process, second, Answer.ALLOW)
        waiting = await process.wait(run)
        assert (waiting.status, sent) == (Status.WAITING, ["bob"])
        await answer(process, first, Answer.DENY)
        assert (await process.wait(run)).status is Status.DONE
        assert sent == ["bob"]


async def test_an_answer_that_comes_before_the_run_waits_is_not_missed(runtime: RuntimeFixture):
    slow = asyncio.Event()

    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        await slow.wait()
        return "ready"

    both = tool_call_reply(WISH, ("ponder", "{}"))
    async with runtime.open(
        both, text_reply("Done."), tools=[mail(), ponder], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.submit("Write.")
        await soon(lambda: pending(process))
        await answer(process, (await pending(process))[0], Answer.ALLOW)
        slow.set()
        assert (await process.wait(run)).status is Status.DONE
        assert sent == ["ada"]


async def test_an_answer_counts_once_and_only_what_was_asked(runtime: RuntimeFixture):
    async with runtime.open(
        tool_call_reply(WISH), text_reply("Done."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write.")
        (asked,) = await pending(process)
        with pytest.raises(Refused, match="answer allow or deny"):
            await answer(process, asked, Answer.ADD)
        await answer(process, asked, Answer.ALLOW)
        with pytest.raises(Refused, match="already"):
            await answer(process, asked, Answer.ALLOW)
        with pytest.raises(NotFound, match="approvals list"):
            await run_control.answer_approval(
                "01NONE", Answer.ALLOW, process.context, by="person", is_alive=lambda _: True
            )
        await process.wait(run)
        assert sent == ["ada"]


async def test_nobody_answered_in_time_is_a_no(runtime: RuntimeFixture):
    """Shows: T12."""
    brief = Limits(approval_seconds=0.01)
    async with runtime.open(
        tool_call_reply(WISH),
        text_reply("Then not."),
        tools=[mail()],
        approval_policy=ApprovalPolicy.ASK,
        limits=brief,
    ) as process:
        run = await process.run("Write.")
        await soon(lambda: run_control.expire_approvals(process.context, is_alive=lambda _: True))
        assert (await process.wait(run)).status is Status.DONE
        (refused,) = await refusals(process, run)
        assert "nobody answered within 0.01 s" in refused["message"]
        assert sent == []


async def test_the_person_takes_their_time_not_the_runs(runtime: RuntimeFixture):
    async with runtime.open(
        tool_call_reply(WISH), text_reply("Done."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write.", deadline_seconds=100)
        before = (await process.reload(run)).deadline_at
        assert before is not None
        await asyncio.sleep(0.02)
        await answer(process, (await pending(process))[0], Answer.DENY)
        after = (await process.wait(run)).deadline_at
        assert after is not None
        assert after > before


async def test_a_session_that_waits_inside_a_call_is_busy(runtime: RuntimeFixture):
    """Shows: C044."""
    replies = [tool_call_reply(WISH), text_reply("First."), text_reply("Second.")]
    async with runtime.open(*replies, tools=[mail()], approval_policy=ApprovalPolicy.ASK) as process:
        first = await process.run("Write.")
        session = await process.store.find(first.session_id)
        second = await process.submit("And then?", session=session)
        assert second.status is Status.QUEUED
        assert await claim_run(second.id, process.context) is ClaimResult.SESSION_BUSY
        await answer(process, (await pending(process))[0], Answer.ALLOW)
        assert [run.text for run in (await process.wait(first), await process.wait(second))] == [
            "First.",
            "Second.",
        ]


@pytest.mark.parametrize(("policy", "happens"), [(ApprovalPolicy.AUTO, ["ada"]), (ApprovalPolicy.DENY, [])])
async def test_the_policy_can_answer_for_everyone(
    runtime: RuntimeFixture, policy: ApprovalPolicy, happens: list[str]
):
    async with runtime.open(
        tool_call_reply(WISH), text_reply("Done."), tools=[mail()], approval_policy=policy
    ) as process:
        run = await process.run("Write.")
        assert (run.status, sent) == (Status.DONE, happens)
        assert await pending(process) == []
        if not happens:
            assert "approvals = deny" in (await refusals(process, run))[0]["message"]


def wish_for(path: Path, name: str = "read") -> tuple[str, str]:
    asked = {"tool": name, "resource": str(path), "reason": "The task needs it."}
    return "request_scope_expansion", json.dumps(asked)


def reads(path: Path) -> tuple[str, str]:
    return "read", json.dumps({"path": str(path)})


async def test_allowed_once_is_used_up_by_the_first_call(runtime: RuntimeFixture):
    """Shows: A090, A093, A094."""
    secret = runtime.folder / "outside.txt"
    secret.write_text("the answer")
    script = [
        tool_call_reply(reads(secret)),
        tool_call_reply(wish_for(secret)),
        tool_call_reply(reads(secret)),
        tool_call_reply(reads(secret)),
        text_reply("Done."),
    ]
    async with runtime.open(*script, approval_policy=ApprovalPolicy.AUTO) as process:
        run = await process.run("Read it.")
        (asked,) = await pending(process)
        assert (asked.access, asked.tool, asked.resource, asked.reason) == (
            "more", "read", str(secret), "The task needs it.",
        )  # fmt: skip
        await answer(process, asked, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        first, allowed, second, third = await process.tool_results(run)
        assert json.loads(first.text)["error"] == "out_of_scope"
        assert "request_scope_expansion" in json.loads(first.text)["message"]
        assert allowed.text.startswith("Allowed once")
        assert (second.ok, second.text) == (True, "the answer")
        assert not third.ok


async def test_added_to_the_scope_stays_in_the_sessions_own_file(runtime: RuntimeFixture):
    """Shows: A064, A093."""
    other = runtime.folder / "other.txt"
    other.write_text("more")
    script = [
        tool_call_reply(wish_for(other)),
        tool_call_reply(reads(other)),
        tool_call_reply(reads(other)),
        text_reply("Done."),
        tool_call_reply(reads(other)),
        text_reply("Again."),
    ]
    async with runtime.open(*script) as process:
        run = await process.run("Read it.")
        await answer(process, (await pending(process))[0], Answer.ADD)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.text for each in await process.tool_results(run)][1:] == ["more", "more"]
        preset = (Path(run.transcript_path).parent / "preset.md").read_text()
        assert preset.count(str(other)) == 1
        again = await process.run("Once more.", session=await process.store.find(run.session_id))
        assert [each.text for each in await process.tool_results(again)][-1] == "more"


async def test_what_is_closed_for_good_is_not_even_asked(runtime: RuntimeFixture):
    key = runtime.workspace / ".ssh" / "id"
    script = [
        tool_call_reply(wish_for(key)),
        tool_call_reply(wish_for(runtime.workspace / "x", "todo")),
        text_reply("Done."),
    ]
    async with runtime.open(*script) as process:
        run = await process.run("Read it.")
        assert run.status is Status.DONE
        closed, senseless = await process.tool_results(run)
        assert "nobody can allow this here: always closed **/.ssh/**" in closed.text
        assert "paths and commands" in senseless.text


async def test_a_yes_for_one_scope_is_none_for_another(runtime: RuntimeFixture):
    """Shows: T10."""
    async with runtime.open(
        tool_call_reply(WISH), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write.")
        (asked,) = await pending(process)
    runtime.write_agent("general", "tool_deny: [bash]\n")
    async with runtime.open(
        text_reply("Done."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        await answer(process, asked, Answer.ALLOW, alive=False)
        waiting = await process.wait(run)
        assert (waiting.status, sent) == (Status.WAITING, [])
        (again,) = await pending(process)
        assert again.id != asked.id


async def test_a_run_that_waits_for_a_person_can_be_stopped_and_asks_no_more(runtime: RuntimeFixture):
    async with runtime.open(
        tool_call_reply(WISH), text_reply("Next."), tools=[mail()], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write.")
        (asked,) = await pending(process)
        assert (await process.cancel(run)).status is Status.CANCELLED
        with pytest.raises(Refused, match="void already"):
            await answer(process, asked, Answer.ALLOW)
        session = await process.store.find(run.session_id)
        assert (await process.run("And now?", session=session)).text == "Next."
        assert sent == []
