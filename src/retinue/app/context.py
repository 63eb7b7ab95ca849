"""The context shared by the application's services."""

import os
from collections.abc import Sequence
from contextlib import suppress

from retinue.agents.frontmatter import with_paths, with_prompt
from retinue.agents.registry import FileAgentRegistry
from retinue.agents.skills import SkillRegistry
from retinue.agents.trust import TrustStore
from retinue.app.composition import (
    QuestionCallback,
    build_tool_table,
    model_provider,
    model_selector,
    scheduler_callbacks,
)
from retinue.app.daemon_connection import DaemonConnection
from retinue.app.event_hub import EventHub
from retinue.app.event_log import EventLog, LoggedStore
from retinue.app.home_access import HomeAccess
from retinue.app.internal_error_log import InternalErrorLog
from retinue.app.ledger_check import LedgerCheck
from retinue.app.live_config import LiveConfig
from retinue.app.log_file import append_log_line
from retinue.app.mcp_servers import McpServerService
from retinue.app.sandbox_loader import SandboxLoader
from retinue.config.load import Config
from retinue.domain.pricing import run_cost
from retinue.domain.redaction import Redactor
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import DiskError
from retinue.interfaces import (
    EventSink,
    PresetEditor,
    RunOwners,
    RuntimeContext,
    SandboxAccess,
    Tool,
    WorktreeAccess,
)
from retinue.ledger.ledger import SqliteLedger
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.git.configured_paths import configured_git_paths
from retinue.sandbox.git.worktrees import Worktrees
from retinue.sandbox.private_tmp import list_tmp_files
from retinue.storage.json_schema import find_output_error, find_schema_error
from retinue.worker.clock import system_clock
from retinue.worker.process_lock import NoProcessLock, ProcessLock, remove_dead_owners
from retinue.worker.worker import LocalWorker


class AppContext(HomeAccess, frozen=True, kw_only=True):
    """The parts of one open application, shared by its services."""

    config: Config
    runtime: RuntimeContext
    """The context passed to the runtime's functions."""
    ledger: SqliteLedger
    ledger_check: LedgerCheck
    worker: LocalWorker
    owner: ProcessLock | NoProcessLock
    """The registration of this process as an owner of runs."""
    agents: FileAgentRegistry
    skills: SkillRegistry
    trust: TrustStore
    mcp: McpServerService
    sandbox: SandboxLoader
    worktrees: Worktrees
    live_config: LiveConfig
    events: EventHub
    event_log: EventLog
    internal_errors: InternalErrorLog
    daemon: DaemonConnection


def build_context(
    config: Config, tools: Sequence[Tool], ask: QuestionCallback, *, read_only: bool = False
) -> AppContext:
    """Build all parts of an application, and start its worker.

    Args:
        config: The configuration.
        tools: Tools of the calling program.
        ask: Asks a person a tool's question.
        read_only: Accept a disk that cannot be written.
    """
    worker = LocalWorker()
    local_tools = build_tool_table(config, tools)
    with suppress(OSError):  # leftovers of other processes must not prevent a start
        remove_dead_owners(config.home)
    owner = _acquire_owner(config, read_only=read_only)

    def is_owner_alive(owner_id: str) -> bool:
        return owner_id == owner.id or ProcessLock.is_alive(config.home, owner_id)

    sandbox = _load_sandbox(config)
    clock, redact = system_clock(), Redactor(config.secrets())
    event_log = EventLog(config.home, redact, clock)
    internal_errors = InternalErrorLog(config.home, redact, clock)
    events = EventHub(event_log, internal_errors)
    ledger = SqliteLedger(config.home / "ledger.db", on_event=events.emit)
    mcp = McpServerService(config, local_tools, clock)
    live_config = LiveConfig(config, now=clock.now)
    store = LoggedStore(config.home / "sessions", clock, event_log)
    store.sweep()
    trust = TrustStore(config.home / "trust.json")
    agents = FileAgentRegistry(user_dir=config.agents_dir, trust=trust, live_settings=live_config.current)
    skills = SkillRegistry(user_dir=config.skills_dir, trust=trust)
    worktrees = Worktrees(
        config.home / "worktrees",
        shell_for_scope=sandbox.shell,
        find_sandbox_level=sandbox.level,
        is_trusted=trust.is_trusted,
    )
    daemon = DaemonConnection(config, owner.id, is_owner_alive, events=events, worker=worker, store=store)
    tmp = os.fspath(config.home / "tmp")
    runtime = RuntimeContext(
        store=store,
        agents=agents,
        ledger=ledger,
        worker=worker,
        provider=model_provider(config, sandbox, redact, clock),
        clock=clock,
        tools=mcp.tools(),
        sandbox=SandboxAccess(
            files_for=GuardedFiles,
            shell_for=sandbox.shell,
            detect_level=sandbox.level,
            tmp_folder_for=lambda session: f"{tmp}/{session.id}",
            list_tmp_files=lambda session: list_tmp_files(f"{tmp}/{session.id}"),
            configured_git_paths=configured_git_paths,
        ),
        worktrees=WorktreeAccess(
            create=worktrees.create,
            remove=lambda workspace: worktrees.remove(workspace.root, workspace.source_repository),
        ),
        events=EventSink(
            emit=events.emit,
            has_listeners=events.has_listeners,
        ),
        presets=PresetEditor(
            replace_paths=with_paths,
            replace_prompt=with_prompt,
        ),
        owners=RunOwners(
            own_id=owner.id,
            id_for_new_run=daemon.new_run_owner_id,
            is_alive=is_owner_alive,
            last_alive_at=lambda owner_id: ProcessLock.last_alive_at(config.home, owner_id),
        ),
        find_skills=lambda agent, folder: skills.all(folder, from_project_only=not agents.has_own(agent)),
        minimum_sandbox_level=SandboxLevel(config.sandbox_minimum),
        approval_policy=live_config.approval_policy,
        ask_user=ask,
        select_model=model_selector(config, redact),
        limits=config.limits,
        operator_policy=live_config,
        find_schema_error=find_schema_error,
        find_output_error=find_output_error,
        subagent_settings=config.subagents,
        is_persistent=config.is_persistent,
        is_unattended=config.is_unattended,
        run_cost=lambda run: run_cost(run, live_config.find_price),
        is_long_prompt=live_config.is_long_prompt,
        redact=redact,
    )
    worker.start(
        scheduler_callbacks(
            runtime,
            internal_errors.record_run_crash,
            is_owner_alive,
            record_alive=owner.record_alive,
            has_changes=ledger.check_changed,
        )
    )
    return AppContext(
        store=store,
        ledger=ledger,
        clock=clock,
        redact=redact,
        is_owner_alive=is_owner_alive,
        config=config,
        runtime=runtime,
        ledger_check=LedgerCheck(ledger),
        worker=worker,
        owner=owner,
        agents=agents,
        skills=skills,
        trust=trust,
        mcp=mcp,
        sandbox=sandbox,
        worktrees=worktrees,
        live_config=live_config,
        events=events,
        event_log=event_log,
        internal_errors=internal_errors,
        daemon=daemon,
    )


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


def _load_sandbox(config: Config) -> SandboxLoader:
    """Return the sandbox, after cleaning up after commands of killed processes."""
    sandbox = SandboxLoader(config)
    with suppress(OSError):  # leftovers must not prevent a start
        for note in sandbox.clean_up_killed_commands():
            append_log_line(config.home, {"at": "start", "left by a command that was killed": note})
    return sandbox
