"""Random kills: the processes that run a tree are killed and restarted, then left to finish."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.domain.run import Run
from retinue.torture.counted_tools import PAUSE_SECONDS
from retinue.torture.environment import POLL_SECONDS, TIMEOUT_S, TortureEnvironment
from retinue.torture.fake_model import FakeModel
from retinue.torture.invariants import InvariantReport, check_invariants
from retinue.torture.scenario import task_text

MAX_KILLS_PER_TREE = 3
"""Kills per tree: a run that is resumed more often fails, as designed."""
DAEMON_TREES = 3
"""Trees that a daemon runs concurrently."""
DENIAL_RATE = 0.2
"""Share of approvals that are denied."""


@dataclass(slots=True)
class KillCycle:
    """The kills and restarts of one home."""

    environment: TortureEnvironment
    model: FakeModel
    rng: random.Random
    kills: int = 0
    resume_times_s: list[float] = field(default_factory=list[float])
    """Seconds from each restart to the first model request."""

    async def kill_at_random_point(self, process: asyncio.subprocess.Process, *, restarted: bool) -> None:
        """Kill the process at a random point.

        That is near a side effect, between two model requests, or early in its start. The point is chosen by
        the number of side effects or requests so far, so that slow machines are killed at the same places as
        fast ones.
        """
        started_at, requests_before, effects_before = (
            time.perf_counter(),
            len(self.model.requests),
            self.environment.effects_written(),
        )
        target = self.rng.choice(("effect", "request", "request", "start"))
        threshold = 0 if target == "start" else self.rng.randint(1, 12 if target == "request" else 4)
        delay_s = self.rng.uniform(0, {"effect": 2.5 * PAUSE_SECONDS, "request": 0.06, "start": 0.8}[target])

        def is_due() -> bool:
            is_reached = (
                self.environment.effects_written() >= effects_before + threshold
                if target == "effect"
                else len(self.model.requests) >= requests_before + threshold
            )
            return is_reached or process.returncode is not None

        await _poll_until(is_due, timeout_s=self.rng.uniform(2, 4))
        await asyncio.sleep(delay_s)
        if await self.environment.kill_process(process):
            self.kills += 1
        if restarted and threshold and len(self.model.requests) > requests_before:
            self._record_resume_time(started_at, requests_before)

    def _record_resume_time(self, started_at: float, requests_before: int) -> None:
        if len(self.model.requests) > requests_before:
            self.resume_times_s.append(self.model.request_times[requests_before] - started_at)

    async def wait_until_idle(self, process: asyncio.subprocess.Process) -> None:
        """Answer all approvals and wait until no run is live or the process has exited."""
        started_at, requests_before = time.perf_counter(), len(self.model.requests)
        while time.perf_counter() - started_at < TIMEOUT_S and process.returncode is None:
            runs, waiting = await self.environment.read_ledger()
            if runs and not any(run.status.is_live for run in runs):
                break
            answers = [("approvals", "answer", each.id, self.random_answer(), "--json") for each in waiting]
            await asyncio.gather(*(self.environment.run_command(*arguments) for arguments in answers))
            await asyncio.sleep(POLL_SECONDS * 2)
        self._record_resume_time(started_at, requests_before)

    async def run_timed_command(self, *arguments: str) -> int:
        """Run a command to its end and record how soon it sent its first model request."""
        started_at, requests_before = time.perf_counter(), len(self.model.requests)
        code = await self.environment.run_command(*arguments)
        self._record_resume_time(started_at, requests_before)
        return code

    def random_answer(self) -> str:
        return "deny" if self.rng.random() < DENIAL_RATE else "allow"


async def kill_daemon_repeatedly(
    environment: TortureEnvironment, model: FakeModel, rng: random.Random, kills: int
) -> KillCycle:
    """Run several trees in a daemon that is killed and restarted `kills` times."""
    cycle = KillCycle(environment=environment, model=model, rng=rng)
    process = await environment.start_command("serve")
    await environment.start_trees(*(f"deep-{number}" for number in range(DAEMON_TREES)))
    for number in range(kills):
        await cycle.kill_at_random_point(process, restarted=number > 0)
        process = await environment.start_command("serve")
    await cycle.wait_until_idle(process)
    await environment.kill_process(process)
    return cycle


async def kill_commands_repeatedly(
    environment: TortureEnvironment, model: FakeModel, rng: random.Random, kills: int
) -> KillCycle:
    """Run one tree with `run`, and continue it with other commands after each kill."""
    cycle = KillCycle(environment=environment, model=model, rng=rng)
    arguments: list[str] = ["run", "--agent", "lead", "--json", task_text("deep-0/lead")]
    started_at = time.perf_counter()
    while time.perf_counter() - started_at < TIMEOUT_S:
        process = await environment.start_command(*arguments)
        if cycle.kills < kills:
            await cycle.kill_at_random_point(process, restarted=arguments[0] != "run")
        else:
            await environment.wait_for_exit(process)
        runs, waiting = await environment.read_ledger()
        if runs and not any(run.status.is_live for run in runs):
            break
        if waiting and not _is_any_run_active(runs):
            arguments = ["approvals", "answer", waiting[0].id, cycle.random_answer(), "--json"]
        elif runs:
            arguments = ["runs", "resume", "--json"]
    return cycle


def _is_any_run_active(runs: list[Run]) -> bool:
    return any(run.status in ("queued", "running") for run in runs)


async def _poll_until(condition: Callable[[], bool], *, timeout_s: float) -> None:
    deadline = time.perf_counter() + timeout_s
    while not condition() and time.perf_counter() < deadline:  # noqa: ASYNC110  (another process changes it: there is nothing to await)
        await asyncio.sleep(POLL_SECONDS / 10)


async def run_kill_round(
    environment: TortureEnvironment, model: FakeModel, rng: random.Random, kills: int
) -> tuple[KillCycle, InvariantReport]:
    """Kill one home a random number of times, up to `kills`, and check the invariants."""
    scenario = rng.choice((kill_daemon_repeatedly, kill_commands_repeatedly))
    cycle = await scenario(environment, model, rng, min(kills, rng.randint(1, MAX_KILLS_PER_TREE)))
    return cycle, await check_invariants(environment, model.requests, faults=cycle.kills)
