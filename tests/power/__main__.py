"""Simulate a power failure at every moment of a run, and print what was acknowledged and is missing."""

# ruff: noqa: T201

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from disk import MODES, State, make_state
from record import Log, Sync, VisibleEffect
from workload import Workload


def main() -> int:
    options = _parse_options()
    root = Path(tempfile.mkdtemp(prefix="retinue-power-")).resolve()
    try:
        return asyncio.run(_run_simulation(root, options))
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _run_simulation(root: Path, options: argparse.Namespace) -> int:
    started_at, failed = time.monotonic(), 0
    workload = Workload(root / "ground")
    async with workload.server:
        await workload.run_once()
        all_states = list(_all_states(workload, options.seeds, options.seed))
        failed += sum(_report_violations(each, workload.guarantees.violations(each)) for each in all_states)
        chosen = all_states
        if options.states >= 0:
            chosen = random.Random(options.seed).sample(all_states, min(options.states, len(all_states)))
        for number, each in enumerate(chosen):
            violations = await workload.resume_from(each)
            failed += _report_violations(each, violations)
            if violations and options.keep:
                folder = options.keep / f"{each.point} {each.mode}"
                folder.mkdir(parents=True)
                each.write_to(folder)
                shutil.copytree(workload.root, folder / "after", symlinks=True)
            if not (number + 1) % 50:
                print(f"{number + 1} of {len(chosen)} states, {failed} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started_at
    print(
        f"{len(chosen)} of {len(all_states)} states after {len(workload.log.changes)} changes, {failed} failed, {seconds:.1f} s"
    )
    return 1 if failed else 0


def _report_violations(each: State, violations: Sequence[str]) -> bool:
    if violations:
        print(f"{each}: {'; '.join(violations)}", flush=True)
    return bool(violations)


def _all_states(workload: Workload, seeds: int, seed: int) -> Iterator[State]:
    """Yield the states right after each sync and each visible effect, and right before, when most can be lost.

    Of equal states only the last one is used, because most was acknowledged by then.
    """
    all_states: dict[str, State] = {}
    for point in _points(workload.log):
        for mode in (*MODES, *(f"seed {seed}.{point}.{number}" for number in range(seeds))):
            each = make_state(workload.log, point, mode)
            all_states[each.digest] = each
    yield from all_states.values()


def _points(log: Log) -> list[int]:
    marks = [number for number, change in enumerate(log.changes) if isinstance(change, Sync | VisibleEffect)]
    return sorted({0, len(log.changes), *marks, *(number + 1 for number in marks)})


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/power", description=__doc__)
    parser.add_argument(
        "--states", type=int, default=-1, help="number of randomly chosen states to open, instead of all"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of random states per moment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="copy states that violate a guarantee to this folder")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
