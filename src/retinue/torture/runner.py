"""The crash test: injected faults, random kills and a mass restart, and their summary."""

import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from msgspec import Struct

from retinue.testing.fake_model_server import FakeModelServer
from retinue.torture import sync_order, syscall_faults
from retinue.torture.environment import TortureEnvironment
from retinue.torture.fake_model import FakeModel
from retinue.torture.injuries import Injury
from retinue.torture.invariants import Invariant, InvariantReport, Statistic
from retinue.torture.mass_restart import run_mass_restart
from retinue.torture.random_kills import KillCycle, run_kill_round

MODEL_DELAY_S = 0.004
"""Maximum delay of the fake model where its speed does not matter."""
STRACE_MISSING = "faults at system calls, because strace is not installed"
NO_EFFECTS_TRACED = "the order of syncs, because the trace of a run contains no side effect"
COMMANDS_MISSING = (
    "shell commands and worktrees, because git or a strict sandbox is missing (see `retinue doctor`)"
)


INJURIES = tuple(injury for injury in Injury if injury is not Injury.NONE)


class TortureOptions(Struct, frozen=True, kw_only=True):
    """Options of the crash test."""

    kills: int = 30
    points_per_fault: int | None = 12
    """Fault points per fault; None for all."""
    concurrent_runs: int = 100
    time_limit_s: float | None = None
    """Start nothing new after this time."""
    seed: int = 0
    keep_dir: Path | None = None


@dataclass(slots=True)
class PartResult:
    """Result of one kind of test."""

    name: str
    faults: int = 0
    missed: int = 0
    """Faults that did not hit a file of the home."""
    report: InvariantReport = field(default_factory=InvariantReport)
    resume_times_s: list[float] = field(default_factory=list[float])
    all_ended_s: float | None = None
    """Seconds from the mass restart until all runs had ended."""
    injuries: Counter[Injury] = field(default_factory=Counter[Injury])
    """Number of test rounds with each fault other than a kill."""
    not_measured: list[str] = field(default_factory=list[str])
    """What could not be tested, and why."""
    violations: list[tuple[str, Path]] = field(default_factory=list[tuple[str, Path]])
    """Violations, each with the folder to inspect."""

    def as_json(self) -> dict[str, Any]:
        violation_counts = {
            str(invariant): len(self.report.violations.get(invariant, ())) for invariant in Invariant
        }
        return {
            "part": self.name,
            "faults": self.faults,
            "missed": self.missed,
            "invariants": violation_counts,
            "counts": {str(count): self.report.counts[count] for count in Statistic},
            "injuries": {str(injury): self.injuries[injury] for injury in INJURIES},
            "not_measured": self.not_measured,
            "resume_median_s": round(statistics.median(self.resume_times_s), 3)
            if self.resume_times_s
            else None,
            "resume_worst_s": round(max(self.resume_times_s), 3) if self.resume_times_s else None,
            "all_ended_s": None if self.all_ended_s is None else round(self.all_ended_s, 3),
            "violations": [
                {"message": message, "folder": str(folder)} for message, folder in self.violations
            ],
        }


class TortureRunner:
    """Runs the crash test in a temporary folder; folders without violations are removed."""

    def __init__(self, options: TortureOptions, on_progress: Callable[[str], None]) -> None:
        self.options = options
        self.on_progress = on_progress
        self._root = options.keep_dir or Path(tempfile.mkdtemp(prefix="retinue-torture-"))
        self._results: list[PartResult] = []
        self._started_at = time.monotonic()
        self._template_home = self._root / "template"

    async def run(self) -> list[PartResult]:
        try:
            if self.options.points_per_fault != 0:
                await self._run_fault_points(self._add_part("system calls"))
            if self.options.kills:
                await self._run_kills(self._add_part("kills"))
            if self.options.concurrent_runs:
                await self._run_mass_restart(self._add_part("mass restart"))
        finally:
            if not any(part.violations for part in self._results) and self.options.keep_dir is None:
                shutil.rmtree(self._root, ignore_errors=True)
        return self._results

    def _add_part(self, name: str) -> PartResult:
        self._results.append(PartResult(name=name))
        return self._results[-1]

    async def _run_fault_points(self, part: PartResult) -> None:
        if syscall_faults.strace_path() is None:
            part.not_measured.append(STRACE_MISSING)
            return
        self.on_progress("counting the system calls of a run")
        rng = self._seeded_random("points")
        fresh_calls, used_calls = await self._count_syscalls(part)
        pending = syscall_faults.sample_points(
            syscall_faults.fault_points(fresh_calls, used_calls), self.options.points_per_fault, rng
        )
        pending = syscall_faults.add_second_kills(pending, used_calls, rng)
        rng.shuffle(pending)
        total = len(pending)

        async def run_points() -> None:
            while pending and not self._is_past_deadline(0.5):
                point = pending.pop()
                await self._run_fault_point(point, part)
                finished = part.faults + part.missed
                self.on_progress(f"{finished} of {total}: {point}{_violation_suffix(part)}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(4, os.cpu_count() or 1)):
                group.create_task(run_points())

    async def _count_syscalls(
        self, part: PartResult
    ) -> tuple[syscall_faults.SyscallNumbers, syscall_faults.SyscallNumbers]:
        """Return the system calls of a run in a fresh home and in a used one."""
        async with self._open_environment("fresh", MODEL_DELAY_S) as (environment, _):
            fresh_calls = await syscall_faults.count_syscalls(environment)
        async with self._open_environment("used", MODEL_DELAY_S) as (environment, _):
            await environment.run_command("runs", "list")
            shutil.copytree(environment.home, self._template_home, symlinks=True)
            used_calls = await syscall_faults.count_syscalls(environment)
            self._check_sync_order(environment, part)
        self._remove_folders("fresh")
        return fresh_calls, used_calls

    def _check_sync_order(self, environment: TortureEnvironment, part: PartResult) -> None:
        report, trace = InvariantReport(), syscall_faults.trace_path(environment)
        for message in sync_order.find_unsynced_effects(trace, environment.home):
            report.add_violation(Invariant.EFFECTS_UNSYNCED, message)
        if not sync_order.count_effects(trace):
            part.not_measured.append(NO_EFFECTS_TRACED)
        self._record_report(part, report, "a traced run", "used")

    async def _run_fault_point(self, point: syscall_faults.FaultPoint, part: PartResult) -> None:
        name = str(point).replace(" ", "-")
        template = None if point.fresh_home else self._template_home
        async with self._open_environment(name, MODEL_DELAY_S, template=template) as (environment, model):
            cycle = KillCycle(environment=environment, model=model, rng=self._seeded_random(name))
            hit, report = await syscall_faults.inject_fault(point, cycle)
        part.faults += hit
        part.missed += not hit
        part.resume_times_s += cycle.resume_times_s
        self._record_report(part, report, str(point), name)

    async def _run_kills(self, part: PartResult) -> None:
        number = 0
        async with self._open_environment("check", 0) as (environment, _):
            has_commands = await environment.has_commands()
        self._remove_folders("check")
        if not has_commands:
            part.not_measured.append(COMMANDS_MISSING)
        while part.faults < self.options.kills and not self._is_past_deadline(0.9):
            name = f"kills-{number}"
            async with self._open_environment(name, 0.05) as (environment, model):
                rng = self._seeded_random(name)
                cycle, report = await run_kill_round(
                    environment,
                    model,
                    rng,
                    self.options.kills - part.faults,
                    number=self.options.seed + number,
                    has_commands=has_commands,
                )
            part.faults += cycle.kills
            part.injuries.update(cycle.injuries)
            part.resume_times_s += cycle.resume_times_s
            self._record_report(part, report, f"round {number}", name)
            self.on_progress(f"{part.faults} of {self.options.kills} kills{_violation_suffix(part)}")
            number += 1

    async def _run_mass_restart(self, part: PartResult) -> None:
        name = "mass-restart"
        self.on_progress(f"a restart with {self.options.concurrent_runs} active runs")
        async with self._open_environment(name, MODEL_DELAY_S, max_live=self.options.concurrent_runs + 8) as (
            environment,
            model,
        ):
            result, report = await run_mass_restart(environment, model, self.options.concurrent_runs)
        part.faults, part.all_ended_s = 1, result.all_ended_s
        part.name = f"{result.running} running"
        part.resume_times_s = [] if result.first_request_s is None else [result.first_request_s]
        self._record_report(part, report, f"a restart with {result.running} active runs", name)

    @asynccontextmanager
    async def _open_environment(
        self, name: str, max_delay_s: float, *, max_live: int = 64, template: Path | None = None
    ) -> AsyncGenerator[tuple[TortureEnvironment, FakeModel]]:
        model = FakeModel(self._seeded_random(name).randrange(1 << 30), max_delay_s=max_delay_s)
        root = self._root / name
        if template is not None:
            await asyncio.to_thread(shutil.copytree, template, root / "home")
        async with FakeModelServer(model) as server:
            environment = TortureEnvironment(root, server.url, max_live=max_live)
            try:
                yield environment, model
            finally:
                await environment.close()

    def _record_report(self, part: PartResult, report: InvariantReport, label: str, name: str) -> None:
        part.report.merge_report(report)
        messages = [
            f"{label}: {invariant}: {each}"
            for invariant, details in report.violations.items()
            for each in details
        ]
        part.violations += [(message, self._root / name) for message in messages]
        if not messages:
            self._remove_folders(name)

    def _remove_folders(self, *names: str) -> None:
        if self.options.keep_dir is None:
            for name in names:
                shutil.rmtree(self._root / name, ignore_errors=True)

    def _seeded_random(self, name: str) -> random.Random:
        """Return a generator that depends only on the seed and the name.

        The order in which generators are created does not matter.
        """
        return random.Random(f"{self.options.seed} {name}")  # noqa: S311  (must be reproducible)

    def _is_past_deadline(self, share: float) -> bool:
        limit_s = self.options.time_limit_s
        return limit_s is not None and time.monotonic() - self._started_at > limit_s * share


def _violation_suffix(part: PartResult) -> str:
    return f" ({len(part.violations)} violations)" if part.violations else ""


def result_table(parts: Sequence[PartResult]) -> list[tuple[str, list[str]]]:
    """Return a row for each figure, with a column for each part."""
    rows: list[tuple[str, list[str]]] = [("faults", [str(part.faults) for part in parts])]
    rows += [
        (str(invariant), [str(len(part.report.violations.get(invariant, ()))) for part in parts])
        for invariant in Invariant
    ]
    rows += [(str(count), [str(part.report.counts[count]) for part in parts]) for count in Statistic]
    rows += [
        (f"rounds with: {injury}", [str(part.injuries[injury]) for part in parts]) for injury in INJURIES
    ]
    part_rows = [part.as_json() for part in parts]
    labels = {"resume_median_s": "seconds to resume, median", "resume_worst_s": "seconds to resume, worst"}
    labels |= {"all_ended_s": "seconds until all runs ended"}
    rows += [(name, [_format_number(row[key]) for row in part_rows]) for key, name in labels.items()]
    return rows


def summary_sentence(parts: Sequence[PartResult], today: date) -> str:
    """Summarise the whole crash test in a sentence or two."""
    faults = {part.name: part.faults for part in parts if part.all_ended_s is None}
    descriptions = [f"{count:,} {_PART_LABELS.get(name, name)}" for name, count in faults.items()]
    descriptions += [f"a restart with {part.name}" for part in parts if part.all_ended_s is not None]
    counts = [
        (invariant, sum(len(part.report.violations.get(invariant, ())) for part in parts))
        for invariant in SUMMARY_INVARIANTS
    ]
    resume_times = [each for part in parts for each in part.resume_times_s]
    times = (
        f" Resumed in {statistics.median(resume_times):.1f} s (median), {max(resume_times):.1f} s at most."
        if resume_times
        else ""
    )
    invariant_counts = ", ".join(f"{count} {invariant}" for invariant, count in counts)
    return f"{today.isoformat()}: {', '.join(descriptions)}: {invariant_counts}.{times}"


_PART_LABELS = {"system calls": "faults at system calls", "kills": "kills at random moments"}
SUMMARY_INVARIANTS = (
    Invariant.ENTRIES_LOST,
    Invariant.TURNS_REPEATED,
    Invariant.EFFECTS_REPEATED,
    Invariant.ANNOUNCEMENTS_WRONG,
    Invariant.RUNS_NOT_TERMINAL,
)


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


async def run_torture(options: TortureOptions, on_progress: Callable[[str], None]) -> list[PartResult]:
    """Run the crash test; `on_progress` is called with progress messages."""
    return await TortureRunner(options, on_progress).run()
