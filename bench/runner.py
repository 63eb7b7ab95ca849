"""The measuring loop: systems take turns, so that other load on the machine affects all alike."""

import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bench.samples import Sample, Samples, per_call_measures
from bench.scenarios import write_input_files
from bench.subject_process import SubjectError, SubjectProcess, System, start_subject
from bench.workloads import Workload

SLOW_SAMPLE_MS = 10_000
"""A peer that takes longer for one sample is not measured again."""


class BenchEnvironment(Struct, frozen=True, kw_only=True):
    """Shared settings of all measurements."""

    server_url: str
    """Address of the model server."""
    work_dir: Path
    systems: Sequence[System]
    samples: Samples
    on_progress: Callable[[str], None]
    quick: bool = False
    profile_file: str = ""
    """File for profiles of Retinue's own work, if wanted."""

    def select_systems(self, names: frozenset[str]) -> list[System]:
        return [each for each in self.systems if not names or each.name in names]

    def round_count(self, full_count: int) -> int:
        return min(full_count, 3) if self.quick else full_count

    def scenario_url(self, scenario: str, latency_ms: int = 0) -> str:
        return f"{self.server_url}/{scenario}/{latency_ms}/v1"


async def measure_workload(environment: BenchEnvironment, workload: Workload) -> None:
    """Measure one workload on all systems, skipping samples that exist."""
    missing = [
        each
        for each in environment.select_systems(workload.system_names)
        if _needs_samples(environment, workload, each)
    ]
    if not missing:
        return
    environment.on_progress(workload.title)
    async with AsyncExitStack() as stack:
        ready: list[SubjectProcess] = []
        for system in missing:
            try:
                subject = await stack.enter_async_context(open_subject(environment, system))
                await _prepare_subject(environment, workload, subject)
                ready.append(subject)
            except SubjectError as failure:
                _record_failure(environment, workload, system, failure)
        for number in range(environment.round_count(max(workload.rounds, workload.peer_rounds))):
            for subject in list(ready):
                if not _needs_samples(environment, workload, subject.system):
                    continue
                environment.on_progress(f"{workload.title}: {subject.system.name}, round {number + 1}")
                try:
                    await _take_sample(environment, workload, subject, number + 1)
                except SubjectError as failure:
                    _record_failure(environment, workload, subject.system, failure)
                    ready.remove(subject)


@asynccontextmanager
async def open_subject(environment: BenchEnvironment, system: System) -> AsyncGenerator[SubjectProcess]:
    """Start a process of the system in a new folder.

    The folder stays until everything is measured: after many files were deleted, ext4 is slow at creating new
    ones, and that time would be attributed to another system.
    """
    folder = Path(tempfile.mkdtemp(dir=environment.work_dir, prefix=f"{system.name}-"))
    write_input_files(folder)
    async with start_subject(system, environment.work_dir / f"{system.name}.log", folder) as subject:
        yield subject


def _needs_samples(environment: BenchEnvironment, workload: Workload, system: System) -> bool:
    """Return whether the system needs more samples.

    Enough samples exist if the rounds are complete, if one sample was very slow, or if it cannot do the work.
    """
    samples = environment.samples.select(workload.row, workload.variant, system.name)
    if any(each.problem for each in samples):
        return False
    full_count = (workload.peer_rounds if system.is_peer else 0) or workload.rounds
    is_slow = system.is_peer and any(each.facts.get("wall", 0) > SLOW_SAMPLE_MS for each in samples)
    return not is_slow and len(samples) < environment.round_count(full_count)


async def _prepare_subject(
    environment: BenchEnvironment, workload: Workload, subject: SubjectProcess
) -> None:
    system = subject.system
    url = environment.scenario_url(workload.scenario.format(tool=system.delegation_tool), workload.latency_ms)
    await subject.open(url, keep=workload.is_persistent)
    for command, arguments in workload.preparation:
        adjusted_arguments = dict(arguments)
        if system.is_peer and "count" in adjusted_arguments:
            adjusted_arguments["count"] = max(
                1, min(adjusted_arguments["count"], workload.repeat_count_for(is_peer=True))
            )
        await subject.send_command(command, timeout_s=workload.timeout_s, **adjusted_arguments)
    if workload.repeat_count > 1:
        await _measure_calls(workload, subject, 0, min(2, workload.repeat_count_for(is_peer=system.is_peer)))


async def _take_sample(
    environment: BenchEnvironment, workload: Workload, subject: SubjectProcess, number: int
) -> None:
    system = subject.system
    profile_file = environment.profile_file if system.name == "retinue" else ""
    sessions_before = await _count_sessions(workload, subject)
    result = await _measure_calls(
        workload,
        subject,
        number,
        workload.repeat_count_for(is_peer=system.is_peer),
        profile_file=profile_file,
    )
    if (created := await _count_sessions(workload, subject) - sessions_before) < workload.min_new_sessions:
        raise SubjectError(f"only {created:,} of {workload.min_new_sessions:,} sessions are on disk")
    environment.samples.add(
        Sample(
            row=workload.row, variant=workload.variant, system=system.name, facts=per_call_measures(result)
        )
    )


async def _count_sessions(workload: Workload, subject: SubjectProcess) -> int:
    """Return the number of sessions on disk, for workloads that check it."""
    return (
        int((await subject.send_command("count_sessions", timeout_s=60))["value"])
        if workload.min_new_sessions
        else 0
    )


async def _measure_calls(
    workload: Workload, subject: SubjectProcess, number: int, count: int, profile_file: str = ""
):
    first_number = number * 1000 if workload.uses_new_numbers else 0
    same_session = (
        any(command == "write_history" for command, _ in workload.preparation)
        and not workload.uses_new_numbers
    )
    numbers = [0] * count if same_session else [first_number + each for each in range(count)]
    return await subject.send_command(
        "measure",
        timeout_s=workload.timeout_s,
        what=workload.command,
        numbers=numbers,
        expect=workload.expected_reply,
        profile=profile_file,
    )


def _record_failure(
    environment: BenchEnvironment, workload: Workload, system: System, failure: SubjectError
) -> None:
    sample = Sample(row=workload.row, variant=workload.variant, system=system.name)
    environment.samples.add(replace(sample, problem=str(failure), able=failure.is_supported))
