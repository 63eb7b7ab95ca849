"""Authorization edge cases: approvals under changed policies, repeated approvals, and calls without any grant."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture

from retinue.domain.approval import Answer, ApprovalPolicy, ApprovalState, ToolAccess
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.clock import Clock
from retinue.domain.limits import Limits
from retinue.domain.model_turn import ModelReply, ModelRequest
from retinue.domain.run import Status
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import OutOfScope
from retinue.interfaces import Call, Tool, Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.testing.shells import FakeShell
from retinue.tools.define import tool
from retinue.worker.clock import system_clock

OUTSIDE = "/etc/passwd"  # never written: no test writes to a file of the machine
executed: list[str] = []


@pytest.fixture(autouse=True)
def clear_executed() -> None:
    executed.clear()


def last_policy(policies: list[OperatorPolicy]) -> OperatorPolicy:
    return policies[-1]


def expansion_call(name: str, resource: str) -> ModelReply:
    request = {"tool": name, "resource": resource, "reason": "x"}
    return tool_call_reply(("request_scope_expansion", json.dumps(request)))


EXPAND_AND_RUN_LS = (
    expansion_call("bash", "ls"),
    tool_call_reply(("bash", '{"command": "ls"}')),
    text_reply("Done."),
)


async def test_an_approval_used_under_a_changed_policy_is_not_used_again_after_a_crash(
    runtime: RuntimeFixture,
):
    """A call is approved, approved again because the policy changed, started and killed.

    Shows: P10, P11.
    """
    never_set = asyncio.Event()

    @tool(name="mail")
    async def mail() -> str:
        """Sends."""
        executed.append("sent")
        await never_set.wait()
        return "sent"

    policies = [OperatorPolicy()]
    ports: dict[str, Any] = {
        "tools": [mail],
        "approval_policy": ApprovalPolicy.ASK,
        "operator_policy": partial(last_policy, policies),
    }
    async with runtime.open(tool_call_reply(("mail", "{}")), **ports) as process:
        run = await process.run("Send.")
        policies.append(OperatorPolicy(deny_tools=("other",)))
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.WAITING
        await process.answer_only_approval(Answer.ALLOW)
        while not executed:  # noqa: ASYNC110  (the task of the tool sets it)
            await asyncio.sleep(0.002)
        assert [each.state for each in await process.approvals()] == [
            ApprovalState.ALLOWED,
            ApprovalState.USED,
        ]
    async with runtime.open(text_reply("Perhaps."), **ports) as process:
        done = await process.resume(run)
        assert (done.status, executed) == (Status.DONE, ["sent"])
        (result,) = await process.tool_results(run)
        assert "Outcome unknown" in result.text


async def test_a_path_allowed_once_and_denied_since_is_refused_and_keeps_its_approval(
    runtime: RuntimeFixture,
):
    """Shows: L024."""
    policies = [OperatorPolicy()]

    def deny_and_read(_: ModelRequest) -> ModelReply:
        policies.append(OperatorPolicy(deny_paths=(OUTSIDE,)))
        return tool_call_reply(("read", json.dumps({"path": OUTSIDE})))

    async with runtime.open(
        expansion_call("read", OUTSIDE),
        deny_and_read,
        text_reply("No."),
        operator_policy=partial(last_policy, policies),
    ) as process:
        run = await process.run("Read.")
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        _, refused = await process.tool_results(run)
        assert json.loads(refused.text)["deny_patterns"] == [OUTSIDE]
        assert [each.state for each in await process.approvals()] == [ApprovalState.ALLOWED]


async def test_a_write_outside_the_scope_can_be_allowed_once(runtime: RuntimeFixture):
    """Shows: A093, A094."""
    runtime.write_agent("general", "paths: {write: ['out/**']}\n")
    write = tool_call_reply(("write", '{"path": "a.txt", "content": "x"}'))
    async with runtime.open(
        expansion_call("write", "a.txt"),
        write,
        write,
        text_reply("Done."),
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await process.run("Write.")
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        _, first, second = await process.tool_results(run)
        assert (first.ok, second.ok) == (True, False)
        assert (runtime.workspace / "a.txt").read_text() == "x"


@pytest.mark.parametrize("name", [".envrc", ".git", ".github/workflows/ci.yml"])
async def test_a_file_that_other_programs_execute_requires_approval_under_every_policy(
    runtime: RuntimeFixture, name: str
):
    runtime.write_agent("general", "paths: {write: ['**']}\n")
    write = tool_call_reply(("write", json.dumps({"path": name, "content": "x"})))
    async with runtime.open(write, text_reply("Done."), approval_policy=ApprovalPolicy.AUTO) as process:
        run = await process.run("Write.")
        assert (run.status, list(runtime.workspace.rglob("*"))) == (Status.WAITING, [])
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert (runtime.workspace / name).read_text() == "x"


def make_peek_tool() -> Tool:
    """Make a tool that reads a file and has side effects."""

    @tool(name="peek", access=("read", "path"))
    async def peek(call: Call, path: str) -> str:
        """Reads."""
        executed.append(path)
        return call.files.read(path).data.decode()

    return peek


async def test_a_tool_that_reads_a_file_and_has_side_effects_is_checked_by_path_and_requires_approval(
    runtime: RuntimeFixture,
):
    (runtime.workspace / "a").write_text("words")
    script = [
        tool_call_reply(("peek", json.dumps({"path": OUTSIDE}))),
        tool_call_reply(("peek", '{"path": "a"}')),
        text_reply("Done."),
    ]
    async with runtime.open(*script, tools=[make_peek_tool()], approval_policy=ApprovalPolicy.ASK) as process:
        run = await process.run("Peek.")
        (refused,) = await process.tool_results(run)
        assert (json.loads(refused.text)["error"], executed) == ("out_of_scope", [])
        (approval,) = await process.approvals()
        assert (approval.access, approval.resource) == ("read", f"{process.root}/a")
        assert approval.reason == "not preapproved by any rule"
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.text for each in await process.tool_results(run)][1:] == ["words"]


async def test_a_denied_command_is_refused_without_an_approval_request(runtime: RuntimeFixture):
    """Shows: A090, A092."""
    runtime.write_agent("general", "shell_commands: {allow: ['*'], deny: [sudo]}\n")
    shell = FakeShell(level=SandboxLevel.STRICT)
    script = [tool_call_reply(("bash", '{"command": "ls; sudo\\nls"}')), text_reply("Done.")]
    for policy in ApprovalPolicy:
        async with runtime.open(*script, approval_policy=policy, shell=shell) as process:
            run = await process.run("Run.")
            (result,) = await process.tool_results(run)
            refused = json.loads(result.text)
            assert (refused["error"], refused["resource"]) == ("command_not_allowed", "ls; sudo\nls")
            assert (refused["deny_patterns"], shell.commands, await process.approvals()) == (
                ["sudo"],
                [],
                [],
            )


@pytest.mark.parametrize("level", [SandboxLevel.LANDLOCK, SandboxLevel.NONE])
async def test_below_strict_a_command_allowed_in_advance_requires_another_approval_at_its_call(
    runtime: RuntimeFixture, level: SandboxLevel
):
    """Shows: S16, T10."""
    shell = FakeShell(level=level)
    async with runtime.open(
        *EXPAND_AND_RUN_LS,
        approval_policy=ApprovalPolicy.AUTO,
        shell=shell,
    ) as process:
        run = await process.run("Run.")
        await process.answer_only_approval(Answer.ALLOW)
        assert ((await process.wait(run)).status, shell.commands) == (Status.WAITING, [])
        first, second = await process.approvals()
        assert (first.access, first.level, second.access, second.level) == ("scope", None, "run", level)


async def test_an_approval_of_one_of_two_equal_calls_applies_to_that_call_only(runtime: RuntimeFixture):
    """Shows: T10."""
    shell = FakeShell(level=SandboxLevel.STRICT)
    calls = tool_call_reply(("bash", '{"command": "ls; ls"}'), ("bash", '{"command": "ls; ls"}'))
    async with runtime.open(
        calls,
        text_reply("Done."),
        approval_policy=ApprovalPolicy.ASK,
        shell=shell,
    ) as process:
        run = await process.run("Run.")
        first, second = await process.approvals()
        await process.answer_approval(first, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.WAITING
        assert [(each.id, each.state) for each in await process.approvals()] == [
            (first.id, ApprovalState.USED),
            (second.id, ApprovalState.PENDING),
        ]
        assert len(shell.commands) == 1


async def test_a_command_added_to_the_scope_runs_without_an_approval_of_its_own(runtime: RuntimeFixture):
    """Shows: A093."""
    shell = FakeShell(level=SandboxLevel.STRICT)
    async with runtime.open(
        *EXPAND_AND_RUN_LS,
        approval_policy=ApprovalPolicy.ASK,
        shell=shell,
    ) as process:
        run = await process.run("Run.")
        await process.answer_only_approval(Answer.ADD)
        assert (await process.wait(run)).status is Status.DONE
        assert ([each.state for each in await process.approvals()], len(shell.commands)) == (
            [ApprovalState.ALLOWED],
            1,
        )


async def test_an_approval_for_the_strict_sandbox_does_not_apply_below_it(runtime: RuntimeFixture):
    """Shows: T10, S16."""
    strict_shell, unsandboxed_shell = FakeShell(level=SandboxLevel.STRICT), FakeShell(level=SandboxLevel.NONE)
    bash_call = tool_call_reply(("bash", '{"command": "ls"}'))
    async with runtime.open(
        bash_call,
        approval_policy=ApprovalPolicy.ASK,
        shell=strict_shell,
    ) as process:
        run = await process.run("Run.")
        (first,) = await process.approvals()
    async with runtime.open(
        text_reply("Done."),
        approval_policy=ApprovalPolicy.ASK,
        shell=unsandboxed_shell,
    ) as process:
        await run_control.answer_approval(
            first.id, Answer.ALLOW, process.context, by="person", is_alive=lambda _: False
        )
        assert (await process.wait(run)).status is Status.WAITING
        assert (strict_shell.commands, unsandboxed_shell.commands) == ([], [])
        assert [(each.state, each.level) for each in await process.approvals()] == [
            (ApprovalState.ALLOWED, SandboxLevel.STRICT),
            (ApprovalState.PENDING, SandboxLevel.NONE),
        ]


async def test_a_refusal_that_names_no_resource_uses_no_approval(runtime: RuntimeFixture):
    @tool(effect="read", access=("read", "path"))
    async def refuse(path: str) -> str:
        """Refuses without a reason."""
        raise OutOfScope(f"not {Path(path).name}")

    script = [
        expansion_call("read", OUTSIDE),
        tool_call_reply(("refuse", json.dumps({"path": OUTSIDE}))),
        text_reply("Done."),
    ]
    async with runtime.open(*script, tools=[refuse]) as process:
        run = await process.run("Read.")
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.state for each in await process.approvals()] == [ApprovalState.ALLOWED]


async def test_an_idempotent_call_is_repeated_after_a_crash_only_with_another_approval(
    runtime: RuntimeFixture,
):
    """Shows: P11."""
    never_set = asyncio.Event()

    @tool(name="put", effect="idempotent")
    async def put() -> str:
        """Puts."""
        executed.append("put")
        if len(executed) == 1:
            await never_set.wait()
        return "put"

    async with runtime.open(
        tool_call_reply(("put", "{}")), tools=[put], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Put.")
        await process.answer_only_approval(Answer.ALLOW)
        while not executed:  # noqa: ASYNC110  (the task of the tool sets it)
            await asyncio.sleep(0.002)
    async with runtime.open(text_reply("Done."), tools=[put], approval_policy=ApprovalPolicy.ASK) as process:
        assert (await process.resume(run)).status is Status.WAITING
        assert [each.state for each in await process.approvals()] == [
            ApprovalState.USED,
            ApprovalState.PENDING,
        ]
        assert executed == ["put"]
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert executed == ["put", "put"]


@pytest.mark.parametrize("access", ["read", "write"])
async def test_a_tool_that_never_asks_needs_an_expansion_outside_the_scope(
    runtime: RuntimeFixture, access: ToolAccess
):
    runtime.write_agent("general", "paths: {read: ['in/**'], write: ['in/**']}\n")
    (runtime.workspace / "a").write_text("old")

    @tool(name="own", asks="never", access=(access, "path"))
    async def own(call: Call, path: str) -> str:
        """Reads or writes."""
        return (
            call.files.read(path).data.decode()
            if access == "read"
            else call.files.write(path, b"new").real_path
        )

    own_call = tool_call_reply(("own", '{"path": "a"}'))
    async with runtime.open(
        own_call, expansion_call("own", "a"), own_call, own_call, text_reply("Done."), tools=[own]
    ) as process:
        run = await process.run("Go.")
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert [each.ok for each in await process.tool_results(run)] == [False, True, True, False]


@dataclass(slots=True)
class ManualClock:
    """A clock that shows the time it is set to."""

    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def as_clock(self) -> Clock:
        return replace(system_clock(), now=self.now)


async def test_an_approval_given_in_time_is_used_even_if_the_call_runs_after_its_expiry(
    runtime: RuntimeFixture,
):
    """Shows: T12."""
    clock = ManualClock()
    calls = tool_call_reply(("peek", '{"path": "a"}'), ("peek", '{"path": "b"}'))
    for name in "ab":
        (runtime.workspace / name).write_text(name)
    options: dict[str, Any] = {
        "limits": Limits(approval_seconds=60),
        "approval_policy": ApprovalPolicy.ASK,
        "clock": clock.as_clock(),
    }
    async with runtime.open(calls, tools=[make_peek_tool()], **options) as process:
        run = await process.run("Peek.")
        first, second = await process.approvals()
    async with runtime.open(text_reply("Done."), tools=[make_peek_tool()], **options) as process:

        def record_answer(tx: Transaction) -> None:
            tx.update_approval(first.record_answer(Answer.ALLOW, by="person", at=clock.now()))

        await process.context.ledger.write(record_answer)
        clock.time += timedelta(seconds=60)
        done = await process.resume(run)
        assert (done.status, executed) == (Status.DONE, [json.loads(first.args)["path"]])
        states = {each.id: each.state for each in await process.approvals()}
        assert states == {first.id: ApprovalState.USED, second.id: ApprovalState.EXPIRED}
        refused = [json.loads(each.text) for each in await process.tool_results(run) if not each.ok]
        assert ["not answered within 60 s" in each["message"] for each in refused] == [True]
