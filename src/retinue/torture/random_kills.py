"""Random kills: the processes that run a tree are killed and restarted, then left to finish."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from retinue.torture.counted_tools import PAUSE_SECONDS
from retinue.torture.environment import POLL_SECONDS, TortureEnvironment
from retinue.torture.fake_model import FakeModel
from retinue.torture.home_reader import LedgerRows, completed_calls_by_run, session_files_by_id
from retinue.torture.injuries import (
    Injury,
    kill_shell_commands,
    limit_memory,
    locked_session,
    tear_session_file,
)
from retinue.torture.invariants import Invariant, InvariantReport, Statistic, check_invariants
from retinue.torture.scenario import BARE_TREE, FULL_TREE, LONG_TREE, LONG_TURNS, task_text

DAEMON_COMMAND = ("serve",)
MAX_KILLS_PER_TREE = 8
"""Kills per tree: fewer than the ten crashes in an hour after which a run always waits for a person."""
CRASHES_WITHOUT_PROGRESS = 3
"""Kills in a row, without a completed tool call in between, after which a run may wait for a person."""
DAEMON_TREES = 3
"""Trees that a daemon runs concurrently."""
DENIAL_RATE = 0.2
"""Share of approvals of side effects that are denied."""
ANSWER_RATE = 0.7
"""Share of restarts after which all approvals are answered, so that kills hit later parts of a tree too."""
CALLS_BETWEEN_KILLS = 3
"""Calls that the agent of a long task completes between two kills, so that it must not wait for a person."""
FEWEST_KILLS_OF_LONG_TASK = CRASHES_WITHOUT_PROGRESS + 1
MOST_KILLS_OF_LONG_TASK = (LONG_TURNS - 1) // CALLS_BETWEEN_KILLS + 1
LAST_REPLY_S = 0.25
"""Longest time from the request for the last reply to the last kill: the reply may be saved, and the run not ended."""
LOCK_RATE = 0.3
"""Share of restarts before which a session is locked, as by a second process."""
LOCKED_REQUESTS = 4
LOCKED_S = 3.0
"""A session stays locked until the restarted process has sent this many requests, or for this time."""
INJURY_RATE = 0.5
INJURIES_BEFORE_KILL = (
    Injury.FOLLOWER,
    Injury.COMMAND,
    Injury.COMMAND,
    Injury.TORN_TAIL,
    Injury.TORN_TAIL,
    Injury.MEMORY,
)
"""Commands run seldom. After a lack of memory runs may fail, so that fewer invariants hold."""
RAREST_STEP = "announcement delivered"
STEP_TIMEOUT_S = 6.0
STALL_S = 30.0
"""Time without a model request or a change in the ledger after which a tree counts as hanging."""
ENDLESS_S = 120.0
"""Time after which a tree counts as endless; it needs some seconds."""


@dataclass(slots=True)
class KillCycle:
    """The kills and restarts of one home."""

    environment: TortureEnvironment
    model: FakeModel
    rng: random.Random
    kills: int = 0
    faults: int = 0
    """Kills and other injuries that may have interrupted a model request."""
    injuries: set[Injury] = field(default_factory=set[Injury])
    resume_times_s: list[float] = field(default_factory=list[float])
    """Seconds from each restart to the first model request."""
    completed_calls: list[Mapping[str, int]] = field(default_factory=list[Mapping[str, int]])
    """Completed tool calls of each run, at each kill."""
    suspended: dict[str, bool] = field(default_factory=dict[str, bool])
    """Runs that waited for a person and were resumed: whether the kills justified that."""
    changed_locked_sessions: list[Path] = field(default_factory=list[Path])
    """Files that were written while another process had their session locked."""

    async def restart(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start a command that resumes runs; sometimes another process has the session of one of them locked."""
        with ExitStack() as stack:
            path = await self._choose_interrupted_session() if self.rng.random() < LOCK_RATE else None
            if path is None:
                return await self.environment.start_command(*arguments)
            stack.enter_context(locked_session(path.parent))
            before, requests_before = path.read_bytes(), len(self.model.requests)
            process = await self.environment.start_command(*arguments)
            if arguments == DAEMON_COMMAND:
                await self.environment.wait_for_daemon(process)
            await _poll_until(
                lambda: (
                    path.read_bytes() != before
                    or len(self.model.requests) >= requests_before + LOCKED_REQUESTS
                    or process.returncode is not None
                ),
                timeout_s=LOCKED_S,
            )
            if path.read_bytes() != before:
                self.changed_locked_sessions.append(path)
            self.injuries.add(Injury.LOCKED_SESSION)
        return process

    async def _choose_interrupted_session(self) -> Path | None:
        """Return the file of a session whose run was interrupted, and will be resumed at once."""
        rows = await self.environment.read_ledger()
        files = await asyncio.to_thread(session_files_by_id, self.environment.home)
        paths = [
            files[run.session_id]
            for run in rows.runs.values()
            if run.status == "running" and run.session_id in files
        ]
        return self.rng.choice(paths) if paths else None

    async def kill_at_random_point(self, process: asyncio.subprocess.Process, *, restarted: bool) -> None:
        """Kill the process at a random point.

        That is near a side effect, between two model requests, right after a step was recorded in the ledger, or
        early in its start. The point is chosen by the number of side effects, requests or steps so far, so that
        slow machines are killed at the same places as fast ones.
        """
        started_at, requests_before, effects_before = (
            time.perf_counter(),
            len(self.model.requests),
            self.environment.effects_written(),
        )
        target = self.rng.choice(("effect", "request", "step", "step", "step", "start"))
        threshold = 0 if target == "start" else self.rng.randint(1, 12 if target == "request" else 4)
        longest_delay_s = {"effect": 2.5 * PAUSE_SECONDS, "request": 0.06, "step": 0.01, "start": 0.8}[target]

        def is_due() -> bool:
            is_reached = (
                self.environment.effects_written() >= effects_before + threshold
                if target == "effect"
                else len(self.model.requests) >= requests_before + threshold
            )
            return is_reached or process.returncode is not None

        timeout_s = self.rng.uniform(2, 4)
        if target == "step":
            await self._wait_for_step(process)
        else:
            await _poll_until(is_due, timeout_s=timeout_s)
        await asyncio.sleep(self.rng.uniform(0, longest_delay_s))
        injury = self.rng.choice(INJURIES_BEFORE_KILL) if self.rng.random() < INJURY_RATE else Injury.NONE
        await self._injure_before_kill(injury, process)
        self.kills += await self.kill(process)
        if injury is Injury.TORN_TAIL and tear_session_file(self.environment.home, self.rng):
            self.injuries.add(injury)
        if restarted and threshold and len(self.model.requests) > requests_before:
            self._record_resume_time(started_at, requests_before)

    async def _wait_for_step(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the ledger records one more step of a random kind, and answer approvals meanwhile."""
        before = (await self.environment.read_ledger()).progress()
        kind = self.rng.choice([*before, RAREST_STEP])
        deadline = time.perf_counter() + STEP_TIMEOUT_S
        while process.returncode is None and time.perf_counter() < deadline:
            rows = await self.environment.read_ledger()
            if rows.progress()[kind] > before[kind]:
                return
            for approval_id, answer in self.choose_answers(rows):
                await self.environment.answer_over_http(approval_id, answer)

    async def kill(self, process: asyncio.subprocess.Process) -> bool:
        """Kill a process that may execute runs, and return whether it was still running."""
        if not await self.environment.kill_process(process):
            return False
        self.faults += 1
        self.completed_calls.append(await asyncio.to_thread(completed_calls_by_run, self.environment.home))
        return True

    async def _injure_before_kill(self, injury: Injury, process: asyncio.subprocess.Process) -> None:
        if injury is Injury.FOLLOWER:
            await self._kill_follower()
        elif injury is Injury.COMMAND:
            await self._kill_commands(process)
        elif injury is Injury.MEMORY and limit_memory(process.pid, self.rng):
            self.injuries.add(injury)
            self.environment.excuse_output(process)
            self.faults += 1
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))

    async def _kill_follower(self) -> None:
        """Follow a session or wait for a run in another process, and kill that process."""
        rows = await self.environment.read_ledger()
        live_runs = [run for run in rows.runs.values() if run.is_live]
        if not live_runs:
            return
        run = self.rng.choice(live_runs)
        arguments = ("attach", run.session_id) if self.rng.random() < 0.5 else ("wait", run.id)  # noqa: PLR2004  (half of each)
        follower = await self.environment.start_command(*arguments)
        await asyncio.sleep(self.rng.uniform(0.3, 1.2))
        if await self.kill(follower):  # it may have resumed runs of a dead process
            self.injuries.add(Injury.FOLLOWER)

    async def _kill_commands(self, process: asyncio.subprocess.Process) -> None:
        """Wait for a shell command of the tree, and kill it."""
        killed = 0

        def kill() -> bool:
            nonlocal killed
            killed = kill_shell_commands(self.environment.work_dir)
            return bool(killed) or process.returncode is not None

        await _poll_until(kill, timeout_s=3)
        self.environment.killed_commands += killed
        if killed:
            self.injuries.add(Injury.COMMAND)
            await asyncio.sleep(self.rng.uniform(0, 0.3))

    def _record_resume_time(self, started_at: float, requests_before: int) -> None:
        if len(self.model.requests) > requests_before:
            self.resume_times_s.append(self.model.request_times[requests_before] - started_at)

    async def wait_until_idle(self, process: asyncio.subprocess.Process) -> None:
        """Answer all approvals and wait until no run is live, nothing moves any more, or the process has exited."""
        started_at, requests_before = time.perf_counter(), len(self.model.requests)
        watch = ProgressWatch(self.model)
        while process.returncode is None:
            rows = await self.environment.read_ledger()
            if (rows.runs and not rows.has_live_runs) or watch.is_stalled(rows):
                break
            await self.answer_approvals(rows)
            await self.resume_suspended_runs(rows)
            await asyncio.sleep(POLL_SECONDS * 2)
        self._record_resume_time(started_at, requests_before)

    async def resume_suspended_runs(self, rows: LedgerRows) -> None:
        """Resume the runs that were suspended for a person, and record whether the kills justified that."""
        for run in rows.runs.values():
            if run.waits_for_decision and run.id not in self.suspended:
                self.suspended[run.id] = self.was_suspension_justified(run.id)
                if self.suspended[run.id]:
                    self.environment.resumed_runs.add(run.id)
                await self.environment.run_command("runs", "resume", run.id, "--json")

    def was_suspension_justified(self, run_id: str) -> bool:
        """Return True if the last kills allowed the run hardly a completed tool call.

        One call in between is tolerated: the kill may have come before it was recorded as progress.
        """
        counts = [each.get(run_id, 0) for each in self.completed_calls]
        recent = counts[-CRASHES_WITHOUT_PROGRESS:]
        return len(recent) == CRASHES_WITHOUT_PROGRESS and recent[-1] - recent[0] <= 1

    async def run_timed_command(self, *arguments: str) -> int:
        """Run a command to its end and record how soon it sent its first model request."""
        started_at, requests_before = time.perf_counter(), len(self.model.requests)
        code = await self.environment.run_command(*arguments)
        self._record_resume_time(started_at, requests_before)
        return code

    async def answer_approvals(self, rows: LedgerRows | None = None) -> None:
        answers = self.answer_commands(rows or await self.environment.read_ledger())
        await asyncio.gather(*(self.environment.run_command(*arguments) for arguments in answers))

    def answer_commands(self, rows: LedgerRows) -> list[tuple[str, ...]]:
        answers = self.choose_answers(rows)
        return [("approvals", "answer", approval_id, answer, "--json") for approval_id, answer in answers]

    def choose_answers(self, rows: LedgerRows) -> list[tuple[str, str]]:
        """Return each pending approval with an answer; some side effects are denied, all else is allowed."""
        answers: list[tuple[str, str]] = []
        for approval in rows.pending_approvals:
            is_denied = approval.tool == "sign" and self.rng.random() < DENIAL_RATE
            if is_denied:
                self.environment.denied_calls.add(approval.call)
            elif approval.call not in self.environment.denied_calls:
                self.environment.allowed_calls.add(approval.call)
            answer = "deny" if is_denied or approval.call in self.environment.denied_calls else "allow"
            answers.append((approval.id, answer))
        return answers

    async def check(self) -> InvariantReport:
        """Check all invariants, and that no run that had made progress waited for a person."""
        report = await check_invariants(
            self.environment,
            self.model.requests,
            faults=self.faults,
            errors_injected=Injury.MEMORY in self.injuries,
        )
        for run_id, had_reason in self.suspended.items():
            report.counts[Statistic.RUNS_SUSPENDED] += had_reason
            if not had_reason:
                report.add_violation(
                    Invariant.RUNS_SUSPENDED,
                    f"run {run_id} was suspended, with these completed calls at each kill: "
                    f"{[each.get(run_id, 0) for each in self.completed_calls]}",
                )
        for path in self.changed_locked_sessions:
            report.add_violation(
                Invariant.LOCKS_IGNORED, f"{path} was written while another process had its folder locked"
            )
        return report


class ProgressWatch:
    """Notices when a tree does not move any more, or never ends."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self._last_state: object = None
        self._changed_at = self._started_at = time.perf_counter()

    def is_stalled(self, rows: LedgerRows) -> bool:
        """Return True if neither the ledger nor the requests have changed for a while, or if it takes too long."""
        state = (len(self._model.requests), rows)
        now = time.perf_counter()
        if state != self._last_state:
            self._last_state, self._changed_at = state, now
        return now - self._changed_at > STALL_S or now - self._started_at > ENDLESS_S


async def kill_daemon_repeatedly(
    environment: TortureEnvironment, model: FakeModel, rng: random.Random, kills: int, family: str
) -> KillCycle:
    """Run several trees in a daemon that is killed and restarted `kills` times."""
    cycle = KillCycle(environment=environment, model=model, rng=rng)
    process = await environment.start_command("serve")
    await environment.start_trees(*(f"{family}-{number}" for number in range(DAEMON_TREES)))
    for number in range(kills):
        if rng.random() < ANSWER_RATE:
            await environment.wait_for_daemon(process)
            await cycle.answer_approvals()
        await cycle.kill_at_random_point(process, restarted=number > 0)
        process = await cycle.restart(*DAEMON_COMMAND)
    await cycle.wait_until_idle(process)
    await environment.kill_process(process)
    return cycle


async def kill_after_progress(
    environment: TortureEnvironment, model: FakeModel, rng: random.Random, kills: int
) -> KillCycle:
    """Run one long task in a daemon, which is killed each time that the task has made progress.

    Each kill comes in the middle of a side effect, so that the task counts as the possible cause. It must be resumed
    each time. The last kill comes after the last reply.
    """
    cycle = KillCycle(environment=environment, model=model, rng=rng)
    process = await environment.start_command("serve")
    await environment.start_trees(f"{LONG_TREE}-0")
    for number in range(kills - 1):
        watch = ProgressWatch(model)
        while environment.effects_written() <= (number + 1) * CALLS_BETWEEN_KILLS:
            if watch.is_stalled(await environment.read_ledger()):
                break
            await asyncio.sleep(PAUSE_SECONDS / 10)
        await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS))
        cycle.kills += await cycle.kill(process)
        process = await environment.start_command(*DAEMON_COMMAND)
    await _poll_until(lambda: any(each.turn == LONG_TURNS for each in model.requests), timeout_s=STALL_S)
    await asyncio.sleep(rng.uniform(0, LAST_REPLY_S))
    cycle.kills += await cycle.kill(process)
    process = await environment.start_command(*DAEMON_COMMAND)
    await cycle.wait_until_idle(process)
    await environment.kill_process(process)
    return cycle


async def kill_commands_repeatedly(
    environment: TortureEnvironment, model: FakeModel, rng: random.Random, kills: int, family: str
) -> KillCycle:
    """Run one tree with `run`, and continue it with other commands after each kill."""
    cycle = KillCycle(environment=environment, model=model, rng=rng)
    tree = f"{family}-0"
    environment.trees.append(tree)
    first_command = ("run", "--agent", "lead", "--json", task_text(f"{tree}/lead"))
    arguments: tuple[str, ...] = first_command
    watch = ProgressWatch(model)
    while True:
        is_restart = arguments[0] == "runs"
        rival = await _start_rival(cycle) if is_restart else None
        process = await (cycle.restart if is_restart else environment.start_command)(*arguments)
        if cycle.kills < kills:
            await cycle.kill_at_random_point(process, restarted=arguments[0] != "run")
        else:
            await environment.wait_for_exit(process)
        if rival is not None and rng.random() < INJURY_RATE:
            cycle.kills += await cycle.kill(rival)
        elif rival is not None:
            await environment.wait_for_exit(rival)
        rows = await environment.read_ledger()
        if (rows.runs and not rows.has_live_runs) or watch.is_stalled(rows):
            return cycle
        await cycle.resume_suspended_runs(rows)
        answers = cycle.answer_commands(rows)
        if answers and not _is_any_run_active(rows):
            arguments = answers[0]
        else:
            arguments = ("runs", "resume", "--json") if rows.runs else first_command


async def _start_rival(cycle: KillCycle) -> asyncio.subprocess.Process | None:
    """Sometimes start a second process that resumes the same runs at the same time."""
    if cycle.rng.random() >= INJURY_RATE:
        return None
    cycle.injuries.add(Injury.TWO_RESUMERS)
    return await cycle.environment.start_command("runs", "resume", "--json")


def _is_any_run_active(rows: LedgerRows) -> bool:
    return any(run.status in ("queued", "running") for run in rows.runs.values())


async def _poll_until(condition: Callable[[], bool], *, timeout_s: float) -> None:
    deadline = time.perf_counter() + timeout_s
    while not condition() and time.perf_counter() < deadline:  # noqa: ASYNC110  (another process changes it: there is nothing to await)
        await asyncio.sleep(POLL_SECONDS / 10)


async def run_kill_round(
    environment: TortureEnvironment,
    model: FakeModel,
    rng: random.Random,
    kills: int,
    *,
    number: int,
    has_commands: bool,
) -> tuple[KillCycle, InvariantReport]:
    """Kill one home a random number of times, up to `kills`, and check the invariants.

    Args:
        environment: The environment.
        model: The fake model.
        rng: Makes the random choices.
        kills: Maximum number of kills.
        number: Chooses the scenario; consecutive numbers choose different ones.
        has_commands: Shell commands and worktrees work on this machine.
    """
    if number % 3 == 0 and kills >= FEWEST_KILLS_OF_LONG_TASK:
        count = rng.randint(FEWEST_KILLS_OF_LONG_TASK, MOST_KILLS_OF_LONG_TASK)
        cycle = await kill_after_progress(environment, model, rng, min(kills, count))
        return cycle, await cycle.check()
    family = FULL_TREE if has_commands else BARE_TREE
    if has_commands:
        environment.create_repository()
    scenario = kill_daemon_repeatedly if number % 3 == 1 else kill_commands_repeatedly
    cycle = await scenario(environment, model, rng, min(kills, rng.randint(1, MAX_KILLS_PER_TREE)), family)
    return cycle, await cycle.check()
