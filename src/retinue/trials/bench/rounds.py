"""Measuring in rounds: the systems take turns, so that what else the machine does falls on all of them alike."""

import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from retinue.domain.value import value
from retinue.trials.bench.samples import Sample, Samples, facts_of
from retinue.trials.bench.scenes import furnish
from retinue.trials.bench.system import Failure, Subject, System, started
from retinue.trials.bench.work import Work

SLOW_MS = 10_000
"""A peer that takes longer for one sample is not asked for another."""


@value
class Ground:
    """Where everything is measured."""

    url: str
    """The model server's."""
    place: Path
    systems: Sequence[System]
    samples: Samples
    told: Callable[[str], None]
    quick: bool = False
    profile: str = ""
    """Where profiles of our own work go, if they are wanted."""

    def only(self, names: frozenset[str]) -> list[System]:
        return [each for each in self.systems if not names or each.name in names]

    def rounds(self, wanted: int) -> int:
        return min(wanted, 3) if self.quick else wanted

    def address(self, scene: str, latency: int = 0) -> str:
        return f"{self.url}/{scene}/{latency}/v1"


async def measure(ground: Ground, work: Work) -> None:
    """All systems on one work. What is measured already is not measured again."""
    missing = [each for each in ground.only(work.systems) if _missing(ground, work, each)]
    if not missing:
        return
    ground.told(work.title)
    async with AsyncExitStack() as stack:
        ready: list[Subject] = []
        for system in missing:
            try:
                subject = await stack.enter_async_context(on_stage(ground, system))
                await _prepared(ground, work, subject)
                ready.append(subject)
            except Failure as failure:
                _failed(ground, work, system, failure)
        for number in range(ground.rounds(max(work.rounds, work.peer_rounds))):
            for subject in list(ready):
                if not _missing(ground, work, subject.system):
                    continue
                ground.told(f"{work.title}: {subject.system.name}, round {number + 1}")
                try:
                    await _once(ground, work, subject, number + 1)
                except Failure as failure:
                    _failed(ground, work, subject.system, failure)
                    ready.remove(subject)


@asynccontextmanager
async def on_stage(ground: Ground, system: System) -> AsyncGenerator[Subject]:
    """A process of the system in a folder of its own. The folder stays until all is measured: where many files were
    taken away a moment ago, ext4 is long at making new ones, and that would be somebody else's cost."""
    place = Path(tempfile.mkdtemp(dir=ground.place, prefix=f"{system.name}-"))
    furnish(place)
    async with started(system, ground.place / f"{system.name}.log", place) as subject:
        yield subject


def _missing(ground: Ground, work: Work, system: System) -> bool:
    """Whether a system's samples are not all there: enough, or one so slow that it is enough, or none possible."""
    found = ground.samples.of(work.row, work.variant, system.name)
    if any(each.problem for each in found):
        return False
    wanted = (work.peer_rounds if system.peer else 0) or work.rounds
    slow = system.peer and any(each.facts.get("wall", 0) > SLOW_MS for each in found)
    return not slow and len(found) < ground.rounds(wanted)


async def _prepared(ground: Ground, work: Work, subject: Subject) -> None:
    system = subject.system
    url = ground.address(work.scene.format(door=system.door), work.latency)
    await subject.opened(url, keep=work.keep)
    for do, order in work.prepare:
        wanted = dict(order)
        if system.peer and "count" in wanted:
            wanted["count"] = max(1, min(wanted["count"], work.times(peer=True)))
        await subject.told(do, seconds=work.seconds, **wanted)
    if work.count > 1:
        await _asked(work, subject, 0, min(2, work.times(peer=system.peer)))


async def _once(ground: Ground, work: Work, subject: Subject, number: int) -> None:
    system = subject.system
    profile = ground.profile if system.name == "retinue" else ""
    before = await _stored(work, subject)
    told = await _asked(work, subject, number, work.times(peer=system.peer), profile=profile)
    if (made := await _stored(work, subject) - before) < work.makes:
        raise Failure(f"it kept {made:,} of {work.makes:,} sessions")
    ground.samples.add(Sample(row=work.row, variant=work.variant, system=system.name, facts=facts_of(told)))


async def _stored(work: Work, subject: Subject) -> int:
    """How many sessions are on disk, where that is looked at."""
    return int((await subject.told("stored", seconds=60))["value"]) if work.makes else 0


async def _asked(work: Work, subject: Subject, number: int, count: int, profile: str = ""):
    begin = number * 1000 if work.fresh else 0
    alone = any(do == "past" for do, _ in work.prepare) and not work.fresh
    numbers = [0] * count if alone else [begin + each for each in range(count)]
    return await subject.told(
        "measure", seconds=work.seconds, what=work.what, numbers=numbers, expect=work.expect, profile=profile
    )


def _failed(ground: Ground, work: Work, system: System, failure: Failure) -> None:
    sample = Sample(row=work.row, variant=work.variant, system=system.name)
    ground.samples.add(replace(sample, problem=str(failure), able=failure.able))
