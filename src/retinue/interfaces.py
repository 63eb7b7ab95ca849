"""Interfaces between the runtime and its adapters: the protocols, the tool types and the runtime context."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from msgspec import Struct

from retinue.domain.agent import Agent, AgentDefinition, PathPatterns
from retinue.domain.approval import Answer, Approval, ApprovalState, ToolAccess
from retinue.domain.ceiling import FileAccess, OperatorPolicy
from retinue.domain.clock import Clock
from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.event import Event
from retinue.domain.io_results import CommandResult, FileContent, FileEntry, WriteResult
from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta
from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Reason, ResultFile, Run, Status
from retinue.domain.runtime_settings import RuntimeSettings
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import CreatedRun, NewSession, Session
from retinue.domain.side_effect import SideEffect
from retinue.domain.skill import Skill
from retinue.domain.tool import ToolPolicy
from retinue.domain.transcript import Entry, ToolCall, ToolResult
from retinue.domain.watch import Interjection, Watch
from retinue.domain.workspace import Workspace

T = TypeVar("T")


class Provider(Protocol):
    """A model provider."""

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        """Return one finished reply, or raise ModelFailed.

        `on_delta` is called with each piece of the reply as it arrives.
        """
        ...

    async def close(self) -> None: ...


class Conversation(Protocol):
    """A session opened by this process: the entries of its file, and the only way to add to them."""

    session: Session
    provider_cache: dict[str, Any]
    torn_tail_path: str | None
    """Where an incomplete tail of the file was moved when the session was opened, if there was one."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    @property
    def is_truncated(self) -> bool:
        """Return True if the file is too long to keep in memory.

        `entries` are then the newest ones, starting at the beginning of an exchange.
        """
        ...

    async def read_earlier_entries(self, run_id: str) -> Sequence[Entry]:
        """Return the run's own entries that precede those in memory.

        After this call, `append` skips these entries.
        """
        ...

    async def append(self, *entries: Entry, sync: bool = True) -> None:
        """Append all entries in one write, on disk when this returns.

        An entry whose id is already present is not added again. Without `sync`, the entries are synced with the
        next synced write or the idle prompt. A cancelled call raises CancelledError only after the write has
        ended or failed.
        """

    async def reload_if_edited(self) -> bool:
        """Reload the file if a person edited it; return True if the entries have changed.

        Entries that this process appended are appended again if the editor overwrote them.
        """
        ...

    def typed_text(self) -> str:
        """Return the text a person typed below the open user line; blank if none."""
        ...

    async def save_typed_text(self, message: Entry) -> None:
        """Mark the typed text in the file as this entry, without writing the text again."""

    async def write_idle_prompt(self) -> None:
        """End the file of an idle conversation with an open user line."""

    async def log_tool_call(self, tool_call: ToolCall, tool_result: ToolResult) -> None:
        """Append a heading to tools.org, a derived file that is not synced."""


class SessionChanges(TypedDict, total=False):
    """Fields of session.json that can change."""

    name: str | None
    pinned_at: datetime | None
    attributes: Mapping[str, Any]
    preset_hash: str
    aliases: tuple[str, ...]
    user_grants: PathPatterns


class SessionStore(Protocol):
    """Sessions, stored as folders."""

    async def create(self, new: NewSession) -> Session:
        """Create the session's folder; it appears complete or not at all."""
        ...

    async def find(self, ref: str) -> Session:
        """Find a session by id, slug, alias, `<slug>/<branch>`, path or unambiguous prefix.

        The path may be that of the folder or of its session.md.
        """
        ...

    async def sessions(self, *, agent: str | None = None, children: bool = True) -> list[Session]:
        """Return the sessions, newest first by updated_at."""
        ...

    def open(self, session: Session) -> AbstractAsyncContextManager[Conversation]:
        """Lock and open a session; SessionLocked names the process that holds the lock."""
        ...

    async def read_preset(self, session: Session) -> tuple[Agent, str]:
        """Return the definition in the session's own preset.md, and the hash of its text."""
        ...

    async def update(self, session: Session, **changes: Unpack[SessionChanges]) -> Session:
        """Replace fields of session.json."""
        ...

    async def delete(self, session: Session, *, at: datetime | None = None) -> str:
        """Move the session to the trash and return its path there; `at` is the time in its new name."""
        ...

    def path_in_trash(self, path: str, at: datetime) -> str:
        """Return the path that a session's folder gets when it is deleted with this time."""
        ...

    async def read_entry_page(
        self, session: Session, *, after: str = "", before: str = "", limit: int
    ) -> list[Entry]:
        """Read a page of entries from the file without locking it.

        Returns the first entries after `after`, the last before `before`, or else the newest. Raises NotFound if no
        entry has that id.
        """
        ...

    async def read_entry(self, session: Session, entry_id: str) -> Entry:
        """Read one entry from the file without locking it; raises NotFound."""
        ...

    async def grant_pattern(self, session: Session, access: ToolAccess, pattern: str) -> None:
        """Add one pattern to what the session's own preset.md allows it to read, write or run.

        The rest of the file is preserved exactly, and a pattern that is present is not added again.
        """


class AgentRegistry(Protocol):
    """Agent definitions; an edited file takes effect with the next call."""

    def get(self, name: str, folder: str | None = None) -> AgentDefinition:
        """Return a definition; NotFound names the nearest known one.

        `folder` is the working folder, whose project may add definitions.
        """
        ...

    def list_definitions(self, folder: str | None = None) -> list[AgentDefinition]: ...


class RunFilters(TypedDict, total=False):
    """Conditions on runs; all that are given must hold."""

    status: Sequence[Status] | None
    session: str | None
    root: str | None
    parent_run: str | None
    top_only: bool
    prefix: str | None
    """The id starts with this."""
    reason: Reason | None
    awaited: bool | None
    started: bool | None
    """The run has, or has not, ever been started."""
    due_by: datetime | None
    """wake_at is not later than this time."""
    with_independent: bool
    """Of the live children of a run, return also those that it does not wait for."""
    limit: int | None


class DeliveryFilters(TypedDict, total=False):
    """Conditions on deliveries; all that are given must hold."""

    run: str | None
    requester_run: str | None
    session: str | None
    state: Sequence[DeliveryState] | None
    answers_call: bool | None
    with_session_to_delete: bool
    """The delivery's temporary session has not been deleted yet."""
    limit: int | None


class WatchFilters(TypedDict, total=False):
    """Conditions on watches; all that are given must hold."""

    session: str | None
    watcher: str | None
    on: bool | None


class InterjectionFilters(TypedDict, total=False):
    """Conditions on interjections; all that are given must hold."""

    session: str | None
    call: str | None
    run: str | None
    open_: bool | None
    prefix: str
    """The id starts with this."""
    limit: int | None


class Transaction(Protocol):
    """A transaction of the ledger, isolated in a savepoint."""

    def get_run(self, run_id: str, *, with_children: bool = False) -> Run | None:
        """Return the run, or None; `with_children` also reads the ids of its children.

        Of a pruned run, only the tombstone is left: see `Run.is_pruned`.
        """
        ...

    def get_run_by_key(self, request_key: str) -> Run | None: ...
    def add_run(self, run: Run) -> None: ...
    def update_run(self, run: Run) -> None: ...
    def find_runs(self, *, with_children: bool = False, **filters: Unpack[RunFilters]) -> list[Run]:
        """Return matching runs, newest first by created_at, then by id."""
        ...

    def has_live_children(
        self, run_id: str, *, awaited: bool | None = None, with_running_clock: bool = False
    ) -> bool:
        """Return True if a run requested by this one is live, apart from independent ones.

        `with_running_clock`: only a child that is queued, runs and is not paused, or waits for such a child.
        """
        ...

    def has_undelivered_work(self, run_id: str, session: str) -> bool:
        """Return True if the run has a live child, an undelivered result for its session or a pending approval.

        If not, it can end without further checks.
        """
        ...

    def find_owner_ids(self, status: Sequence[Status]) -> set[str]: ...
    def find_pruned_run_ids(self) -> set[str]:
        """Return the ids of all runs of which only a tombstone is left."""
        ...

    def count_runs(
        self, status: Status | None = None, *, root: str | None = None, requester: str | None = None
    ) -> int: ...
    def get_delivery(self, delivery_id: str) -> Delivery | None: ...
    def add_delivery(self, delivery: Delivery) -> None:
        """Add the one delivery of a run's end; a second for the same run is an error."""

    def update_delivery(self, delivery: Delivery) -> None: ...
    def find_deliveries(self, **filters: Unpack[DeliveryFilters]) -> list[Delivery]:
        """Return matching deliveries, oldest first."""
        ...

    def get_approval(self, approval_id: str) -> Approval | None: ...
    def add_approval(self, approval: Approval) -> None: ...
    def update_approval(self, approval: Approval) -> None: ...
    def find_approvals(
        self,
        *,
        run: str | None = None,
        call: str | None = None,
        state: Sequence[ApprovalState] | None = None,
        prefix: str | None = None,
    ) -> list[Approval]:
        """Return matching approvals, oldest first."""
        ...

    def get_side_effect(self, call_id: str) -> SideEffect | None: ...
    def save_side_effect(self, side_effect: SideEffect) -> None:
        """Add the side effect, or replace the one of the same tool call."""

    def find_side_effects(self, run_id: str) -> list[SideEffect]:
        """Return the run's side effects, oldest first."""
        ...

    def save_watch(self, watch: Watch) -> None:
        """Add the watch, or replace the one with the same id."""

    def find_watches(self, **filters: Unpack[WatchFilters]) -> list[Watch]:
        """Return matching watches, oldest first."""
        ...

    def save_interjection(self, interjection: Interjection) -> None: ...
    def find_interjections(self, **filters: Unpack[InterjectionFilters]) -> list[Interjection]:
        """Return matching interjections, oldest first; of more than `limit`, the newest."""
        ...

    def emit(self, event: Event) -> None:
        """Emit a durable event; it gets its number when the transaction commits."""

    def find_events(
        self, *, after: int = 0, session: str | None = None, limit: int = 1000
    ) -> list[Event]: ...
    def events_pruned_through(self) -> int:
        """Return the number up to which old events may be missing, 0 if none were pruned."""
        ...

    def last_seq(self) -> int:
        """Return the number of the newest event, 0 if there is none."""
        ...


class Ledger(Protocol):
    """Storage of runs and their events. Steps are plain functions on a transaction."""

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        """Run the step in the next group commit and return its value once it is on disk.

        `on_commit` is called with the value right after the commit and before this returns, even if the
        caller was cancelled meanwhile.
        """
        ...

    async def read(self, step: Callable[[Transaction], T]) -> T:
        """Run a read-only step on the same kind of transaction."""
        ...


class Worker(Protocol):
    """The queue of runs in this process, and the tasks that execute them."""

    def submit(
        self,
        run_id: str,
        *,
        claimed: CreatedRun | bool = False,
        at_front: bool = False,
        concurrency_key: str = "",
    ) -> None:
        """Queue a run and return at once.

        Args:
            run_id: The run to execute.
            claimed: The run and its session, or True, if it was claimed in the transaction that created it.
            at_front: The run was started before, so it goes to the front of the queue.
            concurrency_key: Key of the runs that share one concurrency limit.
        """

    async def wait(self, run_id: str) -> None:
        """Wait until the run has ended, whichever process executes it."""

    def check_requests(self) -> None:
        """Check the ledger now for requests to cancel, interrupt or resume runs of this process."""

    def cancel(self, run_id: str) -> bool:
        """Cancel the run's task in this process; return False if there is none."""
        ...

    def is_cancelled(self, run_id: str) -> bool:
        """Return True if the run was cancelled on request, rather than by the shutdown of this process."""
        ...


class ScopedFiles(Protocol):
    """File access within one scope; the real path of every opened file is checked."""

    def read(self, path: str, *, max_bytes: int = ...) -> FileContent: ...
    def list(self, path: str) -> "list[FileEntry]": ...
    def walk(self, path: str, *, limit: int = ...) -> Iterator[FileEntry]:
        """Yield the regular files and links below a folder in a stable order.

        Links are not followed and refused files are left out. For a file, yields the file itself as `.`.
        """
        ...

    def real_path(self, path: str) -> str:
        """Return the real path of a path without checking it: only for display, never to open a file."""
        ...

    def check_access(self, path: str, access: FileAccess) -> str:
        """Return the real path of an existing file or of one to be created, as the scope's rules see it.

        Raises OutOfScope, which names the rule, if access is refused.
        """
        ...

    def is_guarded(self, real_path: str) -> bool:
        """Return True if other programs act on the file, so that every change requires approval."""
        ...

    def write(self, path: str, data: bytes, *, expected: bytes | None = None) -> WriteResult:
        """Replace the whole file atomically: a reader sees the old file or the new one.

        Missing folders are created. With `expected`, writes only while the file still has that content, and
        keeps its mode.
        """
        ...

    def restrict_writes_to(self, real_path: str) -> "ScopedFiles":
        """Return the same access with writes restricted to this one file.

        A tool can then change only the file that a person approved.
        """
        ...


Shell = Callable[[str, float], Awaitable[CommandResult]]
"""Run one command for at most that many seconds, sandboxed to one scope."""


async def _discard_intent(_: str) -> None:
    return


class Call(Struct, frozen=True, kw_only=True):
    """The context of a tool call: its run and session, and file and shell access within the scope."""

    run: Run
    session: Session
    id: str
    """The id of the call's transcript entry, which also identifies its side effect."""
    files: ScopedFiles
    shell: Shell
    approval_answer: Answer | None = None
    """A person's answer to the approval of this call, if one was requested."""
    ask_user: Callable[[str, Sequence[str]], Awaitable[str]]
    """Ask the user a question; raises UserUnavailable if nobody can answer."""
    recorded_intent: str = ""
    """The intent this same call recorded before a crash; empty on the first execution."""
    record_intent: Callable[[str], Awaitable[None]] = _discard_intent
    """Record what the tool is about to do, so that after a crash it can tell whether it was done."""
    context: "RuntimeContext | None" = None
    """Set only for tools that start other agents or inspect their runs."""


ToolFunction = Callable[[Mapping[str, Any], Call], Awaitable[str]]


CallCheck = Callable[[Mapping[str, Any], Run, Session, "RuntimeContext"], Awaitable[None]]
"""Raise the error of a call that cannot succeed, given its arguments, its run and its session."""


class Tool(ToolPolicy, frozen=True, kw_only=True):
    """A tool: name, typed signature, policy and one async function."""

    function: ToolFunction
    check_call: CallCheck | None = None
    """Refuse a call before a person is asked to approve it; None if nothing can be checked cheaply."""


async def _no_files(_: Session) -> Sequence[ResultFile]:
    return ()


def _no_patterns(_: str) -> tuple[str, ...]:
    return ()


class SandboxAccess(Struct, frozen=True, kw_only=True):
    """Access to files and shell commands, by scope."""

    files_for: Callable[[Scope], ScopedFiles]
    shell_for: Callable[[Scope], Shell]
    detect_level: Callable[[], Awaitable[SandboxLevel]]
    """Return the sandbox level of this machine, detected once."""
    tmp_folder_for: Callable[[Session], str]
    """Return the real folder behind a session's /tmp, which need not exist yet."""
    list_tmp_files: Callable[[Session], Awaitable[Sequence[ResultFile]]] = _no_files
    """Return the files in a session's /tmp, with their real paths."""
    configured_git_paths: Callable[[str], tuple[str, ...]] = _no_patterns
    """Return patterns of files that the repository around a folder makes git execute or include."""


class NewWorktree(Struct, frozen=True, kw_only=True):
    """A git worktree that was created for a session."""

    folder: str
    """The workspace: the worktree, or a folder in it."""
    repository: str
    git_dir: str = ""
    """Git's folder for the worktree; empty if the workspace is only a part of the worktree."""


class WorktreeAccess(Struct, frozen=True, kw_only=True):
    """Git worktrees that agents work in."""

    create: Callable[[str, str], Awaitable[NewWorktree | None]]
    """Create a git worktree from a folder, with a name; None if the folder is in no repository."""
    remove: Callable[[Workspace], Awaitable[bool]]
    """Remove a worktree; False if it was kept because it holds work that is not merged elsewhere."""


class EventSink(Struct, frozen=True, kw_only=True):
    """Receiver of live events; durable events are emitted by the ledger after their commit."""

    emit: Callable[[Event], None]
    has_listeners: Callable[[], bool] = lambda: True
    """Return True if anyone listens to live events; otherwise none are created."""


class PresetEditor(Struct, frozen=True, kw_only=True):
    """Edits of a preset's text that leave the rest of it unchanged."""

    replace_paths: Callable[[str, PathPatterns], str]
    replace_prompt: Callable[[str, str], str]


class RunOwners(Struct, frozen=True, kw_only=True):
    """The processes that execute runs."""

    own_id: str
    """The id of this process."""
    id_for_new_run: Callable[[], str]
    """Return the id of the process that executes runs created or resumed here: this process or a daemon."""
    is_alive: Callable[[str], bool]
    """Return True if the process with this id is alive."""
    last_alive_at: Callable[[str], datetime | None]
    """Return when the process was last known to be alive; None if unknown."""


class RuntimeContext(RuntimeSettings, frozen=True, kw_only=True):
    """The services and settings that the runtime functions use."""

    store: SessionStore
    agents: AgentRegistry
    ledger: Ledger
    worker: Worker
    provider: Provider
    clock: Clock
    tools: Mapping[str, Tool]
    sandbox: SandboxAccess
    worktrees: WorktreeAccess
    events: EventSink
    presets: PresetEditor
    owners: RunOwners
    ask_user: Callable[[str, Sequence[str]], Awaitable[str]]
    select_model: Callable[[Agent, str | None], Model]
    """Select the model for an agent and the run's optional override."""
    operator_policy: Callable[[], OperatorPolicy]
    """Return the operator's current policy for every scope."""
    find_schema_error: Callable[[Any], str]
    """Return why a value is no JSON Schema; empty if it is one."""
    find_output_error: Callable[[Mapping[str, Any], str], str]
    """Return why a text is not JSON that matches a schema; empty if it is."""
    find_skills: Callable[[str, str], Sequence[Skill]] = lambda _agent, _at: ()
    """Map (agent, working folder) to the skills found there; the scope decides which the agent may use."""
