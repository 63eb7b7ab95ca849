"""Which calls run, require approval or are refused: by tool, grant, approval policy and sandbox level."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import Answer, ApprovalPolicy, ApprovalState, ToolAccess
from retinue.domain.ceiling import OPERATOR, Ceiling, OperatorPolicy
from retinue.domain.limits import Limits
from retinue.domain.run import Run, Status, WaitReason
from retinue.domain.sandbox_level import SandboxLevel
from retinue.interfaces import Call, Tool
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.testing.shells import FakeShell
from retinue.tools.define import tool

executed: list[str] = []


@pytest.fixture(autouse=True)
def clear_executed() -> None:
    executed.clear()


def make_act_tool(
    asks: str | None, access: tuple[ToolAccess, str] | None = None, effect: str = "once"
) -> Tool:
    @tool(name="act", asks=asks, access=access, effect=effect)
    async def act(
        call: Call, path: str = "a.txt", command: str = "ls", place: str = ".github/workflows/ci.yml"
    ) -> str:
        """Writes a file or runs a command."""
        if access and access[0] == "write":
            call.files.write(path, b"x")
        if access and access[0] == "run":
            await call.shell(command, 1)
        executed.append(path)
        return "acted"

    return act


async def refusals(process: RuntimeProcess, run: Run) -> list[dict[str, Any]]:
    return [json.loads(each.text) for each in await process.tool_results(run) if not each.ok]


ASK, AUTO, DENY = ApprovalPolicy.ASK, ApprovalPolicy.AUTO, ApprovalPolicy.DENY
STRICT, LANDLOCK, NONE = SandboxLevel.STRICT, SandboxLevel.LANDLOCK, SandboxLevel.NONE
WRITE, RUN = ("write", "path"), ("run", "command")
GRANTED = 'paths: {read: ["**"], write: ["**"]}\nshell_commands: {allow: [ls]}\n'

DECISIONS: list[tuple[str | None, Any, str, ApprovalPolicy, SandboxLevel, str]] = [
    (None, None, "", ASK, STRICT, "approval"),
    (None, None, GRANTED, ASK, STRICT, "approval"),
    (None, None, "", AUTO, NONE, "run"),
    (None, None, "", DENY, STRICT, "refused"),
    ("never", None, "", ASK, NONE, "run"),
    ("never", None, "", DENY, NONE, "run"),
    ("always", None, "", ASK, STRICT, "approval"),
    ("always", None, "", DENY, STRICT, "refused"),
    (None, WRITE, "", ASK, STRICT, "approval"),
    (None, WRITE, GRANTED, ASK, NONE, "run"),
    (None, WRITE, GRANTED, DENY, NONE, "run"),
    (None, WRITE, "", AUTO, NONE, "run"),
    (None, WRITE, "", DENY, STRICT, "refused"),
    ("always", WRITE, GRANTED, ASK, STRICT, "approval"),
    (None, RUN, "", ASK, STRICT, "approval"),
    (None, RUN, GRANTED, ASK, STRICT, "run"),
    (None, RUN, GRANTED, DENY, STRICT, "run"),
    (None, RUN, GRANTED, ASK, LANDLOCK, "approval"),
    (None, RUN, GRANTED, ASK, NONE, "approval"),
    (None, RUN, GRANTED, DENY, NONE, "refused"),
    (None, RUN, "", AUTO, STRICT, "run"),
    (None, RUN, "", AUTO, LANDLOCK, "approval"),
    (None, RUN, "", AUTO, NONE, "approval"),
    (None, RUN, "", DENY, STRICT, "refused"),
    ("always", RUN, GRANTED, ASK, STRICT, "approval"),
]


@pytest.mark.parametrize(("asks", "access", "front", "policy", "level", "expected"), DECISIONS)
async def test_tool_grants_policy_and_sandbox_level_decide_whether_a_call_requires_approval(  # noqa: PLR0917  (one column each)
    runtime: RuntimeFixture,
    asks: str | None,
    access: tuple[ToolAccess, str] | None,
    front: str,
    policy: ApprovalPolicy,
    level: SandboxLevel,
    expected: str,
):
    """Shows: B053, T08, T12."""
    runtime.write_agent("general", front)
    shell = FakeShell(level=level)
    async with runtime.open(
        tool_call_reply(("act", "{}")),
        text_reply("Done."),
        tools=[make_act_tool(asks, access)],
        approval_policy=policy,
        shell=shell,
    ) as process:
        run = await process.run("Act.")
        approvals = await process.approvals()
        if expected == "approval":
            assert (run.status, run.waiting_for, executed) == (Status.WAITING, WaitReason.APPROVAL, [])
            await process.answer_only_approval(Answer.ALLOW)
            assert (await process.wait(run)).status is Status.DONE
            assert executed == ["a.txt"]
            assert [approval.state for approval in await process.approvals()] == [ApprovalState.USED]
        elif expected == "run":
            assert (run.status, approvals, executed) == (Status.DONE, [], ["a.txt"])
        else:
            (refused,) = await refusals(process, run)
            assert (run.status, approvals, executed) == (Status.DONE, [], [])
            assert refused["error"] == "approval_denied"
            assert refused["message"] == (
                "act did not run: the configuration denies every approval request (approvals = deny). "
                "Continue without it, or explain why you need it."
            )


WRITE_CI = ("write", "place")
PROTECTED_FILE = "GitHub Actions obeys this file (**/.github/workflows/**), so every change requires approval"
REASONS: list[tuple[Any, str, SandboxLevel, str, SandboxLevel | None]] = [
    (None, "", STRICT, "this tool has side effects", None),
    (WRITE, "", STRICT, "not preapproved by any rule", None),
    (WRITE_CI, "", STRICT, PROTECTED_FILE, None),
    (WRITE_CI, GRANTED, STRICT, PROTECTED_FILE, None),
    (RUN, "", STRICT, "not preapproved by any shell_commands rule", STRICT),
    (
        RUN,
        "shell_commands: {deny: [rm]}\n",
        STRICT,
        "not preapproved by any shell_commands rule",
        STRICT,
    ),
    (RUN, "shell_commands: {allow: [cat]}\n", STRICT, "no pattern of shell_commands allows it", STRICT),
    (RUN, "", LANDLOCK, "the sandbox level is landlock, so every command requires approval", LANDLOCK),
    (RUN, GRANTED, NONE, "the sandbox level is none, so every command requires approval", NONE),
]


@pytest.mark.parametrize(("access", "front", "level", "reason", "shown_level"), REASONS)
async def test_an_approval_states_its_reason_and_the_sandbox_level_of_a_command(
    runtime: RuntimeFixture,
    access: tuple[ToolAccess, str],
    front: str,
    level: SandboxLevel,
    reason: str,
    shown_level: SandboxLevel | None,
):
    """Shows: T10."""
    runtime.write_agent("general", front)
    shell = FakeShell(level=level)
    async with runtime.open(
        tool_call_reply(("act", "{}")),
        tools=[make_act_tool(None, access)],
        approval_policy=ASK,
        shell=shell,
    ) as process:
        await process.run("Act.")
        (approval,) = await process.approvals()
        assert (approval.reason, approval.level) == (reason, shown_level)
        assert (approval.expires_at - approval.asked_at).total_seconds() == Limits().approval_seconds


@pytest.mark.parametrize("access", [WRITE, RUN])
async def test_the_approval_of_a_tool_that_always_asks_gives_that_as_its_reason(
    runtime: RuntimeFixture, access: tuple[ToolAccess, str]
):
    runtime.write_agent("general", GRANTED)
    shell = FakeShell(level=STRICT)
    async with runtime.open(
        tool_call_reply(("act", "{}")),
        tools=[make_act_tool("always", access)],
        approval_policy=ASK,
        shell=shell,
    ) as process:
        await process.run("Act.")
        (approval,) = await process.approvals()
        assert approval.reason == "this tool requires approval for every call"


@pytest.mark.parametrize(("level", "minimum", "runs"), [
    (STRICT, STRICT, True), (LANDLOCK, STRICT, False), (NONE, LANDLOCK, False), (LANDLOCK, LANDLOCK, True),
])  # fmt: skip
async def test_no_command_runs_below_the_minimum_sandbox_level(
    runtime: RuntimeFixture, level: SandboxLevel, minimum: SandboxLevel, runs: bool
):
    shell = FakeShell(level=level)
    async with runtime.open(
        tool_call_reply(("bash", '{"command": "ls"}')),
        text_reply("Done."),
        approval_policy=AUTO,
        shell=shell,
        minimum_sandbox_level=minimum,
    ) as process:
        run = await process.run("Look.")
        if runs:
            assert run.status is (Status.DONE if level is STRICT else Status.WAITING)
            return
        (refused,) = await refusals(process, run)
        assert (refused["error"], refused["tool"]) == ("tool_not_allowed", "bash")
        assert f"sandbox level {level} is below sandbox.minimum ({minimum})" in refused["message"]
        assert "bash" not in {each.name for each in process.provider.requests[0].request.tools}
        assert (shell.commands, await process.approvals()) == ([], [])


async def test_a_scope_expansion_for_a_command_is_refused_below_the_minimum_sandbox_level(
    runtime: RuntimeFixture,
):
    shell = FakeShell(level=NONE)
    request = {"tool": "bash", "resource": "ls", "reason": "To look."}
    async with runtime.open(
        tool_call_reply(("request_scope_expansion", json.dumps(request))),
        text_reply("Done."),
        approval_policy=ASK,
        shell=shell,
        minimum_sandbox_level=STRICT,
    ) as process:
        (refused,) = await refusals(process, await process.run("Look."))
        assert refused["message"] == (
            "No approval can allow this: sandbox level none is below sandbox.minimum (strict)"
        )
        assert await process.approvals() == []


async def test_an_approved_write_does_not_allow_the_tool_to_write_another_file(runtime: RuntimeFixture):
    """Shows: T10."""

    @tool(access=("write", "path"))
    async def write_two_files(call: Call, path: str) -> str:
        """Writes two files, and declares one."""
        call.files.write(path, b"declared")
        call.files.write("other.txt", b"undeclared")
        return "wrote"

    async with runtime.open(
        tool_call_reply(("write_two_files", '{"path": "a.txt"}')),
        text_reply("Done."),
        tools=[write_two_files],
        approval_policy=ASK,
    ) as process:
        run = await process.run("Write.")
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        (refused,) = await refusals(process, run)
        assert refused["resource"].endswith("other.txt")
        assert [path.name for path in runtime.workspace.iterdir()] == ["a.txt"]


def last_policy(policies: list[OperatorPolicy]) -> OperatorPolicy:
    return policies[-1]


async def test_a_call_denied_by_the_configuration_after_its_approval_is_refused(
    runtime: RuntimeFixture,
):
    """Shows: L024, T10."""
    for policy, error in (
        (OperatorPolicy(deny_tools=("write",)), "tool_not_allowed"),
        (OperatorPolicy(deny_paths=("*.txt",)), "out_of_scope"),
    ):
        policies = [OperatorPolicy()]
        write = tool_call_reply(("write", '{"path": "a.txt", "content": "x"}'))
        async with runtime.open(
            write, text_reply("Done."), approval_policy=ASK, operator_policy=partial(last_policy, policies)
        ) as process:
            run = await process.run("Write.")
            policies.append(policy)
            await process.answer_only_approval(Answer.ALLOW)
            assert (await process.wait(run)).status is Status.DONE
            (refused,) = await refusals(process, run)
            assert refused["error"] == error
            assert list(runtime.workspace.iterdir()) == []


@pytest.fixture
def outside_file(runtime: RuntimeFixture) -> Path:
    """Create a file outside the workspace; no test writes to a file of the machine."""
    path = runtime.folder / "far.txt"
    path.write_text("root of it")
    return path


def read_expansion_call(outside_file: Path) -> Any:
    request = {"tool": "read", "resource": str(outside_file), "reason": "Because."}
    return tool_call_reply(("request_scope_expansion", json.dumps(request)))


@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        (("read", {"path": "far.txt"}), True),
        (("grep", {"pattern": "root", "path": "far.txt"}), True),
        (("read", {"path": "near.txt"}), False),
        (("ls", {"path": ""}), False),
        (("write", {"path": "far.txt", "content": "x"}), False),
    ],
)
async def test_an_expansion_allowed_once_allows_reading_that_file_only(
    runtime: RuntimeFixture, outside_file: Path, call: tuple[str, Any], allowed: bool
):
    """Shows: A093, T10."""
    (runtime.folder / "near.txt").write_text("root")
    args = call[1] | {"path": str(runtime.folder / call[1]["path"])}
    script = [
        read_expansion_call(outside_file),
        tool_call_reply((call[0], json.dumps(args))),
        text_reply("Done."),
    ]
    async with runtime.open(*script, approval_policy=AUTO) as process:
        run = await process.run("Read.")
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        _, second = await process.tool_results(run)
        assert second.ok is allowed
        (approval,) = await process.approvals()
        assert approval.state is (ApprovalState.USED if allowed else ApprovalState.ALLOWED)
        assert outside_file.read_text() == "root of it"


async def test_an_expansion_allowed_once_ends_with_its_run(runtime: RuntimeFixture, outside_file: Path):
    script = [
        read_expansion_call(outside_file),
        text_reply("Good."),
        tool_call_reply(("read", json.dumps({"path": str(outside_file)}))),
        text_reply("No."),
    ]
    async with runtime.open(*script, approval_policy=AUTO) as process:
        run = await process.run("Ask.")
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        later = await process.run("Read.", session=await process.store.find(run.session_id))
        assert not (await process.tool_results(later))[-1].ok


@pytest.mark.parametrize("policy", [ASK, AUTO])
async def test_a_scope_expansion_requires_approval_under_every_policy(
    runtime: RuntimeFixture, outside_file: Path, policy: ApprovalPolicy
):
    """Shows: A093."""
    async with runtime.open(
        read_expansion_call(outside_file), text_reply("Done."), approval_policy=policy
    ) as process:
        run = await process.run("Ask.")
        (approval,) = await process.approvals()
        assert (approval.access, approval.tool, approval.resource, approval.reason) == (
            "scope", "read", str(outside_file), "Because.",
        )  # fmt: skip
        await process.answer_only_approval(Answer.DENY)
        assert (await process.wait(run)).status is Status.DONE
        (refused,) = await refusals(process, run)
        assert (refused["error"], refused["resource"]) == ("approval_denied", str(outside_file))
        assert "person denied it" in refused["message"]


def expansion_call(tool: str, resource: str) -> Any:
    request = {"tool": tool, "resource": resource, "reason": "x"}
    return tool_call_reply(("request_scope_expansion", json.dumps(request)))


REFUSED_EXPANSIONS: list[tuple[str, Callable[[Path], str], str]] = [
    ("read", lambda _: "/etc/shadow", "No approval can allow this: always closed /etc/shadow"),
    ("read", lambda ws: f"{ws}/a", "is already in your scope. Call read."),
    ("write", lambda ws: f"{ws}/a", "is already in your scope. Call write."),
    (
        "write",
        lambda ws: f"{ws.parent}/far.txt",
        "No approval can allow this: the ceiling allows write only in",
    ),
    ("bash", lambda _: "rm  -rf /", "No approval can allow this: shell_commands deny rm -rf"),
    ("todo", lambda _: "x", "'todo' uses neither"),
    ("nothing", lambda _: "x", "'nothing' uses neither"),
]


@pytest.mark.parametrize(("name", "resource", "message"), REFUSED_EXPANSIONS)
async def test_a_scope_expansion_that_no_approval_can_allow_is_refused_with_the_reason(
    runtime: RuntimeFixture, name: str, resource: Callable[[Path], str], message: str
):
    """Shows: A090."""
    runtime.write_agent("general", "shell_commands: {deny: [rm -rf]}\n")
    policy = OperatorPolicy(ceiling=Ceiling(set_by=OPERATOR, write=("**/work/**",)))
    (runtime.workspace / "a").touch()
    request = expansion_call(name, resource(runtime.workspace))
    async with runtime.open(request, text_reply("Done."), operator_policy=lambda: policy) as process:
        run = await process.run("Ask.")
        (refused,) = await refusals(process, run)
        assert (run.status, await process.approvals()) == (Status.DONE, [])
        assert (refused["error"], refused["tool"]) == ("refused", "request_scope_expansion")
        assert message in refused["message"]


async def test_a_command_allowed_once_in_advance_runs_once_in_the_strict_sandbox(
    runtime: RuntimeFixture,
):
    """Shows: S20."""
    shell = FakeShell(level=STRICT)
    bash_call = tool_call_reply(("bash", '{"command": "make all; make test"}'))
    script = [expansion_call("bash", "make all; make test"), bash_call, bash_call, text_reply("Done.")]
    async with runtime.open(*script, approval_policy=ASK, shell=shell) as process:
        run = await process.run("Make.")
        await process.answer_only_approval(Answer.ALLOW)
        waiting = await process.wait(run)
        assert (waiting.status, len(shell.commands)) == (Status.WAITING, 1)
        await process.answer_only_approval(Answer.DENY)
        assert (await process.wait(run)).status is Status.DONE
        assert len(shell.commands) == 1


async def test_an_approval_names_the_chain_of_sessions_from_the_ledger(runtime: RuntimeFixture):
    """Shows: L006, T08."""
    async with runtime.open(
        by_agent={"general": [text_reply("Hi.")], "child": [tool_call_reply(("act", "{}"))]},
        tools=[make_act_tool(None)],
        approval_policy=ASK,
    ) as process:
        runtime.write_agent("child")
        parent = await process.run("Hi.")
        child = await process.run("Act.", agent="child", parent_run=parent.id)
        (approval,) = await process.approvals()
        assert approval.chain == ("person", parent.session_key, child.session_key)
        assert (approval.run, approval.session, approval.agent) == (child.id, child.session_id, "child")
