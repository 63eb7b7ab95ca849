"""A home that cannot be written: commands that write are refused before they change anything, and reading works."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import RETINUE, start_process
from crash_programs import FILL_DISK

from retinue.errors import BUG_MESSAGE


@dataclass(slots=True, kw_only=True)
class ScriptedMachine:
    """A user's machine: its environment, a working directory, and a model that replies from a script."""

    env: dict[str, str]
    work_dir: Path
    script: Path

    @property
    def home(self) -> Path:
        return Path(self.env["RETINUE_HOME"])

    def set_replies(self, *replies: str | dict[str, object]) -> None:
        self.script.write_text(json.dumps(replies))

    async def start(self, *args: str) -> asyncio.subprocess.Process:
        return await start_process(
            [*RETINUE, *args],
            env=self.env,
            cwd=self.work_dir,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    async def run(self, *args: str, read_only: Path | None = None) -> tuple[int, str, str]:
        """Run a command, optionally with a folder that is read-only for it."""
        if read_only is None:
            process = await self.start(*args)
        else:
            process = await asyncio.create_subprocess_exec(
                "bwrap", "--dev-bind", "/", "/", "--ro-bind", str(read_only), str(read_only),
                sys.executable, *RETINUE, *args,
                env=self.env, cwd=self.work_dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


@pytest.fixture
def machine(isolated_env: dict[str, str], tmp_path: Path) -> ScriptedMachine:
    work_dir, script = tmp_path / "work", tmp_path / "script.json"
    work_dir.mkdir()
    env = isolated_env | {"RETINUE_MODEL": f"scripted:{script}"}
    machine = ScriptedMachine(env=env, work_dir=work_dir, script=script)
    machine.set_replies("One.")
    return machine


def list_paths(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


async def test_a_run_in_a_read_only_home_is_refused_before_anything_is_written(machine: ScriptedMachine):
    """Shows: P07."""
    home = machine.home
    assert (await machine.run("run", "Hello."))[0] == 0
    before = list_paths(home), list_paths(machine.work_dir)
    code, out, err = await machine.run("run", "Again.", read_only=home)
    assert (code, out) == (1, "")
    assert err.startswith(f"retinue: Cannot create a lock file in {home}/owners: Read-only file system")
    assert (list_paths(home), list_paths(machine.work_dir)) == before
    code, out, err = await machine.run("sessions", "list", "--json", read_only=home)
    assert (code, [each["last_snippet"] for each in json.loads(out)]) == (0, ["One."]), err


async def test_a_home_that_cannot_be_created_is_an_error(machine: ScriptedMachine, tmp_path: Path):
    """Shows: P07."""
    parent = tmp_path / "parent"
    parent.mkdir()
    machine.env["RETINUE_HOME"] = str(parent / "home")
    code, _, err = await machine.run("run", "Hello.", read_only=parent)
    assert (code, f"{parent}/home" in err, "Traceback" in err) == (1, True, False)
    assert list_paths(parent) == []


READING_COMMANDS = (
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


async def test_commands_that_only_read_work_in_a_read_only_home(machine: ScriptedMachine):
    """Shows: P07."""
    home = machine.home
    _, out, _ = await machine.run("run", "--json", "Hello.")
    run = json.loads(out)
    before = list_paths(home)
    for args in (
        *READING_COMMANDS,
        ("runs", "show", run["run_id"]),
        ("sessions", "show", run["slug"]),
        ("scope", "show", run["slug"]),
    ):
        code, out, err = await machine.run(*args, "--json", read_only=home)
        assert (code, err, bool(json.loads(out) is not None)) == (0, "", True), args
    code, out, _ = await machine.run("runs", "history", "--json", read_only=home)
    assert [each["text"] for each in json.loads(out)] == ["One."]
    code, out, err = await machine.run("doctor", "--json", read_only=home)
    bad = [each["message"] for each in json.loads(out) if each["level"] == "bad"]
    assert (code, bad, err) == (1, [f"home: {home} is not writable"], "")
    assert list_paths(home) == before


async def test_a_read_only_home_shows_what_a_killed_process_left_in_the_write_ahead_log(
    machine: ScriptedMachine,
):
    """Shows: P07."""
    home = machine.home
    machine.set_replies({"text": "Never.", "delay": 600})
    process = await machine.start("run", "Hello.")
    while '"status": "running"' not in (await machine.run("runs", "list", "--json"))[1]:
        pass
    process.kill()
    await process.communicate()
    assert (home / "ledger.db-wal").stat().st_size
    code, out, err = await machine.run("runs", "list", "--json", read_only=home)
    assert (code, [each["status"] for each in json.loads(out)]) == (0, ["running"]), err
    assert "1 run was interrupted" in err


async def test_commands_that_need_to_write_explain_the_read_only_home_in_one_sentence(
    machine: ScriptedMachine,
):
    """Shows: P07."""
    home = machine.home
    _, out, _ = await machine.run("run", "--json", "Hello.")
    run = json.loads(out)
    for args in (
        ("serve", "--detach"),
        ("serve",),
        ("runs", "resume"),
        ("send", run["slug"], "More."),
        ("sessions", "rename", run["slug"], "New"),
        ("sessions", "clear", run["slug"]),
        ("tokens", "add", "page", "--rights", "read"),
    ):
        code, out, err = await machine.run(*args, read_only=home)
        assert (code, out, err.count("\n")) == (1, "", 1), args
        assert "Read-only file system" in err, args
        assert BUG_MESSAGE not in err


SERVE_ON_FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
disk, *args = sys.argv[1:]
fill_disk(Path(disk) / "filler")
sys.exit(subprocess.run([sys.executable, "-m", "retinue", *args]).returncode)
"""


async def test_starting_a_daemon_on_a_full_disk_reports_the_reason(
    isolated_env: dict[str, str], tmp_path: Path
):
    """The daemon cannot write the reason to its log either.

    Shows: P06.
    """
    disk = tmp_path / "small"
    disk.mkdir()
    env = isolated_env | {"RETINUE_HOME": str(disk)}
    process = await asyncio.create_subprocess_exec(
        "bwrap", "--dev-bind", "/", "/", "--size", "1000000", "--tmpfs", str(disk),
        sys.executable, "-c", FILL_DISK + SERVE_ON_FULL_DISK, str(disk), "serve", "--detach",
        env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    message = err.decode()
    assert (process.returncode, out, message.count("\n")) == (1, b"", 1), message
    assert message.startswith(f"retinue: The daemon cannot start: {disk}")
    assert "No space left on device; free some space" in message
