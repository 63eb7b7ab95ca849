"""Leave at its edges: what was allowed and is denied since, what was asked twice, and what no grant speaks for."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState, ToolAccess
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.clock import Clock
from retinue.domain.limits import Limits
from retinue.domain.model_turn import Reply, Request
from retinue.domain.run import Status
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import OutOfScope
from retinue.interfaces import Call, Tool, Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.testing.shells import FakeShell
from retinue.tools.define import tool
from retinue.worker.clock import system_clock

FAR = "/etc/passwd"  # read only: no test names a file of the machine's to write
made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    made.clear()


def latest(said: list[OperatorPolicy]) -> OperatorPolicy:
    return said[-1]


async def approvals(process: RuntimeProcess) -> list[Approval]:
    def step(tx: Transaction) -> list[Approval]:
        return tx.find_approvals()

    return await process.context.ledger.read(step)


async def answer(process: RuntimeProcess, said: Answer) -> None:
    (asked,) = [each for each in await approvals(process) if each.state is ApprovalState.PENDING]
    await run_control.answer_approval(asked.id, said, process.context, by="person", is_alive=lambda _: True)


def more(name: str, resource: str) -> Any:
    wish = {"tool": name, "resource": resource, "reason": "x"}
    return tool_call_reply(("request_scope_expansion", json.dumps(wish)))


async def test_a_yes_that_was_used_under_other_rights_is_used(runtime: RuntimeFixture):
    """Asked, allowed, asked anew because the rights changed, allowed again, begun, and killed.

    Shows: P10, P11.
    """
    never = asyncio.Event()

    @tool(name="mail")
    async def mail() -> str:
        """Sends."""
        made.append("sent")
        await never.wait()
        return "sent"

    now = [OperatorPolicy()]
    ports: dict[str, Any] = {
        "tools": [mail],
        "approval_policy": ApprovalPolicy.ASK,
        "operator_policy": partial(latest, now),
    }
    async with runtime.open(tool_call_reply(("mail", "{}")), **ports) as process:
        run = await process.run("Send.")
        now.append(OperatorPolicy(deny_tools=("other",)))
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.WAITING
        await answer(process, Answer.ALLOW)
        while not made:  # noqa: ASYNC110  (the tool's own task leaves the mark)
            await asyncio.sleep(0.002)
        assert [each.state for each in await approvals(process)] == [
            ApprovalState.ALLOWED,
            ApprovalState.USED,
        ]
    async with runtime.open(text_reply("Perhaps."), **ports) as process:
        done = await process.resume(run)
        assert (done.status, made) == (Status.DONE, ["sent"])
        (result,) = await process.tool_results(run)
        assert "Outcome unknown" in result.text


async def test_what_was_allowed_once_and_is_denied_since_is_neither_opened_nor_used_up(
    runtime: RuntimeFixture,
):
    """Shows: L024."""
    now = [OperatorPolicy()]

    def reads(_: Request) -> Reply:
        now.append(OperatorPolicy(deny_paths=(FAR,)))
        return tool_call_reply(("read", json.dumps({"path": FAR})))

    async with runtime.open(
        more("read", FAR), reads, text_reply("No."), operator_policy=partial(latest, now)
    ) as process:
        run = await process.run("Read.")
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        _, refused = await process.tool_results(run)
        assert json.loads(refused.text)["deny_patterns"] == [FAR]
        assert [each.state for each in await approvals(process)] == [ApprovalState.ALLOWED]


async def test_a_write_outside_the_scope_is_allowed_once(runtime: RuntimeFixture):
    """Shows: A093, A094."""
    runtime.write_agent("general", "paths: {write: ['out/**']}\n")
    wish = tool_call_reply(("write", '{"path": "a.txt", "content": "x"}'))
    async with runtime.open(
        more("write", "a.txt"), wish, wish, text_reply("Done."), approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Write.")
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        _, first, second = await process.tool_results(run)
        assert (first.ok, second.ok) == (True, False)
        assert (runtime.workspace / "a.txt").read_text() == "x"


@pytest.mark.parametrize("name", [".envrc", ".git", ".github/workflows/ci.yml"])
async def test_what_other_programs_obey_is_asked_for_even_where_everything_else_goes_by_itself(
    runtime: RuntimeFixture, name: str
):
    runtime.write_agent("general", "paths: {write: ['**']}\n")
    wish = tool_call_reply(("write", json.dumps({"path": name, "content": "x"})))
    async with runtime.open(wish, text_reply("Done."), approval_policy=ApprovalPolicy.AUTO) as process:
        run = await process.run("Write.")
        assert (run.status, list(runtime.workspace.rglob("*"))) == (Status.WAITING, [])
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert (runtime.workspace / name).read_text() == "x"


def peeks() -> Tool:
    """A tool that reads one file and acts on the world by it."""

    @tool(name="peek", access=("read", "path"))
    async def peek(call: Call, path: str) -> str:
        """Reads."""
        made.append(path)
        return call.files.read(path).data.decode()

    return peek


async def test_a_tool_that_reads_and_acts_is_judged_by_its_file_and_then_asks(runtime: RuntimeFixture):
    (runtime.workspace / "a").write_text("words")
    script = [
        tool_call_reply(("peek", json.dumps({"path": FAR}))),
        tool_call_reply(("peek", '{"path": "a"}')),
        text_reply("Done."),
    ]
    async with runtime.open(*script, tools=[peeks()], approval_policy=ApprovalPolicy.ASK) as process:
        run = await process.run("Peek.")
        (refused,) = await process.tool_results(run)
        assert (json.loads(refused.text)["error"], made) == ("out_of_scope", [])
        (asked,) = await approvals(process)
        assert (asked.access, asked.resource) == ("read", f"{process.root}/a")
        assert asked.reason == "no rule allows read there without approval"
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.text for each in await process.tool_results(run)][1:] == ["words"]


async def test_a_denied_command_is_refused_before_anybody_is_asked(runtime: RuntimeFixture):
    """Shows: A090, A092."""
    runtime.write_agent("general", "shell_commands: {allow: ['*'], deny: [sudo]}\n")
    shell = FakeShell(level=SandboxLevel.STRICT)
    script = [tool_call_reply(("bash", '{"command": "ls; sudo\\nls"}')), text_reply("Done.")]
    for policy in ApprovalPolicy:
        async with runtime.open(
            *script, approval_policy=policy, shell_for=shell, detect_level=shell.level_detector()
        ) as process:
            run = await process.run("Run.")
            (result,) = await process.tool_results(run)
            refused = json.loads(result.text)
            assert (refused["error"], refused["resource"]) == ("command_not_allowed", "ls; sudo\nls")
            assert (refused["deny_patterns"], shell.commands, await approvals(process)) == (["sudo"], [], [])


@pytest.mark.parametrize("level", [SandboxLevel.LANDLOCK, SandboxLevel.NONE])
async def test_below_strict_a_command_that_was_allowed_before_asks_again_at_its_call(
    runtime: RuntimeFixture, level: SandboxLevel
):
    """Shows: S16, T10."""
    shell = FakeShell(level=level)
    script = [more("bash", "ls"), tool_call_reply(("bash", '{"command": "ls"}')), text_reply("Done.")]
    async with runtime.open(
        *script,
        approval_policy=ApprovalPolicy.AUTO,
        shell_for=shell,
        detect_level=shell.level_detector(),
    ) as process:
        run = await process.run("Run.")
        await answer(process, Answer.ALLOW)
        assert ((await process.wait(run)).status, shell.commands) == (Status.WAITING, [])
        first, second = await approvals(process)
        assert (first.access, first.level, second.access, second.level) == ("scope", None, "run", level)


async def test_a_yes_to_one_of_two_equal_calls_is_for_that_one(runtime: RuntimeFixture):
    """Shows: T10."""
    shell = FakeShell(level=SandboxLevel.STRICT)
    twice = tool_call_reply(("bash", '{"command": "ls; ls"}'), ("bash", '{"command": "ls; ls"}'))
    async with runtime.open(
        twice,
        text_reply("Done."),
        approval_policy=ApprovalPolicy.ASK,
        shell_for=shell,
        detect_level=shell.level_detector(),
    ) as process:
        run = await process.run("Run.")
        first, second = await approvals(process)
        await run_control.answer_approval(
            second.id, Answer.ALLOW, process.context, by="person", is_alive=lambda _: True
        )
        assert (await process.wait(run)).status is Status.WAITING
        assert [(each.id, each.state) for each in await approvals(process)] == [
            (first.id, ApprovalState.PENDING),
            (second.id, ApprovalState.USED),
        ]
        assert len(shell.commands) == 1


async def test_what_was_added_is_no_yes_to_a_single_call(runtime: RuntimeFixture):
    """Shows: A093."""
    shell = FakeShell(level=SandboxLevel.STRICT)
    script = [more("bash", "ls"), tool_call_reply(("bash", '{"command": "ls"}')), text_reply("Done.")]
    async with runtime.open(
        *script,
        approval_policy=ApprovalPolicy.ASK,
        shell_for=shell,
        detect_level=shell.level_detector(),
    ) as process:
        run = await process.run("Run.")
        await answer(process, Answer.ADD)
        assert (await process.wait(run)).status is Status.DONE
        assert ([each.state for each in await approvals(process)], len(shell.commands)) == (
            [ApprovalState.ALLOWED],
            1,
        )


async def test_a_yes_to_a_command_held_tightly_is_none_to_the_same_held_loosely(runtime: RuntimeFixture):
    """Shows: T10, S16."""
    tight, loose = FakeShell(level=SandboxLevel.STRICT), FakeShell(level=SandboxLevel.NONE)
    wish = tool_call_reply(("bash", '{"command": "ls"}'))
    async with runtime.open(
        wish, approval_policy=ApprovalPolicy.ASK, shell_for=tight, detect_level=tight.level_detector()
    ) as process:
        run = await process.run("Run.")
        (first,) = await approvals(process)
    async with runtime.open(
        text_reply("Done."),
        approval_policy=ApprovalPolicy.ASK,
        shell_for=loose,
        detect_level=loose.level_detector(),
    ) as process:
        await run_control.answer_approval(
            first.id, Answer.ALLOW, process.context, by="person", is_alive=lambda _: False
        )
        assert (await process.wait(run)).status is Status.WAITING
        assert (tight.commands, loose.commands) == ([], [])
        assert [(each.state, each.level) for each in await approvals(process)] == [
            (ApprovalState.ALLOWED, SandboxLevel.STRICT),
            (ApprovalState.PENDING, SandboxLevel.NONE),
        ]


async def test_a_refusal_about_nothing_uses_no_yes_up(runtime: RuntimeFixture):
    @tool(effect="read", access=("read", "path"))
    async def sulk(path: str) -> str:
        """Refuses without a reason."""
        raise OutOfScope(f"not {Path(path).name}")

    script = [more("read", FAR), tool_call_reply(("sulk", json.dumps({"path": FAR}))), text_reply("Done.")]
    async with runtime.open(*script, tools=[sulk]) as process:
        run = await process.run("Read.")
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.state for each in await approvals(process)] == [ApprovalState.ALLOWED]


async def test_a_call_that_bears_repeating_is_repeated_only_after_another_yes(runtime: RuntimeFixture):
    """Shows: P11."""
    never = asyncio.Event()

    @tool(name="put", effect="idempotent")
    async def put() -> str:
        """Puts."""
        made.append("put")
        if len(made) == 1:
            await never.wait()
        return "put"

    async with runtime.open(
        tool_call_reply(("put", "{}")), tools=[put], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Put.")
        await answer(process, Answer.ALLOW)
        while not made:  # noqa: ASYNC110  (the tool's own task leaves the mark)
            await asyncio.sleep(0.002)
    async with runtime.open(text_reply("Done."), tools=[put], approval_policy=ApprovalPolicy.ASK) as process:
        assert (await process.resume(run)).status is Status.WAITING
        assert [each.state for each in await approvals(process)] == [
            ApprovalState.USED,
            ApprovalState.PENDING,
        ]
        assert made == ["put"]
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert made == ["put", "put"]


@pytest.mark.parametrize("touch", ["read", "write"])
async def test_a_tool_that_never_asks_is_let_once_where_a_person_said_so(
    runtime: RuntimeFixture, touch: ToolAccess
):
    runtime.write_agent("general", "paths: {read: ['in/**'], write: ['in/**']}\n")
    (runtime.workspace / "a").write_text("old")

    @tool(name="own", asks="never", access=(touch, "path"))
    async def own(call: Call, path: str) -> str:
        """Reads or writes."""
        return (
            call.files.read(path).data.decode()
            if touch == "read"
            else call.files.write(path, b"new").real_path
        )

    wish = tool_call_reply(("own", '{"path": "a"}'))
    async with runtime.open(wish, more("own", "a"), wish, wish, text_reply("Done."), tools=[own]) as process:
        run = await process.run("Go.")
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.ok for each in await process.tool_results(run)] == [False, True, True, False]


@dataclass(slots=True)
class Later:
    """A clock that stands still until it is put forward."""

    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def chance(self) -> Clock:
        return replace(system_clock(), now=self.now)


async def test_a_yes_in_time_is_used_even_when_the_call_comes_late(runtime: RuntimeFixture):
    """Shows: T12."""
    clock = Later()
    both = tool_call_reply(("peek", '{"path": "a"}'), ("peek", '{"path": "b"}'))
    for name in "ab":
        (runtime.workspace / name).write_text(name)
    brief: dict[str, Any] = {
        "limits": Limits(approval_seconds=60),
        "approval_policy": ApprovalPolicy.ASK,
        "clock": clock.chance(),
    }
    async with runtime.open(both, tools=[peeks()], **brief) as process:
        run = await process.run("Peek.")
        first, second = await approvals(process)
    async with runtime.open(text_reply("Done."), tools=[peeks()], **brief) as process:

        def said(tx: Transaction) -> None:
            tx.update_approval(first.record_answer(Answer.ALLOW, by="person", at=clock.now()))

        await process.context.ledger.write(said)
        clock.at += timedelta(seconds=60)
        done = await process.resume(run)
        assert (done.status, made) == (Status.DONE, [json.loads(first.args)["path"]])
        states = {each.id: each.state for each in await approvals(process)}
        assert states == {first.id: ApprovalState.USED, second.id: ApprovalState.EXPIRED}
        refused = [json.loads(each.text) for each in await process.tool_results(run) if not each.ok]
        assert ["nobody answered within 60 s" in each["message"] for each in refused] == [True]
