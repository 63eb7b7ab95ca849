"""A broken disk: reading, writing or syncing Retinue's files fails with EIO, injected by strace into a real process."""

import asyncio
import json
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from commands import kill_with_loop

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse
from retinue.torture.environment import POLL_SECONDS, TortureEnvironment
from retinue.torture.scenario import MARK_CALL

RUN = ("run", "--agent", "lead", "Do it.")
TURNS = 6
"""Replies with a tool call, before the last one; fewer than the identical calls that are allowed."""
STRACE = ("strace", "-f", "-y", "-qq", "-s", "0")
INPUT_OUTPUT_ERROR = "Input/output error"


@dataclass(slots=True)
class BrokenMachine:
    """A home and a model that calls a tool with a countable side effect in each of its replies."""

    environment: TortureEnvironment = field(init=False)
    requests: list[int] = field(default_factory=list[int])
    paused_turn: int | None = None
    """The turn whose reply is held back until `resumed` is set."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    async def reply(self, request: CapturedRequest) -> FakeResponse:
        self.requests.append(request.reply_count)
        if request.reply_count == self.paused_turn:
            self.reached.set()
            await self.resumed.wait()
        calls = (MARK_CALL,) if request.reply_count < TURNS else ()
        return FakeResponse(text=f"Reply {request.reply_count}.", calls=calls)

    async def run(self, *args: str, wrapper: tuple[str, ...] = ()) -> tuple[int, Any, str]:
        """Run a command, and return its exit code, its JSON and its messages."""
        number = len(self.environment.processes)
        code = await self.environment.wait_for_exit(
            await self.environment.start_command(*args, "--json", wrapper=wrapper)
        )
        output = self.environment.output_dir / f"{number:03}.out"
        return code, json.loads(output.read_text() or "null"), output.with_suffix(".err").read_text()

    def run_row(self) -> dict[str, Any]:
        with closing(sqlite3.connect(self.environment.home / "ledger.db")) as connection:
            connection.row_factory = sqlite3.Row
            return dict(connection.execute("SELECT * FROM runs ORDER BY created_at DESC").fetchone())

    def results(self) -> list[str]:
        """Return the outcome of each tool call, as session.md has it."""
        return re.findall(r"^<!-- result of=\S+ (ok|failed)", self.session_file.read_text(), re.MULTILINE)

    @property
    def session_file(self) -> Path:
        (found,) = self.environment.home.glob("sessions/*/branches/main/session.md")
        return found

    @property
    def effects(self) -> int:
        return sum(self.environment.effect_counts().values())

    async def count_syncs(self, *command: str) -> int:
        """Run a command with the syncs of the ledger traced, and return how many its busiest thread made."""
        trace = self.environment.root / "trace"
        process = await self.environment.start_command(
            *command, wrapper=(*STRACE, "-o", str(trace), "-e", "trace=fdatasync")
        )
        assert await self.environment.wait_for_exit(process) == 0
        threads = Counter(line.split()[0] for line in trace.read_text().splitlines() if "fdatasync" in line)
        return max(threads.values())


def failing(fault: str, *options: str) -> tuple[str, ...]:
    return (
        *STRACE,
        "-o",
        "/dev/null",
        *options,
        "-e",
        f"trace={fault.partition(':')[0]}",
        "-e",
        f"inject={fault}",
    )


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[BrokenMachine]:
    machine = BrokenMachine()
    async with FakeModelServer(machine.reply) as server:
        machine.environment = TortureEnvironment(tmp_path / "machine", server.url)
        await machine.run("runs", "list")  # creates the ledger
        yield machine
        await machine.environment.close()


@pytest.fixture
async def middle_sync(machine: BrokenMachine, tmp_path: Path) -> int:
    """The number of a sync of the ledger in the middle of a run."""
    healthy = BrokenMachine()
    healthy.environment = TortureEnvironment(tmp_path / "healthy", machine.environment.url)
    await healthy.run("runs", "list")
    count = await healthy.count_syncs(*RUN)
    machine.requests.clear()
    return count // 2


async def test_a_run_stops_before_anything_is_paid_when_the_ledger_cannot_be_synced(
    machine: BrokenMachine, middle_sync: int
):
    code, shown, messages = await machine.run(
        *RUN, wrapper=failing(f"fdatasync:error=EIO:when={middle_sync}+")
    )

    assert (code, shown["error"]["code"]) == (1, "disk_error")
    assert "retinue runs resume" in messages
    assert 0 < len(machine.requests) < TURNS
    # Only the call whose start or end could not be recorded has failed, and no request followed it.
    assert len(machine.results()) == len(machine.requests)
    assert set(machine.results()[:-1]) <= {"ok"}

    code, _, _ = await machine.run("runs", "resume", machine.run_row()["id"])
    assert (code, machine.run_row()["status"]) == (0, "done")
    assert len(machine.requests) == TURNS + 1
    assert machine.effects in (TURNS - 1, TURNS)


async def test_one_failed_sync_of_the_ledger_ends_the_run_with_the_reason_disk(
    machine: BrokenMachine, middle_sync: int
):
    code, shown, _ = await machine.run(*RUN, wrapper=failing(f"fdatasync:error=EIO:when={middle_sync}"))

    assert (code, shown["status"], shown["reason"]) == (1, "failed", "disk")
    assert "ledger.db" in shown["error"]
    assert len(machine.requests) < TURNS
    code, _, _ = await machine.run("runs", "resume", shown["run_id"])
    assert (code, machine.run_row()["status"]) == (0, "done")


async def break_disk(daemon: asyncio.subprocess.Process) -> asyncio.subprocess.Process:
    """Let every sync of a running daemon's ledger fail, until the returned tracer is killed."""
    tracer = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-p", str(daemon.pid), "-o", "/dev/null"),
        *("-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert tracer.stderr is not None
    assert b"attached" in await tracer.stderr.readline()
    return kill_with_loop(tracer)


async def test_a_daemon_records_the_end_of_a_stopped_run_once_the_disk_works_again(machine: BrokenMachine):
    machine.paused_turn = TURNS // 2
    daemon = await machine.environment.start_command("serve")
    await machine.environment.wait_for_daemon(daemon)
    code, shown, _ = await machine.run(*RUN, "--background")
    assert code == 0, shown
    await machine.reached.wait()
    tracer = await break_disk(daemon)
    machine.resumed.set()
    messages = machine.environment.output_dir / "001.err"
    while "disk I/O error" not in messages.read_text():  # noqa: ASYNC110  (another process writes it)
        await asyncio.sleep(POLL_SECONDS)
    paid = len(machine.requests)
    assert paid == TURNS // 2 + 1
    assert machine.run_row()["status"] == "running"

    tracer.send_signal(signal.SIGKILL)  # the daemon continues, with a healthy disk
    await tracer.wait()
    while (row := machine.run_row())["status"] == "running":  # noqa: ASYNC110  (the same)
        await asyncio.sleep(POLL_SECONDS)
    assert (row["status"], row["reason"]) == ("failed", "disk")
    assert len(machine.requests) == paid

    code, _, _ = await machine.run("runs", "resume", row["id"])
    assert (code, machine.run_row()["status"]) == (0, "done")


async def test_a_run_whose_ledger_cannot_be_read_is_stopped_by_the_disk_and_not_by_damage(
    machine: BrokenMachine,
):
    ledger = machine.environment.home / "ledger.db"
    code, shown, messages = await machine.run(
        *RUN, wrapper=failing("pread64:error=EIO:when=5+", "-P", str(ledger))
    )
    assert code == 1
    assert shown.get("reason") == "disk" or shown["error"]["code"] == "disk_error"
    assert "doctor" not in messages
    assert len(machine.requests) < TURNS


@pytest.mark.parametrize("command", [("serve",), ("doctor", "--repair")])
@pytest.mark.parametrize("when", ["4", "4+"])
async def test_a_ledger_that_the_disk_cannot_read_is_not_replaced(
    machine: BrokenMachine, command: tuple[str, ...], when: str
):
    """SQLite reports a read that fails as damage, and a damaged ledger is replaced by an empty one."""
    code, shown, _ = await machine.run(*RUN)
    assert code == 0, shown
    ledger = machine.environment.home / "ledger.db"
    process = await machine.environment.start_command(
        *command, wrapper=failing(f"pread64:error=EIO:when={when}", "-P", str(ledger))
    )
    if command == ("serve",):
        await machine.environment.wait_for_daemon(process)
        await machine.environment.kill_process(process)
    else:
        await machine.environment.wait_for_exit(process)

    assert sorted(each.name for each in ledger.parent.glob("ledger.db.damaged*")) == []
    assert machine.run_row()["id"] == shown["run_id"]


@pytest.mark.parametrize("fault", ["pread64:error=EIO", "fsync:error=EIO"])
async def test_a_conversation_that_cannot_be_read_or_synced_stops_its_run_with_the_reason_disk(
    machine: BrokenMachine, fault: str
):
    code, _, _ = await machine.run(*RUN)
    assert code == 0
    paid = len(machine.requests)

    wrapper = failing(fault, "-P", str(machine.session_file))
    code, shown, _ = await machine.run(
        "send", machine.session_file.parents[2].name, "Again.", wrapper=wrapper
    )

    assert (code, shown["status"], shown["reason"]) == (1, "failed", "disk")
    assert str(machine.session_file) in shown["error"]
    assert INPUT_OUTPUT_ERROR in shown["error"]
    assert len(machine.requests) <= paid + 1
