"""A short crash test with `retinue torture`, and that each of its invariants detects its violation."""

import asyncio
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.run import Run, Status
from retinue.domain.side_effect import SideEffectState
from retinue.errors import BUG_MESSAGE
from retinue.interfaces import Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.testing.fake_model_server import FakeModelServer
from retinue.torture.counted_tools import EFFECTS_FILE
from retinue.torture.environment import TortureEnvironment
from retinue.torture.fake_model import FakeModel, ModelRequest
from retinue.torture.injuries import TORN_ENTRY, kill_shell_commands
from retinue.torture.invariants import STOPPED_RESULT, Invariant, InvariantReport, Statistic, check_invariants
from retinue.torture.random_kills import KillCycle, kill_commands_repeatedly
from retinue.torture.scenario import COMMANDS_FILE, FULL_TREE
from retinue.torture.sync_order import count_effects, find_unsynced_effects
from retinue.torture.syscall_faults import (
    FAULTS,
    LASTING,
    SYSCALLS,
    FaultPoint,
    add_second_kills,
    fault_points,
    sample_points,
)


async def run_torture(env: dict[str, str], *args: str) -> tuple[int, Any, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "retinue", "torture", *args,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, json.loads(out or b"null"), err.decode()


@pytest.mark.timeout(600)
async def test_no_fault_loses_entries_or_repeats_requests_effects_or_announcements(
    isolated_env: dict[str, str],
):
    """Shows: P01, P10, P11, P12, P21, P32."""
    code, report, err = await run_torture(
        isolated_env, "--kills", "6", "--points", "2", "--running", "60", "--seed", "11", "--json"
    )
    assert code == 0, err
    calls, kills, many = report["parts"]
    assert [sum(part["invariants"].values()) for part in report["parts"]] == [0, 0, 0], err
    assert calls["faults"] + calls["missed"] == 2 * len(FAULTS)
    assert calls["faults"] > 2
    assert kills["faults"] >= 6  # a second process that resumes may be killed too
    assert (many["faults"], many["part"]) == (1, "60 running")
    assert kills["resume_worst_s"] >= kills["resume_median_s"] > 0
    assert many["all_ended_s"] > 0


async def test_what_cannot_be_tested_is_reported_and_is_a_failure(
    isolated_env: dict[str, str], tmp_path: Path
):
    code, report, err = await run_torture(
        isolated_env | {"PATH": str(tmp_path)}, "--kills", "0", "--points", "3", "--running", "2", "--json"
    )
    assert (code, report["violations"]) == (1, 0)
    assert "Not tested: faults at system calls, because strace is not installed." in err
    assert [(part["part"], part["faults"], len(part["not_measured"])) for part in report["parts"]] == [
        ("system calls", 0, 1),
        ("2 running", 1, 0),
    ]


@dataclass(slots=True)
class TortureHome:
    """A home in which a tree of runs finished without a fault; the tests damage it."""

    environment: TortureEnvironment
    requests: list[ModelRequest]

    async def check(self, *, errors_injected: bool = False) -> InvariantReport:
        return await check_invariants(
            self.environment, self.requests, faults=0, errors_injected=errors_injected
        )

    @property
    def effects(self) -> Path:
        return self.environment.work_dir / EFFECTS_FILE

    def file(self, agent: str, name: str = "session.md") -> Path:
        """Return a file of a child session, or of the top-level session if no agent is named."""
        child_pattern = f"**/{agent}-*/" if agent else ""
        (found,) = self.environment.home.glob(f"sessions/*/branches/main/{child_pattern}{name}")
        return found

    async def write_ledger(self, step: Callable[[Transaction], None]) -> None:
        ledger = SqliteLedger(self.environment.home / "ledger.db")
        await ledger.write(step)
        await ledger.close()


@pytest.fixture(scope="module")
async def finished_home(tmp_path_factory: pytest.TempPathFactory) -> TortureHome:
    """The largest tree, run to its end by commands that nobody kills."""
    model = FakeModel(1, max_delay_s=0)
    async with FakeModelServer(model) as server:
        environment = TortureEnvironment(tmp_path_factory.mktemp("done"), server.url)
        environment.create_repository()
        await kill_commands_repeatedly(environment, model, random.Random(1), 0, FULL_TREE)
    return TortureHome(environment, model.requests)


@pytest.fixture
def home(finished_home: TortureHome, tmp_path: Path) -> TortureHome:
    root, finished = tmp_path / "ground", finished_home.environment
    shutil.copytree(finished.root, root, symlinks=True)
    environment = TortureEnvironment(root, finished.url)
    environment.trees, environment.denied_calls = finished.trees, finished.denied_calls
    environment.allowed_calls = set(finished.allowed_calls)
    return TortureHome(environment, list(finished_home.requests))


async def test_a_tree_without_faults_violates_no_invariant(home: TortureHome):
    report = await home.check()
    assert report.violations == {}
    assert not any(report.counts.values())


async def repeat_effect(home: TortureHome) -> None:
    lines = home.effects.read_text().splitlines(keepends=True)
    home.effects.write_text("".join([*lines, lines[0]]))


async def remove_effect(home: TortureHome) -> None:
    home.effects.write_text("".join(home.effects.read_text().splitlines(keepends=True)[1:]))


async def add_unknown_effect(home: TortureHome) -> None:
    with home.effects.open("a") as file:
        file.write("run call\n")


async def remove_result_text(home: TortureHome) -> None:
    path = home.file("four")
    path.write_text(re.sub(r"word\(\S+#1\.1\)", "nothing", path.read_text()))


async def change_request_history(home: TortureHome) -> None:
    last = home.requests[-1]
    home.requests[-1] = replace(last, message_digests=("other", *last.message_digests[1:]))


async def repeat_request(home: TortureHome) -> None:
    home.requests.append(replace(home.requests[0], attempt=2))


async def remove_announcement(home: TortureHome) -> None:
    path = home.file("")
    text = path.read_text()
    start = text.index("<!-- notice")
    path.write_text(text[:start] + text[text.index("<!-- ", start + 5) :])


async def reset_delivery(home: TortureHome) -> None:
    def step(tx: Transaction) -> None:
        first = tx.find_deliveries()[0]
        tx.update_delivery(replace(first, state=first.state.PENDING, taken_by=""))

    await home.write_ledger(step)


async def duplicate_child(home: TortureHome) -> None:
    def step(tx: Transaction) -> None:
        run = next(run for run in tx.find_runs() if run.agent == "four")
        tx.add_run(replace(run, id="01ZZZZZZZZZZZZZZZZZZZZZZZZ", request=replace(run.request, key="other")))

    await home.write_ledger(step)


async def restart_run(home: TortureHome) -> None:
    def step(tx: Transaction) -> None:
        def as_running(run: Run) -> Run:
            return replace(run, status=Status.RUNNING, owner_id="nobody", ended_at=None)

        tx.update_run(as_running(next(run for run in tx.find_runs() if run.agent == "one")))

    await home.write_ledger(step)


def close_result_of_resumed_run(home: TortureHome, tool: str) -> None:
    """Close a call of the top-level run as if it had been suspended after crashes and resumed by a person."""
    path = home.file("")
    text = path.read_text()
    call = re.search(rf"<!-- call id=(\w+) tool={tool} [^>]*run=(\w+)", text)
    assert call
    home.environment.resumed_runs.add(call[2])
    closed = (
        f"<!-- result of={call[1]} failed at=2026-11-19T12:00:00Z run={call[2]} n={len(STOPPED_RESULT)} -->"
    )
    path.write_text(
        re.sub(rf"<!-- result of={call[1]} .*?\n\n", f"{closed}\n{STOPPED_RESULT}\n\n", text, flags=re.DOTALL)
    )


async def close_delegation_call(home: TortureHome) -> None:
    close_result_of_resumed_run(home, "agent")


async def garble_session_file(home: TortureHome) -> None:
    path = home.file("two")
    path.write_text(path.read_text().replace("<!-- agent id=", "<!-- agent id=a id=b ", 1))


async def remove_reply_marker(home: TortureHome) -> None:
    """Turn a reply into a part of the entry above it."""
    path = home.file("two")
    path.write_text(path.read_text().replace("<!-- agent", "<!-- agnt", 1))


async def remove_preset(home: TortureHome) -> None:
    home.file("three", "preset.md").unlink()


async def remove_ledger(home: TortureHome) -> None:
    for path in home.environment.home.glob("ledger.db*"):
        path.unlink()


async def remove_child_session(home: TortureHome) -> None:
    shutil.rmtree(home.file("three").parent)


async def fail_run(home: TortureHome) -> None:
    def step(tx: Transaction) -> None:
        tx.update_run(
            replace(next(run for run in tx.find_runs() if run.agent == "one"), status=Status.FAILED)
        )

    await home.write_ledger(step)


async def remove_worktree(home: TortureHome) -> None:
    path = home.file("six", "session.json")
    path.write_text(re.sub(r'"root": *"[^"]*"', '"root":"/nowhere"', path.read_text()))


async def forget_approval(home: TortureHome) -> None:
    home.environment.allowed_calls.clear()


async def count_turn_twice(home: TortureHome) -> None:
    def step(tx: Transaction) -> None:
        run = next(run for run in tx.find_runs() if run.agent == "one")
        tx.update_run(replace(run, turns=run.turns + 1))

    await home.write_ledger(step)


async def remove_command_line(home: TortureHome) -> None:
    (home.environment.work_dir / COMMANDS_FILE).write_text("")


async def repeat_command(home: TortureHome) -> None:
    path = home.environment.work_dir / COMMANDS_FILE
    path.write_text(path.read_text() * 2)


async def forget_effect_end(home: TortureHome) -> None:
    def step(tx: Transaction) -> None:
        run = next(run for run in tx.find_runs() if run.agent == "five")
        effect = next(each for each in tx.find_side_effects(run.id) if each.tool == "mark")
        tx.save_side_effect(replace(effect, progress=SideEffectState.STARTED))

    await home.write_ledger(step)


async def repeat_final_reply(home: TortureHome) -> None:
    """Add a second final reply, as a run does that asks again after a crash."""
    path = home.file("three")
    entry = re.findall(r"<!-- agent .*?\n\n", path.read_text(), re.DOTALL)[-1]
    text = path.read_text().replace(entry, entry + entry.replace("<!-- agent id=01", "<!-- agent id=02"))
    path.write_text(text)


async def add_torn_entry(home: TortureHome) -> None:
    with home.file("three").open("ab") as file:
        file.write(TORN_ENTRY)


async def damage_ledger(home: TortureHome) -> None:
    path = home.environment.home / "ledger.db"
    data = bytearray(path.read_bytes())
    data[2048:] = os.urandom(len(data) - 2048)
    path.write_bytes(data)


async def add_traceback(home: TortureHome) -> None:
    (home.environment.output_dir / "001.err").write_text("Traceback (most recent call last):\n")


async def add_bug_message(home: TortureHome) -> None:
    (home.environment.output_dir / "001.err").write_text(f"unexpected ValueError. {BUG_MESSAGE}\n")


VIOLATIONS: list[tuple[Callable[[TortureHome], Awaitable[None]], Invariant]] = [
    (repeat_effect, Invariant.EFFECTS_REPEATED),
    (remove_effect, Invariant.EFFECTS_MISREPORTED),
    (add_unknown_effect, Invariant.EFFECTS_MISREPORTED),
    (remove_result_text, Invariant.ENTRIES_LOST),
    (remove_reply_marker, Invariant.ENTRIES_LOST),
    (change_request_history, Invariant.ENTRIES_LOST),
    (repeat_request, Invariant.TURNS_REPEATED),
    (remove_announcement, Invariant.ANNOUNCEMENTS_WRONG),
    (reset_delivery, Invariant.ANNOUNCEMENTS_WRONG),
    (duplicate_child, Invariant.CHILDREN_DUPLICATED),
    (restart_run, Invariant.RUNS_NOT_TERMINAL),
    (garble_session_file, Invariant.SESSIONS_UNREADABLE),
    (remove_preset, Invariant.FOLDERS_INCOMPLETE),
    (remove_ledger, Invariant.AGENTS_LOST),
    (remove_child_session, Invariant.AGENTS_LOST),
    (fail_run, Invariant.RUNS_FAILED),
    (remove_worktree, Invariant.EFFECTS_LOST),
    (close_delegation_call, Invariant.EFFECTS_LOST),
    (remove_command_line, Invariant.EFFECTS_LOST),
    (repeat_command, Invariant.EFFECTS_REPEATED),
    (forget_approval, Invariant.EFFECTS_UNAPPROVED),
    (count_turn_twice, Invariant.COUNTS_WRONG),
    (forget_effect_end, Invariant.EFFECTS_MISREPORTED),
    (repeat_final_reply, Invariant.TURNS_REPEATED),
    (add_torn_entry, Invariant.SESSIONS_UNREADABLE),
    (damage_ledger, Invariant.LEDGER_DAMAGED),
    (add_traceback, Invariant.INTERNAL_ERRORS),
    (add_bug_message, Invariant.INTERNAL_ERRORS),
]


@pytest.mark.parametrize(
    ("damage", "invariant"), VIOLATIONS, ids=[damage.__name__ for damage, _ in VIOLATIONS]
)
async def test_every_invariant_detects_its_violation(
    home: TortureHome, damage: Callable[[TortureHome], Awaitable[None]], invariant: Invariant
):
    await damage(home)
    assert invariant in (await home.check()).violations


def test_every_invariant_is_tested():
    tested_below = {Invariant.RUNS_SUSPENDED, Invariant.EFFECTS_UNSYNCED, Invariant.LOCKS_IGNORED}
    assert {invariant for _, invariant in VIOLATIONS} | tested_below == set(Invariant)


async def test_a_run_that_failed_is_no_violation_after_an_injected_error(home: TortureHome):
    await fail_run(home)
    report = await home.check(errors_injected=True)
    assert report.violations == {}
    assert report.counts[Statistic.RUNS_NOT_DONE] == 1


async def test_only_calls_that_delegate_must_have_a_result_after_a_person_resumed_their_run(
    home: TortureHome,
):
    close_result_of_resumed_run(home, "mark")
    assert Invariant.EFFECTS_LOST not in (await home.check()).violations


async def test_the_loss_of_everything_is_a_violation_after_an_injected_error_too(home: TortureHome):
    await remove_ledger(home)
    assert Invariant.AGENTS_LOST in (await home.check(errors_injected=True)).violations


@pytest.mark.parametrize(
    ("completed_calls", "is_violation"),
    [
        ([3], True),
        ([1, 1], True),
        ([1, 1, 1], False),
        ([1, 2, 2], False),
        ([0, 4, 8], True),
        ([0, 5, 5, 5], False),
    ],
)
async def test_suspending_a_run_that_made_progress_between_kills_is_a_violation(
    home: TortureHome, completed_calls: list[int], is_violation: bool
):
    cycle = KillCycle(environment=home.environment, model=FakeModel(1), rng=random.Random(1))
    cycle.model.requests += home.requests
    cycle.completed_calls = [{"run": count} for count in completed_calls]
    cycle.suspended["run"] = cycle.was_suspension_justified("run")
    report = await cycle.check()
    assert (Invariant.RUNS_SUSPENDED in report.violations) is is_violation
    assert report.counts[Statistic.RUNS_SUSPENDED] == (0 if is_violation else 1)


async def test_writing_a_session_that_another_process_has_locked_is_a_violation(home: TortureHome):
    cycle = KillCycle(environment=home.environment, model=FakeModel(1), rng=random.Random(1))
    cycle.model.requests += home.requests
    cycle.changed_locked_sessions.append(home.file("four"))
    assert Invariant.LOCKS_IGNORED in (await cycle.check()).violations


async def test_a_killed_shell_command_is_found_and_its_tree_continues(tmp_path: Path):
    model = FakeModel(1, max_delay_s=0)
    async with FakeModelServer(model) as server:
        environment = TortureEnvironment(tmp_path / "ground", server.url)
        environment.create_repository()
        cycle = KillCycle(environment=environment, model=model, rng=random.Random(1))
        process = await environment.start_command("serve")
        await environment.start_trees(f"{FULL_TREE}-0")
        while not (killed := kill_shell_commands(environment.work_dir)):
            for approval_id, answer in cycle.choose_answers(await environment.read_ledger()):
                await environment.answer_over_http(approval_id, answer)
        environment.killed_commands += killed
        await cycle.wait_until_idle(process)
        await environment.kill_process(process)
        report = await cycle.check()
    assert report.violations == {}
    assert sum(environment.command_counts().values()) < 3  # five runs three, and one was killed


TRACED_RUN = """
7 rename("/home/.staging/.new-s", "/home/s") = 0
8 fsync(5</home>) = 0
7 write(3</home/s/session.md>, ""..., 200) = 200
7 fsync(3</home/s/session.md>) = 0
7 pwrite64(4</home/ledger.db-wal>, ""..., 4096, 0) = 4096
7 fdatasync(4</home/ledger.db-wal>) = 0
7 write(3</home/s/session.md>, ""..., 44) = 44
7 write(5</work/effects.log>, ""..., 54) = 54
"""


@pytest.mark.parametrize("missing", ["", "7 fsync", "7 fdatasync", "8 fsync"])
def test_a_side_effect_before_a_sync_is_found_in_the_trace(tmp_path: Path, missing: str):
    trace = tmp_path / "trace"
    lines = [line for line in TRACED_RUN.splitlines() if not missing or f"{missing}(" not in line]
    trace.write_text("\n".join(lines))
    assert count_effects(trace) == 1
    unsynced = {
        "": [],
        "7 fsync": ["s/session.md"],
        "7 fdatasync": ["ledger.db-wal"],
        "8 fsync": ["/home"],
    }[missing]
    messages = find_unsynced_effects(trace, Path("/home"))
    assert [message.rpartition(": ")[2] for message in messages] == unsynced


def test_an_entry_of_another_agent_that_is_just_being_synced_is_no_violation(tmp_path: Path):
    trace = tmp_path / "trace"
    other_agent = '8 write(6</home/t/session.md>, ""..., 200) = 200'
    finish = "8 fsync(6</home/t/session.md> <unfinished ...>\n8 <... fsync resumed>) = 0"
    trace.write_text(TRACED_RUN.replace("7 write(5", f"{other_agent}\n7 write(5") + finish)
    assert find_unsynced_effects(trace, Path("/home")) == []
    trace.write_text(
        TRACED_RUN.replace("7 write(5", f"{other_agent}\n7 write(5") + f"{other_agent}\n{finish}"
    )
    assert len(find_unsynced_effects(trace, Path("/home"))) == 1


def test_fault_points_are_sampled_from_every_system_call_and_every_fault():
    used_numbers = {"write": [5, 6, 9], "fsync": list(range(1, 100)), "rename": [2]}
    all_points = fault_points(
        {"write": [3, 5, 6, 9], "fsync": used_numbers["fsync"], "mkdir": [1]}, used_numbers
    )
    assert len(all_points) == 3 * (4 + 99 + 1 + 1) + 2 * (4 + 99)  # of those that last, no mkdir and rename
    assert FaultPoint(fault="EIO", syscall="write", number=3, fresh_home=True) in all_points
    assert FaultPoint(fault="EIO", syscall="write", number=5, fresh_home=False) in all_points
    sample = sample_points(all_points, 6, random.Random(1))
    for fault in FAULTS:
        syscalls = [point.syscall for point in sample if point.fault == fault]
        assert len(syscalls) == 6
        assert set(syscalls) == {"write", "fsync"} | (set() if LASTING in fault else {"rename", "mkdir"})
    assert {point.syscall for point in all_points} <= set(SYSCALLS)
    with_second_kills = add_second_kills(all_points, used_numbers, random.Random(1))
    assert {point.fault for point in with_second_kills if point.second_number} == {"SIGKILL"}
    assert all(
        point.second_number in used_numbers[point.syscall]
        for point in with_second_kills
        if point.second_number
    )
    assert sample_points(all_points, None, random.Random(1)) == all_points
