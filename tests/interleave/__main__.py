"""Plays random trees of runs in random interleavings, and says which laws they broke."""

# ruff: noqa: T201

import argparse
import json
import sys
import time

from case import play, smallest
from laws import KNOWN
from plan import Plan

EVERY = 250


def main() -> int:
    wishes = _wishes()
    if wishes.seed is not None:
        return _one(Plan.of(wishes.seed, sqlite=wishes.sqlite), shrink=wishes.shrink)
    began, runs, failed, done = time.monotonic(), 0, 0, 0
    for number in range(wishes.first, wishes.first + wishes.cases):
        played = play(Plan.of(number, sqlite=wishes.sqlite))
        runs += played.runs
        if broken := [each for each in played.breaches if not (wishes.known and _known(each))]:
            failed += 1
            print(f"seed {number}: {broken[0]}", flush=True)
            if not wishes.keep_going:
                break
        done = number - wishes.first + 1
        if not done % EVERY:
            print(
                f"{done:,} of {wishes.cases:,} cases, {runs:,} runs, {failed} failed",
                file=sys.stderr,
                flush=True,
            )
    seconds = time.monotonic() - began
    print(f"{done:,} cases, {runs:,} runs, {failed} failed, {seconds:.1f} s")
    return 1 if failed else 0


def _known(breach: str) -> bool:
    return any(each.search(breach) for each in KNOWN)


def _one(plan: Plan, *, shrink: bool) -> int:
    played = smallest(plan, lambda line: print(line, file=sys.stderr)) if shrink else play(plan)
    for line in played.trace if played.breaches else []:
        print(line)
    print(played.plan)
    for breach in played.breaches:
        print(f"BREACH {breach}")
    print(json.dumps({"seed": plan.seed, "runs": played.runs, "breaches": len(played.breaches)}))
    return 1 if played.breaches else 0


def _wishes() -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="scripts/interleave", description=__doc__)
    words.add_argument("--cases", type=int, default=150, help="how many")
    words.add_argument("--first", type=int, default=0, help="the number of the first")
    words.add_argument("--sqlite", action="store_true", help="on the real ledger")
    words.add_argument("--known", action="store_true", help="pass over what is known not to hold yet")
    words.add_argument("--keep-going", action="store_true", help="after the first that fails")
    words.add_argument("--seed", type=int, help="only this one, and tell all of it where it fails")
    words.add_argument(
        "--shrink", action="store_true", help="with --seed: look for the smallest case that fails"
    )
    return words.parse_args()


if __name__ == "__main__":
    sys.exit(main())
