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
    started_at, runs, failed, case_count = time.monotonic(), 0, 0, 0
    for number in range(options.first, options.first + options.cases):
        result = play(Plan.of(number, sqlite=options.sqlite))
        runs += result.runs
        if violations := [each for each in result.violations if not (options.known and _is_known(each))]:
            failed += 1
            print(f"seed {number}: {violations[0]}", flush=True)
            if not options.keep_going:
                break
        case_count = number - options.first + 1
        if not case_count % PROGRESS_INTERVAL:
            print(
                f"{case_count:,} of {options.cases:,} cases, {runs:,} runs, {failed} failed",
                file=sys.stderr,
                flush=True,
            )
    seconds = time.monotonic() - started_at
    print(f"{case_count:,} cases, {runs:,} runs, {failed} failed, {seconds:.1f} s")
    return 1 if failed else 0


def _is_known(violation: str) -> bool:
    return any(each.search(violation) for each in KNOWN_VIOLATIONS)


def _run_one(plan: Plan, *, shrink: bool) -> int:
    result = shrink_case(plan, lambda line: print(line, file=sys.stderr)) if shrink else play(plan)
    for line in result.trace if result.violations else []:
        print(line)
    print(result.plan)
    for violation in result.violations:
        print(f"VIOLATION {violation}")
    print(json.dumps({"seed": plan.seed, "runs": result.runs, "violations": len(result.violations)}))
    return 1 if result.violations else 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/interleave", description=__doc__)
    parser.add_argument("--cases", type=int, default=150, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--sqlite", action="store_true", help="use the SQLite ledger")
    parser.add_argument("--known", action="store_true", help="ignore known violations")
    parser.add_argument("--keep-going", action="store_true", help="continue after a failed case")
    parser.add_argument("--seed", type=int, help="run only this case, and print its trace if it fails")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: search for the simplest case that fails"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
