"""A home that cannot be written to: refused before anything is done, by the name of the place, and still readable."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from commands import RETINUE, start_process


async def ran(
    env: dict[str, str], folder: Path, *words: str, closed: Path | None = None
) -> tuple[int, str, str]:
    """One command, with a folder that is read-only to it."""
    how: dict[str, Any] = {"env": env, "cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if closed:
        walls = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(closed), str(closed)]
        process = await asyncio.create_subprocess_exec(*walls, sys.executable, *RETINUE, *words, **how)
    else:
        process = await start_process([*RETINUE, *words], **how)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


async def test_nothing_is_begun_where_nothing_can_be_written(isolated_env: dict[str, str], tmp_path: Path):
    """Shows: P07."""
    script, work = tmp_path / "script.json", tmp_path / "work"
    work.mkdir()
    env = isolated_env | {"RETINUE_MODEL": f"scripted:{script}"}
    home = Path(env["RETINUE_HOME"])
    script.write_text(json.dumps(["One."]))
    assert (await ran(env, work, "run", "Hello."))[0] == 0
    before = tree(home), tree(work)
    code, out, err = await ran(env, work, "run", "Again.", closed=home)
    assert (code, out) == (1, "")
    assert err.startswith(f"retinue: Cannot create a lock file in {home}/owners: Read-only file system")
    assert (tree(home), tree(work)) == before
    code, out, err = await ran(env, work, "sessions", "list", "--json", closed=home)
    assert (code, [each["last_snippet"] for each in json.loads(out)]) == (0, ["One."]), err


async def test_no_home_is_made_where_none_can_be(isolated_env: dict[str, str], tmp_path: Path):
    """Shows: P07."""
    script, above = tmp_path / "script.json", tmp_path / "above"
    script.write_text(json.dumps(["One."]))
    above.mkdir()
    env = isolated_env | {"RETINUE_MODEL": f"scripted:{script}", "RETINUE_HOME": str(above / "home")}
    code, _, err = await ran(env, tmp_path, "run", "Hello.", closed=above)
    assert (code, f"{above}/home" in err, "Traceback" in err) == (1, True, False)
    assert tree(above) == []


LOOKS = (
    ("runs", "list"),
    ("runs", "history"),
    ("inbox",),
    ("agents", "list"),
    ("tools", "list"),
    ("approvals", "list"),
    ("pool", "list"),
    ("pool", "stats"),
    ("trust", "list"),
    ("sessions", "list"),
)


async def test_whoever_only_looks_needs_nothing_written(isolated_env: dict[str, str], tmp_path: Path):
    """Shows: P07."""
    script, work = tmp_path / "script.json", tmp_path / "work"
    work.mkdir()
    env = isolated_env | {"RETINUE_MODEL": f"scripted:{script}"}
    home = Path(env["RETINUE_HOME"])
    script.write_text(json.dumps(["One."]))
    _, out, _ = await ran(env, work, "run", "--json", "Hello.")
    run = json.loads(out)
    before = tree(home)
    for words in (
        *LOOKS,
        ("runs", "show", run["run_id"]),
        ("sessions", "show", run["slug"]),
        ("scope", "show", run["slug"]),
    ):
        code, out, err = await ran(env, work, *words, "--json", closed=home)
        assert (code, err, bool(json.loads(out) is not None)) == (0, "", True), words
    code, out, _ = await ran(env, work, "runs", "history", "--json", closed=home)
    assert [each["text"] for each in json.loads(out)] == ["One."]
    code, out, err = await ran(env, work, "doctor", "--json", closed=home)
    bad = [each["message"] for each in json.loads(out) if each["level"] == "bad"]
    assert (code, bad, err) == (1, [f"home: {home} is not writable"], "")
    assert tree(home) == before


async def test_what_a_killed_process_left_in_the_ledgers_log_is_seen_too(
    isolated_env: dict[str, str], tmp_path: Path
):
    """Shows: P07."""
    script, work = tmp_path / "script.json", tmp_path / "work"
    work.mkdir()
    env = isolated_env | {"RETINUE_MODEL": f"scripted:{script}"}
    home = Path(env["RETINUE_HOME"])
    script.write_text(json.dumps([{"text": "Never.", "delay": 600}]))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = await start_process([*RETINUE, "run", "Hello."], env=env, cwd=work, **quiet)
    while '"status": "running"' not in (await ran(env, work, "runs", "list", "--json"))[1]:
        pass
    process.kill()
    await process.wait()
    assert (home / "ledger.db-wal").stat().st_size
    code, out, err = await ran(env, work, "runs", "list", "--json", closed=home)
    assert (code, [each["status"] for each in json.loads(out)]) == (0, ["running"]), err
    assert "1 run was interrupted" in err


async def test_what_cannot_be_done_there_says_in_one_sentence_what_to_do(
    isolated_env: dict[str, str], tmp_path: Path
):
    """Shows: P07."""
    script, work = tmp_path / "script.json", tmp_path / "work"
    work.mkdir()
    env = isolated_env | {"RETINUE_MODEL": f"scripted:{script}"}
    home = Path(env["RETINUE_HOME"])
    script.write_text(json.dumps(["One."]))
    _, out, _ = await ran(env, work, "run", "--json", "Hello.")
    run = json.loads(out)
    for words in (
        ("serve", "--detach"),
        ("serve",),
        ("runs", "resume"),
        ("send", run["slug"], "More."),
        ("sessions", "rename", run["slug"], "New"),
        ("sessions", "clear", run["slug"]),
        ("tokens", "add", "page", "--rights", "read"),
    ):
        code, out, err = await ran(env, work, *words, closed=home)
        assert (code, out, err.count("\n")) == (1, "", 1), words
        assert "Read-only file system" in err, words
        assert "defect" not in err


FULL = """
import errno, os, subprocess, sys
from pathlib import Path
disk, *words = sys.argv[1:]
with open(Path(disk) / "filler", "wb", buffering=0) as file:
    for piece in (65536, 4096, 1):
        try:
            while True:
                file.write(bytes(piece))
        except OSError as error:
            assert error.errno == errno.ENOSPC
sys.exit(subprocess.run([sys.executable, "-m", "retinue", *words]).returncode)
"""


async def test_why_a_daemon_cannot_start_on_a_full_disk_is_told_to_who_starts_it(
    isolated_env: dict[str, str], tmp_path: Path
):
    """Its log cannot be written either.

    Shows: P06."""
    disk = tmp_path / "small"
    disk.mkdir()
    env = isolated_env | {"RETINUE_HOME": str(disk)}
    process = await asyncio.create_subprocess_exec(
        "bwrap", "--dev-bind", "/", "/", "--size", "1000000", "--tmpfs", str(disk),
        sys.executable, "-c", FULL, str(disk), "serve", "--detach",
        env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    told = err.decode()
    assert (process.returncode, out, told.count("\n")) == (1, b"", 1), told
    assert told.startswith(f"retinue: The daemon stopped at once: {disk}")
    assert "No space left on device; free some space" in told
