"""One case from its beginning to its laws, and the smallest one that breaks the same."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plan import Plan
from virtual import Stalled, VirtualLoop
from world import LONGEST, World

_MEMORY = Path("/dev/shm")
"""Where there is one: nothing here needs to outlive a crash of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    plan: Plan
    breaches: list[str]
    trace: list[str]
    runs: int


def play(plan: Plan) -> Played:
    folder = Path(tempfile.mkdtemp(prefix="retinue-", dir=_MEMORY if _MEMORY.is_dir() else None))
    world = World(plan, folder)
    runs = 0
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            try:
                runs = runner.run(_played(world))
            except Stalled:
                world.breaches.append("nothing goes on any more, and somebody waits for ever")
    finally:
        shutil.rmtree(folder)
    return Played(plan=plan, breaches=world.breaches, trace=world.trace, runs=runs)


async def _played(world: World) -> int:
    plan = world.plan
    for _ in range(plan.processes):
        world.open()
    try:
        async with asyncio.timeout(LONGEST), asyncio.TaskGroup() as group:
            for _ in range(plan.tops):
                group.create_task(world.begins())
            for _ in range(plan.people):
                group.create_task(_person(world))
            group.create_task(_fate(world))
    except TimeoutError:
        world.breach("what a person does never comes to its end")
    await world.settle()
    quiet = await world.quiet()
    for breach in quiet.breaches():
        world.breach(breach)
    if world.breaches:
        world.trace += [*await world.events(), *quiet.lines()]
    await world.close()
    return len(quiet.runs)


async def _person(world: World) -> None:
    for _ in range(world.plan.moves):
        await world.pause()
        await world.move()


async def _fate(world: World) -> None:
    """Kills, and often somebody comes after it who looks what was left."""
    for _ in range(world.plan.deaths):
        await world.pause()
        if world.living:
            await world.kill(world.random.choice(world.living))
        if not world.living or world.random.random() < 0.5:
            world.open()
            if world.random.random() < 0.7:
                await world.resumes()


def smallest(plan: Plan, told: Callable[[str], None]) -> Played:
    """As long as a simpler case breaks a law too, that one is looked at; a few other numbers may show it as well."""
    found = play(plan)
    while True:
        for simpler in found.plan.smaller():
            played = play(simpler)
            if played.breaches and _kind(played) == _kind(found):
                told(f"still with {simpler}")
                found = played
                break
        else:
            return found


def _kind(played: Played) -> str:
    """What was broken, without the names."""
    return re.sub(r"[0-9A-Z]{26}|[0-9a-f-]{36}|[0-9]+", "", played.breaches[0])
