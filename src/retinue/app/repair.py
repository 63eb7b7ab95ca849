"""Find inconsistencies between session files and the ledger, and repair them without losing data."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from retinue.app.context import AppContext
from retinue.app.doctor import (
    Finding,
    definition_findings,
    ledger_findings,
    machine_findings,
    mcp_server_findings,
    model_findings,
    sandbox_findings,
    session_findings,
    size_findings,
    skill_findings,
)
from retinue.app.home_sizes import measure_home
from retinue.app.log_file import append_log_line
from retinue.app.retention import RetentionService
from retinue.app.run_queries import orphaned_runs
from retinue.app.runs import RunService
from retinue.app.worktree_cleanup import occupied_folders
from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.number_format import format_count
from retinue.domain.run import Reason, Run, Status
from retinue.domain.session import CreatedRun, Session
from retinue.errors import NotFound, RetinueError, SessionLocked, Unreadable
from retinue.interfaces import Transaction, Worker
from retinue.ledger.repair import damaged_copies, find_page_damage, rename_damaged_ledger
from retinue.ledger.retention import PruneResult
from retinue.runtime.run_end import delete_temporary_sessions, finish_run
from retinue.sessions.trash import find_leftovers, remove_path
from retinue.worker.process_lock import ProcessLock

REPAIR_COMMAND = "retinue doctor --repair"
SESSION_GONE = "its session is gone: {path}"
NEW_LEDGER_ADVICE = (
    "all sessions are kept, but unfinished runs are lost; to continue one, send its session a message"
)
SESSION_TMP_RETENTION_SECONDS = 30 * 24 * 3600

RepairAction = Callable[[], Awaitable[str]]


class Problem(Struct, frozen=True, kw_only=True):
    """An inconsistency; `repair`, if there is one, fixes it and returns a description of the fix."""

    message: str
    advice: str = REPAIR_COMMAND
    repair: RepairAction | None = None


class IdleWorker:
    """A worker that starts nothing.

    Runs woken by a repair are left to the process that normally works on runs.
    """

    def submit(
        self,
        run_id: str,
        *,
        claimed: CreatedRun | bool = False,
        at_front: bool = False,
        concurrency_key: str = "",
    ) -> None: ...
    async def wait(self, run_id: str) -> None: ...
    def check_requests(self) -> None: ...
    def cancel(self, run_id: str) -> bool:  # noqa: ARG002  (this worker has no runs)
        return False

    def is_cancelled(self, run_id: str) -> bool:  # noqa: ARG002  (as above)
        return False


_IDLE_WORKER: Worker = IdleWorker()


class RepairService:
    """Diagnosis and repair of a home."""

    def __init__(self, context: AppContext, runs: RunService, retention: RetentionService) -> None:
        self._context = context
        self._runs = runs
        self._retention = retention

    async def diagnose(self, *, repair: bool = False) -> list[Finding]:
        """Return findings about this machine, the configuration and the data.

        Args:
            repair: Also repair whatever can be repaired without losing anything.
        """
        findings = machine_findings(self._context.config, self._context.redact)
        findings += sandbox_findings(
            await self._context.sandbox.level(),
            await self._context.sandbox.missing_levels(),
            self._context.runtime.minimum_sandbox_level,
        )
        agents = [each.agent for each in self._context.agents.list_definitions()]
        findings += model_findings(self._context.config, agents, self._context.clock.now().date())
        findings += definition_findings(self._context.agents.find_broken(), agents)
        findings += skill_findings(self._context.skills.find_broken(), self._context.skills.all())
        findings += mcp_server_findings(self._context.mcp.server_rows())
        ledger_report = ledger_findings(self._context.ledger.path)
        if repair and any(finding.status == "bad" for finding in ledger_report):
            ledger_report = await self._repair_ledger(ledger_report)
        findings += ledger_report
        if all(finding.status != "bad" for finding in ledger_report):
            findings += await self._check_consistency(repair=repair)
            findings += await self._prune() if repair else []
        sizes = await asyncio.to_thread(measure_home, self._context.config.home)
        return findings + size_findings(sizes, self._context.config.retention)

    async def replace_damaged_ledger(self) -> str | None:
        """Replace a damaged ledger at an unattended start, unless another process has it open.

        Returns:
            A message about what was done, or None if the ledger is intact.

        Raises:
            Unreadable: The ledger is damaged and cannot be replaced.
        """
        found = await asyncio.to_thread(find_page_damage, self._context.ledger.path)
        if found is None:
            return None
        path = str(self._context.ledger.path)
        try:
            backup_path = await self._back_up_damaged_ledger()
        except RetinueError as error:
            raise Unreadable(path, f"the ledger is damaged ({found}): {error}") from error
        message = f"the ledger was damaged ({found}) and was kept as {backup_path}; {NEW_LEDGER_ADVICE}"
        append_log_line(self._context.config.home, {"at": "start", "level": "error", "ledger": message})
        return message

    async def remove_orphaned_worktrees(self) -> None:
        """Remove worktrees that a crash left behind before their session was created.

        Errors are ignored: leftovers must never prevent a start.
        """

        async def folders_in_use() -> set[str]:
            return occupied_folders(await self._context.store.sessions(), await self._runs.list(live=True))

        with suppress(OSError, RetinueError):
            for worktree in await self._context.worktrees.remove_abandoned(folders_in_use):
                append_log_line(
                    self._context.config.home,
                    {"at": "start", "a worktree without a session was removed": worktree},
                )

    async def _prune(self) -> list[Finding]:
        pruned = await self._retention.prune()
        if pruned == PruneResult():
            return []
        return [Finding(status="repaired", message=pruned.describe())]

    async def _repair_ledger(self, ledger_report: list[Finding]) -> list[Finding]:
        try:
            backup_path = await self._back_up_damaged_ledger()
        except RetinueError as error:
            return [
                *ledger_report,
                Finding(status="bad", message=str(error), advice=f"then: {REPAIR_COMMAND}"),
            ]
        return [
            Finding(
                status="repaired",
                message=f"the damaged ledger was kept as {backup_path}, and a new one was created",
                advice=NEW_LEDGER_ADVICE,
            )
        ]

    async def _back_up_damaged_ledger(self) -> Path:
        if others := self._other_owners():
            raise SessionLocked(
                f"{self._context.ledger.path} is in use by other processes. End them first: {', '.join(others)}"
            )
        await self._context.ledger.release_file()
        return rename_damaged_ledger(self._context.ledger.path, now=self._context.clock.now())

    def _other_owners(self) -> list[str]:
        """Return the other processes that work on runs in this home, according to their file locks."""
        home = self._context.config.home
        names = sorted(path.name for path in (home / "owners").iterdir())
        alive = (
            name for name in names if name != self._context.owner.id and ProcessLock.is_alive(home, name)
        )
        return [ProcessLock.describe_owner(home, name) or name for name in alive]

    async def _check_consistency(self, *, repair: bool) -> list[Finding]:
        sessions = await self._context.store.sessions()
        runs, pruned_ids = await self._context.ledger.read(
            lambda tx: (tx.find_runs(), tx.find_pruned_run_ids())
        )
        findings = await session_findings(self._context.store, sessions, runs, pruned_ids)
        for problem in await self._find_problems(sessions, runs):
            if repair and problem.repair is not None:
                findings.append(Finding(status="repaired", message=await problem.repair()))
            else:
                findings.append(Finding(status="warn", message=problem.message, advice=problem.advice))
        if abandoned := await orphaned_runs(self._context):
            findings.append(
                Finding(
                    status="warn",
                    message=f"{format_count(len(abandoned), 'run')} interrupted",
                    advice="retinue runs resume",
                )
            )
        return findings

    async def _find_problems(self, sessions: Sequence[Session], runs: Sequence[Run]) -> list[Problem]:
        return [
            *await self._runs_without_session(runs),
            *await self._missing_transcripts(runs),
            *await self._undeliverable_results(sessions, runs),
            *await self._undeleted_temporary_sessions(),
            *self._leftover_folders({each.id for each in sessions}),
            *self._damaged_ledger_copies(),
        ]

    async def _runs_without_session(self, runs: Sequence[Run]) -> list[Problem]:
        """Find unfinished runs that no process works on and whose session is gone."""
        found: list[Problem] = []
        for run in runs:
            if (
                run.status.is_live
                and not self._context.has_live_owner(run)
                and await self._is_session_gone(run)
            ):
                message = f"run {run.id} is {run.status}, and {SESSION_GONE.format(path=run.transcript_path)}"
                found.append(Problem(message=message, repair=lambda run=run: self._mark_run_lost(run)))
        return found

    async def _missing_transcripts(self, runs: Sequence[Run]) -> list[Problem]:
        """Find ended runs whose session.md is gone, although nobody deleted their session."""
        run_by_path = {run.transcript_path: run for run in runs if run.status.is_final}
        missing = [run for path, run in run_by_path.items() if not os.path.lexists(path)]
        if not missing:
            return []
        seen_ids, deleted_folders = await self._deletions_on_record(runs)
        found: list[Problem] = []
        for run in missing:
            path = run.transcript_path
            # If the folder is gone, the events show whether the session was deleted, until they are pruned.
            is_unexplained = os.path.isdir(os.path.dirname(path)) or (  # noqa: PTH112, PTH120  (the same)
                run.session_id in seen_ids and not path.startswith(deleted_folders)
            )
            if (
                is_unexplained
                and await self._is_session_gone(run)
                and await self._context.store.find_deleted_file(path) is None
            ):
                found.append(
                    Problem(
                        message=f"{path} is missing; run {run.id} wrote it",
                        advice="restore it from a backup, or create an empty file there to continue without its history; "
                        f"`retinue runs show {run.id}` still has the result",
                    )
                )
        return found

    async def _deletions_on_record(self, runs: Sequence[Run]) -> tuple[set[str], tuple[str, ...]]:
        """Return the sessions that have events, and the folders of those that were deleted."""
        events = await self._context.ledger.read(lambda tx: tx.find_events(limit=2**62))
        deleted_ids = {
            each.session
            for each in events
            if each.kind == "session.changed" and "deleted" in each.data.get("change", "")
        }
        folders = {_deleted_folder(run) for run in runs if run.session_id in deleted_ids}
        return {each.session for each in events}, tuple(folders)

    async def _mark_run_lost(self, run: Run) -> str:
        error = SESSION_GONE.format(path=run.transcript_path)
        runtime = replace(self._context.runtime, worker=_IDLE_WORKER)
        ended = await finish_run(run, Status.LOST, runtime, reason=Reason.STALE, error=error)
        return f"run {run.id} is now {ended.status}, and its requester will be notified: {error}"

    async def _undeliverable_results(self, sessions: Sequence[Session], runs: Sequence[Run]) -> list[Problem]:
        """Find undelivered results that no run is going to receive."""
        session_ids, run_by_id = {each.id for each in sessions}, {run.id: run for run in runs}
        busy_sessions = {run.session_id for run in runs if run.status.is_live}
        found: list[Problem] = []
        for each in await self._context.ledger.read(
            lambda tx: tx.find_deliveries(state=[DeliveryState.PENDING])
        ):
            requester = run_by_id.get(each.requester_run)
            has_ended = requester is None or requester.status.is_final
            if each.session not in session_ids or (each.answers_call and has_ended):
                message = f"the result of run {each.run} cannot be delivered: run {each.requester_run}, which requested it, has ended"
                found.append(Problem(message=message, repair=lambda each=each: self._fail_delivery(each)))
            elif has_ended and each.session not in busy_sessions:
                message = f"the result of run {each.run} is not delivered yet: session {each.session} has no active run"
                advice = "the next message to that session delivers it; see `retinue inbox`"
                found.append(Problem(message=message, advice=advice))
        return found

    async def _fail_delivery(self, delivery: Delivery) -> str:
        def step(tx: Transaction) -> None:
            current = tx.get_delivery(delivery.id) or delivery
            if current.state is DeliveryState.PENDING:
                tx.update_delivery(
                    replace(current, state=DeliveryState.FAILED, attempts=current.attempts + 1)
                )

        await self._context.ledger.write(step)
        return f"the result of run {delivery.run} is no longer waiting for delivery; see `retinue runs show {delivery.run}`"

    async def _undeleted_temporary_sessions(self) -> list[Problem]:
        """Find temporary sessions that a crash left behind after their results were delivered."""

        async def delete_sessions() -> str:
            await delete_temporary_sessions(replace(self._context.runtime, worker=_IDLE_WORKER))
            remaining = len(
                await self._context.ledger.read(lambda tx: tx.find_deliveries(with_session_to_delete=True))
            )
            suffix = f"; {remaining} cannot be deleted yet" if remaining else ""
            return f"deleted {format_count(count - remaining, 'temporary session')}{suffix}"

        count = len(
            await self._context.ledger.read(lambda tx: tx.find_deliveries(with_session_to_delete=True))
        )
        message = f"not deleted: {format_count(count, 'temporary session')}"
        return [Problem(message=message, repair=delete_sessions)] if count else []

    def _leftover_folders(self, session_ids: set[str]) -> list[Problem]:
        """Find unfinished session folders, and the /tmp and program homes of sessions deleted long ago."""

        async def remove_leftovers() -> str:
            removed = [path for path in (*unfinished, *expired) if remove_path(path)]
            return (
                f"removed {format_count(len(removed), 'folder')} left behind by crashes or deleted sessions"
            )

        unfinished = find_leftovers(str(self._context.config.home / "sessions"), self._context.clock.now())
        places = (self._context.config.home / "tmp", self._context.config.home / "programs")
        expired = [str(path) for folder in places for path in _expired_session_folders(folder, session_ids)]
        message = f"{format_count(len(unfinished) + len(expired), 'folder')} left behind by crashes or deleted sessions"
        return [Problem(message=message, repair=remove_leftovers)] if unfinished or expired else []

    def _damaged_ledger_copies(self) -> list[Problem]:
        paths = damaged_copies(self._context.ledger.path)
        advice = "keep or remove it; Retinue does not use it"
        return [Problem(message=f"a damaged ledger was kept as {path}", advice=advice) for path in paths]

    async def _is_session_gone(self, run: Run) -> bool:
        for ref in filter(None, (run.transcript_path, run.session_id)):
            with suppress(NotFound):
                await self._context.store.find(ref)
                return False
        return True


def _deleted_folder(run: Run) -> str:
    """Return the folder that the deletion of a run's session removed, with a slash at its end."""
    folder, branches, name = os.path.dirname(run.transcript_path).rpartition("/branches/")  # noqa: PTH120  (a name)
    return f"{folder}/" if branches and "/" not in name else f"{folder}{branches}{name}/"


def _expired_session_folders(folder: Path, session_ids: set[str]) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if path.name not in session_ids]
    except OSError:
        return []
    now = time.time()
    return [path for path in found if now - os.lstat(path).st_mtime > SESSION_TMP_RETENTION_SECONDS]
