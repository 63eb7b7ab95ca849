"""A really full disk: a small tmpfs that is filled during a run and emptied again."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from crash_programs import FILL_DISK

PROGRAM = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
import retinue
from retinue.config.load import load_config

home, disk, script = sys.argv[1:]
filler = Path(disk) / "filler"
sent = []

@retinue.tool(effect="once")
async def mail() -> str:
    "Fill the disk to its last byte, and do something that must not happen twice."
    sent.append("mail")
    fill_disk(filler)
    return "y" * 20000

async def main():
    env = {"RETINUE_HOME": home, "RETINUE_CONFIG": home + "-config", "RETINUE_MODEL": "scripted:" + script}
    notes = []
    async with retinue.open(config=load_config(env), tools=[mail], approvals="auto") as app:
        with app.listen(lambda event: notes.append(event.data.get("note"))):
            run = await app.runs.start("Send it.", retinue.RunOptions(workspace="/", allow_home=True))
            while not any(note and "waiting for disk space" in note for note in notes):
                await asyncio.sleep(0.01)
            await asyncio.sleep(1)
            listed = subprocess.run(
                [sys.executable, "-m", "retinue", "runs", "list", "--json"], env=os.environ | env,
                capture_output=True, text=True)
            filler.unlink()
            ended = await app.runs.wait(run.id)
        texts = [len(e.text) for e in await app.sessions.entries(run.session_id) if getattr(e, "call_id", "")]
    print(json.dumps({"listed": [listed.returncode, *json.loads(listed.stdout)], "status": ended.status, "text": ended.text,
        "error": ended.error, "sent": sent, "results": texts, "turns": ended.turns, "notes": [n for n in notes if n]}))

asyncio.run(main())
"""


async def run_on_small_disk(tmp_path: Path, disk: Path) -> Any:
    """Run an agent on a small disk that its tool fills, and return the outcome."""
    home, script = tmp_path / "home", tmp_path / "script.json"
    disk.mkdir(parents=True)
    script.write_text(json.dumps([{"text": "I send it.", "tools": [{"name": "mail"}]}, "Sent."]))
    small_disk = ["bwrap", "--dev-bind", "/", "/", "--size", "4000000", "--tmpfs", str(disk)]
    process = await asyncio.create_subprocess_exec(
        *small_disk,
        sys.executable,
        "-c",
        FILL_DISK + PROGRAM,
        str(home),
        str(disk),
        str(script),
        stdout=subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)


async def test_a_run_waits_while_the_disk_of_its_conversation_is_full(tmp_path: Path):
    """Shows: P06."""
    disk = tmp_path / "home" / "sessions"
    run = await run_on_small_disk(tmp_path, disk)
    [note] = run["notes"]
    assert note.startswith(f"waiting for disk space: Cannot write {disk}/")
    code, listed = run["listed"]
    assert (code, listed["status"], listed["waiting_for"]) == (0, "waiting", "disk")
    assert listed["error"].startswith(f"Cannot write {disk}/")
    assert (run["status"], run["text"], run["error"]) == ("done", "Sent.", "")
    assert (run["sent"], run["results"], run["turns"]) == (["mail"], [20000], 2)


async def test_a_run_waits_while_the_disk_of_the_whole_home_is_full(tmp_path: Path):
    """Then not even the waiting status can be written.

    Shows: P06.
    """
    run = await run_on_small_disk(tmp_path, tmp_path / "home")
    [note] = run["notes"]
    assert f"{tmp_path}/home/ledger.db: the disk is full" in note
    assert run["listed"][0] == 0
    assert (run["status"], run["text"], run["error"]) == ("done", "Sent.", "")
    assert (run["sent"], run["results"], run["turns"]) == (["mail"], [20000], 2)
