"""Fault injection: count the system calls of a run that use its home, then make each of them fail."""

import asyncio
import itertools
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from retinue.errors import Failed
from retinue.search_path import find_executable
from retinue.torture.environment import POLL_SECONDS, TortureEnvironment
from retinue.torture.invariants import InvariantReport, check_invariants
from retinue.torture.random_kills import KillCycle
from retinue.torture.scenario import task_text

KILL_FAULT = "SIGKILL"
LASTING = " from then on"
"""Ends the name of a fault that affects all later calls too, as a full or broken disk does."""
FAULTS: Mapping[str, str] = {
    KILL_FAULT: "signal=SIGKILL",
    "ENOSPC": "error=ENOSPC",
    "EIO": "error=EIO",
    f"ENOSPC{LASTING}": "error=ENOSPC",
    f"EIO{LASTING}": "error=EIO",
}
READ_SYSCALLS = ("read", "pread64")
"""A read can fail only with EIO."""
LASTING_SYSCALLS = ("write", "pwrite64", "fsync", "fdatasync", "ftruncate", "pread64")
"""Calls that Python uses only for files of the home, or whose failure it survives elsewhere."""
SECOND_KILL_RATE = 0.5
SYSCALLS = (
    "open", "openat", "openat2", "creat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "fsync", "fdatasync",
    "rename", "renameat", "renameat2", "mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "rmdir", "ftruncate", "truncate", "fallocate", *READ_SYSCALLS,
)  # fmt: skip
"""strace ignores those that the machine does not have."""
SyscallNumbers = Mapping[str, Sequence[int]]
"""For each system call, the occurrences that read or change the home."""
TREE_NAME = "chain"
MAX_RESUME_COMMANDS = 4
"""Maximum number of resumes; after a single fault more are not needed."""
QUIET_S = 4.0
"""A run on a full disk waits: it is killed once it sent no model request for this time."""
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
    return find_executable("strace", os.environ)


def trace_path(environment: TortureEnvironment) -> Path:
    """Return the path of the trace that `count_syscalls` writes."""
    return environment.root / "trace"


async def count_syscalls(environment: TortureEnvironment) -> SyscallNumbers:
    """Return the system calls of a whole run that use its home, by their number in the calling thread."""
    trace = trace_path(environment)
    code = await environment.wait_for_exit(
        await environment.start_command(
            *_run_arguments(), wrapper=_strace_arguments(trace, ",".join(f"?{c}" for c in SYSCALLS))
        )
    )
    if code:
        raise Failed(f"a run under strace exited with code {code}. See {environment.output_dir}")
    found: dict[str, set[int]] = {}
    for syscall, number, uses_home in _traced_syscalls(trace, environment.home):
        if uses_home:
            found.setdefault(syscall, set()).add(number)
    return {syscall: sorted(numbers) for syscall, numbers in found.items()}


def fault_points(fresh_calls: SyscallNumbers, used_calls: SyscallNumbers) -> list[FaultPoint]:
    """Return every system call in a used home, and those that only a fresh home needs."""
    found: list[FaultPoint] = []
    for fault in FAULTS:
        for syscall in _syscalls_for(fault):
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


def _syscalls_for(fault: str) -> Sequence[str]:
    if fault == "EIO":
        return SYSCALLS
    lasting = [each for each in LASTING_SYSCALLS if fault.startswith("EIO") or each not in READ_SYSCALLS]
    return lasting if fault.endswith(LASTING) else [each for each in SYSCALLS if each not in READ_SYSCALLS]


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
    environment = cycle.environment
    environment.trees.append(TREE_NAME)
    cycle.faults = 1
    hit_home = await _run_with_fault(point, point.number, cycle, *_run_arguments())
    if point.second_number and (await environment.read_ledger()).has_live_runs:
        cycle.faults += await _run_with_fault(point, point.second_number, cycle, "runs", "resume", "--json")
    for _ in range(MAX_RESUME_COMMANDS):
        rows = await environment.read_ledger()
        if rows.runs and not rows.has_live_runs:
            break
        await cycle.run_timed_command(*(("runs", "resume", "--json") if rows.runs else _run_arguments()))
    errors_injected = point.fault != KILL_FAULT
    return hit_home, await check_invariants(
        environment, cycle.model.requests, faults=cycle.faults, errors_injected=errors_injected
    )


async def _run_with_fault(point: FaultPoint, number: int, cycle: KillCycle, *arguments: str) -> bool:
    """Run a command with the fault injected, and return whether it hit a file of the home."""
    environment = cycle.environment
    trace = environment.root / f"trace-{len(environment.processes)}"
    when = f"{number}+" if point.fault.endswith(LASTING) else number
    inject = f"inject={point.syscall}:{FAULTS[point.fault]}:when={when}"
    # strace injects signals only without --seccomp-bpf, which stops at every call; errors work with it too.
    wrapper = (*_strace_arguments(trace, point.syscall, use_seccomp=point.fault != KILL_FAULT), "-e", inject)
    process = await environment.start_command(*arguments, wrapper=wrapper)
    if point.fault.endswith(LASTING):
        await _kill_when_quiet(process, cycle)
    else:
        await environment.wait_for_exit(process)
    return _fault_hit_home(trace, point, environment.home)


async def _kill_when_quiet(process: asyncio.subprocess.Process, cycle: KillCycle) -> None:
    """Wait until the process exits, or kill it once it waits for the disk."""
    loop = asyncio.get_running_loop()
    request_count, quiet_since = -1, loop.time()
    while process.returncode is None and loop.time() - quiet_since < QUIET_S:
        if len(cycle.model.requests) != request_count:
            request_count, quiet_since = len(cycle.model.requests), loop.time()
        await asyncio.sleep(POLL_SECONDS * 5)
    cycle.faults += await cycle.environment.kill_process(process)


def _run_arguments() -> tuple[str, ...]:
    return ("run", "--agent", "lead", "--json", task_text(f"{TREE_NAME}/lead"))


def _strace_arguments(trace: Path, syscalls: str, *, use_seccomp: bool = True) -> tuple[str, ...]:
    seccomp_options = ("--seccomp-bpf",) if use_seccomp else ()
    return (
        strace_path() or "strace",
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
    """Yield each system call, its number in its thread, and whether it uses a file below the home.

    Opening a file for reading does not count.
    """
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
