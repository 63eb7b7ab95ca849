"""A restart with many running: a daemon dies with all of them at work, and the next one takes them up."""

import asyncio
import time
from collections import Counter

from retinue.domain.run import Status
from retinue.domain.value import value
from retinue.torture.environment import GLANCE, PATIENCE, Ground
from retinue.torture.fake_model import Model
from retinue.torture.invariants import Tally, judged

HELD = 600.0
"""Seconds by which answers are held back until the daemon is killed."""


@value
class Crowd:
    running: int
    """At the kill."""
    resumed: float | None
    """Seconds from the restart to the first request."""
    ended: float
    """Seconds from the restart until all had ended."""


async def crowd(ground: Ground, model: Model, running: int) -> tuple[Crowd, Tally]:
    """Half of them wait for the model in their own words, the other half are what these have asked for."""
    pairs = max(1, running // 2)
    model.hold = lambda place, turn: HELD if turn or place.endswith(".worker") else 0
    process = await ground.started("serve")
    await ground.begin(*(f"pair-{number}" for number in range(pairs)))
    there = await _running(ground, model, pairs)
    await ground.killed(process)
    model.hold = None
    began, before = time.perf_counter(), len(model.asked)
    process = await ground.started("serve")
    while time.perf_counter() - began < PATIENCE:
        runs, _ = await ground.rows()
        if not any(run.status.live for run in runs):
            break
        await asyncio.sleep(GLANCE * 2)
    ended = time.perf_counter() - began
    resumed = model.at[before] - began if len(model.at) > before else None
    await ground.killed(process)
    tally = await judged(ground, model.asked, faults=1)
    return Crowd(running=there, resumed=resumed, ended=ended), tally


async def _running(ground: Ground, model: Model, pairs: int) -> int:
    """Until all of them run and wait for their model, or no more are to be had."""
    began, there = time.perf_counter(), 0
    asked = 3 * pairs  # two turns of the one who asks, one of the worker
    while (there < 2 * pairs or len(model.asked) < asked) and time.perf_counter() - began < PATIENCE:
        await asyncio.sleep(GLANCE * 5)
        runs, _ = await ground.rows()
        there = Counter(run.status for run in runs)[Status.RUNNING]
    return there
