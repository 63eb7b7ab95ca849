"""Lets the power fail at every moment of a short life, and says what was promised and is not there."""

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

from disk import WAYS, State, state
from life import Life
from record import Log, Sync, Word


def main() -> int:
    options = _parse_options()
    root = Path(tempfile.mkdtemp(prefix="retinue-power-")).resolve()
    try:
        return asyncio.run(_run_simulation(root, options))
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _run_simulation(root: Path, options: argparse.Namespace) -> int:
    began, failed = time.monotonic(), 0
    life = Life(root / "ground")
    async with life.server:
        await life.run_once()
        found = list(_states(life, options.seeds, options.seed))
        failed += sum(_report_violations(each, life.promised.violations(each)) for each in found)
        chosen = found
        if options.states >= 0:
            chosen = random.Random(options.seed).sample(found, min(options.states, len(found)))
        for number, each in enumerate(chosen):
            violations = await life.resume_from(each)
            failed += _report_violations(each, violations)
            if violations and options.keep:
                kept = options.keep / f"{each.point} {each.way}"
                kept.mkdir(parents=True)
                each.write_to(kept)
                shutil.copytree(life.root, kept / "after", symlinks=True)
            if not (number + 1) % 50:
                print(f"{number + 1} of {len(chosen)} states, {failed} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(
        f"{len(chosen)} of {len(found)} states after {len(life.log.changes)} changes, {failed} failed, {seconds:.1f} s"
    )
    return 1 if failed else 0


def _report_violations(each: State, violations: Sequence[str]) -> bool:
    if violations:
        print(f"{each}: {'; '.join(violations)}", flush=True)
    return bool(violations)


def _states(life: Life, seeds: int, seed: int) -> Iterator[State]:
    """Right after each sync and each word to the world, when least is left; and right before, when most can be lost. Of
    those that hold the same only the last is looked at: more was promised by then."""
    found: dict[str, State] = {}
    for point in _points(life.log):
        for way in (*WAYS, *(f"seed {seed}.{point}.{number}" for number in range(seeds))):
            each = state(life.log, point, way)
            found[each.digest] = each
    yield from found.values()


def _points(log: Log) -> list[int]:
    marks = [number for number, change in enumerate(log.changes) if isinstance(change, Sync | Word)]
    return sorted({0, len(log.changes), *marks, *(number + 1 for number in marks)})


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/power", description=__doc__)
    parser.add_argument(
        "--states", type=int, default=-1, help="open so many, chosen by chance, instead of all"
    )
    parser.add_argument("--seeds", type=int, default=3, help="of each moment, so many states made by chance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep what broke a promise here")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
