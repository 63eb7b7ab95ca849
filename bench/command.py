"""The benchmark command: from the options to the printed and written reports."""

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
from pathlib import Path

from msgspec import Struct

import bench
import retinue
from bench.bar_chart import render_charts
from bench.docs_report import update_page
from bench.peer_environments import PEERS, install_peers
from bench.report import Report
from bench.runner import BenchEnvironment, measure_workload
from bench.samples import Samples
from bench.special_measurements import SPECIAL_MEASUREMENTS, measure_server_ceiling
from bench.subject_process import BASELINE, MINIMUM, RETINUE, System, start_model_server
from bench.workloads import WORKLOADS
from retinue.errors import UsageError

ROWS = ("turn", "children", "stream", "start", "history", "idle", "waiting", "prefix", "small", "growth")
QUICK_ROWS = ("turn", "stream", "start", "prefix", "small")
"""The most informative rows that take about a minute."""


class BenchOptions(Struct, frozen=True, kw_only=True):
    """The options of the command."""

    rows: tuple[str, ...] = ()
    """Empty: all."""
    peers: tuple[str, ...] | None = None
    """None: no other systems; empty: all known ones."""
    quick: bool = False
    keep_dir: Path | None = None
    """Folder for environments and samples, so that an interrupted benchmark can be continued."""
    profile_file: Path | None = None

    def selected_rows(self) -> tuple[str, ...]:
        for row in self.rows:
            if row not in ROWS:
                raise UsageError(f"Unknown row {row!r}. Use {', '.join(ROWS)}.")
        return self.rows or (QUICK_ROWS if self.quick else ROWS)


async def run_benchmark(options: BenchOptions, on_progress: Callable[[str], None]) -> Report:
    """Run the selected measurements, reporting progress to `on_progress`."""
    rows = options.selected_rows()
    for name in options.peers or ():
        if name not in {each.name for each in PEERS}:
            raise UsageError(f"Unknown peer {name!r}. Use {', '.join(each.name for each in PEERS)}.")
    load_before = _load_averages()
    with _open_work_dir(options.keep_dir) as work_dir:
        peers, missing_peers = (
            ([], {}) if options.peers is None else install_peers(work_dir, on_progress, options.peers)
        )
        systems = [BASELINE, MINIMUM, RETINUE, *peers]
        fingerprints = {each.name: system_fingerprint(each) for each in systems}
        samples = Samples(work_dir / "samples.jsonl" if options.keep_dir else None, fingerprints)
        async with start_model_server() as url:
            with tempfile.TemporaryDirectory(prefix="retinue-bench-", dir=options.keep_dir) as folder:
                environment = BenchEnvironment(
                    server_url=url,
                    work_dir=Path(folder),
                    systems=systems,
                    samples=samples,
                    on_progress=on_progress,
                    quick=options.quick,
                    profile_file="" if options.profile_file is None else str(options.profile_file.absolute()),
                )
                await measure_server_ceiling(environment)
                for row in rows:
                    for workload in WORKLOADS.get(row, ()):
                        await measure_workload(environment, workload)
                    for measurement in SPECIAL_MEASUREMENTS.get(row, ()):
                        await measurement(environment)
    return Report(
        samples=samples,
        system_names=[each.name for each in systems],
        peer_names=[each.name for each in peers],
        versions={each.name: _package_versions(each) for each in systems},
        missing_peers=missing_peers,
        machine={**machine_info(), "load": load_before, "load_after": _load_averages()},
    )


@contextmanager
def _open_work_dir(keep_dir: Path | None) -> Generator[Path]:
    if keep_dir is not None:
        keep_dir.mkdir(parents=True, exist_ok=True)
        yield keep_dir
        return
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
        yield Path(folder)


def machine_info() -> dict[str, str]:
    """Return a description of this machine."""
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


def system_fingerprint(system: System) -> str:
    """Return a hash of Retinue's and the benchmark's source, or of another system's installed versions."""
    digest = hashlib.sha256(json.dumps(_package_versions(system)).encode())
    if system.name == RETINUE.name:
        for package in (retinue, bench):
            for file in sorted(Path(package.__path__[0]).rglob("*.py")):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _load_averages() -> str:
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def _package_versions(system: System) -> dict[str, str]:
    if system.name == RETINUE.name:
        return {"retinue": retinue.__version__}
    if system.name in (BASELINE.name, MINIMUM.name):
        return {"aiohttp": importlib.metadata.version("aiohttp")}
    return dict(system.versions)


class ProgressLine:
    """Progress on standard error: one updated line on a terminal, else one line per message."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, message: str) -> None:
        line = f"{time.monotonic() - self._started_at:5.0f} s  {message}"
        print(f"\r\x1b[2K{line[:110]}" if self._is_terminal else line, end="" if self._is_terminal else "\n",
              file=sys.stderr, flush=True)  # fmt: skip

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


async def run_and_report(
    options: BenchOptions, progress: ProgressLine, *, page_file: Path | None, svg_file: Path | None
) -> Report:
    """Run the benchmark and write the requested files.

    Args:
        options: What to measure.
        progress: Where progress is shown.
        page_file: Documentation page to update, if any.
        svg_file: Where to write the charts, if anywhere.
    """
    try:
        report = await run_benchmark(options, progress)
    finally:
        progress.clear()
    if svg_file is not None:
        svg_file.write_text(render_charts(report), encoding="utf-8")
    if page_file is not None:
        update_page(
            page_file, report, os.path.relpath(svg_file, page_file.parent) if svg_file is not None else ""
        )
    return report
