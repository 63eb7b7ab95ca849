"""Homes of earlier versions, opened at the path at which they were made."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

HOMES = Path(__file__).parents[1] / "stories" / "homes"
PLACE = "/mnt/stored"
"""Where the folder of a stored home is mounted: approvals and transcripts name this path."""

MAIL_TOOL = '''
import retinue

@retinue.tool(effect="once", capabilities=["mail.write"])
async def send_mail(call: retinue.Call, to: str) -> str:
    """Send a mail."""
    with open("/mnt/stored/outbox", "a") as outbox:
        outbox.write(to + "\\n")
    return "sent"
'''
SCRIPT = {
    "main": [
        "I looked.",
        {"text": "I send it.", "tools": [{"name": "send_mail", "args": {"to": "ada"}}]},
        "It is sent.",
        "I am here.",
    ],
    "helper": ["I helped."],
    "slow": [{"text": "I have thought.", "delay": 5}],
}
CONFIG = {
    "tools": ["stored_mail:send_mail"],
    "limits": {"approval_seconds": 1e9, "resume_window_seconds": 1e9},
    "retention": {"runs_days": 0, "events_days": 0},
}
"""The time limits are long, so that stored runs and approvals do not expire."""


def write_configuration(folder: Path) -> None:
    """Write the agents, the tool and the scripted model that a stored home needs."""
    agents = folder / "config" / "agents"
    agents.mkdir(parents=True)
    (folder / "work").mkdir()
    (agents / "main.md").write_text("---\nname: main\ntools: [read, send_mail]\n---\nYou work.\n")
    for name in ("helper", "slow"):
        (agents / f"{name}.md").write_text(f"---\nname: {name}\ntools: [read]\n---\nYou help.\n")
    (folder / "config" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "stored_mail.py").write_text(MAIL_TOOL)
    (folder / "script.json").write_text(json.dumps(SCRIPT))


def environment() -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": PLACE,
        "PYTHONPATH": PLACE,
        "RETINUE_HOME": f"{PLACE}/home",
        "RETINUE_CONFIG": f"{PLACE}/config",
        "RETINUE_MODEL": f"scripted:{PLACE}/script.json",
    }


def bind_command(folder: Path) -> list[str]:
    """Return the start of a command that sees the folder at the fixed place."""
    bubblewrap = shutil.which("bwrap")
    assert bubblewrap is not None
    mounts = ["--dev-bind", "/", "/", "--tmpfs", "/mnt", "--bind", str(folder), PLACE]
    return [bubblewrap, *mounts, "--chdir", f"{PLACE}/work", "--"]


def restore_home(name: str, folder: Path) -> None:
    """Write a stored home below a folder."""
    stored: dict[str, Any] = json.loads((HOMES / f"{name}.json").read_text("utf-8"))
    home = folder / "home"
    for path, text in stored["files"].items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text, "utf-8")
    for path, target in stored["links"].items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).symlink_to(target)
    home.chmod(0o700)
    with closing(sqlite3.connect(home / "ledger.db")) as ledger:
        ledger.executescript("\n".join(stored["ledger"]))
        ledger.execute(f"PRAGMA user_version={int(stored['user_version'])}")
        (last_event_at,) = ledger.execute("SELECT max(at) FROM events").fetchone()
    # The files of processes tell when they died, and time since then does not count against deadlines.
    for owner in home.glob("owners/*"):
        os.utime(owner, (last_event_at / 1e6, last_event_at / 1e6))
