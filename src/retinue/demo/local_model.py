"""The demonstration on a real model: a parent hands documents to children, their worker is killed, and they go on."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from retinue import app as application
from retinue.app import App
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Called, Entry, Said, name_of
from retinue.domain.value import value

PARENT = "orchestrator"
MODEL = "local:smollm2"
DOCUMENTS = ("bees.md", "tides.md", "bread.md")
TASK = "Ask an explorer to read bees.md, an explorer to read tides.md and an explorer to read bread.md."
FOREIGN = ("RETINUE_", "OPENAI_", "ANTHROPIC_")
LOOK_SECONDS = 0.25
PATIENCE = 170.0
"""Seconds for all of it: whatever has not ended then is left to whoever resumes it."""
MIDDLE = 2
"""So many children have said something when the worker is killed."""


@value
class Seen:
    """The tree as its files and its ledger have it at one moment."""

    runs: tuple[Run, ...] = ()
    """The parent's first."""
    entries: Mapping[str, Sequence[Entry]] = field(default_factory=dict[str, Sequence[Entry]])
    """Of each run."""

    @property
    def parent(self) -> Run | None:
        return self.runs[0] if self.runs else None

    @property
    def children(self) -> tuple[Run, ...]:
        return self.runs[1:]

    @property
    def over(self) -> bool:
        return bool(self.runs) and all(run.status.final for run in self.runs)

    def answered(self) -> set[str]:
        """The turns whose replies are on disk, each by the entry it was asked after."""
        return {
            name_of(entries[at - 1])
            for entries in self.entries.values()
            for at, entry in enumerate(entries)
            if at and isinstance(entry, Said) and entry.by == "agent"
        }

    def handed_on(self) -> int:
        """How many children the parent's calls ask for."""
        own = self.entries.get(self.runs[0].id, ()) if self.runs else ()
        return sum(1 for entry in own if isinstance(entry, Called) and entry.tool == "spawn_subagent")

    def midway(self) -> bool:
        """Some children have said something, and none is done."""
        spoken = [run for run in self.children if _spoke(self.entries[run.id])]
        return len(spoken) >= MIDDLE and not all(run.status.final for run in self.children)


@value
class Count:
    """What the kill cost, counted from the files, the ledger and the log of the turns that were asked."""

    cut_off: int
    """Runs that had not ended when their worker died."""
    resumed: int
    """Of them, those that are done now."""
    answered: int
    """Turns whose replies were on disk."""
    asked_again: int
    """Of them, those that were asked a second time: the promise is none."""
    in_flight: int
    """Turns that were under way, and had to be asked again."""
    handed_on: int
    started: int
    """Children: more than were asked for would be effects that happened twice."""

    @property
    def repeated(self) -> int:
        return max(0, self.started - self.handed_on)

    @property
    def kept(self) -> bool:
        return self.resumed == self.cut_off and not self.asked_again and not self.repeated


@value
class Ending:
    seen: Seen
    count: Count | None
    """None: the worker was not killed, because there was no middle to kill it in."""
    said: str
    """What the worker said last, where it failed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A home of its own, three documents beside it, and a log. No agent may look into a home."""

    home: Path

    @property
    def documents(self) -> Path:
        return self.home.with_name(f"{self.home.name}-documents")

    @property
    def log(self) -> Path:
        return self.home / "demo" / "turns.jsonl"

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return kept | {
            "RETINUE_HOME": str(self.home),
            "RETINUE_CONFIG": str(self.home / "demo" / "config"),
            "RETINUE_MODEL": MODEL,
            "RETINUE_LOCAL_LOG": str(self.log),
        }

    def set(self) -> None:
        for folder in (self.log.parent, self.documents):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        shipped = resources.files("retinue.demo").joinpath("documents")
        for name in DOCUMENTS:
            text = shipped.joinpath(name).read_text(encoding="utf-8")
            (self.documents / name).write_text(text, encoding="utf-8")

    async def worker(self, *words: str) -> asyncio.subprocess.Process:
        """A command of ours, in a group of its own: killing it kills nobody else."""
        with (self.home / "demo" / "worker.log").open("ab") as out:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "retinue", *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.env,
                start_new_session=True,
            )

    def asked(self) -> list[tuple[int, str]]:
        """Each turn that was asked: by which process, after which entry."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [(line["pid"], line["after"]) for line in map(json.loads, lines)]


Show = Callable[[Seen], None]


async def play(stage: Stage, show: Show, killed: Callable[[int, Seen], None]) -> Ending:
    """`show` sees the tree as it goes; `killed` hears whom the kill hit, and how things stood."""
    stage.set()
    before = await _newest(stage)
    words = ("run", "--agent", PARENT, "--workspace", str(stage.documents), "--label", "demo", TASK)
    worker = await stage.worker(*words)
    try:
        async with asyncio.timeout(PATIENCE):
            seen = await _watched(stage, worker, before, show, until=Seen.midway)
            if worker.returncode is not None or not seen.midway():
                return Ending(seen=seen, count=None, said=_last_words(stage))
            _kill(worker)
            await worker.wait()
            cut = await _seen(stage, before)
            killed(worker.pid, cut)
            worker = await stage.worker("wait", seen.runs[0].id)
            seen = await _watched(stage, worker, before, show, until=lambda _: False)
    except TimeoutError:
        return Ending(seen=await _seen(stage, before), count=None, said="it took too long")
    finally:
        _kill(worker)
        await worker.wait()
    return Ending(seen=seen, count=counted(cut, seen, stage.asked(), worker.pid), said=_last_words(stage))


def counted(cut: Seen, end: Seen, asked: Sequence[tuple[int, str]], second: int) -> Count:
    """`cut`: how things stood when the worker was dead; `second`: the process that went on."""
    answered = cut.answered()
    open_ = {run.id for run in cut.runs if not run.status.final}
    first = [after for pid, after in asked if pid != second]
    return Count(
        cut_off=len(open_),
        resumed=sum(1 for run in end.runs if run.id in open_ and run.status is Status.DONE),
        answered=len(answered),
        asked_again=sum(1 for pid, after in asked if pid == second and after in answered),
        in_flight=sum(1 for after in first if after not in answered),
        handed_on=end.handed_on(),
        started=len(end.children),
    )


async def _watched(
    stage: Stage,
    worker: asyncio.subprocess.Process,
    before: str,
    show: Show,
    *,
    until: Callable[[Seen], bool],
) -> Seen:
    """Looks until something is so, or the worker has ended."""
    while True:
        ended = worker.returncode is not None
        seen = await _seen(stage, before)
        show(seen)
        if ended or until(seen):
            return seen
        await asyncio.sleep(LOOK_SECONDS)


async def _seen(stage: Stage, before: str) -> Seen:
    """All runs of the tree that began after this one."""
    if not (stage.home / "ledger.db").exists():
        return Seen()
    async with application.look(env=stage.env) as app:
        runs = sorted(await app.runs(live=False, limit=50), key=lambda run: run.id)
        tops = [run for run in runs if run.id > before and not run.ask.parent_run]
        if not tops:
            return Seen()
        tree = [run for run in runs if run.root == tops[0].id]
        return Seen(runs=tuple(tree), entries={run.id: await _entries(app, run) for run in tree})


async def _entries(app: App, run: Run) -> Sequence[Entry]:
    return await app.entries(run.session_id) if run.session_id else ()


async def _newest(stage: Stage) -> str:
    """The newest run there was before."""
    if not (stage.home / "ledger.db").exists():
        return ""
    async with application.look(env=stage.env) as app:
        return max((run.id for run in await app.runs(live=False, limit=50)), default="")


def _spoke(entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry, Said) and entry.by == "agent" for entry in entries)


def _kill(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        os.killpg(worker.pid, signal.SIGKILL)


def _last_words(stage: Stage) -> str:
    lines = (stage.home / "demo" / "worker.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else ""
