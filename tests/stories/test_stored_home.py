"""A home of every earlier schema opens unchanged: conversations, runs, results and open approvals."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_home import HOMES, bind_command, environment, restore_home, write_configuration

from retinue.ledger.database import latest_schema_version

STORED = sorted(path.stem for path in HOMES.glob("*.json"))

Command = Callable[..., Any]


@pytest.fixture(params=STORED)
def home_schema(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    restore_home(request.param, tmp_path)
    write_configuration(tmp_path)
    return request.param


@pytest.fixture
def command(home_schema: str, tmp_path: Path) -> Command:
    """Run a command that sees the stored home at the path at which it was made; return its JSON."""
    assert home_schema

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [*bind_command(tmp_path), sys.executable, "-m", "retinue", *arguments, "--json"],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
            timeout=60,
        )
        assert done.returncode == 0, (arguments, done)
        return json.loads(done.stdout)

    return run


def test_there_is_a_stored_home_of_every_schema_from_nine_on():
    """After a new migration, run `scripts/stored_home`."""
    schemas = {
        int(path.stem) for path in (Path(__file__).parents[2] / "src/retinue/ledger/schema").glob("*.sql")
    }
    assert {int(name[:4]) for name in STORED} == {number for number in schemas if number >= 9}
    assert max(int(name[:4]) for name in STORED) == latest_schema_version()


def test_its_sessions_and_runs_are_listed_and_shown(command: Command, home_schema: str):
    sessions = command("sessions", "list")
    assert sorted(each["agent"] for each in sessions) == ["helper", "main", "slow"]
    [main] = [each for each in sessions if each["agent"] == "main"]
    shown = command("sessions", "show", main["session_id"])
    # From schema 14 on, `retinue spawn` adds its result to the parent's transcript.
    entry_count = 6 if int(home_schema[:4]) >= 14 else 5
    assert (shown["entries"], len(shown["approvals"]), shown["problems"]) == (entry_count, 1, [])
    runs = command("runs", "history")
    assert sorted((each["agent"], each["status"]) for each in runs) == [
        ("helper", "done"),
        ("main", "done"),
        ("main", "waiting"),
        ("slow", "running"),
    ]
    [helped] = [each for each in runs if each["agent"] == "helper"]
    assert command("runs", "show", helped["run_id"])["text"] == "I helped."
    assert not [each for each in command("doctor") if each["level"] == "bad"]


def test_its_pending_approval_is_answered_once_and_the_call_runs_once(command: Command, tmp_path: Path):
    [approval] = command("approvals", "list")
    command("approvals", "answer", approval["id"], "allow")
    [run] = [each for each in command("runs", "history") if each["run_id"] == approval["run_id"]]
    assert (run["status"], run["text"]) == ("done", "It is sent.")
    assert command("approvals", "list") == []
    assert (tmp_path / "outbox").read_text() == "ada\n"
    [effect] = command("runs", "show", run["run_id"])["effects"]
    assert (effect["state"], effect["ok"]) == ("ended", True)


def test_its_interrupted_run_is_resumed(command: Command):
    [slow] = [each for each in command("runs", "history") if each["agent"] == "slow"]
    command("runs", "resume", slow["run_id"])
    [done] = [each for each in command("runs", "history") if each["agent"] == "slow"]
    assert (done["run_id"], done["status"], done["text"]) == (slow["run_id"], "done", "I have thought.")


def test_its_sessions_can_be_continued_cleared_and_purged(command: Command, tmp_path: Path):
    [approval] = command("approvals", "list")
    command("approvals", "answer", approval["id"], "allow")
    [main] = [each for each in command("sessions", "list") if each["agent"] == "main"]
    sent = command("send", main["session_id"], "Are you there?")
    assert sent["text"] == "I am here."
    command("sessions", "delete", main["session_id"], "--purge")
    assert [each["agent"] for each in command("sessions", "list")] == ["slow"]
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not [path for path in files if b"I am here." in path.read_bytes()]
