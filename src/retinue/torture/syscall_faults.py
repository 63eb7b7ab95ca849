"""Fault injection: count the system calls of a run that change its home, then make each of them fail."""

import itertools
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from retinue.errors import Failed
from retinue.torture.environment import TortureEnvironment
from retinue.torture.invariants import InvariantReport, check_invariants
from retinue.torture.random_kills import KillCycle
from retinue.torture.scenario import task_text

FAULTS: Mapping[str, str] = {"SIGKILL": "signal=SIGKILL", "ENOSPC": "error=ENOSPC", "EIO": "error=EIO"}
KILL_FAULT = "SIGKILL"
SECOND_KILL_RATE = 0.5
SYSCALLS = (
    "open", "openat", "openat2", "creat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "fsync", "fdatasync",
    "rename", "renameat", "renameat2", "mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "rmdir", "ftruncate", "truncate", "fallocate",
)  # fmt: skip
"""strace ignores those that the machine does not have."""
SyscallNumbers = Mapping[str, Sequence[int]]
"""For each system call, the occurrences that change the home."""
TREE_NAME = "chain"
MAX_RESUME_COMMANDS = 4
"""Maximum number of resumes; after a single fault more are not needed."""
_TRACE_LINE = re.compile(r"(\d+) +(\w+)\((.*)")
_WRITE_FLAGS = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")


class FaultPoint(Struct, frozen=True, kw_only=True):
    """An occurrence of a system call in a run, in a fresh or a used home."""

    fault: str
    syscall: str
    number: int
    fresh_home: bool
    second_number: int = 0
    """Occurrence at which the resuming process is killed too; 0 for none."""

    def __str__(self) -> str:
        second = f" and {self.second_number}" if self.second_number else ""
        return f"{self.fault} at {self.syscall} {self.number}{second}{' in a new home' if self.fresh_home else ''}"


def strace_path() -> str | None:
    return shutil.which("strace")


async def count_syscalls(environment: TortureEnvironment) -> SyscallNumbers:
    """Return the system calls of a whole run that change its home, by their number in the calling thread."""
    trace = environment.root / "trace"
    code = await environment.wait_for_exit(
        await environment.start_command(
            *_run_arguments(), wrapper=_strace_arguments(trace, ",".join(f"?{c}" for c in SYSCALLS))
        )
    )
    if code:
        raise Failed(f"a run under strace exited with code {code}. See {environment.output_dir}")
    found: dict[str, set[int]] = {}
    for syscall, number, changes_home in _traced_syscalls(trace, environment.home):
        if changes_home:
            found.setdefault(syscall, set()).add(number)
    return {syscall: sorted(numbers) for syscall, numbers in found.items()}


def fault_points(fresh_calls: SyscallNumbers, used_calls: SyscallNumbers) -> list[FaultPoint]:
    """Return every system call in a used home, and those that only a fresh home needs."""
    found: list[FaultPoint] = []
    for fault in FAULTS:
        for syscall in SYSCALLS:
            fresh_numbers = list(fresh_calls.get(syscall, ()))
            extra_numbers = fresh_numbers[: max(0, len(fresh_numbers) - len(used_calls.get(syscall, ())))]
            found += [
                FaultPoint(fault=fault, syscall=syscall, number=number, fresh_home=True)
                for number in extra_numbers
            ]
            found += [
                FaultPoint(fault=fault, syscall=syscall, number=number, fresh_home=False)
                for number in used_calls.get(syscall, ())
            ]
    return found


def sample_points(points: Sequence[FaultPoint], limit: int | None, rng: random.Random) -> list[FaultPoint]:
    """Return at most `limit` points per fault, spread evenly over the system calls."""
    if limit is None:
        return list(points)
    sample: list[FaultPoint] = []
    for fault in FAULTS:
        by_syscall = [
            [each for each in points if (each.fault, each.syscall) == (fault, syscall)]
            for syscall in SYSCALLS
        ]
        for group in by_syscall:
            rng.shuffle(group)
        rng.shuffle(by_syscall)
        interleaved = itertools.chain.from_iterable(itertools.zip_longest(*by_syscall))
        sample += list(itertools.islice(filter(None, interleaved), limit))
    return sample


def add_second_kills(
    points: Sequence[FaultPoint], used_calls: SyscallNumbers, rng: random.Random
) -> list[FaultPoint]:
    """Let half of the kills be followed by a kill of the process that resumes."""
    found: list[FaultPoint] = []
    for point in points:
        numbers = used_calls.get(point.syscall, ())
        last_number = numbers[-1] - point.number + numbers[0] if numbers else 0
        remaining = [number for number in numbers if number <= last_number]
        second_number = (
            rng.choice(remaining)
            if remaining and point.fault == KILL_FAULT and rng.random() < SECOND_KILL_RATE
            else 0
        )
        found.append(replace(point, second_number=second_number))
    return found


async def inject_fault(point: FaultPoint, cycle: KillCycle) -> tuple[bool, InvariantReport]:
    """Run once with the fault, resume, and check the invariants.

    Returns:
        Whether the fault hit a file of the home (another run may order its calls differently), and the
            report.
    """
    environment, faults = cycle.environment, 1
    hit_home = await _run_with_fault(point, point.number, environment, *_run_arguments())
    if point.second_number and any(run.status.is_live for run in (await environment.read_ledger())[0]):
        faults += await _run_with_fault(point, point.second_number, environment, "runs", "resume", "--json")
    for _ in range(MAX_RESUME_COMMANDS):
        runs, _waiting = await environment.read_ledger()
        if runs and not any(run.status.is_live for run in runs):
            break
        await cycle.run_timed_command(*(("runs", "resume", "--json") if runs else _run_arguments()))
    return hit_home, await check_invariants(environment, cycle.model.requests, faults=faults)


async def _run_with_fault(
    point: FaultPoint, number: int, environment: TortureEnvironment, *arguments: str
) -> bool:
    """Run a command with the fault injected, and return whether it hit a file of the home."""
    trace = environment.root / f"trace-{len(environment.processes)}"
    inject = f"inject={point.syscall}:{FAULTS[point.fault]}:when={number}"
    # strace injects signals only without --seccomp-bpf, which stops at every call; errors work with it too.
    wrapper = (*_strace_arguments(trace, point.syscall, use_seccomp=point.fault != KILL_FAULT), "-e", inject)
    await environment.wait_for_exit(await environment.start_command(*arguments, wrapper=wrapper))
    return _fault_hit_home(trace, point, environment.home)


def _run_arguments() -> tuple[str, ...]:
    return ("run", "--agent", "lead", "--json", task_text(f"{TREE_NAME}/lead"))


def _strace_arguments(trace: Path, syscalls: str, *, use_seccomp: bool = True) -> tuple[str, ...]:
    seccomp_options = ("--seccomp-bpf",) if use_seccomp else ()
    return (
        "strace",
        "-f",
        "-y",
        "-qq",
        "-s",
        "0",
        *seccomp_options,
        "-o",
        str(trace),
        "-e",
        f"trace={syscalls}",
    )


def _traced_syscalls(trace: Path, home: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield each system call, its number in its thread, and whether it changes something below the home."""
    numbers: Counter[tuple[str, str]] = Counter()
    for line in trace.read_text("utf-8", "replace").splitlines():
        if match := _TRACE_LINE.match(line):
            thread, syscall, arguments = match.groups()
            numbers[thread, syscall] += 1
            is_write = not syscall.startswith("open") or bool(_WRITE_FLAGS.search(arguments))
            yield syscall, numbers[thread, syscall], is_write and os.fspath(home) in arguments


def _fault_hit_home(trace: Path, point: FaultPoint, home: Path) -> bool:
    """Return whether the fault hit the home.

    A killed call has no result; a failed one is marked as injected.
    """
    text = trace.read_text("utf-8", "replace")
    if point.fault == KILL_FAULT and "+++ killed by SIGKILL" not in text:
        return False
    markers = ("= ?", "<unfinished") if point.fault == KILL_FAULT else ("(INJECTED)",)
    return any(
        os.fspath(home) in line and any(marker in line for marker in markers) for line in text.splitlines()
    )
