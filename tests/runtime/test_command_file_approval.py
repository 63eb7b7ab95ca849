"""Approving a command also approves the content of the files it names; if one changes, approval is required again."""

import hashlib
import json
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import (
    MAX_COMPARED_BYTES,
    MAX_COMPARED_FILES,
    Answer,
    ApprovalPolicy,
    ApprovalState,
    NamedFile,
)
from retinue.domain.run import Run, Status
from retinue.domain.sandbox_level import SandboxLevel
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.testing.shells import FakeShell


def bash_reply(command: str) -> Any:
    return tool_call_reply(("bash", json.dumps({"command": command})))


def write_named_file(runtime: RuntimeFixture, name: str, text: str) -> NamedFile:
    """Write a file of the workspace, and return it as an approval records it."""
    path = runtime.workspace / name
    path.write_text(text)
    return NamedFile(
        path=str(path.resolve()), sha256=hashlib.sha256(text.encode()).hexdigest(), size=len(text)
    )


async def answer_and_wait(process: RuntimeProcess, run: Run, answer: Answer, tool: str = "bash") -> Run:
    """Answer the only pending approval of a tool, and wait until the run ends or waits again."""
    (approval,) = [each for each in await process.pending_approvals() if each.tool == tool]
    await process.answer_approval(approval, answer)
    return await process.wait(run)


@pytest.fixture
def shell() -> FakeShell:
    return FakeShell(output="ok\n")


@pytest.fixture
def ask_options(shell: FakeShell) -> dict[str, Any]:
    return {
        "shell": shell,
        "approval_policy": ApprovalPolicy.ASK,
    }


@pytest.mark.parametrize("level", list(SandboxLevel))
async def test_a_script_that_changed_after_its_approval_requires_another_approval(
    runtime: RuntimeFixture, shell: FakeShell, ask_options: dict[str, Any], level: SandboxLevel
):
    """Shows: T10."""
    shell.level = level
    before = write_named_file(runtime, "run.sh", "echo good\n")
    async with runtime.open(bash_reply("sh run.sh; ls"), text_reply("Done."), **ask_options) as process:
        run = await process.run("Run it.")
        (first,) = await process.approvals()
        assert first.files == (before,)
        after = write_named_file(runtime, "run.sh", "echo evil\n")
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.WAITING
        _, second = await process.approvals()
        assert (second.files, shell.commands) == ((after,), [])
        assert second.reason == f"changed since you were asked: {after.path}"
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.DONE
    assert [command for command, _ in shell.commands] == ["sh run.sh; ls"]


async def test_an_unchanged_script_runs_after_one_approval(
    runtime: RuntimeFixture, shell: FakeShell, ask_options: dict[str, Any]
):
    write_named_file(runtime, "run.sh", "echo good\n")
    async with runtime.open(bash_reply("./run.sh"), text_reply("Done."), **ask_options) as process:
        run = await process.run("Run it.")
        write_named_file(runtime, "other.sh", "echo new\n")
        write_named_file(runtime, "run.sh", "echo good\n")
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.DONE
        assert [approval.state for approval in await process.approvals()] == [ApprovalState.USED]
    assert len(shell.commands) == 1


async def test_a_file_created_or_deleted_after_the_approval_requires_another_approval(
    runtime: RuntimeFixture, ask_options: dict[str, Any]
):
    """Shows: T10."""
    async with runtime.open(bash_reply("sh run.sh"), text_reply("Done."), **ask_options) as process:
        run = await process.run("Run it.")
        new = write_named_file(runtime, "run.sh", "echo new\n")
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.WAITING
        (runtime.workspace / "run.sh").unlink()
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.WAITING
        assert [approval.files for approval in await process.approvals()] == [(), (new,), ()]
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.DONE


async def test_a_denial_still_applies_if_the_script_changed(
    runtime: RuntimeFixture, shell: FakeShell, ask_options: dict[str, Any]
):
    write_named_file(runtime, "run.sh", "echo evil\n")
    async with runtime.open(bash_reply("sh run.sh"), text_reply("Then not."), **ask_options) as process:
        run = await process.run("Run it.")
        write_named_file(runtime, "run.sh", "echo other\n")
        assert (await answer_and_wait(process, run, Answer.DENY)).status is Status.DONE
        assert [approval.state for approval in await process.approvals()] == [ApprovalState.DENIED]
    assert shell.commands == []


async def test_a_pending_approval_of_a_changed_script_is_void_and_requested_again(
    runtime: RuntimeFixture, shell: FakeShell, ask_options: dict[str, Any]
):
    write_named_file(runtime, "run.sh", "echo good\n")
    both = tool_call_reply(
        ("write", '{"path": "a.txt", "content": "x"}'), ("bash", '{"command": "sh run.sh"}')
    )
    async with runtime.open(both, text_reply("Done."), **ask_options) as process:
        run = await process.run("Run it.")
        after = write_named_file(runtime, "run.sh", "echo evil\n")
        assert (await answer_and_wait(process, run, Answer.ALLOW, "write")).status is Status.WAITING
        old, new = [approval for approval in await process.approvals() if approval.tool == "bash"]
        assert (old.state, new.state, new.files) == (ApprovalState.VOID, ApprovalState.PENDING, (after,))
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.DONE
    assert len(shell.commands) == 1


async def test_only_files_that_the_agent_may_read_are_compared(
    runtime: RuntimeFixture, ask_options: dict[str, Any]
):
    """Shows: T10."""
    runtime.write_agent("general", "paths: {deny: ['secret.txt']}\n")
    write_named_file(runtime, "secret.txt", "words")
    (runtime.workspace / "folder").mkdir()
    (runtime.workspace / "link.sh").symlink_to(runtime.workspace / "secret.txt")
    outside = runtime.folder / "outside.sh"
    outside.write_text("echo out")
    named = write_named_file(runtime, "run.sh", "echo in")
    command = f"sh run.sh secret.txt folder link.sh {outside} ../outside.sh nothing /etc/hostname -x run.sh"
    async with runtime.open(bash_reply(command), **ask_options) as process:
        await process.run("Run it.")
        (approval,) = await process.approvals()
        assert approval.files == (named,)


async def test_only_the_first_files_and_the_beginning_of_large_files_are_compared(
    runtime: RuntimeFixture, ask_options: dict[str, Any]
):
    large = "x" * (MAX_COMPARED_BYTES + 7)
    write_named_file(runtime, "a0", large)
    count = MAX_COMPARED_FILES + 4
    named = [write_named_file(runtime, f"a{number}", "x") for number in range(1, count)]
    command = "cat " + " ".join(f"a{number}" for number in range(count))
    async with runtime.open(bash_reply(command), **ask_options) as process:
        await process.run("Run it.")
        (approval,) = await process.approvals()
        first, *rest = approval.files
        assert (first.size, first.sha256) == (
            MAX_COMPARED_BYTES + 7,
            hashlib.sha256(large[:MAX_COMPARED_BYTES].encode()).hexdigest(),
        )
        assert rest == named[: MAX_COMPARED_FILES - 1]


async def test_a_command_allowed_once_in_advance_runs_once_with_unchanged_files(
    runtime: RuntimeFixture, shell: FakeShell, ask_options: dict[str, Any]
):
    """Shows: T10, A093."""
    expansion = json.dumps({"tool": "bash", "resource": "sh run.sh", "reason": "To see."})
    before = write_named_file(runtime, "run.sh", "echo good\n")
    steps = (
        tool_call_reply(("request_scope_expansion", expansion)),
        bash_reply("sh run.sh"),
        bash_reply("sh run.sh"),
        text_reply("Done."),
    )
    async with runtime.open(*steps, **ask_options) as process:
        run = await process.run("Run it.")
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.WAITING
        first, second = await process.approvals()
        assert (first.access, first.state, first.files) == ("scope", ApprovalState.USED, (before,))
        assert (second.access, len(shell.commands)) == ("run", 1)


async def test_a_command_allowed_once_in_advance_does_not_run_with_changed_files(
    runtime: RuntimeFixture, shell: FakeShell, ask_options: dict[str, Any]
):
    """Shows: T10."""
    expansion = json.dumps({"tool": "bash", "resource": "sh run.sh", "reason": "To see."})
    new_file = json.dumps({"path": "a.txt", "content": "x"})
    before = write_named_file(runtime, "run.sh", "echo good\n")
    request_and_write = tool_call_reply(("request_scope_expansion", expansion), ("write", new_file))
    async with runtime.open(
        request_and_write, bash_reply("sh run.sh"), text_reply("Done."), **ask_options
    ) as process:
        run = await process.run("Run it.")
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.WAITING
        after = write_named_file(runtime, "run.sh", "echo evil\n")
        run = await answer_and_wait(process, run, Answer.ALLOW, "write")
        assert (run.status, shell.commands) == (Status.WAITING, [])
        by_access = {approval.access: approval for approval in await process.approvals()}
        expansion_approval, command = by_access["scope"], by_access["run"]
        assert (expansion_approval.state, expansion_approval.files, command.files) == (
            ApprovalState.ALLOWED,
            (before,),
            (after,),
        )


USED_FILES = {
    "cd sub && sh ../run.sh": "run.sh",
    "cd sub; cd deep; sh ./x.sh": "sub/deep/x.sh",
    "(cd 'sub' && ./y.sh)": "sub/y.sh",
    "pushd sub/deep > /dev/null && . ./x.sh": "sub/deep/x.sh",
    "sh *.sh": "run.sh",
    "sh sub/?.sh": "sub/y.sh",
    "cat sub/*/x.sh": "sub/deep/x.sh",
    "sh {run,other}.sh": "run.sh",
    "make": "Makefile",
    "make -C sub all": "sub/Makefile",
    "cd sub && make": "sub/rules/common.mk",
    "make -f build.mak": "sub/rules/common.mk",
    "make # includes": "config.mk",
    "python -m pkg": "pkg/__main__.py",
    "python3 -u -m pkg.tool --x": "pkg/tool.py",
    "python -m pkg.tool": "pkg/__init__.py",
    "python pkg": "pkg/__main__.py",
    "npm run build": "package.json",
    "npm run build -- --fast": "tools/build.js",
    "npm test": "tools/before.sh",
    "yarn --cwd sub lint": "sub/package.json",
    "npm --prefix sub run lint": "sub/y.sh",
    "bash -c 'sh run.sh'": "run.sh",
    'bash -lc "cd sub && sh ./y.sh"': "sub/y.sh",
    "echo run.sh | xargs sh": "run.sh",
    "ls *.sh | xargs -n1 sh": "run.sh",
    "env X=1 sh run.sh": "run.sh",
    "X=1 nice -n 5 timeout 3s ./run.sh": "run.sh",
    "./run.sh": "run.sh",
    "node tools/build.js": "tools/build.js",
    "node tools/build": "tools/build.js",
    "sh <<EOF\nsh run.sh\nEOF": "run.sh",
    "cat <<'X' | sh\ncd sub\n./y.sh\nX": "sub/y.sh",
    "sh < run.sh": "run.sh",
    "sh run\\.sh": "run.sh",
    "find . -name '*.sh' -exec sh {} ';'": "run.sh",
    "just build": "justfile",
    "pytest -q": "conftest.py",
}


def write_project(runtime: RuntimeFixture) -> None:
    files = {
        "run.sh": "echo run",
        "other.sh": "echo other",
        "sub/y.sh": "echo y",
        "sub/deep/x.sh": "echo x",
        "Makefile": "-include config.mk\nall:\n\tsh run.sh\n",
        "config.mk": "A = 1\n",
        "build.mak": "include sub/rules/*.mk\n",
        "sub/Makefile": "include rules/all.mk\n",
        "sub/rules/all.mk": "include rules/common.mk $(EXTRA)\n",
        "sub/rules/common.mk": "B = 1\n",
        "pkg/__init__.py": "",
        "pkg/__main__.py": "print(1)",
        "pkg/tool.py": "print(2)",
        "package.json": json.dumps(
            {
                "scripts": {
                    "build": "node tools/build.js",
                    "pretest": "sh tools/before.sh",
                    "test": "npm run build",
                }
            }
        ),
        "tools/build.js": "1",
        "tools/before.sh": "echo before",
        "sub/package.json": json.dumps({"scripts": {"lint": "./y.sh"}}),
        "justfile": "build:\n  sh run.sh\n",
        "conftest.py": "",
    }
    for name, text in files.items():
        (runtime.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (runtime.workspace / name).write_text(text)


@pytest.mark.parametrize("command", USED_FILES)
async def test_a_changed_file_requires_another_approval_however_the_command_names_it(
    runtime: RuntimeFixture, shell: FakeShell, ask_options: dict[str, Any], command: str
):
    """Shows: T10."""
    write_project(runtime)
    async with runtime.open(bash_reply(command), text_reply("Done."), **ask_options) as process:
        run = await process.run("Run it.")
        changed = runtime.workspace / USED_FILES[command]
        with changed.open("a") as file:
            file.write("\n")
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.WAITING
        assert shell.commands == []
        _, second = await process.approvals()
        assert second.reason == f"changed since you were asked: {changed.resolve()}"
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.DONE
    assert len(shell.commands) == 1


async def test_a_new_file_that_a_pattern_matches_requires_another_approval(
    runtime: RuntimeFixture, shell: FakeShell, ask_options: dict[str, Any]
):
    """Shows: T10."""
    write_project(runtime)
    async with runtime.open(bash_reply("cd sub && sh *.sh"), text_reply("Done."), **ask_options) as process:
        run = await process.run("Run it.")
        (runtime.workspace / "sub" / "a.sh").write_text("echo evil")
        assert (await answer_and_wait(process, run, Answer.ALLOW)).status is Status.WAITING
    assert shell.commands == []
