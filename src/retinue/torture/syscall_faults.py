"""Faults at every persistence system call in turn: the calls are counted once, and then each of them is made to fail."""

import itertools
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retinue.domain.value import value
from retinue.errors import Failed
from retinue.torture.environment import Ground
from retinue.torture.invariants import Tally, judged
from retinue.torture.random_kills import Life
from retinue.torture.scenario import task

FAULTS: Mapping[str, str] = {"SIGKILL": "signal=SIGKILL", "ENOSPC": "error=ENOSPC", "EIO": "error=EIO"}
KILL = "SIGKILL"
HALF = 0.5
CALLS = (
    "open", "openat", "openat2", "creat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "fsync", "fdatasync",
    "rename", "renameat", "renameat2", "mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "rmdir", "ftruncate", "truncate", "fallocate",
)  # fmt: skip
"""Those that a machine does not have are left out by strace itself."""
Numbers = Mapping[str, Sequence[int]]
"""For each kind of call, which of them count."""
TREE = "chain"
TRIES = 4
"""How often what was interrupted is taken up: more is not needed after one fault."""
_LINE = re.compile(r"(\d+) +(\w+)\((.*)")
_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")


@value
class Point:
    """One system call of a run: the how many-th of its kind, in a home that is new or was used before."""

    fault: str
    call: str
    number: int
    fresh: bool
    again: int = 0
    """Where the process that goes on with it is killed too; 0: it is left in peace."""

    def __str__(self) -> str:
        then = f" and {self.again}" if self.again else ""
        return f"{self.fault} at {self.call} {self.number}{then}{' of a new home' if self.fresh else ''}"


def available() -> str | None:
    return shutil.which("strace")


async def counted(ground: Ground) -> Numbers:
    """Which calls of a whole run touch its home: for each kind, their numbers in the thread that makes them."""
    trace = ground.root / "trace"
    code = await ground.over(
        await ground.started(*_run(), before=_strace(trace, ",".join(f"?{c}" for c in CALLS)))
    )
    if code:
        raise Failed(f"a run under strace ended with code {code}: {ground.said} says why")
    found: dict[str, set[int]] = {}
    for call, number, touches in _calls(trace, ground.home):
        if touches:
            found.setdefault(call, set()).add(number)
    return {call: sorted(numbers) for call, numbers in found.items()}


def points(fresh: Numbers, used: Numbers) -> list[Point]:
    """Every call in a home that was used before, and what a new home needs beyond them."""
    found: list[Point] = []
    for fault in FAULTS:
        for call in CALLS:
            new = list(fresh.get(call, ()))
            first = new[: max(0, len(new) - len(used.get(call, ())))]
            found += [Point(fault=fault, call=call, number=number, fresh=True) for number in first]
            found += [
                Point(fault=fault, call=call, number=number, fresh=False) for number in used.get(call, ())
            ]
    return found


def chosen(found: Sequence[Point], most: int | None, chance: random.Random) -> list[Point]:
    """So many of each fault at most, of every kind of call as many as of any other."""
    if most is None:
        return list(found)
    picked: list[Point] = []
    for fault in FAULTS:
        kinds = [[each for each in found if (each.fault, each.call) == (fault, call)] for call in CALLS]
        for kind in kinds:
            chance.shuffle(kind)
        chance.shuffle(kinds)
        turns = itertools.chain.from_iterable(itertools.zip_longest(*kinds))
        picked += list(itertools.islice(filter(None, turns), most))
    return picked


def twice(todo: Sequence[Point], used: Numbers, chance: random.Random) -> list[Point]:
    """Every other kill is followed by one of the process that resumes, at what it still has to do."""
    found: list[Point] = []
    for point in todo:
        numbers = used.get(point.call, ())
        most = numbers[-1] - point.number + numbers[0] if numbers else 0
        left = [number for number in numbers if number <= most]
        again = chance.choice(left) if left and point.fault == KILL and chance.random() < HALF else 0
        found.append(replace(point, again=again))
    return found


async def struck(point: Point, life: Life) -> tuple[bool, Tally]:
    """One run that meets the fault, whatever goes on with it afterwards, and the judgement. Whether the fault fell on a
    file of the home is told too: another run may do things in another order."""
    ground, faults = life.ground, 1
    touched = await _met(point, point.number, ground, *_run())
    if point.again and any(run.status.live for run in (await ground.rows())[0]):
        faults += await _met(point, point.again, ground, "runs", "resume", "--json")
    for _ in range(TRIES):
        runs, _waiting = await ground.rows()
        if runs and not any(run.status.live for run in runs):
            break
        await life.timed(*(("runs", "resume", "--json") if runs else _run()))
    return touched, await judged(ground, life.model.asked, faults=faults)


async def _met(point: Point, number: int, ground: Ground, *words: str) -> bool:
    """A command that meets the fault at that call; whether it fell on a file of the home."""
    trace = ground.root / f"trace-{len(ground.processes)}"
    inject = f"inject={point.call}:{FAULTS[point.fault]}:when={number}"
    # A signal is let in only where strace stops at every call; an error also where it stops at those it looks for.
    before = (*_strace(trace, point.call, quick=point.fault != KILL), "-e", inject)
    await ground.over(await ground.started(*words, before=before))
    return _hit(trace, point, ground.home)


def _run() -> tuple[str, ...]:
    return ("run", "--agent", "lead", "--json", task(f"{TREE}/lead"))


def _strace(trace: Path, calls: str, *, quick: bool = True) -> tuple[str, ...]:
    few = ("--seccomp-bpf",) if quick else ()
    return ("strace", "-f", "-y", "-qq", "-s", "0", *few, "-o", str(trace), "-e", f"trace={calls}")


def _calls(trace: Path, home: Path) -> Iterator[tuple[str, int, bool]]:
    """Each call with its number in its thread, and whether it changes something below the home."""
    numbers: Counter[tuple[str, str]] = Counter()
    for line in trace.read_text("utf-8", "replace").splitlines():
        if found := _LINE.match(line):
            thread, call, rest = found.groups()
            numbers[thread, call] += 1
            writes = not call.startswith("open") or bool(_WRITING.search(rest))
            yield call, numbers[thread, call], writes and os.fspath(home) in rest


def _hit(trace: Path, point: Point, home: Path) -> bool:
    """A call that was killed has no result, one that was refused says so."""
    text = trace.read_text("utf-8", "replace")
    if point.fault == KILL and "+++ killed by SIGKILL" not in text:
        return False
    marks = ("= ?", "<unfinished") if point.fault == KILL else ("(INJECTED)",)
    return any(os.fspath(home) in line and any(mark in line for mark in marks) for line in text.splitlines())
