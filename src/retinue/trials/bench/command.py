"""The whole benchmark, from what a person wishes to what they are shown."""

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from retinue import __version__
from retinue.domain.value import value
from retinue.errors import Usage
from retinue.trials.bench.installing import PEERS, installed
from retinue.trials.bench.page import written
from retinue.trials.bench.plot import plot
from retinue.trials.bench.report import Report
from retinue.trials.bench.rounds import Ground, measure
from retinue.trials.bench.samples import Samples
from retinue.trials.bench.special import SPECIAL, ceiling
from retinue.trials.bench.system import BARE, FLOOR, RETINUE, System, served
from retinue.trials.bench.work import WORKS

ROWS = ("turn", "children", "stream", "start", "history", "idle", "waiting", "prefix", "small", "growth")
QUICK = ("turn", "stream", "start", "prefix", "small")
"""What tells most in a minute."""


@value
class Wishes:
    """What a person asked for."""

    rows: tuple[str, ...] = ()
    """None: all."""
    peers: tuple[str, ...] | None = None
    """None: nobody but ourselves; empty: all there are."""
    quick: bool = False
    keep: Path | None = None
    """Where environments and samples stay, so that a benchmark that was stopped goes on."""
    profile: Path | None = None

    def chosen(self) -> tuple[str, ...]:
        for row in self.rows:
            if row not in ROWS:
                raise Usage(f"there is no row {row!r}: the rows are {', '.join(ROWS)}")
        return self.rows or (QUICK if self.quick else ROWS)


async def measured(wishes: Wishes, told: Callable[[str], None]) -> Report:
    """Everything that was asked for; `told` hears what is going on."""
    rows = wishes.chosen()
    for name in wishes.peers or ():
        if name not in {each.name for each in PEERS}:
            raise Usage(f"there is no peer {name!r}: they are {', '.join(each.name for each in PEERS)}")
    before = _load()
    with _place(wishes.keep) as place:
        peers, missing = ([], {}) if wishes.peers is None else installed(place, told, wishes.peers)
        systems = [BARE, FLOOR, RETINUE, *peers]
        marks = {each.name: mark(each) for each in systems}
        samples = Samples(place / "samples.jsonl" if wishes.keep else None, marks)
        async with served() as url:
            with tempfile.TemporaryDirectory(prefix="retinue-bench-", dir=wishes.keep) as folder:
                ground = Ground(
                    url=url,
                    place=Path(folder),
                    systems=systems,
                    samples=samples,
                    told=told,
                    quick=wishes.quick,
                    profile="" if wishes.profile is None else str(wishes.profile.absolute()),
                )
                await ceiling(ground)
                for row in rows:
                    for work in WORKS.get(row, ()):
                        await measure(ground, work)
                    for special in SPECIAL.get(row, ()):
                        await special(ground)
    return Report(
        samples=samples,
        systems=[each.name for each in systems],
        peers=[each.name for each in peers],
        versions={each.name: _versions(each) for each in systems},
        missing=missing,
        machine={**machine(), "load": before, "load_after": _load()},
    )


@contextmanager
def _place(keep: Path | None) -> Generator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
        yield Path(folder)


def machine() -> dict[str, str]:
    """What it was measured on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "day": datetime.now(UTC).strftime("%-d %B %Y"),
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def mark(system: System) -> str:
    """What the system is made of: our own source, or the versions that are installed."""
    made = hashlib.sha256(json.dumps(_versions(system)).encode())
    if system.name == RETINUE.name:
        root = Path(str(resources.files("retinue")))
        for file in sorted(root.rglob("*.py")):
            made.update(file.read_bytes())
    return made.hexdigest()[:12]


def _load() -> str:
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def _versions(system: System) -> dict[str, str]:
    if system.name == RETINUE.name:
        return {"retinue": __version__}
    if system.name in (BARE.name, FLOOR.name):
        return {"aiohttp": importlib.metadata.version("aiohttp")}
    return dict(system.versions)


class Progress:
    """What is going on, on standard error: one line that changes on a terminal, a line each elsewhere."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, words: str) -> None:
        line = f"{time.monotonic() - self._began:5.0f} s  {words}"
        print(f"\r\x1b[2K{line[:110]}" if self._terminal else line, end="" if self._terminal else "\n",
              file=sys.stderr, flush=True)  # fmt: skip

    def over(self) -> None:
        if self._terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


async def shown(wishes: Wishes, progress: Progress, *, write: Path | None, svg: Path | None) -> Report:
    """Measures, and writes what was asked for."""
    try:
        report = await measured(wishes, progress)
    finally:
        progress.over()
    if svg is not None:
        svg.write_text(plot(report), encoding="utf-8")
    if write is not None:
        written(write, report, os.path.relpath(svg, write.parent) if svg is not None else "")
    return report
