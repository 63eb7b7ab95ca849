"""A stand-in for the process that holds a local model: it says what a plan says, in the same lines, and dies on demand.

The plan is a JSON file: `broken` instead of getting ready; `likely`, a list of [part of a prompt, {piece: likelihood}],
of which the first that fits counts; `says`, the texts it speaks one after another, across its lives; `dies`, the numbers
of the questions after which it is killed, and `dies_loading`, once, before it is ready; `silent`, those it never answers. What it is asked it adds to PLAN.asked.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOTHING = {" ": -1.0}


def command(plan: Path) -> list[str]:
    return [sys.executable, "-m", "retinue.testing.local_model", str(plan)]


def asked(plan: Path) -> list[dict[str, Any]]:
    """Every line it was sent, over all its lives."""
    log = plan.with_suffix(".asked")
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def main(path: str) -> None:
    plan = json.loads(Path(path).read_text(encoding="utf-8"))
    _say(loading=0.5)
    if plan.get("dies_loading") and not (log := Path(path).with_suffix(".asked")).exists():
        log.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.get("broken"):
        _say(broken=plan["broken"])
        return
    _say(loading=1.0)
    _say(ready=True)
    for line in sys.stdin:
        told = json.loads(line)
        before = asked(Path(path))
        with Path(path).with_suffix(".asked").open("a", encoding="utf-8") as log:
            log.write(json.dumps({**told, "pid": os.getpid()}) + "\n")
        if not told.get("stop"):
            _answer(plan, told, [each for each in before if not each.get("stop")])


def _answer(plan: dict[str, Any], told: dict[str, Any], before: Sequence[dict[str, Any]]) -> None:
    number = len(before) + 1
    if number in plan.get("silent", ()):
        return
    cost = {"input": len(told["prompt"].split()), "output": 1}
    if "top" in told:
        fits = (likely for part, likely in plan.get("likely", ()) if part in told["prompt"])
        _say(id=told["id"], top=next(fits, NOTHING), **cost)
    else:
        spoken = sum(1 for each in before if "top" not in each)
        text: str = plan["says"][spoken % len(plan["says"])]
        for piece in text.split(" "):
            _say(id=told["id"], text=f"{piece} ")
        if number not in plan.get("dies", ()):
            _say(id=told["id"], end="stop", **cost)
    if number in plan.get("dies", ()):
        os.kill(os.getpid(), signal.SIGKILL)


def _say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
