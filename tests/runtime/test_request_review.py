"""request_review: what has changed in the caller's workspace goes to a reviewer, as data, and nothing else does."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Run, Status
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.transcript import Notice, ToolResult
from retinue.errors import Failed
from retinue.interfaces import Transaction
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply

PROBE = SandboxProbe(max_level=SandboxLevel.STRICT)


def review(**wish: Any) -> tuple[str, str]:
    return "request_review", json.dumps(wish)


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(runtime: RuntimeFixture) -> Path:
    """A workspace with one commit, and a change in it since."""
    folder: Path = runtime.workspace
    (folder / "secret").mkdir()
    (folder / "a.py").write_text("WIDTH = 40\n")
    (folder / "secret" / "key.txt").write_text("hush-the-old-key\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Begin")
    (folder / "a.py").write_text("WIDTH = 41\n")
    (folder / "new.py").write_text("HEIGHT = 2\n")
    return folder


async def quiet(process: RuntimeProcess) -> list[Run]:
    """Until nothing goes on any more."""

    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    while True:
        runs: list[Run] = await process.context.ledger.read(step)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in runs):
            return runs
        await process.worker.wait_for_change()


async def reviewed(
    runtime: RuntimeFixture,
    wish: tuple[str, str],
    reviewer: Sequence[ScriptedStep] = (),
    *,
    front: str = "",
    **ports: Any,
) -> tuple[list[Run], ToolResult, list[str]]:
    """All runs, what the call was answered with, and what was announced."""
    runtime.write_agent("main", front)

    def own_tmp(_session: Session) -> str:
        return str(runtime.folder / "tmp")

    held: dict[str, Any] = {
        "shell_for": make_shell_factory(PROBE, dict(os.environ)),
        "detect_level": PROBE.level,
        "tmp_folder_for": own_tmp,
    }
    by_agent = {"main": [tool_call_reply(wish), text_reply("Sent."), text_reply("Heard.")], "*": reviewer}
    async with runtime.open(by_agent=by_agent, **(held | ports)) as process:
        run = await process.submit("Go.", agent="main")
        runs = await quiet(process)
        (result,) = await process.tool_results(run)
        told = [each.text for each in await process.entries(run) if isinstance(each, Notice)]
        return runs, result, told


async def test_the_reviewer_gets_the_change_as_data_and_its_findings_are_announced(
    runtime: RuntimeFixture, repository: Path
):
    """Shows: D028, D037, D038."""
    found = [
        tool_call_reply(("write", json.dumps({"path": "a.py", "content": "x"}))),
        text_reply("Blocking: a.py:1."),
    ]
    runs, result, told = await reviewed(runtime, review(instructions="Mind the width."), found)
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
    (notice,) = told
    assert "review complete.\n\nBlocking: a.py:1." in notice
    assert f"transcript={child.transcript_path}" in notice


async def test_a_review_that_is_waited_for_is_the_answer(runtime: RuntimeFixture, repository: Path):
    """Shows: D028."""
    git(repository, "commit", "--quiet", "--all", "--message", "More")
    wish = review(base="HEAD~1", returnMode="blocking", agentId="oracle")
    runs, result, told = await reviewed(runtime, wish, [text_reply("Ready.")])
    assert (runs[1].agent, told) == ("oracle", [])
    assert "+WIDTH = 41" in (runs[1].request.task or "")
    assert "\nReady.\n" in result.text


@pytest.mark.parametrize("there", [True, False], ids=["nothing changed", "no repository"])
async def test_where_nothing_is_to_be_reviewed_nobody_is_started(runtime: RuntimeFixture, there: bool):
    if there:
        (runtime.workspace / "a.py").write_text("x = 1\n")
        git(runtime.workspace, "init", "--quiet")
        git(runtime.workspace, "add", "--all")
        git(runtime.workspace, "commit", "--quiet", "--message", "Begin")
    runs, result, _ = await reviewed(runtime, review())
    assert len(runs) == 1
    assert result.ok
    why = "no file that you may read differs from the last commit" if there else "is in no git repository"
    assert result.text.startswith("There is nothing to review: ")
    assert why in result.text


async def test_a_repository_without_a_commit_is_reviewed_as_a_whole(runtime: RuntimeFixture):
    (runtime.workspace / "a.py").write_text("x = 1\n")
    git(runtime.workspace, "init", "--quiet")
    git(runtime.workspace, "add", "--all")
    runs, _, _ = await reviewed(runtime, review(), [text_reply("Ready.")])
    assert "+x = 1" in (runs[1].request.task or "")


async def test_what_the_caller_may_not_read_no_reviewer_is_shown(runtime: RuntimeFixture, repository: Path):
    """Shows: L024."""
    (repository / "secret" / "key.txt").write_text("hush-the-new-key\n")
    (repository / "secret" / "other.txt").write_text("hush\n")
    runs, _, _ = await reviewed(
        runtime, review(), [text_reply("Ready.")], front="paths: {deny: ['**/secret/**']}\n"
    )
    task = runs[1].request.task or ""
    assert "+WIDTH = 41" in task
    assert "hush" not in task
    assert "other.txt" not in task
    assert "Left out, because the one who asks may not read them: 1 changed files." in task


async def test_the_repositorys_own_programs_are_not_run_and_nothing_is_written(
    runtime: RuntimeFixture, repository: Path
):
    touch = f"touch {repository}/ran; cat"
    git(repository, "config", "core.fsmonitor", touch)
    git(repository, "config", "diff.external", touch)
    git(repository, "config", "filter.f.clean", touch)
    git(repository, "config", "diff.f.textconv", touch)
    (repository / ".gitattributes").write_text("*.py filter=f diff=f\n")
    before = (repository / ".git" / "index").read_bytes()
    runs, _, _ = await reviewed(runtime, review(), [text_reply("Ready.")])
    assert "+WIDTH = 41" in (runs[1].request.task or "")
    assert not (repository / "ran").exists()
    assert (repository / ".git" / "index").read_bytes() == before


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"base": "--output=a.py"}, "'--output=a.py' is no commit or branch"),
        ({"base": "nowhere"}, "git knows nothing to compare with by the name 'nowhere'"),
        ({"base": "$(touch ran)"}, "git knows nothing to compare with"),
        ({"agentId": "nobody"}, "Unknown agent profile: nobody"),
    ],
)
async def test_a_wish_that_cannot_be_is_answered_with_a_sentence(
    runtime: RuntimeFixture, repository: Path, wish: dict[str, str], said: str
):
    runs, result, _ = await reviewed(runtime, review(**wish))
    assert (len(runs), result.ok) == (1, False)
    assert result.text.startswith(said)
    assert sorted(each.name for each in repository.iterdir()) == [".git", "a.py", "new.py", "secret"]


async def test_a_long_change_is_shown_by_its_head_and_its_tail(runtime: RuntimeFixture, repository: Path):
    (repository / "a.py").write_text("".join(f"line {number:06}\n" for number in range(30_000)))
    runs, _, _ = await reviewed(runtime, review(), [text_reply("Ready.")])
    task = runs[1].request.task or ""
    assert "+line 000000" in task
    assert "+line 029999" in task
    assert "characters left out" in task
    assert 190_000 < len(task) < 210_000


async def test_where_commands_are_not_held_strictly_no_git_is_run_unasked(
    runtime: RuntimeFixture, repository: Path
):
    async def loose() -> SandboxLevel:
        return SandboxLevel.LANDLOCK

    def never(_scope: Scope) -> Any:
        async def run(_command: str, _seconds: float) -> Any:
            raise Failed("a command was run")

        return run

    runs, result, _ = await reviewed(runtime, review(), detect_level=loose, shell_for=never)
    assert (len(runs), result.ok) == (1, False)
    assert result.text.startswith("the change cannot be looked at unasked: the sandbox here is landlock")
    assert repository.exists()


async def test_an_agent_that_is_denied_git_gets_no_review(runtime: RuntimeFixture, repository: Path):
    runs, result, _ = await reviewed(runtime, review(), front="shell_commands: {deny: ['git diff']}\n")
    assert (len(runs), result.ok) == (1, False)
    assert "git is denied" in result.text
    assert repository.exists()
