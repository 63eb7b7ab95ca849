"""The whole trial: faults at system calls, kills at random moments, a restart with many running; then the figures."""

import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from retinue.domain.value import value
from retinue.testing.fake_model_server import ModelServer
from retinue.torture import syscall_faults
from retinue.torture.environment import Ground
from retinue.torture.fake_model import Model
from retinue.torture.invariants import Count, Law, Tally
from retinue.torture.mass_restart import crowd
from retinue.torture.random_kills import Life, round_of

QUICK = 0.004
"""Seconds a model takes at most where it is not the model that is waited for."""
NO_STRACE = "strace is not installed, so no fault is put into system calls: install it to try those too"


@value
class Wishes:
    kills: int = 30
    points: int | None = 12
    """Of each fault; None: all there are."""
    running: int = 100
    seconds: float | None = None
    """After so long nothing more is begun."""
    seed: int = 0
    keep: Path | None = None


@dataclass(slots=True)
class Part:
    """One way to be tortured, and what it came to."""

    name: str
    faults: int = 0
    missed: int = 0
    """Faults that fell on nothing of the home, or on nothing."""
    tally: Tally = field(default_factory=Tally)
    resumed: list[float] = field(default_factory=list[float])
    ended: float | None = None
    """Seconds until all that ran at the restart had ended."""
    broken: list[tuple[str, Path]] = field(default_factory=list[tuple[str, Path]])
    """What broke a law, and the folder in which it can be looked at."""

    def as_json(self) -> dict[str, Any]:
        laws = {str(law): len(self.tally.breaches.get(law, ())) for law in Law}
        return {
            "part": self.name,
            "faults": self.faults,
            "missed": self.missed,
            "laws": laws,
            "counts": {str(count): self.tally.counts[count] for count in Count},
            "resume_median": round(statistics.median(self.resumed), 3) if self.resumed else None,
            "resume_worst": round(max(self.resumed), 3) if self.resumed else None,
            "all_ended": None if self.ended is None else round(self.ended, 3),
            "broken": [{"what": what, "folder": str(folder)} for what, folder in self.broken],
        }


class Trial:
    """Everything happens in a folder of its own; what broke no law is removed again."""

    def __init__(self, wishes: Wishes, told: Callable[[str], None]) -> None:
        self.wishes = wishes
        self.told = told
        self._place = wishes.keep or Path(tempfile.mkdtemp(prefix="retinue-torture-"))
        self._parts: list[Part] = []
        self._began = time.monotonic()
        self._template = self._place / "template"

    async def whole(self) -> list[Part]:
        try:
            if self.wishes.points != 0:
                await self._points(self._part("system calls"))
            if self.wishes.kills:
                await self._kills(self._part("kills"))
            if self.wishes.running:
                await self._crowd(self._part("many running"))
        finally:
            if not any(part.broken for part in self._parts) and self.wishes.keep is None:
                shutil.rmtree(self._place, ignore_errors=True)
        return self._parts

    def _part(self, name: str) -> Part:
        self._parts.append(Part(name=name))
        return self._parts[-1]

    async def _points(self, part: Part) -> None:
        if syscall_faults.available() is None:
            self.told(NO_STRACE)
            return
        self.told("counting the system calls of a run")
        chance = self._chance("points")
        fresh, used = await self._counted()
        todo = syscall_faults.chosen(syscall_faults.points(fresh, used), self.wishes.points, chance)
        todo = syscall_faults.twice(todo, used, chance)
        chance.shuffle(todo)
        whole = len(todo)

        async def work() -> None:
            while todo and not self._late(0.5):
                point = todo.pop()
                await self._struck(point, part)
                done = part.faults + part.missed
                self.told(f"{done} of {whole}: {point}{_so_far(part)}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(4, os.cpu_count() or 1)):
                group.create_task(work())

    async def _counted(self) -> tuple[syscall_faults.Numbers, syscall_faults.Numbers]:
        """What a run does in a new home, and in one that was used before."""
        async with self._ground("fresh", QUICK) as (ground, _):
            fresh = await syscall_faults.counted(ground)
        async with self._ground("used", QUICK) as (ground, _):
            await ground.ended("runs", "list")
            shutil.copytree(ground.home, self._template, symlinks=True)
            used = await syscall_faults.counted(ground)
        self._clear("fresh", "used")
        return fresh, used

    async def _struck(self, point: syscall_faults.Point, part: Part) -> None:
        name = str(point).replace(" ", "-")
        template = None if point.fresh else self._template
        async with self._ground(name, QUICK, template=template) as (ground, model):
            life = Life(ground=ground, model=model, chance=self._chance(name))
            hit, tally = await syscall_faults.struck(point, life)
        part.faults += hit
        part.missed += not hit
        part.resumed += life.resumed
        self._judged(part, tally, str(point), name)

    async def _kills(self, part: Part) -> None:
        number = 0
        while part.faults < self.wishes.kills and not self._late(0.9):
            name = f"kills-{number}"
            async with self._ground(name, 0.05) as (ground, model):
                chance = self._chance(name)
                life, tally = await round_of(ground, model, chance, self.wishes.kills - part.faults)
            part.faults += life.kills
            part.resumed += life.resumed
            self._judged(part, tally, f"round {number}", name)
            self.told(f"{part.faults} of {self.wishes.kills} kills{_so_far(part)}")
            number += 1

    async def _crowd(self, part: Part) -> None:
        name = "crowd"
        self.told(f"a restart with {self.wishes.running} running")
        async with self._ground(name, QUICK, live=self.wishes.running + 8) as (ground, model):
            found, tally = await crowd(ground, model, self.wishes.running)
        part.faults, part.ended = 1, found.ended
        part.name = f"{found.running} running"
        part.resumed = [] if found.resumed is None else [found.resumed]
        self._judged(part, tally, f"a restart with {found.running} running", name)

    @asynccontextmanager
    async def _ground(
        self, name: str, slowest: float, *, live: int = 64, template: Path | None = None
    ) -> AsyncGenerator[tuple[Ground, Model]]:
        model = Model(self._chance(name).randrange(1 << 30), slowest=slowest)
        root = self._place / name
        if template is not None:
            await asyncio.to_thread(shutil.copytree, template, root / "home")
        async with ModelServer(model) as server:
            ground = Ground(root, server.url, live=live)
            try:
                yield ground, model
            finally:
                await ground.close()

    def _judged(self, part: Part, tally: Tally, what: str, name: str) -> None:
        part.tally.add(tally)
        sentences = [f"{what}: {law}: {each}" for law, all_ in tally.breaches.items() for each in all_]
        part.broken += [(sentence, self._place / name) for sentence in sentences]
        if not sentences:
            self._clear(name)

    def _clear(self, *names: str) -> None:
        if self.wishes.keep is None:
            for name in names:
                shutil.rmtree(self._place / name, ignore_errors=True)

    def _chance(self, name: str) -> random.Random:
        """The same seed makes the same choices, in whatever order they are made."""
        return random.Random(f"{self.wishes.seed} {name}")  # noqa: S311  (it is to be repeated)

    def _late(self, share: float) -> bool:
        seconds = self.wishes.seconds
        return seconds is not None and time.monotonic() - self._began > seconds * share


def _so_far(part: Part) -> str:
    return f" ({len(part.broken)} broken)" if part.broken else ""


def table(parts: Sequence[Part]) -> list[tuple[str, list[str]]]:
    """A row for each figure, with a column for each part."""
    rows: list[tuple[str, list[str]]] = [("faults", [str(part.faults) for part in parts])]
    rows += [(str(law), [str(len(part.tally.breaches.get(law, ()))) for part in parts]) for law in Law]
    rows += [(str(count), [str(part.tally.counts[count]) for part in parts]) for count in Count]
    facts = [part.as_json() for part in parts]
    names = {"resume_median": "seconds to resume, median", "resume_worst": "seconds to resume, worst"}
    names |= {"all_ended": "seconds until all had ended"}
    rows += [(name, [_number(fact[key]) for fact in facts]) for key, name in names.items()]
    return rows


def figure(parts: Sequence[Part], today: date) -> str:
    """The whole trial in a sentence or two."""
    faults = {part.name: part.faults for part in parts if part.ended is None}
    struck = [f"{count:,} {_WORDS.get(name, name)}" for name, count in faults.items()]
    struck += [f"a restart with {part.name}" for part in parts if part.ended is not None]
    laws = [(law, sum(len(part.tally.breaches.get(law, ())) for part in parts)) for law in PROMISED]
    resumed = [each for part in parts for each in part.resumed]
    times = (
        f" Resumed in {statistics.median(resumed):.1f} s (median), {max(resumed):.1f} s at worst."
        if resumed
        else ""
    )
    kept = ", ".join(f"{count} {law}" for law, count in laws)
    return f"{today.isoformat()}: {', '.join(struck)}: {kept}.{times}"


_WORDS = {"system calls": "faults at system calls", "kills": "kills at random moments"}
PROMISED = (Law.LOST, Law.AGAIN, Law.REPEATED, Law.TOLD, Law.LIVE)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


async def tortured(wishes: Wishes, told: Callable[[str], None]) -> list[Part]:
    """`told` hears what is going on."""
    return await Trial(wishes, told).whole()
