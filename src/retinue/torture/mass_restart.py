"""Mass restart: kill a daemon with many active runs and check that the next one resumes them."""

import asyncio
import time

from msgspec import Struct

from retinue.torture.environment import POLL_SECONDS, TIMEOUT_S, TortureEnvironment
from retinue.torture.fake_model import FakeModel
from retinue.torture.invariants import InvariantReport, check_invariants
from retinue.torture.random_kills import ProgressWatch

BLOCKED_REPLY_DELAY_S = 600.0
"""Delay of replies that must not arrive before the daemon is killed."""


class MassRestartResult(Struct, frozen=True, kw_only=True):
    running: int
    """Runs that were active when the daemon was killed."""
    first_request_s: float | None
    """Seconds from the restart to the first model request."""
    all_ended_s: float
    """Seconds from the restart until all runs had ended."""


async def run_mass_restart(
    environment: TortureEnvironment, model: FakeModel, target_count: int
) -> tuple[MassRestartResult, InvariantReport]:
    """Kill a daemon with about `target_count` active runs, and restart it.

    Half of the runs wait for the model, the others are their children.
    """
    pairs = max(1, target_count // 2)
    model.answer_delay_s = lambda position, turn: (
        BLOCKED_REPLY_DELAY_S if turn or position.endswith(".worker") else 0
    )
    process = await environment.start_command("serve")
    await environment.start_trees(*(f"pair-{number}" for number in range(pairs)))
    running_count = await _wait_until_running(environment, model, pairs)
    await environment.kill_process(process)
    model.answer_delay_s = None
    started_at, requests_before = time.perf_counter(), len(model.requests)
    process = await environment.start_command("serve")
    watch = ProgressWatch(model)
    while True:
        rows = await environment.read_ledger()
        if not rows.has_live_runs or watch.is_stalled(rows):
            break
        await asyncio.sleep(POLL_SECONDS * 2)
    all_ended_s = time.perf_counter() - started_at
    first_request_s = (
        model.request_times[requests_before] - started_at
        if len(model.request_times) > requests_before
        else None
    )
    await environment.kill_process(process)
    report = await check_invariants(environment, model.requests, faults=1)
    return MassRestartResult(
        running=running_count, first_request_s=first_request_s, all_ended_s=all_ended_s
    ), report


async def _wait_until_running(environment: TortureEnvironment, model: FakeModel, pairs: int) -> int:
    """Wait until all runs have sent their model requests, or time is up, and return how many run."""
    started_at, running_count = time.perf_counter(), 0
    expected_requests = 3 * pairs  # two turns of the parent, one of the worker
    while (
        running_count < 2 * pairs or len(model.requests) < expected_requests
    ) and time.perf_counter() - started_at < TIMEOUT_S:
        await asyncio.sleep(POLL_SECONDS * 5)
        rows = await environment.read_ledger()
        running_count = sum(run.status == "running" for run in rows.runs.values())
    return running_count
