"""A yes to a command is one to the files that it names as they were: a script that is another by then asks anew."""

import hashlib
import json
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import (
    MAX_COMPARED_BYTES,
    Answer,
    Approval,
    ApprovalPolicy,
    ApprovalState,
    NamedFile,
)
from retinue.domain.run import Run, Status
from retinue.domain.sandbox_level import SandboxLevel
from retinue.interfaces import Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.testing.shells import FakeShell


def bash(command: str) -> Any:
    return tool_call_reply(("bash", json.dumps({"command": command})))


def held(runtime: RuntimeFixture, name: str, text: str) -> NamedFile:
    """A file of the workspace, as a question tells of it."""
    path = runtime.workspace / name
    path.write_text(text)
    return NamedFile(
        path=str(path.resolve()), sha256=hashlib.sha256(text.encode()).hexdigest(), size=len(text)
    )


async def approvals(process: RuntimeProcess) -> list[Approval]:
    def step(tx: Transaction) -> list[Approval]:
        return tx.find_approvals()

    return await process.context.ledger.read(step)


async def answered(process: RuntimeProcess, run: Run, said: Answer, tool: str = "bash") -> Run:
    """The run, once it goes no further after the answer."""
    (asked,) = [
        each for each in await approvals(process) if each.state is ApprovalState.PENDING and each.tool == tool
    ]
    await run_control.answer_approval(asked.id, said, process.context, by="person", is_alive=lambda _: True)
    return await process.wait(run)


@pytest.fixture
def shell() -> FakeShell:
    return FakeShell(output="ok\n")


@pytest.fixture
def asks(shell: FakeShell) -> dict[str, Any]:
    return {
        "shell_for": shell,
        "detect_level": shell.level_detector(),
        "approval_policy": ApprovalPolicy.ASK,
    }


@pytest.mark.parametrize("level", list(SandboxLevel))
async def test_a_script_that_changed_after_the_yes_is_asked_about_again(
    runtime: RuntimeFixture, shell: FakeShell, asks: dict[str, Any], level: SandboxLevel
):
    """Shows: T10."""
    shell.level = level
    before = held(runtime, "run.sh", "echo good\n")
    async with runtime.open(bash("sh run.sh; ls"), text_reply("Done."), **asks) as process:
        run = await process.run("Run it.")
        (first,) = await approvals(process)
        assert first.files == (before,)
        after = held(runtime, "run.sh", "echo evil\n")
        assert (await answered(process, run, Answer.ALLOW)).status is Status.WAITING
        _, second = await approvals(process)
        assert (second.files, shell.commands) == ((after,), [])
        assert second.reason == f"changed since you were asked: {after.path}"
        assert (await answered(process, run, Answer.ALLOW)).status is Status.DONE
    assert [command for command, _ in shell.commands] == ["sh run.sh; ls"]


async def test_a_script_that_stayed_as_it_was_runs_after_one_yes(
    runtime: RuntimeFixture, shell: FakeShell, asks: dict[str, Any]
):
    held(runtime, "run.sh", "echo good\n")
    async with runtime.open(bash("./run.sh"), text_reply("Done."), **asks) as process:
        run = await process.run("Run it.")
        held(runtime, "other.sh", "echo new\n")
        held(runtime, "run.sh", "echo good\n")
        assert (await answered(process, run, Answer.ALLOW)).status is Status.DONE
        assert [each.state for each in await approvals(process)] == [ApprovalState.USED]
    assert len(shell.commands) == 1


async def test_a_file_that_appears_or_goes_after_the_yes_asks_again(
    runtime: RuntimeFixture, asks: dict[str, Any]
):
    """Shows: T10."""
    async with runtime.open(bash("sh run.sh"), text_reply("Done."), **asks) as process:
        run = await process.run("Run it.")
        new = held(runtime, "run.sh", "echo new\n")
        assert (await answered(process, run, Answer.ALLOW)).status is Status.WAITING
        (runtime.workspace / "run.sh").unlink()
        assert (await answered(process, run, Answer.ALLOW)).status is Status.WAITING
        assert [each.files for each in await approvals(process)] == [(), (new,), ()]
        assert (await answered(process, run, Answer.ALLOW)).status is Status.DONE


async def test_a_no_stands_whatever_becomes_of_the_script(
    runtime: RuntimeFixture, shell: FakeShell, asks: dict[str, Any]
):
    held(runtime, "run.sh", "echo evil\n")
    async with runtime.open(bash("sh run.sh"), text_reply("Then not."), **asks) as process:
        run = await process.run("Run it.")
        held(runtime, "run.sh", "echo other\n")
        assert (await answered(process, run, Answer.DENY)).status is Status.DONE
        assert [each.state for each in await approvals(process)] == [ApprovalState.DENIED]
    assert shell.commands == []


async def test_a_question_about_a_script_that_is_another_by_now_cannot_be_answered_any_more(
    runtime: RuntimeFixture, shell: FakeShell, asks: dict[str, Any]
):
    held(runtime, "run.sh", "echo good\n")
    both = tool_call_reply(
        ("write", '{"path": "a.txt", "content": "x"}'), ("bash", '{"command": "sh run.sh"}')
    )
    async with runtime.open(both, text_reply("Done."), **asks) as process:
        run = await process.run("Run it.")
        after = held(runtime, "run.sh", "echo evil\n")
        assert (await answered(process, run, Answer.ALLOW, "write")).status is Status.WAITING
        old, new = [each for each in await approvals(process) if each.tool == "bash"]
        assert (old.state, new.state, new.files) == (ApprovalState.VOID, ApprovalState.PENDING, (after,))
        assert (await answered(process, run, Answer.ALLOW)).status is Status.DONE
    assert len(shell.commands) == 1


async def test_only_files_that_the_agent_may_read_are_looked_at(
    runtime: RuntimeFixture, asks: dict[str, Any]
):
    """Shows: T10."""
    runtime.write_agent("general", "paths: {deny: ['secret.txt']}\n")
    held(runtime, "secret.txt", "words")
    (runtime.workspace / "folder").mkdir()
    (runtime.workspace / "led.sh").symlink_to(runtime.workspace / "secret.txt")
    outside = runtime.folder / "outside.sh"
    outside.write_text("echo out")
    named = held(runtime, "run.sh", "echo in")
    command = f"sh run.sh secret.txt folder led.sh {outside} ../outside.sh nothing /etc/hostname -x run.sh"
    async with runtime.open(bash(command), **asks) as process:
        await process.run("Run it.")
        (asked,) = await approvals(process)
        assert asked.files == (named,)


async def test_of_many_and_large_files_some_are_compared(runtime: RuntimeFixture, asks: dict[str, Any]):
    large = "x" * (MAX_COMPARED_BYTES + 7)
    held(runtime, "a0", large)
    named = [held(runtime, f"a{number}", "x") for number in range(1, 12)]
    command = "cat " + " ".join(f"a{number}" for number in range(12))
    async with runtime.open(bash(command), **asks) as process:
        await process.run("Run it.")
        (asked,) = await approvals(process)
        first, *rest = asked.files
        assert (first.size, first.sha256) == (
            MAX_COMPARED_BYTES + 7,
            hashlib.sha256(large[:MAX_COMPARED_BYTES].encode()).hexdigest(),
        )
        assert rest == named[:7]


async def test_a_command_allowed_once_beforehand_is_that_command_with_those_files(
    runtime: RuntimeFixture, shell: FakeShell, asks: dict[str, Any]
):
    """Shows: T10, A093."""
    wish = json.dumps({"tool": "bash", "resource": "sh run.sh", "reason": "To see."})
    before = held(runtime, "run.sh", "echo good\n")
    steps = (
        tool_call_reply(("request_scope_expansion", wish)),
        bash("sh run.sh"),
        bash("sh run.sh"),
        text_reply("Done."),
    )
    async with runtime.open(*steps, **asks) as process:
        run = await process.run("Run it.")
        assert (await answered(process, run, Answer.ALLOW)).status is Status.WAITING
        first, second = await approvals(process)
        assert (first.access, first.state, first.files) == ("scope", ApprovalState.USED, (before,))
        assert (second.access, len(shell.commands)) == ("run", 1)


async def test_a_command_allowed_once_beforehand_does_not_run_with_other_files(
    runtime: RuntimeFixture, shell: FakeShell, asks: dict[str, Any]
):
    """Shows: T10."""
    wish = json.dumps({"tool": "bash", "resource": "sh run.sh", "reason": "To see."})
    script = json.dumps({"path": "a.txt", "content": "x"})
    before = held(runtime, "run.sh", "echo good\n")
    changing = tool_call_reply(("request_scope_expansion", wish), ("write", script))
    async with runtime.open(changing, bash("sh run.sh"), text_reply("Done."), **asks) as process:
        run = await process.run("Run it.")
        assert (await answered(process, run, Answer.ALLOW)).status is Status.WAITING
        after = held(runtime, "run.sh", "echo evil\n")
        run = await answered(process, run, Answer.ALLOW, "write")
        assert (run.status, shell.commands) == (Status.WAITING, [])
        by_touch = {each.access: each for each in await approvals(process)}
        more, asked = by_touch["scope"], by_touch["run"]
        assert (more.state, more.files, asked.files) == (ApprovalState.ALLOWED, (before,), (after,))
