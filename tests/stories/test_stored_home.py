"""A home of an earlier version opens unchanged: conversations, runs, results and open approvals."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import retinue

STORED = Path(__file__).parent / "homes" / "2026-11.json"


@pytest.fixture
def old_home(tmp_path: Path) -> dict[str, str]:
    """Copy the stored home into a folder of this test, and return the environment that uses it."""
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8").replace("@PLACE@", str(tmp_path)))
    home = tmp_path / "home"
    for name, text in stored["files"].items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    connection = sqlite3.connect(home / "ledger.db")
    connection.executescript("\n".join(stored["ledger"]))
    connection.execute(f"PRAGMA user_version={int(stored['user_version'])}")
    connection.close()
    (tmp_path / "ws").mkdir()
    agents = tmp_path / "c" / "agents"
    agents.mkdir(parents=True)
    (agents / "main.md").write_text("---\nname: main\ntools: [read, write]\n---\nYou work.\n")
    # A scripted model answers by its turn in the conversation, which has five replies already.
    earlier = [{"text": "said before"}] * 5
    script = {"main": [*earlier, {"text": "Here."}]}
    (tmp_path / "s.json").write_text(json.dumps(script))
    return {
        "RETINUE_HOME": str(home),
        "RETINUE_CONFIG": str(tmp_path / "c"),
        "RETINUE_MODEL": f"scripted:{tmp_path / 's.json'}",
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }


async def test_a_home_of_an_earlier_version_can_be_listed_read_and_continued(old_home: dict[str, str]):
    async with retinue.open(env=old_home) as app:
        sessions = await app.sessions.list()
        assert sorted(each.agent for each in sessions) == ["helper", "main"]
        parent = next(each for each in sessions if each.agent == "main")
        child = next(each for each in sessions if each.agent == "helper")
        assert child.parent_id == parent.id
        entries = await app.sessions.entries(parent.id)
        assert [
            each.text for each in entries if isinstance(each, retinue.Message) and each.role == "agent"
        ] == [
            "I look.",
            "Read it.",
            "I ask the helper.",
            "The helper is done.",
            "I write.",
        ]
        runs = await app.runs.list(live=False)
        assert sorted((each.agent, str(each.status)) for each in runs) == [
            ("helper", "done"),
            ("main", "done"),
            ("main", "done"),
            ("main", "waiting"),
        ]
        (approval,) = await app.approvals.list()
        assert (approval.tool, str(approval.state)) == ("write", "pending")
        # Its digest contains the folder in which the home was created, so answering it here would request it again.
        waiting = next(each for each in runs if each.status is retinue.Status.WAITING)
        assert approval.run == waiting.id
        assert (await app.runs.cancel(waiting.id)).status is retinue.Status.CANCELLED
        again = await app.run("Are you there?", session=parent.id)
        assert again.text == "Here."
