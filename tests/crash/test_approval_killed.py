"""The process that carries an answer out is killed around the call: the call is made once, or not, and never twice."""

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

def dies(stage):
    if os.environ.get("DIES") == stage:
        os.kill(os.getpid(), signal.SIGKILL)

@tool(effect="{effect}")
def act() -> str:
    """Acts, and leaves a mark."""
    dies("begun")
    with open("marks.txt", "a") as file:
        file.write("acted\\n")
    dies("acted")
    return "acted"

def parse_arguments(raw, parse=act.parse_arguments):
    dies("answered")
    return parse(raw)

act = replace(act, parse_arguments=parse_arguments)
'''


class RunCommand(Protocol):
    """Run a command with `--json`, and return its exit code and output."""

    def __call__(self, *args: str, **more: str) -> tuple[int, Any]: ...


@pytest.fixture
def retinue(isolated_env: dict[str, str], tmp_path: Path) -> RunCommand:
    folder = tmp_path / "work"
    folder.mkdir()
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"tools": [{"name": "act"}]}, "Done."]))
    env = isolated_env | {"PYTHONPATH": str(folder), "RETINUE_MODEL": f"scripted:{script}"}

    def run(*args: str, **more: str) -> tuple[int, Any]:
        done = run_process([*RETINUE, *args, "--json"], env=env | more, cwd=folder, timeout=60)
        return done.returncode, json.loads(done.stdout or b"null")

    return run


def has_tool(folder: Path, effect: str) -> None:
    (folder / "work" / "own_tools.py").write_text(TOOLS.format(effect=effect))
    (folder / "config" / "config.json").write_text(json.dumps({"tools": ["own_tools:act"]}))


@pytest.mark.parametrize("effect", ["once", "idempotent"])
@pytest.mark.parametrize(("stage", "before"), [("answered", 0), ("begun", 0), ("acted", 1)])
def test_an_answer_is_carried_out_at_most_once_for_each_yes(
    retinue: RunCommand, tmp_path: Path, stage: str, before: int, effect: str
):
    """Shows: P11."""
    has_tool(tmp_path, effect)
    marks = tmp_path / "work" / "marks.txt"
    code, ran = retinue("run", "act")
    assert code == 6
    (asked,) = ran["approvals"]
    killed, _ = retinue("approvals", "answer", asked, "allow", DIES=stage)
    assert killed == -signal.SIGKILL
    made = marks.read_text().count("acted") if marks.exists() else 0
    assert made == before
    _, (row, *_) = retinue("approvals", "list", "--all")
    assert row["state"] == ("allowed" if stage == "answered" else "used")

    code, _ = retinue("runs", "resume")
    again = retinue("approvals", "list")[1]
    after = marks.read_text().count("acted") if marks.exists() else 0
    if stage == "answered":
        assert (code, again, after) == (0, [], 1)
    elif effect == "once":
        assert (code, again, after) == (0, [], before)
        assert "Outcome unknown" in Path(ran["path"]).read_text()
    else:
        assert (code, len(again), after) == (6, 1, before)
        assert again[0]["id"] != asked
        assert retinue("approvals", "answer", again[0]["id"], "deny")[0] == 0
        assert (marks.read_text().count("acted") if marks.exists() else 0) == before
    assert retinue("runs", "show", ran["run_id"])[1]["status"] == "done"
    assert retinue("approvals", "answer", asked, "allow")[0] == 3
