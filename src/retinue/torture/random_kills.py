"""Kills at random moments: whatever works a tree is killed, started again and killed again, and then left in peace."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.domain.run import Run
from retinue.torture.counted_tools import MOMENT
from retinue.torture.environment import GLANCE, PATIENCE, Ground
from retinue.torture.fake_model import Model
from retinue.torture.invariants import Tally, judged
from retinue.torture.scenario import task

MOST = 3
"""Kills of one tree: a run that was taken up more often is given up, as it should be."""
TREES = 3
"""At once, where a daemon works them."""
DENIED = 0.2
"""How often a person says no."""


@dataclass(slots=True)
class Life:
    """One home through its kills and restarts."""

    ground: Ground
    model: Model
    chance: random.Random
    kills: int = 0
    resumed: list[float] = field(default_factory=list[float])
    """Seconds from each restart to the first sign that work went on."""

    async def killed(self, process: asyncio.subprocess.Process, *, restarted: bool) -> None:
        """Around an effect, or at a moment between two requests, or early in its start: chosen by how much was done or
        asked so far, so that slow machines are killed at the same places as quick ones."""
        began, before, done = time.perf_counter(), len(self.model.asked), self.ground.done()
        where = self.chance.choice(("effect", "request", "request", "start"))
        more = 0 if where == "start" else self.chance.randint(1, 12 if where == "request" else 4)
        then = self.chance.uniform(0, {"effect": 2.5 * MOMENT, "request": 0.06, "start": 0.8}[where])

        def now() -> bool:
            enough = (
                self.ground.done() >= done + more
                if where == "effect"
                else len(self.model.asked) >= before + more
            )
            return enough or process.returncode is not None

        await _until(now, seconds=self.chance.uniform(2, 4))
        await asyncio.sleep(then)
        if await self.ground.killed(process):
            self.kills += 1
        if restarted and more and len(self.model.asked) > before:
            self._progress(began, before)

    def _progress(self, began: float, before: int) -> None:
        if len(self.model.asked) > before:
            self.resumed.append(self.model.at[before] - began)

    async def settled(self, process: asyncio.subprocess.Process) -> None:
        """Left in peace until nothing goes on any more, or it ended by itself; whatever is asked is answered."""
        began, before = time.perf_counter(), len(self.model.asked)
        while time.perf_counter() - began < PATIENCE and process.returncode is None:
            runs, waiting = await self.ground.rows()
            if runs and not any(run.status.live for run in runs):
                break
            answers = [("approvals", "answer", each.id, self.answer(), "--json") for each in waiting]
            await asyncio.gather(*(self.ground.ended(*words) for words in answers))
            await asyncio.sleep(GLANCE * 2)
        self._progress(began, before)

    async def timed(self, *words: str) -> int:
        """A command to its end, and how soon it was at work."""
        began, before = time.perf_counter(), len(self.model.asked)
        code = await self.ground.ended(*words)
        self._progress(began, before)
        return code

    def answer(self) -> str:
        return "deny" if self.chance.random() < DENIED else "allow"


async def daemon(ground: Ground, model: Model, chance: random.Random, kills: int) -> Life:
    """Several trees in a daemon that is killed so often and started again each time."""
    life = Life(ground=ground, model=model, chance=chance)
    process = await ground.started("serve")
    await ground.begin(*(f"deep-{number}" for number in range(TREES)))
    for number in range(kills):
        await life.killed(process, restarted=number > 0)
        process = await ground.started("serve")
    await life.settled(process)
    await ground.killed(process)
    return life


async def commands(ground: Ground, model: Model, chance: random.Random, kills: int) -> Life:
    """One tree in plain commands: `run`, and whatever goes on with it after that."""
    life = Life(ground=ground, model=model, chance=chance)
    words: list[str] = ["run", "--agent", "lead", "--json", task("deep-0/lead")]
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE:
        process = await ground.started(*words)
        if life.kills < kills:
            await life.killed(process, restarted=words[0] != "run")
        else:
            await ground.over(process)
        runs, waiting = await ground.rows()
        if runs and not any(run.status.live for run in runs):
            break
        if waiting and not _moving(runs):
            words = ["approvals", "answer", waiting[0].id, life.answer(), "--json"]
        elif runs:
            words = ["runs", "resume", "--json"]
    return life


def _moving(runs: list[Run]) -> bool:
    return any(run.status in ("queued", "running") for run in runs)


async def _until(true: Callable[[], bool], *, seconds: float) -> None:
    ends = time.perf_counter() + seconds
    while not true() and time.perf_counter() < ends:  # noqa: ASYNC110  (another process does it: nothing to wait on)
        await asyncio.sleep(GLANCE / 10)


async def round_of(ground: Ground, model: Model, chance: random.Random, kills: int) -> tuple[Life, Tally]:
    """One home, killed at most so often, and judged."""
    way = chance.choice((daemon, commands))
    life = await way(ground, model, chance, min(kills, chance.randint(1, MOST)))
    return life, await judged(ground, model.asked, faults=life.kills)
