"""The application: the API that the CLI, the server and library users call."""

import os
import traceback
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from msgspec.structs import replace

from retinue.agents.frontmatter import with_paths, with_prompt
from retinue.agents.registry import FileAgentRegistry
from retinue.agents.skills import SkillRegistry
from retinue.agents.trust import TrustStore
from retinue.app.agents import AgentService
from retinue.app.composition import (
    QuestionCallback,
    build_tool_table,
    model_selector,
    provider_factories,
    scheduler_callbacks,
)
from retinue.app.daemon_link import STATE_CHANGE_KINDS, DaemonLink, DaemonLinkState, open_daemon_link
from retinue.app.event_log import EventLog, LoggedStore
from retinue.app.event_replay import EventReplay
from retinue.app.inbox import InboxService
from retinue.app.live_config import LiveConfig
from retinue.app.log_file import append_log_line
from retinue.app.mcp_servers import McpServerService
from retinue.app.messages import MessageService
from retinue.app.permissions import PermissionService
from retinue.app.repair import RepairService
from retinue.app.run_control import RunControlService
from retinue.app.run_views import RunViewService
from retinue.app.runs import RunService
from retinue.app.sandbox_loader import SandboxLoader, loosest_sandbox_level
from retinue.app.sessions import SessionService
from retinue.app.submit import RunSubmissionService
from retinue.app.watchers import WatcherService
from retinue.app.worktree_cleanup import occupied_folders, remove_abandoned_worktrees
from retinue.config.load import Config
from retinue.domain.approval import ApprovalPolicy
from retinue.domain.cli_agent import CLI_AGENTS
from retinue.domain.event import Event
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run, Status, WaitReason, iso_timestamp
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.side_effect import SideEffect
from retinue.domain.transcript import Message
from retinue.errors import Conflict, DiskError, NotFound, RetinueError
from retinue.interfaces import RuntimeContext, Tool
from retinue.ledger.ledger import SqliteLedger
from retinue.providers.retry import RetryingProvider
from retinue.runtime import run_control
from retinue.runtime.crash_quarantine import resume_interrupted_runs
from retinue.runtime.recovery import live_descendants, requeue_dead_runs, requeue_own_runs, resume_run
from retinue.runtime.run_end import delete_temporary_sessions
from retinue.runtime.watchers import send_missed_updates
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.git.worktrees import Worktrees
from retinue.worker.clock import system_clock
from retinue.worker.process_lock import NoProcessLock, ProcessLock, remove_dead_owners
from retinue.worker.worker import LocalWorker


class App(
    SessionService,
    PermissionService,
    InboxService,
    RunService,
    RunViewService,
    AgentService,
    RunControlService,
    RunSubmissionService,
    MessageService,
    WatcherService,
    RepairService,
):
    """The API that the CLI, the server and library users call."""

    def __init__(
        self, config: Config, tools: Sequence[Tool], ask: QuestionCallback, *, read_only: bool = False
    ) -> None:
        self.config = config
        self._listeners: list[Callable[[Event], None]] = []
        self._local_worker = LocalWorker()
        tool_table_by_name = build_tool_table(config, tools)
        with suppress(OSError):  # leftovers of other processes must not prevent a start
            remove_dead_owners(config.home)
        self._owner = _acquire_owner(config, read_only=read_only)
        self._ledger_checked = False
        self._message_key_cache = dict[str, tuple[str, str]]()
        self._sandbox_loader = SandboxLoader(config)
        with suppress(OSError):  # as above
            for cleanup_note in self._sandbox_loader.clean_up_killed_commands():
                append_log_line(
                    config.home, {"at": "start", "left by a command that was killed": cleanup_note}
                )
        self._last_durable_seq = 0
        self._daemon_link: DaemonLink | None = None
        self._live_event_counts: dict[str, int] = {}
        """Number of live events emitted for each run while somebody listened."""
        self._ledger = SqliteLedger(config.home / "ledger.db", on_event=self._on_event)
        clock, redact = system_clock(), Redactor(config.secrets())
        self._event_log = EventLog(config.home, redact, clock)
        self.mcp = McpServerService(config, tool_table_by_name, clock)
        self.live_config = LiveConfig(config, now=clock.now)
        store = LoggedStore(config.home / "sessions", clock, self._event_log)
        SessionService.__init__(self, store, self._ledger, clock, self._has_live_owner, redact)
        self.store.sweep()
        self.trust = TrustStore(config.home / "trust.json")
        self.agents = FileAgentRegistry(
            user_dir=config.agents_dir, inline=config.agents, trust=self.trust, ceiling=config.ceiling
        )
        self.skills = SkillRegistry(user_dir=config.skills_dir, trust=self.trust)
        self._worktrees = Worktrees(
            config.home / "worktrees",
            shell_for_scope=lambda scope: self._context.shell_for(scope),  # noqa: PLW0108  (the context does not exist yet)
            find_sandbox_level=lambda: self._context.detect_sandbox_level(),  # noqa: PLW0108  (as above)
            is_trusted=self.trust.is_trusted,
        )
        tmp = os.fspath(config.home / "tmp")
        context = RuntimeContext(
            store=self.store,
            agents=self.agents,
            ledger=self._ledger,
            worker=self._local_worker,
            provider=RetryingProvider(provider_factories(config, self._sandbox_loader, redact), clock),
            clock=clock,
            tools=self.mcp.tools(),
            files_for=GuardedFiles,
            find_skills=lambda agent, at: self.skills.all(
                at, from_project_only=not self.agents.has_own(agent)
            ),
            shell_for=self._sandbox_loader.shell,
            detect_sandbox_level=self._sandbox_loader.level,
            minimum_sandbox_level=SandboxLevel(config.sandbox_minimum),
            approval_policy=ApprovalPolicy(config.approvals),
            create_worktree=self._worktrees.create,
            remove_worktree=lambda workspace: self._worktrees.remove(
                workspace.root, workspace.source_repository
            ),
            tmp_folder_for=lambda session: f"{tmp}/{session.id}",
            emit=self._on_event,
            has_listeners=lambda: bool(self._listeners),
            ask_user=ask,
            select_model=model_selector(config, redact),
            limits=config.limits,
            operator_policy=self.live_config,
            replace_preset_paths=with_paths,
            replace_preset_prompt=with_prompt,
            subagent_settings=config.subagents,
            is_persistent=config.is_persistent,
            run_cost=self.cost,
            owner_id=self._owner.id,
            new_run_owner_id=self._new_run_owner_id,
            is_owner_alive=self._is_process_alive,
            redact=redact,
        )
        PermissionService.__init__(self, context, self._is_process_alive)
        RunControlService.__init__(self, context, self._is_process_alive)
        self._local_worker.start(
            scheduler_callbacks(
                self._context, self._log_run_crash, self._is_process_alive, self._ledger.check_changed
            )
        )

    async def remove_orphaned_worktrees(self) -> None:
        """Remove worktrees that a crash left behind before their session was created.

        Errors are ignored: leftovers must never prevent a start.
        """

        async def occupied() -> set[str]:
            return occupied_folders(await self.list_sessions(), await self.list_runs(live=True))

        with suppress(OSError, RetinueError):
            for worktree in await self._worktrees.remove_abandoned(occupied):
                append_log_line(
                    self.config.home, {"at": "start", "a worktree without a session was removed": worktree}
                )

    async def close(self) -> None:
        await self._local_worker.close()
        with suppress(RetinueError, OSError):  # the next start finds what cannot be written now
            await requeue_own_runs(self._context)
        await self._context.provider.close()
        await self.mcp.close()
        await self._ledger.close()
        self.store.close()
        self._event_log.close()
        self._owner.close()

    @contextmanager
    def listen(self, listener: Callable[[Event], None]) -> Generator[None]:
        """Call `listener` with every event while the context is open."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    # runs

    async def run(self, text: str | None, **options: Any) -> Run:
        """Start a run and wait until it ends or needs a person.

        Args:
            text: The task. None uses the text typed at the end of the session's file.
            **options: As for `start`.

        Returns:
            The run as it is now. A failed run is returned, not raised: see `status`, `reason` and `error`.

        Raises:
            RetinueError: The run could not be started.
        """
        return await self.wait_until_idle(await self.start(text, **options))

    async def delete(self, ref: str) -> Session:
        """Move a session to the trash and remove its clean worktrees and those of its children.

        Returns:
            The session with its path in the trash.
        """
        before = await self.list_sessions()
        session = await super().delete(ref)
        live_runs, after = await self.list_runs(live=True), await self.list_sessions()
        await remove_abandoned_worktrees(self._worktrees, before=before, after=after, live=live_runs)
        await self.unwatch_deleted_sessions({each.id for each in before} - {each.id for each in after})
        return session

    async def cancel(self, ref: str) -> Run:
        """Cancel a run and return it as it is then."""
        run = await self.find_run(ref)
        async with self.session_locks.hold(run.session_id):
            return await super().cancel(run.id)

    @property
    def owner_id(self) -> str:
        """The id under which other processes hand runs to this process."""
        return self._owner.id

    async def submit_queued_runs(self) -> None:
        """Submit the queued runs that other processes assigned to or woke for this process, oldest first."""
        await run_control.wake_overdue_runs(self._context)
        for run in reversed(await self._ledger.read(lambda tx: tx.find_runs(status=[Status.QUEUED]))):
            if run.owner_id == self._owner.id:
                self._local_worker.submit(run.id, at_front=run.started_at is not None)

    async def drain(self, timeout_s: float) -> None:
        """Start nothing more, and give the runs at work up to `timeout_s` seconds to end."""
        await self._local_worker.drain(timeout_s)

    async def resume(self, ref: str | None = None) -> list[Run]:
        """Resume interrupted runs from their files, and runs whose approval expired unanswered.

        Args:
            ref: A run or session reference; None resumes every interrupted run.

        Returns:
            The runs that were resumed.

        Raises:
            Conflict: Another process is working on the run.
            NotFound: There is no such run, or its session is gone.
        """
        await run_control.expire_approvals(self._context, is_alive=self._is_process_alive, adopt=False)
        await delete_temporary_sessions(self._context)
        await requeue_dead_runs(self._context, self._is_process_alive)
        if self._daemon_link is not None:
            await self._daemon_link.wait_for_final_events(self._is_process_alive)
        if ref is None:
            resumed = await resume_interrupted_runs(await self.interrupted_runs(), self._context)
            return [*resumed, *await send_missed_updates(self._context)]
        run = await self.find_run(ref)
        async with self.session_locks.hold(run.session_id):
            return await self._resume_run(await self.find_run(run.id))

    async def _resume_run(self, run: Run) -> list[Run]:
        if run.status.is_live and self._has_live_owner(run):
            if run.owner_id == self._new_run_owner_id() != self._owner.id:
                return [run]  # the connected daemon is already working on it
            raise Conflict(f"Run {run.id} is executed by another process")
        if run.waiting_for is WaitReason.PERSON and not run.is_suspended:
            return [run]  # waits for an answer to its question and continues with that
        if run.status.is_live:
            await self.store.find(
                run.session_id
            )  # raises NotFound: never restart a run whose session is gone
        descendants_of_run = await self._ledger.read(lambda tx: live_descendants(run, tx))
        abandoned = [
            each
            for each in descendants_of_run
            if not self._has_live_owner(each) and each.status is not Status.WAITING
        ]
        resumed_children = await resume_interrupted_runs(abandoned, self._context)
        if run.status is Status.WAITING and resumed_children:
            return [run, *resumed_children]  # continues when the children it waits for have ended
        resumed = await resume_run(run.id, self._context, previous_owner=run.owner_id)
        if resumed.status.is_final:
            await run_control.close_abandoned_run(resumed, self._context)
        return [resumed, *resumed_children]

    # this machine

    async def sandbox_level(self) -> SandboxLevel:
        """Return the sandbox level that commands run at on this machine."""
        return await self._sandbox_loader.level()

    async def lowest_sandbox_level(self, run: Run) -> SandboxLevel | None:
        """Return the lowest sandbox level that any command of the run had.

        None if there was no command or the transcript is gone. For a CLI agent, the level of the program
        itself counts, because its own report about its calls is not trusted.
        """
        if program_levels := [
            SandboxLevel(each.note)
            for each in await self._side_effects(run)
            if each.tool in CLI_AGENTS and each.note
        ]:
            return next(each for each in reversed(SandboxLevel) if each in program_levels)
        if not run.tool_calls:
            return None
        try:
            return await loosest_sandbox_level(
                run.id, self.store.iter_entries(await self.store.find(run.session_id))
            )
        except NotFound:
            return None

    async def _side_effects(self, run: Run) -> list[SideEffect]:
        return await self._ledger.read(lambda tx: tx.find_side_effects(run.id))

    @asynccontextmanager
    async def connect_daemon(self) -> AsyncGenerator[DaemonLinkState]:
        """Connect to the daemon of this home while the context is open.

        A daemon with the same settings works on runs started here, and its events reach the listeners here.
        If the daemon dies, this process continues on its own.
        """
        async with open_daemon_link(self.config, EventReplay(self._on_daemon_event, self._saved_replies)) as (
            state,
            link,
        ):
            self._daemon_link = link
            try:
                yield state
            finally:
                self._daemon_link = None

    def _new_run_owner_id(self) -> str:
        link = self._daemon_link
        return self._owner.id if link is None or not self._is_process_alive(link.owner) else link.owner

    def _on_event(self, event: Event) -> None:
        """Forward an event to the listeners.

        A live event gets the number of the last durable event, so that a listener can order it, and a count
        per run.
        """
        self._event_log.log_event(event)
        if event.seq:
            self._last_durable_seq = event.seq
            if event.kind == "run.ended":
                self._live_event_counts.pop(event.run, None)
            if self._daemon_link is not None and not self._daemon_link.accept_own_event(event):
                return
        elif self._listeners:
            count = self._live_event_counts[event.run] = self._live_event_counts.get(event.run, 0) + 1
            event = replace(event, seq=self._last_durable_seq, live_number=count)
        self._notify_listeners(event)

    async def follow(self, runs: Sequence[Run]) -> None:
        """Make the daemon check those of these runs that it owns, and follow them.

        Events that a lost connection drops are replayed.
        """
        if (link := self._daemon_link) is not None:
            link.request_notification()
            await link.replay.follow(run for run in runs if run.status.is_live and run.owner_id == link.owner)

    async def _saved_replies(self, run: Run) -> list[Message]:
        with suppress(RetinueError):
            entries = await self.entries(run.transcript_path)
            return [
                each
                for each in entries
                if isinstance(each, Message) and each.by == "agent" and each.run == run.id
            ]
        return []

    def _on_daemon_event(self, event: Event) -> None:
        self._notify_listeners(event)
        if event.kind in STATE_CHANGE_KINDS:
            self._local_worker.notify()

    def _notify_listeners(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  (a failing listener must not end the run)
                self._log_run_crash(event.run, error)

    def _has_live_owner(self, run: Run) -> bool:
        return bool(run.owner_id) and self._is_process_alive(run.owner_id)

    def _is_process_alive(self, owner: str) -> bool:
        return owner == self._owner.id or ProcessLock.is_alive(self.config.home, owner)

    def _log_run_crash(self, run_id: str, error: BaseException) -> None:
        self.log_defect(error, run=run_id)

    def log_defect(self, error: BaseException, **fields: str) -> None:
        """Write the traceback of an internal error to the log, with secrets redacted.

        The user sees only a short message.
        """
        details = self._context.redact("".join(traceback.format_exception(error)))
        logged_at = iso_timestamp(self._context.clock.now())
        append_log_line(self.config.home, {"at": logged_at, "level": "error", **fields, "error": details})


def _acquire_owner(config: Config, *, read_only: bool) -> ProcessLock | NoProcessLock:
    """Register this process as an owner of runs.

    A process that works on runs must be known to be alive; one that only reads can start on a read-only disk.
    """
    try:
        return ProcessLock(config.home)
    except DiskError:
        if not read_only:
            raise
        return NoProcessLock()
