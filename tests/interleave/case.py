"""Run one case and check its invariants, and shrink a case that violates one."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plan import Plan
from simulation import TIMEOUT_S, Simulation
from virtual import Stalled, VirtualLoop

_MEMORY = Path("/dev/shm")
"""A folder in memory, if there is one: nothing here needs to survive a crash of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    plan: Plan
    violations: list[str]
    trace: list[str]
    runs: int


def play(plan: Plan) -> CaseResult:
    folder = Path(tempfile.mkdtemp(prefix="retinue-", dir=_MEMORY if _MEMORY.is_dir() else None))
    simulation = Simulation(plan, folder)
    runs = 0
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            try:
                runs = runner.run(_run_case(simulation))
            except Stalled:
                simulation.violations.append("nothing can continue, and a task waits forever")
    finally:
        shutil.rmtree(folder)
    return CaseResult(plan=plan, violations=simulation.violations, trace=simulation.trace, runs=runs)


async def _run_case(simulation: Simulation) -> int:
    plan = simulation.plan
    for _ in range(plan.processes):
        simulation.open()
    try:
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            for _ in range(plan.tops):
                group.create_task(simulation.start_session())
            for _ in range(plan.people):
                group.create_task(_act_as_user(simulation))
            group.create_task(_kill_processes(simulation))
    except TimeoutError:
        simulation.report_violation("an action of the user never ends")
    await simulation.settle()
    final_state = await simulation.final_state()
    for violation in final_state.violations():
        simulation.report_violation(violation)
    if simulation.violations:
        simulation.trace += [*await simulation.events(), *final_state.describe()]
    await simulation.close()
    return len(final_state.runs)


async def _act_as_user(simulation: Simulation) -> None:
    for _ in range(simulation.plan.moves):
        await simulation.pause()
        await simulation.act_as_user()


async def _kill_processes(simulation: Simulation) -> None:
    """Kill processes, and often start another one that resumes the runs left behind."""
    for _ in range(simulation.plan.deaths):
        await simulation.pause()
        if simulation.living:
            await simulation.kill(simulation.random.choice(simulation.living))
        if not simulation.living or simulation.random.random() < 0.5:
            simulation.open()
            if simulation.random.random() < 0.7:
                await simulation.resume()


def shrink_case(plan: Plan, report: Callable[[str], None]) -> CaseResult:
    """Replace a failing case by a simpler one with the same violation until there is none."""
    smallest = play(plan)
    while True:
        for simpler in smallest.plan.simpler_plans():
            result = play(simpler)
            if result.violations and _kind(result) == _kind(smallest):
                report(f"still with {simpler}")
                smallest = result
                break
        else:
            return smallest


def _kind(result: CaseResult) -> str:
    """Return the violation without ids and numbers."""
    return re.sub(r"[0-9A-Z]{26}|[0-9a-f-]{36}|[0-9]+", "", result.violations[0])
