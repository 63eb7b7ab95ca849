"""A process is killed while it executes an approved tool call: the call happens at most once."""

import json
import signal
from pathlib import Path
from typing import Any, Protocol

import pytest
from commands import RETINUE, run_process

TOOLS = '''
import os, signal
from msgspec.structs import replace
from retinue import tool

def kill_at(stage):
    if os.environ.get("KILL_AT") == stage:
        os.kill(os.getpid(), signal.SIGKILL)

@tool(effect="{effect}")
def act() -> str:
    """Act and leave a mark."""
    kill_at("started")
    with open("marks.txt", "a") as file:
        file.write("acted\\n")
    kill_at("acted")
    return "acted"

def parse_arguments(raw, parse=act.parse_arguments):
    kill_at("answered")
    return parse(raw)

act = replace(act, parse_arguments=parse_arguments)
'''


class RunCommand(Protocol):
    """Run a command with `--json`, and return its exit code and output."""

    def __call__(self, *args: str, **variables: str) -> tuple[int, Any]: ...


@pytest.fixture
def retinue(isolated_env: dict[str, str], tmp_path: Path) -> RunCommand:
    folder = tmp_path / "work"
    folder.mkdir()
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"tools": [{"name": "act"}]}, "Done."]))
    env = isolated_env | {"PYTHONPATH": str(folder), "RETINUE_MODEL": f"scripted:{script}"}

    def run(*args: str, **variables: str) -> tuple[int, Any]:
        result = run_process([*RETINUE, *args, "--json"], env=env | variables, cwd=folder, timeout=60)
        return result.returncode, json.loads(result.stdout or b"null")

    return run


def configure_tool(folder: Path, effect: str) -> None:
    (folder / "work" / "own_tools.py").write_text(TOOLS.format(effect=effect))
    (folder / "config" / "config.json").write_text(json.dumps({"tools": ["own_tools:act"]}))


@pytest.mark.parametrize("effect", ["once", "idempotent"])
@pytest.mark.parametrize(("stage", "marks_at_kill"), [("answered", 0), ("started", 0), ("acted", 1)])
def test_an_approved_call_is_executed_at_most_once(
    retinue: RunCommand, tmp_path: Path, stage: str, marks_at_kill: int, effect: str
):
    """Shows: P11."""
    configure_tool(tmp_path, effect)
    marks = tmp_path / "work" / "marks.txt"
    code, run = retinue("run", "act")
    assert code == 6
    (approval_id,) = run["approvals"]
    exit_code, _ = retinue("approvals", "answer", approval_id, "allow", KILL_AT=stage)
    assert exit_code == -signal.SIGKILL
    mark_count = marks.read_text().count("acted") if marks.exists() else 0
    assert mark_count == marks_at_kill
    _, (row, *_) = retinue("approvals", "list", "--all")
    assert row["state"] == ("allowed" if stage == "answered" else "used")

    code, _ = retinue("runs", "resume")
    pending = retinue("approvals", "list")[1]
    mark_count = marks.read_text().count("acted") if marks.exists() else 0
    if stage == "answered":
        assert (code, pending, mark_count) == (0, [], 1)
    elif effect == "once":
        assert (code, pending, mark_count) == (0, [], marks_at_kill)
        assert "Outcome unknown" in Path(run["path"]).read_text()
    else:
        assert (code, len(pending), mark_count) == (6, 1, marks_at_kill)
        assert pending[0]["id"] != approval_id
        assert retinue("approvals", "answer", pending[0]["id"], "deny")[0] == 0
        assert (marks.read_text().count("acted") if marks.exists() else 0) == marks_at_kill
    assert retinue("runs", "show", run["run_id"])[1]["status"] == "done"
    assert retinue("approvals", "answer", approval_id, "allow")[0] == 3
