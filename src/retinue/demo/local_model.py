"""The demonstration with a real local model.

The worker process is killed in the middle, and another one resumes its runs.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from msgspec import Struct

from retinue import app as application
from retinue.app import App
from retinue.domain.providers import MODEL_APIS
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Entry, Message, ToolCall, public_entry_id
from retinue.isolated_python import inherited_environment, module_command

PARENT_AGENT = "orchestrator"
MODEL = "local:smollm2"
DOCUMENTS = ("bees.md", "tides.md", "bread.md")
TASK = "Ask an explorer to read bees.md, an explorer to read tides.md and an explorer to read bread.md."
REMOVED_ENV_PREFIXES = ("RETINUE_", *(api.env_prefix for api in MODEL_APIS.values()))
POLL_SECONDS = 0.25
TIMEOUT_S = 170.0
"""Time limit for the whole demonstration; unfinished runs can be resumed later."""
MIN_REPLIED_CHILDREN = 2
"""Number of children that must have replied before the worker is killed."""


class TreeSnapshot(Struct, frozen=True, kw_only=True):
    """The runs and transcripts of the tree at one moment."""

    runs: tuple[Run, ...] = ()
    """The parent comes first."""
    entries: Mapping[str, Sequence[Entry]] = field(default_factory=dict[str, Sequence[Entry]])
    """Entries by run id."""

    @property
    def parent(self) -> Run | None:
        return self.runs[0] if self.runs else None

    @property
    def children(self) -> tuple[Run, ...]:
        return self.runs[1:]

    @property
    def is_finished(self) -> bool:
        return bool(self.runs) and all(run.status.is_final for run in self.runs)

    def answered_turns(self) -> set[str]:
        """Return the turns whose replies are on disk, each named by the entry before the reply."""
        return {
            public_entry_id(entries[at - 1])
            for entries in self.entries.values()
            for at, entry in enumerate(entries)
            if at and isinstance(entry, Message) and entry.role == "agent"
        }

    def requested_children(self) -> int:
        """Return how many children the parent's tool calls request."""
        parent_entries = self.entries.get(self.runs[0].id, ()) if self.runs else ()
        return sum(
            1 for entry in parent_entries if isinstance(entry, ToolCall) and entry.tool == "spawn_subagent"
        )

    def is_midway(self) -> bool:
        """Return whether enough children have replied and not all are done."""
        replied = [run for run in self.children if _has_reply(self.entries[run.id])]
        return len(replied) >= MIN_REPLIED_CHILDREN and not all(run.status.is_final for run in self.children)


class KillReport(Struct, frozen=True, kw_only=True):
    """The cost of the kill, measured from the files, the ledger and the log of model requests."""

    interrupted_runs: int
    """Runs that had not ended when the worker was killed."""
    resumed_runs: int
    """Interrupted runs that are done now."""
    answered_turns: int
    """Turns whose replies were on disk."""
    repeated_turns: int
    """Answered turns that were requested again; must be 0."""
    in_flight_turns: int
    """Turns that were in progress and had to be requested again."""
    requested_children: int
    started_children: int
    """Children that were started; more than requested would mean a repeated side effect."""

    @property
    def duplicate_children(self) -> int:
        return max(0, self.started_children - self.requested_children)

    @property
    def is_lossless(self) -> bool:
        return (
            self.resumed_runs == self.interrupted_runs
            and not self.repeated_turns
            and not self.duplicate_children
        )


class DemoOutcome(Struct, frozen=True, kw_only=True):
    snapshot: TreeSnapshot
    kill_report: KillReport | None
    """None if the worker was not killed, because there was no suitable moment."""
    last_output: str
    """The worker's last output, if it failed."""


@dataclass(frozen=True, slots=True)
class DemoEnvironment:
    """A home, with three documents and a log next to it, because agents may not read a home."""

    home: Path

    @property
    def documents(self) -> Path:
        return self.home.with_name(f"{self.home.name}-documents")

    @property
    def turn_log(self) -> Path:
        return self.home / "demo" / "turns.jsonl"

    @property
    def env(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in inherited_environment().items()
            if not name.startswith(REMOVED_ENV_PREFIXES)
        }
        return inherited | {
            "RETINUE_HOME": str(self.home),
            "RETINUE_CONFIG": str(self.home / "demo" / "config"),
            "RETINUE_MODEL": MODEL,
            "RETINUE_LOCAL_LOG": str(self.turn_log),
        }

    def prepare(self) -> None:
        for folder in (self.turn_log.parent, self.documents):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.turn_log.unlink(missing_ok=True)
        documents = resources.files("retinue.demo").joinpath("documents")
        for name in DOCUMENTS:
            text = documents.joinpath(name).read_text(encoding="utf-8")
            (self.documents / name).write_text(text, encoding="utf-8")

    async def start_worker(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start a command in a process group of its own, so that killing it affects nothing else."""
        with (self.home / "demo" / "worker.log").open("ab") as log_file:
            return await asyncio.create_subprocess_exec(
                *module_command("retinue", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env=self.env,
                cwd=self.documents,
                start_new_session=True,
            )

    def logged_turns(self) -> list[tuple[int, str]]:
        """Return each requested turn as (process id, entry before it)."""
        lines = self.turn_log.read_text(encoding="utf-8").splitlines() if self.turn_log.exists() else []
        return [(line["pid"], line["after"]) for line in map(json.loads, lines)]


SnapshotCallback = Callable[[TreeSnapshot], None]


async def run_local_demo(
    environment: DemoEnvironment, on_snapshot: SnapshotCallback, on_kill: Callable[[int, TreeSnapshot], None]
) -> DemoOutcome:
    """Run the demonstration.

    Args:
        environment: Where it runs.
        on_snapshot: Called with each snapshot.
        on_kill: Called with the killed process's id and the snapshot at that moment.
    """
    environment.prepare()
    last_run_id = await _newest_run_id(environment)
    arguments = (
        "run",
        "--agent",
        PARENT_AGENT,
        "--workspace",
        str(environment.documents),
        "--label",
        "demo",
        TASK,
    )
    worker = await environment.start_worker(*arguments)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            snapshot = await _watch_until(
                environment, worker, last_run_id, on_snapshot, until=TreeSnapshot.is_midway
            )
            if worker.returncode is not None or not snapshot.is_midway():
                return DemoOutcome(
                    snapshot=snapshot, kill_report=None, last_output=_last_log_line(environment)
                )
            _kill_worker(worker)
            await worker.wait()
            at_kill = await _take_snapshot(environment, last_run_id)
            on_kill(worker.pid, at_kill)
            worker = await environment.start_worker("wait", snapshot.runs[0].id)
            snapshot = await _watch_until(
                environment, worker, last_run_id, on_snapshot, until=lambda _: False
            )
    except TimeoutError:
        return DemoOutcome(
            snapshot=await _take_snapshot(environment, last_run_id),
            kill_report=None,
            last_output="timed out",
        )
    finally:
        _kill_worker(worker)
        await worker.wait()
    return DemoOutcome(
        snapshot=snapshot,
        kill_report=measure_kill(at_kill, snapshot, environment.logged_turns(), worker.pid),
        last_output=_last_log_line(environment),
    )


def measure_kill(
    at_kill: TreeSnapshot, at_end: TreeSnapshot, turns: Sequence[tuple[int, str]], second_pid: int
) -> KillReport:
    """Measure what the kill cost.

    Args:
        at_kill: The snapshot after the kill.
        at_end: The snapshot at the end.
        turns: The logged turns.
        second_pid: The id of the process that resumed the runs.
    """
    answered = at_kill.answered_turns()
    unfinished = {run.id for run in at_kill.runs if not run.status.is_final}
    first_turns = [after for pid, after in turns if pid != second_pid]
    return KillReport(
        interrupted_runs=len(unfinished),
        resumed_runs=sum(1 for run in at_end.runs if run.id in unfinished and run.status is Status.DONE),
        answered_turns=len(answered),
        repeated_turns=sum(1 for pid, after in turns if pid == second_pid and after in answered),
        in_flight_turns=sum(1 for after in first_turns if after not in answered),
        requested_children=at_end.requested_children(),
        started_children=len(at_end.children),
    )


async def _watch_until(
    environment: DemoEnvironment,
    worker: asyncio.subprocess.Process,
    last_run_id: str,
    on_snapshot: SnapshotCallback,
    *,
    until: Callable[[TreeSnapshot], bool],
) -> TreeSnapshot:
    """Poll until the condition holds or the worker has exited."""
    while True:
        has_exited = worker.returncode is not None
        snapshot = await _take_snapshot(environment, last_run_id)
        on_snapshot(snapshot)
        if has_exited or until(snapshot):
            return snapshot
        await asyncio.sleep(POLL_SECONDS)


async def _take_snapshot(environment: DemoEnvironment, last_run_id: str) -> TreeSnapshot:
    """Return a snapshot of the first tree that began after the given run."""
    if not (environment.home / "ledger.db").exists():
        return TreeSnapshot()
    async with application.open_read_only(env=environment.env) as app:
        runs = sorted(await app.runs.list(live=False, limit=50), key=lambda run: run.id)
        roots = [run for run in runs if run.id > last_run_id and not run.request.parent_run]
        if not roots:
            return TreeSnapshot()
        tree = [run for run in runs if run.root_id == roots[0].id]
        return TreeSnapshot(runs=tuple(tree), entries={run.id: await _run_entries(app, run) for run in tree})


async def _run_entries(app: App, run: Run) -> Sequence[Entry]:
    return await app.sessions.entries(run.session_id) if run.session_id else ()


async def _newest_run_id(environment: DemoEnvironment) -> str:
    """Return the id of the newest existing run, or an empty string."""
    if not (environment.home / "ledger.db").exists():
        return ""
    async with application.open_read_only(env=environment.env) as app:
        return max((run.id for run in await app.runs.list(live=False, limit=50)), default="")


def _has_reply(entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry, Message) and entry.role == "agent" for entry in entries)


def _kill_worker(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        os.killpg(worker.pid, signal.SIGKILL)


def _last_log_line(environment: DemoEnvironment) -> str:
    lines = (
        (environment.home / "demo" / "worker.log").read_text(encoding="utf-8", errors="replace").splitlines()
    )
    return lines[-1] if lines else ""
