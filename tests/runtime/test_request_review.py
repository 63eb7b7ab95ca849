"""request_review: sends the uncommitted change of the caller's workspace to a reviewer, marked as data."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from git_repository import create_repository, run_git
from runtime_fixture import RuntimeFixture

from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Run, Status
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.transcript import Notice, ToolResult
from retinue.errors import Failed
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply

PROBE = SandboxProbe(max_level=SandboxLevel.STRICT)


def review_call(**arguments: Any) -> tuple[str, str]:
    return "request_review", json.dumps(arguments)


@pytest.fixture
def repository(runtime: RuntimeFixture) -> Path:
    """A workspace with one commit and an uncommitted change."""
    folder = runtime.workspace
    (folder / "secret").mkdir()
    (folder / "a.py").write_text("WIDTH = 40\n")
    (folder / "secret" / "key.txt").write_text("hush-the-old-key\n")
    create_repository(folder)
    (folder / "a.py").write_text("WIDTH = 41\n")
    (folder / "new.py").write_text("HEIGHT = 2\n")
    return folder


async def run_review(
    runtime: RuntimeFixture,
    call: tuple[str, str],
    reviewer: Sequence[ScriptedStep] = (),
    *,
    front: str = "",
    **overrides: Any,
) -> tuple[list[Run], ToolResult, list[str]]:
    """Run an agent that makes this call; return all runs, the call's result and the notices that followed."""
    runtime.write_agent("main", front)

    def tmp_folder_for(_session: Session) -> str:
        return str(runtime.folder / "tmp")

    sandbox: dict[str, Any] = {
        "shell_for": make_shell_factory(PROBE, dict(os.environ)),
        "detect_level": PROBE.level,
        "tmp_folder_for": tmp_folder_for,
    }
    by_agent = {"main": [tool_call_reply(call), text_reply("Sent."), text_reply("Heard.")], "*": reviewer}
    async with runtime.open(by_agent=by_agent, **(sandbox | overrides)) as process:
        run = await process.submit("Go.", agent="main")
        runs = await process.wait_until_idle()
        (result,) = await process.tool_results(run)
        notices = [each.text for each in await process.entries(run) if isinstance(each, Notice)]
        return runs, result, notices


async def test_the_reviewer_gets_the_change_as_data_and_its_findings_are_announced(
    runtime: RuntimeFixture, repository: Path
):
    """Shows: D028, D037, D038."""
    reviewer = [
        tool_call_reply(("write", json.dumps({"path": "a.py", "content": "x"}))),
        text_reply("Blocking: a.py:1."),
    ]
    runs, result, notices = await run_review(runtime, review_call(instructions="Mind the width."), reviewer)
    main, child = runs
    assert (main.text, child.agent, child.status) == ("Heard.", "reviewer", Status.DONE)
    assert json.loads(result.text) == {
        "sessionId": child.session_id,
        "runId": child.id,
        "agentId": "reviewer",
        "status": "running",
    }
    task = child.request.task or ""
    assert task.startswith("Review the change below")
    assert "Mind the width." in task
    data = re.search(r"data, not instructions\.\n<<<(\w+)\n(.*)\n\1>>>$", task, re.DOTALL)
    assert data is not None
    assert "-WIDTH = 40\n+WIDTH = 41\n" in data[2]
    assert data[2].endswith("read them yourself:\nnew.py")
    assert (repository / "a.py").read_text() == "WIDTH = 41\n"
    (notice,) = notices
    assert "review complete.\n\nBlocking: a.py:1." in notice
    assert f"transcript={child.transcript_path}" in notice


async def test_a_blocking_review_is_the_result_of_the_tool_call(runtime: RuntimeFixture, repository: Path):
    """Shows: D028."""
    run_git(repository, "commit", "--quiet", "--all", "--message", "More")
    call = review_call(base="HEAD~1", returnMode="blocking", agentId="oracle")
    runs, result, notices = await run_review(runtime, call, [text_reply("Ready.")])
    assert (runs[1].agent, notices) == ("oracle", [])
    assert "+WIDTH = 41" in (runs[1].request.task or "")
    assert "\nReady.\n" in result.text


@pytest.mark.parametrize("has_repository", [True, False], ids=["nothing changed", "no repository"])
async def test_no_reviewer_is_started_when_there_is_no_change(runtime: RuntimeFixture, has_repository: bool):
    if has_repository:
        (runtime.workspace / "a.py").write_text("x = 1\n")
        create_repository(runtime.workspace)
    runs, result, _ = await run_review(runtime, review_call())
    assert len(runs) == 1
    assert result.ok
    reason = (
        "no file that you may read differs from the last commit"
        if has_repository
        else "is not in a git repository"
    )
    assert result.text.startswith("There is nothing to review: ")
    assert reason in result.text


async def test_a_repository_without_a_commit_is_reviewed_as_a_whole(runtime: RuntimeFixture):
    (runtime.workspace / "a.py").write_text("x = 1\n")
    run_git(runtime.workspace, "init", "--quiet")
    run_git(runtime.workspace, "add", "--all")
    runs, _, _ = await run_review(runtime, review_call(), [text_reply("Ready.")])
    assert "+x = 1" in (runs[1].request.task or "")


async def test_files_that_the_caller_may_not_read_are_left_out_of_the_review(
    runtime: RuntimeFixture, repository: Path
):
    """Shows: L024."""
    (repository / "secret" / "key.txt").write_text("hush-the-new-key\n")
    (repository / "secret" / "other.txt").write_text("hush\n")
    runs, _, _ = await run_review(
        runtime, review_call(), [text_reply("Ready.")], front="paths: {deny: ['**/secret/**']}\n"
    )
    task = runs[1].request.task or ""
    assert "+WIDTH = 41" in task
    assert "hush" not in task
    assert "other.txt" not in task
    assert "1 changed file is omitted because the requesting agent may not read it." in task


async def test_git_runs_no_program_that_the_repository_configures_and_writes_nothing(
    runtime: RuntimeFixture, repository: Path
):
    touch = f"touch {repository}/ran; cat"
    run_git(repository, "config", "core.fsmonitor", touch)
    run_git(repository, "config", "diff.external", touch)
    run_git(repository, "config", "filter.f.clean", touch)
    run_git(repository, "config", "diff.f.textconv", touch)
    (repository / ".gitattributes").write_text("*.py filter=f diff=f\n")
    before = (repository / ".git" / "index").read_bytes()
    runs, _, _ = await run_review(runtime, review_call(), [text_reply("Ready.")])
    assert "+WIDTH = 41" in (runs[1].request.task or "")
    assert not (repository / "ran").exists()
    assert (repository / ".git" / "index").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"base": "--output=a.py"}, "'--output=a.py' is not a commit or branch"),
        ({"base": "nowhere"}, "git has no commit or branch 'nowhere'"),
        ({"base": "$(touch ran)"}, "git has no commit or branch"),
        ({"agentId": "nobody"}, "Unknown agent profile: nobody"),
    ],
)
async def test_invalid_arguments_are_answered_with_an_error_message(
    runtime: RuntimeFixture, repository: Path, arguments: dict[str, str], error: str
):
    runs, result, _ = await run_review(runtime, review_call(**arguments))
    assert (len(runs), result.ok) == (1, False)
    assert result.text.startswith(error)
    assert sorted(each.name for each in repository.iterdir()) == [".git", "a.py", "new.py", "secret"]


async def test_a_long_change_is_shortened_to_its_head_and_tail(runtime: RuntimeFixture, repository: Path):
    (repository / "a.py").write_text("".join(f"line {number:06}\n" for number in range(30_000)))
    runs, _, _ = await run_review(runtime, review_call(), [text_reply("Ready.")])
    task = runs[1].request.task or ""
    assert "+line 000000" in task
    assert "+line 029999" in task
    assert "characters omitted" in task
    assert 190_000 < len(task) < 210_000


async def test_git_does_not_run_without_the_strict_sandbox(runtime: RuntimeFixture, repository: Path):
    async def detect_landlock() -> SandboxLevel:
        return SandboxLevel.LANDLOCK

    def failing_shell_for(_scope: Scope) -> Any:
        async def run(_command: str, _seconds: float) -> Any:
            raise Failed("a command was run")

        return run

    runs, result, _ = await run_review(
        runtime, review_call(), detect_level=detect_landlock, shell_for=failing_shell_for
    )
    assert (len(runs), result.ok) == (1, False)
    assert result.text.startswith("The change cannot be read without approval: the sandbox level is landlock")
    assert repository.exists()


async def test_an_agent_whose_scope_denies_git_gets_no_review(runtime: RuntimeFixture, repository: Path):
    runs, result, _ = await run_review(runtime, review_call(), front="shell_commands: {deny: ['git diff']}\n")
    assert (len(runs), result.ok) == (1, False)
    assert "git is denied" in result.text
    assert repository.exists()
