"""Which calls are let through, which wait for a person, and which are refused: by tool, grant, policy and sandbox."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState, ToolAccess
from retinue.domain.ceiling import OPERATOR, Ceiling, OperatorPolicy
from retinue.domain.limits import Limits
from retinue.domain.run import Run, Status, WaitReason
from retinue.domain.sandbox_level import SandboxLevel
from retinue.interfaces import Call, Tool, Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.testing.shells import FakeShell
from retinue.tools.define import tool

done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_was_done() -> None:
    done.clear()


def acts(asks: str | None, access: tuple[ToolAccess, str] | None = None, effect: str = "once") -> Tool:
    @tool(name="act", asks=asks, access=access, effect=effect)
    async def act(
        call: Call, path: str = "a.txt", command: str = "ls", place: str = ".github/workflows/ci.yml"
    ) -> str:
        """Acts."""
        if access and access[0] == "write":
            call.files.write(path, b"x")
        if access and access[0] == "run":
            await call.shell(command, 1)
        done.append(path)
        return "acted"

    return act


async def approvals(process: RuntimeProcess) -> list[Approval]:
    def step(tx: Transaction) -> list[Approval]:
        return tx.find_approvals()

    return await process.context.ledger.read(step)


async def answer(process: RuntimeProcess, said: Answer) -> None:
    (asked,) = [each for each in await approvals(process) if each.state is ApprovalState.PENDING]
    await run_control.answer_approval(asked.id, said, process.context, by="person", is_alive=lambda _: True)


async def refusals(process: RuntimeProcess, run: Run) -> list[dict[str, Any]]:
    return [json.loads(each.text) for each in await process.tool_results(run) if not each.ok]


ASK, AUTO, DENY = ApprovalPolicy.ASK, ApprovalPolicy.AUTO, ApprovalPolicy.DENY
STRICT, LANDLOCK, NONE = SandboxLevel.STRICT, SandboxLevel.LANDLOCK, SandboxLevel.NONE
WRITE, RUN = ("write", "path"), ("run", "command")
GRANTED = 'paths: {read: ["**"], write: ["**"]}\nshell_commands: {allow: [ls]}\n'

LET: list[tuple[str | None, Any, str, ApprovalPolicy, SandboxLevel, str]] = [
    (None, None, "", ASK, STRICT, "asked"),
    (None, None, GRANTED, ASK, STRICT, "asked"),
    (None, None, "", AUTO, NONE, "done"),
    (None, None, "", DENY, STRICT, "refused"),
    ("never", None, "", ASK, NONE, "done"),
    ("never", None, "", DENY, NONE, "done"),
    ("always", None, "", ASK, STRICT, "asked"),
    ("always", None, "", DENY, STRICT, "refused"),
    (None, WRITE, "", ASK, STRICT, "asked"),
    (None, WRITE, GRANTED, ASK, NONE, "done"),
    (None, WRITE, GRANTED, DENY, NONE, "done"),
    (None, WRITE, "", AUTO, NONE, "done"),
    (None, WRITE, "", DENY, STRICT, "refused"),
    ("always", WRITE, GRANTED, ASK, STRICT, "asked"),
    (None, RUN, "", ASK, STRICT, "asked"),
    (None, RUN, GRANTED, ASK, STRICT, "done"),
    (None, RUN, GRANTED, DENY, STRICT, "done"),
    (None, RUN, GRANTED, ASK, LANDLOCK, "asked"),
    (None, RUN, GRANTED, ASK, NONE, "asked"),
    (None, RUN, GRANTED, DENY, NONE, "refused"),
    (None, RUN, "", AUTO, STRICT, "done"),
    (None, RUN, "", AUTO, LANDLOCK, "asked"),
    (None, RUN, "", AUTO, NONE, "asked"),
    (None, RUN, "", DENY, STRICT, "refused"),
    ("always", RUN, GRANTED, ASK, STRICT, "asked"),
]


@pytest.mark.parametrize(("asks", "access", "front", "policy", "level", "expected"), LET)
async def test_who_is_asked_before_what(  # noqa: PLR0917  (one column each)
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
    ports: dict[str, Any] = {
        "approval_policy": policy,
        "shell_for": shell,
        "detect_level": shell.level_detector(),
    }
    async with runtime.open(
        tool_call_reply(("act", "{}")), text_reply("Done."), tools=[acts(asks, access)], **ports
    ) as process:
        run = await process.run("Act.")
        asked = await approvals(process)
        if expected == "asked":
            assert (run.status, run.waiting_for, done) == (Status.WAITING, WaitReason.APPROVAL, [])
            await answer(process, Answer.ALLOW)
            assert (await process.wait(run)).status is Status.DONE
            assert done == ["a.txt"]
            assert [each.state for each in await approvals(process)] == [ApprovalState.USED]
        elif expected == "done":
            assert (run.status, asked, done) == (Status.DONE, [], ["a.txt"])
        else:
            (refused,) = await refusals(process, run)
            assert (run.status, asked, done) == (Status.DONE, [], [])
            assert refused["error"] == "approval_denied"
            assert refused["message"] == (
                "act did not run: the configuration denies every approval request (approvals = deny). "
                "Continue without it, or explain why you need it."
            )


WRITE_CI = ("write", "place")
OBEYED = (
    "other programs execute or trust this file (**/.github/workflows/**), so every change requires approval"
)
REASONS: list[tuple[Any, str, SandboxLevel, str, SandboxLevel | None]] = [
    (None, "", STRICT, "this tool has side effects", None),
    (WRITE, "", STRICT, "no rule allows write there without approval", None),
    (WRITE_CI, "", STRICT, OBEYED, None),
    (WRITE_CI, GRANTED, STRICT, OBEYED, None),
    (RUN, "", STRICT, "no shell_commands rule allows it without approval", STRICT),
    (
        RUN,
        "shell_commands: {deny: [rm]}\n",
        STRICT,
        "no shell_commands rule allows it without approval",
        STRICT,
    ),
    (RUN, "shell_commands: {allow: [cat]}\n", STRICT, "no pattern of shell_commands allows it", STRICT),
    (RUN, "", LANDLOCK, "the sandbox level is landlock, so every command requires approval", LANDLOCK),
    (RUN, GRANTED, NONE, "the sandbox level is none, so every command requires approval", NONE),
]


@pytest.mark.parametrize(("access", "front", "level", "reason", "held"), REASONS)
async def test_a_question_says_why_it_is_asked_and_how_tightly_it_is_held(
    runtime: RuntimeFixture,
    access: tuple[ToolAccess, str],
    front: str,
    level: SandboxLevel,
    reason: str,
    held: SandboxLevel | None,
):
    """Shows: T10."""
    runtime.write_agent("general", front)
    shell = FakeShell(level=level)
    async with runtime.open(
        tool_call_reply(("act", "{}")),
        tools=[acts(None, access)],
        approval_policy=ASK,
        shell_for=shell,
        detect_level=shell.level_detector(),
    ) as process:
        await process.run("Act.")
        (asked,) = await approvals(process)
        assert (asked.reason, asked.level) == (reason, held)
        assert (asked.expires_at - asked.asked_at).total_seconds() == Limits().approval_seconds


@pytest.mark.parametrize("access", [WRITE, RUN])
async def test_a_tool_that_asks_each_time_does_not_say_that_nothing_grants_it(
    runtime: RuntimeFixture, access: tuple[ToolAccess, str]
):
    runtime.write_agent("general", GRANTED)
    shell = FakeShell(level=STRICT)
    async with runtime.open(
        tool_call_reply(("act", "{}")),
        tools=[acts("always", access)],
        approval_policy=ASK,
        shell_for=shell,
        detect_level=shell.level_detector(),
    ) as process:
        await process.run("Act.")
        (asked,) = await approvals(process)
        assert asked.reason == "this tool requires approval for every call"


@pytest.mark.parametrize(("level", "minimum", "runs"), [
    (STRICT, STRICT, True), (LANDLOCK, STRICT, False), (NONE, LANDLOCK, False), (LANDLOCK, LANDLOCK, True),
])  # fmt: skip
async def test_below_the_operators_minimum_no_command_runs_whoever_allows_it(
    runtime: RuntimeFixture, level: SandboxLevel, minimum: SandboxLevel, runs: bool
):
    shell = FakeShell(level=level)
    ports: dict[str, Any] = {
        "approval_policy": AUTO,
        "shell_for": shell,
        "detect_level": shell.level_detector(),
        "minimum_sandbox_level": minimum,
    }
    async with runtime.open(
        tool_call_reply(("bash", '{"command": "ls"}')), text_reply("Done."), **ports
    ) as process:
        run = await process.run("Look.")
        if runs:
            assert run.status is (Status.DONE if level is STRICT else Status.WAITING)
            return
        (refused,) = await refusals(process, run)
        assert (refused["error"], refused["tool"]) == ("tool_not_allowed", "bash")
        assert f"sandbox level {level} is below sandbox.minimum ({minimum})" in refused["message"]
        assert "bash" not in {each.name for each in process.provider.requests[0].request.tools}
        assert (shell.commands, await approvals(process)) == ([], [])


async def test_a_wish_for_a_command_is_no_question_where_none_is_run(runtime: RuntimeFixture):
    shell = FakeShell(level=NONE)
    wish = {"tool": "bash", "resource": "ls", "reason": "To look."}
    ports: dict[str, Any] = {
        "approval_policy": ASK,
        "shell_for": shell,
        "detect_level": shell.level_detector(),
        "minimum_sandbox_level": STRICT,
    }
    async with runtime.open(
        tool_call_reply(("request_scope_expansion", json.dumps(wish))), text_reply("Done."), **ports
    ) as process:
        (refused,) = await refusals(process, await process.run("Look."))
        assert refused["message"] == (
            "No approval can allow this: sandbox level none is below sandbox.minimum (strict)"
        )
        assert await approvals(process) == []


async def test_one_yes_speaks_for_one_file_whatever_the_tool_then_tries(runtime: RuntimeFixture):
    """Shows: T10."""

    @tool(access=("write", "path"))
    async def sly(call: Call, path: str) -> str:
        """Writes more than it says."""
        call.files.write(path, b"said")
        call.files.write("other.txt", b"not said")
        return "wrote"

    async with runtime.open(
        tool_call_reply(("sly", '{"path": "a.txt"}')), text_reply("Done."), tools=[sly], approval_policy=ASK
    ) as process:
        run = await process.run("Write.")
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        (refused,) = await refusals(process, run)
        assert refused["resource"].endswith("other.txt")
        assert [path.name for path in runtime.workspace.iterdir()] == ["a.txt"]


def latest(said: list[OperatorPolicy]) -> OperatorPolicy:
    return said[-1]


async def test_what_the_operator_denies_meanwhile_is_refused_though_a_person_said_yes(
    runtime: RuntimeFixture,
):
    """Shows: L024, T10."""
    for bounds, error in (
        (OperatorPolicy(deny_tools=("write",)), "tool_not_allowed"),
        (OperatorPolicy(deny_paths=("*.txt",)), "out_of_scope"),
    ):
        now = [OperatorPolicy()]
        wish = tool_call_reply(("write", '{"path": "a.txt", "content": "x"}'))
        async with runtime.open(
            wish, text_reply("Done."), approval_policy=ASK, operator_policy=partial(latest, now)
        ) as process:
            run = await process.run("Write.")
            now.append(bounds)
            await answer(process, Answer.ALLOW)
            assert (await process.wait(run)).status is Status.DONE
            (refused,) = await refusals(process, run)
            assert refused["error"] == error
            assert list(runtime.workspace.iterdir()) == []


@pytest.fixture
def far(runtime: RuntimeFixture) -> Path:
    """A file of this test's own, outside of the workspace: no test names a file of the machine's to write."""
    path = runtime.folder / "far.txt"
    path.write_text("root of it")
    return path


def wish_for(far: Path) -> Any:
    wish = {"tool": "read", "resource": str(far), "reason": "Because."}
    return tool_call_reply(("request_scope_expansion", json.dumps(wish)))


@pytest.mark.parametrize(
    ("used", "opens"),
    [
        (("read", {"path": "far.txt"}), True),
        (("grep", {"pattern": "root", "path": "far.txt"}), True),
        (("read", {"path": "near.txt"}), False),
        (("ls", {"path": ""}), False),
        (("write", {"path": "far.txt", "content": "x"}), False),
    ],
)
async def test_allowed_once_is_for_that_file_to_be_read_and_for_nothing_else(
    runtime: RuntimeFixture, far: Path, used: tuple[str, Any], opens: bool
):
    """Shows: A093, T10."""
    (runtime.folder / "near.txt").write_text("root")
    args = used[1] | {"path": str(runtime.folder / used[1]["path"])}
    script = [wish_for(far), tool_call_reply((used[0], json.dumps(args))), text_reply("Done.")]
    async with runtime.open(*script, approval_policy=AUTO) as process:
        run = await process.run("Read.")
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        _, second = await process.tool_results(run)
        assert second.ok is opens
        (asked,) = await approvals(process)
        assert asked.state is (ApprovalState.USED if opens else ApprovalState.ALLOWED)
        assert far.read_text() == "root of it"


async def test_allowed_once_does_not_outlive_the_run_that_asked(runtime: RuntimeFixture, far: Path):
    script = [
        wish_for(far),
        text_reply("Good."),
        tool_call_reply(("read", json.dumps({"path": str(far)}))),
        text_reply("No."),
    ]
    async with runtime.open(*script, approval_policy=AUTO) as process:
        run = await process.run("Ask.")
        await answer(process, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        later = await process.run("Read.", session=await process.store.find(run.session_id))
        assert not (await process.tool_results(later))[-1].ok


@pytest.mark.parametrize("policy", [ASK, AUTO])
async def test_a_wish_for_more_is_always_put_to_a_person(
    runtime: RuntimeFixture, far: Path, policy: ApprovalPolicy
):
    """Shows: A093."""
    async with runtime.open(wish_for(far), text_reply("Done."), approval_policy=policy) as process:
        run = await process.run("Ask.")
        (asked,) = await approvals(process)
        assert (asked.access, asked.tool, asked.resource, asked.reason) == (
            "scope", "read", str(far), "Because.",
        )  # fmt: skip
        await answer(process, Answer.DENY)
        assert (await process.wait(run)).status is Status.DONE
        (refused,) = await refusals(process, run)
        assert (refused["error"], refused["resource"]) == ("approval_denied", str(far))
        assert "person denied it" in refused["message"]


def more(tool: str, resource: str) -> Any:
    wish = {"tool": tool, "resource": resource, "reason": "x"}
    return tool_call_reply(("request_scope_expansion", json.dumps(wish)))


HOPELESS: list[tuple[str, Callable[[Path], str], str]] = [
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


@pytest.mark.parametrize(("name", "resource", "why"), HOPELESS)
async def test_what_no_person_can_allow_is_refused_in_the_one_shape(
    runtime: RuntimeFixture, name: str, resource: Callable[[Path], str], why: str
):
    """Shows: A090."""
    runtime.write_agent("general", "shell_commands: {deny: [rm -rf]}\n")
    bounds = OperatorPolicy(ceiling=Ceiling(set_by=OPERATOR, write=("**/work/**",)))
    (runtime.workspace / "a").touch()
    wish = more(name, resource(runtime.workspace))
    async with runtime.open(wish, text_reply("Done."), operator_policy=lambda: bounds) as process:
        run = await process.run("Ask.")
        (refused,) = await refusals(process, run)
        assert (run.status, await approvals(process)) == (Status.DONE, [])
        assert (refused["error"], refused["tool"]) == ("refused", "request_scope_expansion")
        assert why in refused["message"]


async def test_an_allowed_command_is_run_once_and_only_in_the_strict_cell_without_asking_again(
    runtime: RuntimeFixture,
):
    """Shows: S20."""
    shell = FakeShell(level=STRICT)
    run_it = tool_call_reply(("bash", '{"command": "make all; make test"}'))
    script = [more("bash", "make all; make test"), run_it, run_it, text_reply("Done.")]
    async with runtime.open(
        *script, approval_policy=ASK, shell_for=shell, detect_level=shell.level_detector()
    ) as process:
        run = await process.run("Make.")
        await answer(process, Answer.ALLOW)
        waiting = await process.wait(run)
        assert (waiting.status, len(shell.commands)) == (Status.WAITING, 1)
        await answer(process, Answer.DENY)
        assert (await process.wait(run)).status is Status.DONE
        assert len(shell.commands) == 1


async def test_the_chain_of_who_asked_comes_from_the_rows(runtime: RuntimeFixture):
    """Shows: L006, T08."""
    async with runtime.open(
        by_agent={"general": [text_reply("Hi.")], "kid": [tool_call_reply(("act", "{}"))]},
        tools=[acts(None)],
        approval_policy=ASK,
    ) as process:
        runtime.write_agent("kid")
        parent = await process.run("Hi.")
        kid = await process.run("Act.", agent="kid", parent_run=parent.id)
        (asked,) = await approvals(process)
        assert asked.chain == ("person", parent.session_key, kid.session_key)
        assert (asked.run, asked.session, asked.agent) == (kid.id, kid.session_id, "kid")
