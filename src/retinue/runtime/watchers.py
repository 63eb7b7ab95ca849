"""Watchers: agents that monitor another session and receive each new part of it once."""

from collections.abc import Collection, Sequence
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import Agent, AgentDefinition, Role, WorkspacePolicy
from retinue.domain.ceiling import Ceiling
from retinue.domain.delivery import failure_summary
from retinue.domain.event import Event, EventKind
from retinue.domain.glob import first_match
from retinue.domain.run import LIVE_STATUSES, Run, RunRequest, Status
from retinue.domain.session import Session
from retinue.domain.tool import Effect
from retinue.domain.transcript import Entry, Message, public_entry_id
from retinue.domain.watch import (
    CONTEXT_ENTRIES,
    MAX_ENTRIES,
    WATCH_SOURCE,
    WATCHES_ATTRIBUTE,
    Watch,
    entries_since,
    is_ready_for_watcher,
    last_entry_id,
    watcher_update,
)
from retinue.errors import Conflict, NotFound, Refused
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime import run_control
from retinue.runtime.child_permissions import ChildSpec
from retinue.runtime.child_report import make_nonce
from retinue.runtime.run_creation import create_run
from retinue.runtime.session_scope import load_definition
from retinue.runtime.spawn import create_child_session

READ_ONLY_WORKSPACE = WorkspacePolicy(writable=False)
MAX_FAILURES = 3
WATCHER_TIMEOUT_SECONDS = 300.0
"""Default deadline of a watcher's run, short because a person may wait for it to exit."""


async def start_watch(
    watched_session: Session, agent: str, context: RuntimeContext, *, trigger: str, instructions: str = ""
) -> Watch:
    """Start watching a session from now on.

    An active watch is returned unchanged; a stopped one is restarted in the watcher's existing session.
    `instructions` are added to the prompt of a new watcher's session.
    """
    agent_definition = _load_watcher_definition(watched_session, agent, context)
    previous = await context.ledger.read(lambda tx: _find_watch(watched_session, agent, tx))
    if previous is not None and previous.on:
        return previous
    watcher_session = await _find_watcher_session(
        watched_session, agent_definition, previous, context, instructions=instructions
    )
    last_seen = await _start_entry_id(watched_session, previous, context)

    def step(tx: Transaction) -> Watch:
        current = _find_watch(watched_session, agent, tx)
        if current is not None and current.on:
            return current
        now = context.clock.now()
        new_watch = Watch(
            id=context.clock.new_entry_id() if current is None else current.id,
            session=watched_session.id,
            slug=watched_session.slug,
            watcher=watcher_session.id,
            agent=agent,
            number=len(tx.find_watches(session=watched_session.id)) + 1
            if current is None
            else current.number,
            trigger=trigger,
            last_entry_id=last_seen,
            update_count=0 if current is None else current.update_count,
            last_update_at=now,
            created_at=now,
        )
        tx.save_watch(new_watch)
        tx.emit(_make_watch_event("watch.started", new_watch, context))
        return new_watch

    return await context.ledger.write(step)


async def stop_watch(watch: Watch, context: RuntimeContext, *, reason: str = "") -> Watch:
    """Stop a watch and its current run.

    `reason` is empty if a person stopped it.
    """

    def step(tx: Transaction) -> tuple[Watch, list[Run]]:
        current = next(
            (each for each in tx.find_watches(session=watch.session) if each.id == watch.id), watch
        )
        if not current.on:
            return current, []
        stopped = replace(current, on=False)
        tx.save_watch(stopped)
        tx.emit(_make_watch_event("watch.ended", stopped, context, reason=reason))
        live_runs = tx.find_runs(session=stopped.watcher, status=LIVE_STATUSES)
        return stopped, [run for run in live_runs if run.request.entry_point == WATCH_SOURCE]

    stopped, live_runs = await context.ledger.write(step)
    for run in live_runs:
        await run_control.cancel_run(run.id, context, is_alive=context.owners.is_alive)
    return stopped


class _WatchState(Struct, frozen=True, kw_only=True):
    """Current state of a watch: runs of the watched session and of the watcher."""

    active_runs: Sequence[Run]
    """Active runs of the watched session."""
    watcher_runs: Sequence[Run]
    """Live runs of the watcher."""
    recent_run_count: int
    """Number of the watcher's runs created within the last hour."""
    failure: str
    """Error of a watcher that failed too often in a row to be retried; else empty."""


class WatcherNotifier:
    """Sends updates to watchers of the sessions whose runs this process executes."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._local_sessions: set[str] = set()
        """Sessions whose runs this process executed, and whose updates it sends."""

    async def notify_watchers(self, ended: Collection[str]) -> bool:
        """Send updates that are due; `ended` are the runs of this process that have ended since the last call.

        Returns True if more will be due soon.
        """
        watches = await self._context.ledger.read(lambda tx: self._active_watches(ended, tx))
        more_expected = [await self._notify_watcher(each) for each in watches]
        return any(more_expected)

    def _active_watches(self, ended: Collection[str], tx: Transaction) -> list[Watch]:
        if watches := tx.find_watches(on=True):
            session_ids = {run.session_id for each in ended if (run := tx.get_run(each)) is not None}
            self._local_sessions |= session_ids & {each.session for each in watches}
        return watches

    async def _notify_watcher(self, watch: Watch) -> bool:
        state = await self._context.ledger.read(lambda tx: _load_watch_state(watch, tx, self._context))
        owners = {run.owner_id for run in state.active_runs}
        if self._context.owners.own_id in owners:
            self._local_sessions.add(watch.session)
        if watch.session not in self._local_sessions or owners - {self._context.owners.own_id}:
            return False
        if state.watcher_runs:
            return any(run.owner_id == self._context.owners.own_id for run in state.watcher_runs)
        return await _create_watcher_run(watch, state, self._context) is _NOT_READY


async def send_missed_updates(context: RuntimeContext, session: str | None = None) -> list[Run]:
    """Send updates that a process did not send before it ended, for all sessions or one.

    Sessions with an active run in another live process are skipped.
    """
    created: list[Run] = []
    for each in await context.ledger.read(lambda tx: tx.find_watches(session=session, on=True)):
        state = await context.ledger.read(lambda tx, each=each: _load_watch_state(each, tx, context))
        others = [
            run
            for run in state.active_runs
            if run.owner_id != context.owners.own_id and context.owners.is_alive(run.owner_id)
        ]
        if state.watcher_runs or others:
            continue
        if isinstance(run := await _create_watcher_run(each, state, context), Run):
            created.append(run)
    return created


_NOT_READY = object()
"""Result for an update that is not due yet."""


async def _create_watcher_run(watch: Watch, state: _WatchState, context: RuntimeContext) -> object:
    """Create the run that reads the update; None if there is nothing new, or _NOT_READY.

    The run and the last seen entry are saved in one transaction, so an update is sent once even if several
    processes try.
    """
    try:
        watched_session, watcher_session = (
            await context.store.find(watch.session),
            await context.store.find(watch.watcher),
        )
    except NotFound:
        await stop_watch(watch, context, reason="its session or the watched session was deleted")
        return None
    if state.failure:
        await stop_watch(
            watch, context, reason=f"its run failed {MAX_FAILURES} times in a row: {state.failure}"
        )
        return None
    agent = await load_definition(watcher_session, context)
    entries = await _unseen_entries(watch, watched_session, context)
    if not entries or state.recent_run_count >= _max_runs_per_hour(agent, context):
        return None
    if not is_ready_for_watcher(
        entries, now=context.clock.now(), quiet_s=_quiet_seconds(agent, context) if state.active_runs else 0.0
    ):
        return _NOT_READY if state.active_runs else None
    first = last_entry_id(entries[:1])
    previous = (
        await context.store.read_entry_page(watched_session, before=first, limit=CONTEXT_ENTRIES)
        if watch.is_new
        else []
    )
    prompt = watcher_update(
        watch,
        watched_session.agent,
        entries,
        make_nonce(context),
        earlier_entries=previous,
        status="running" if state.active_runs else "idle",
    )
    request = RunRequest(
        key=f"{WATCH_SOURCE}:{watch.id}/{last_entry_id(entries)}@{watch.update_count}",
        agent=watcher_session.agent,
        task=prompt,
        session=watcher_session.id,
        requester=watched_session.key,
        entry_point=WATCH_SOURCE,
        source=WATCH_SOURCE,
        label=f"{watch.name} watches {watched_session.slug}",
        deadline_seconds=None if "deadline_seconds" in agent.limits else WATCHER_TIMEOUT_SECONDS,
        role=Role.WATCHER,
        trigger=watch.trigger,
    )
    try:
        return await create_run(
            request,
            watcher_session,
            context,
            before_insert=lambda tx: _advance_watch(watch, last_entry_id(entries), tx, context),
        )
    except Conflict:
        return None


def _advance_watch(watch: Watch, last: str, tx: Transaction, context: RuntimeContext) -> None:
    current = next((each for each in tx.find_watches(session=watch.session) if each.id == watch.id), None)
    if (
        current is None
        or not current.on
        or (current.last_entry_id, current.update_count) != (watch.last_entry_id, watch.update_count)
    ):
        raise Conflict(f"{watch.name} already received this update, or the watch was stopped.")
    tx.save_watch(current.mark_notified(last, at=context.clock.now()))


def _load_watch_state(watch: Watch, tx: Transaction, context: RuntimeContext) -> _WatchState:
    since = context.clock.now() - timedelta(hours=1)
    recent_runs = tx.find_runs(session=watch.watcher, limit=context.limits.watch_runs_per_hour)
    return _WatchState(
        active_runs=[
            run
            for run in tx.find_runs(session=watch.session, status=LIVE_STATUSES)
            if not run.waits_between_turns
        ],
        watcher_runs=tx.find_runs(session=watch.watcher, status=LIVE_STATUSES),
        recent_run_count=sum(run.created_at > since for run in recent_runs),
        failure=_repeated_failure(
            [run for run in recent_runs if run.created_at > watch.created_at][:MAX_FAILURES]
        ),
    )


def _repeated_failure(latest: Sequence[Run]) -> str:
    """Return the error of a watcher that failed too often in a row, else an empty string.

    A persistent failure needs a person, so it is not retried forever.
    """
    broken = [run for run in latest if run.status in (Status.FAILED, Status.LOST, Status.TIMED_OUT)]
    return failure_summary(latest[0]) if len(broken) == MAX_FAILURES else ""


async def _unseen_entries(watch: Watch, watched_session: Session, context: RuntimeContext) -> list[Entry]:
    """Return the entries since the last seen one; if a person removed that entry, those since its time."""
    try:
        return await context.store.read_entry_page(
            watched_session, after=watch.last_entry_id, limit=MAX_ENTRIES
        )
    except NotFound:
        return entries_since(
            await context.store.read_entry_page(watched_session, limit=MAX_ENTRIES), watch.last_update_at
        )


async def _start_entry_id(watched_session: Session, previous: Watch | None, context: RuntimeContext) -> str:
    """Return the entry after which a watcher starts: the newest, or the one before the current task.

    Nothing it has seen before is sent again.
    """
    entries = await context.store.read_entry_page(watched_session, limit=MAX_ENTRIES)
    live = await context.ledger.read(
        lambda tx: tx.find_runs(session=watched_session.id, status=LIVE_STATUSES)
    )
    if any(not run.waits_between_turns for run in live):
        task_indexes = [
            index
            for index, entry in enumerate(entries)
            if isinstance(entry, Message) and entry.role == "user"
        ]
        seen_indexes = [
            index
            for index, entry in enumerate(entries)
            if previous and public_entry_id(entry) == previous.last_entry_id
        ]
        entries = (
            entries[: max(task_indexes[-1], seen_indexes[-1] + 1 if seen_indexes else 0)]
            if task_indexes
            else entries
        )
    return last_entry_id(entries)


def _load_watcher_definition(
    watched_session: Session, agent: str, context: RuntimeContext
) -> AgentDefinition:
    if watched_session.attributes.get(WATCHES_ATTRIBUTE):
        raise Refused(f"{watched_session.slug} is a watcher's session. Watchers cannot be watched.")
    if pattern := first_match(context.operator_policy().deny_agents, agent):
        raise Refused(f"The configuration denies the agent {agent} (deny.agents: {pattern}).")
    agent_definition = context.agents.get(agent, watched_session.workspace.intended_folder)
    if Role.WATCHER not in agent_definition.agent.roles:
        raise Refused(
            f'Agent "{agent}" does not support capability "{Role.WATCHER}". Add that role to its definition.'
        )
    context.select_model(agent_definition.agent, None)  # report an unusable model before anything is created
    return agent_definition


async def _find_watcher_session(
    watched_session: Session,
    agent_definition: AgentDefinition,
    previous: Watch | None,
    context: RuntimeContext,
    *,
    instructions: str,
) -> Session:
    if previous is not None:
        try:
            return await context.store.find(previous.watcher)
        except NotFound:
            pass  # deleted by a person
    child_spec = ChildSpec(
        parent=watched_session,
        description="watching",
        requested_by_person=True,
        workspace=READ_ONLY_WORKSPACE,
        build_prompt=(lambda definition: f"{definition.prompt}\n\n{instructions}") if instructions else None,
        is_leaf=True,
    )
    attributes = {"role": str(Role.WATCHER), WATCHES_ATTRIBUTE: watched_session.id}
    return await create_child_session(
        agent_definition,
        child_spec,
        context,
        attributes=attributes,
        extra_ceilings=(_read_only_ceiling(watched_session, context),),
    )


def _read_only_ceiling(watched_session: Session, context: RuntimeContext) -> Ceiling:
    """Return the ceiling of a watcher: only tools that change nothing."""
    names = (name for name, tool in context.tools.items() if tool.effect is Effect.READ)
    return Ceiling(set_by=watched_session.slug, tools=tuple(sorted(names)), write=(), writable=False)


def _find_watch(watched_session: Session, agent: str, tx: Transaction) -> Watch | None:
    return next((each for each in tx.find_watches(session=watched_session.id) if each.agent == agent), None)


def _quiet_seconds(agent: Agent, context: RuntimeContext) -> float:
    return agent.limits.get("watch_quiet_seconds", context.limits.watch_quiet_seconds)


def _max_runs_per_hour(agent: Agent, context: RuntimeContext) -> float:
    """Return the hourly limit; a definition can only lower it."""
    own = agent.limits.get("watch_runs_per_hour", context.limits.watch_runs_per_hour)
    return min(own, context.limits.watch_runs_per_hour)


def _make_watch_event(kind: EventKind, watch: Watch, context: RuntimeContext, *, reason: str = "") -> Event:
    return Event(
        kind=kind,
        at=context.clock.now(),
        session=watch.session,
        agent=watch.agent,
        data={
            "watch": watch.id,
            "watcher": watch.watcher,
            "name": watch.name,
            "trigger": watch.trigger,
        }
        | ({"reason": reason} if reason else {}),
    )
