"""Run random run trees in random order, and print the invariants that they violate."""

# ruff: noqa: T201

import argparse
import json
import sys
import time

from case import play, shrink_case
from invariants import KNOWN_VIOLATIONS
from plan import Plan

PROGRESS_INTERVAL = 250


def main() -> int:
    options = _parse_options()
    if options.seed is not None:
        return _run_one(Plan.of(options.seed, sqlite=options.sqlite), shrink=options.shrink)
    began, runs, failed, done = time.monotonic(), 0, 0, 0
    for number in range(options.first, options.first + options.cases):
        result = play(Plan.of(number, sqlite=options.sqlite))
        runs += result.runs
        if broken := [each for each in result.breaches if not (options.known and _is_known(each))]:
            failed += 1
            print(f"seed {number}: {broken[0]}", flush=True)
            if not options.keep_going:
                break
        done = number - options.first + 1
        if not done % PROGRESS_INTERVAL:
            print(
                f"{done:,} of {options.cases:,} cases, {runs:,} runs, {failed} failed",
                file=sys.stderr,
                flush=True,
            )
    seconds = time.monotonic() - began
    print(f"{done:,} cases, {runs:,} runs, {failed} failed, {seconds:.1f} s")
    return 1 if failed else 0


def _is_known(breach: str) -> bool:
    return any(each.search(breach) for each in KNOWN_VIOLATIONS)


def _run_one(plan: Plan, *, shrink: bool) -> int:
    result = shrink_case(plan, lambda line: print(line, file=sys.stderr)) if shrink else play(plan)
    for line in result.trace if result.breaches else []:
        print(line)
    print(result.plan)
    for breach in result.breaches:
        print(f"BREACH {breach}")
    print(json.dumps({"seed": plan.seed, "runs": result.runs, "breaches": len(result.breaches)}))
    return 1 if result.breaches else 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/interleave", description=__doc__)
    parser.add_argument("--cases", type=int, default=150, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--sqlite", action="store_true", help="use the SQLite ledger")
    parser.add_argument("--known", action="store_true", help="ignore known violations")
    parser.add_argument("--keep-going", action="store_true", help="continue after a failed case")
    parser.add_argument("--seed", type=int, help="run only this case, and print its trace if it fails")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: search for the shrink_case case that fails"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
