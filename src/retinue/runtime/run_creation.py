"""Create and claim runs: the only module that inserts runs or takes them from the queue."""

from collections.abc import Callable
from datetime import timedelta

from msgspec.structs import replace

from retinue.domain.limits import MAX_CONFIGURABLE_DEPTH
from retinue.domain.run import LIVE_STATUSES, ClaimResult, Run, RunRequest, Status
from retinue.domain.session import Session
from retinue.domain.system_prompt import first_sentence
from retinue.errors import Conflict, Refused
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.run_events import make_event

WAKE_SOURCE = "wake"
"""Source of a run that nobody requested: it was created to read an announcement."""

WAKE_KEY_PREFIX = "wake:"
"""Key prefix of such a run; the rest is the delivery's id."""


async def create_run(
    request: RunRequest,
    session: Session,
    context: RuntimeContext,
    *,
    owner: str | None = None,
    exclusive: bool = False,
    before_insert: Callable[[Transaction], None] = lambda _: None,
) -> Run:
    """Create a run in a session, and claim it in the same transaction if a slot is free.

    A second request with the same key returns the first run. The worker is notified once the run is on disk.

    Args:
        request: the task and its options.
        session: the session the run belongs to.
        context: the runtime context.
        owner: process that is to execute the run; by default `context.owners.id_for_new_run()`.
        exclusive: refuse if the session has another live run.
        before_insert: called in the same transaction; raise in it to prevent the run.

    Raises:
        Conflict: `exclusive`, and the session has a live run.
        Refused: a limit of the run's tree is reached.
    """
    new_run = _new_run(request, session, context, owner or context.owners.id_for_new_run())

    def step(tx: Transaction) -> tuple[Run, ClaimResult]:
        if existing := tx.get_run_by_key(request.key):
            return existing, ClaimResult.NOT_QUEUED
        if exclusive and tx.find_runs(session=session.id, status=LIVE_STATUSES, limit=1):
            raise Conflict(f"{session.slug} has an active run. Try again when it has ended.")
        before_insert(tx)
        return _insert_run(_check_tree_limits(new_run, tx, context), tx, context)

    def on_committed(inserted: tuple[Run, ClaimResult]) -> None:
        run, claim_result = inserted
        if run.owner_id == context.owners.own_id and claim_result is not ClaimResult.NOT_QUEUED:
            concurrency_key = request.requester if request.parent_run is not None else ""
            context.worker.submit(
                run.id,
                claimed=claim_result is ClaimResult.CLAIMED and (run, session),
                concurrency_key=concurrency_key,
            )

    return (await context.ledger.write(step, on_committed))[0]


def create_wake_run(
    requesting_run: Run,
    delivery_id: str,
    tx: Transaction,
    context: RuntimeContext,
    *,
    is_callback: bool = False,
) -> tuple[Run, ClaimResult]:
    """Insert a run that reads an announcement, for a session with no live run left to read it.

    Called in the transaction that posts the announcement. Requester, depth, root and ceilings are those of
    the requesting run. `is_callback`: the run reads the answer of an independent run, so its own answer stays
    in its session.
    """
    request = replace(
        requesting_run.request,
        key=f"{WAKE_KEY_PREFIX}{delivery_id}",
        task="",
        is_typed=False,
        source=WAKE_SOURCE,
        wait=False,
        wait_until=None,
        keep_session=True,
        deadline_seconds=None,
        output_schema=None if is_callback else requesting_run.request.output_schema,
        is_independent=is_callback or requesting_run.request.is_independent,
        is_callback=is_callback or requesting_run.request.is_callback,
    )
    run = Run(
        id=context.clock.new_entry_id(),
        request=request,
        session_id=requesting_run.session_id,
        slug=requesting_run.slug,
        session_key=requesting_run.session_key,
        agent=requesting_run.agent,
        transcript_path=requesting_run.transcript_path,
        root_id=requesting_run.root_id,
        depth=requesting_run.depth,
        model=request.model or "",
        thinking=requesting_run.thinking,
        workspace=requesting_run.workspace,
        owner_id=context.owners.id_for_new_run(),
        created_at=context.clock.now(),
    )
    return _insert_run(run, tx, context)


def _insert_run(run: Run, tx: Transaction, context: RuntimeContext) -> tuple[Run, ClaimResult]:
    """Insert a run, claimed if possible; a run for another process waits in the queue."""
    claim_result = (
        _try_claim_slot(run, tx, context, is_new=True)
        if run.owner_id == context.owners.own_id
        else ClaimResult.NO_FREE_SLOT
    )
    if claim_result is ClaimResult.SESSION_BUSY and run.request.announce_if_busy:
        run = replace(run, is_awaited=False)
    started = _start_run(run, context) if claim_result is ClaimResult.CLAIMED else run
    tx.add_run(started)
    tx.emit(
        make_event(
            "run.queued",
            run,
            context,
            entry_point=run.request.entry_point,
            call=run.request.call_id,
            task=first_sentence(run.request.task or ""),
        )
    )
    if claim_result is ClaimResult.CLAIMED:
        tx.emit(make_event("run.started", started, context, attempt=started.attempts))
    return started, claim_result


async def claim_run(run_id: str, context: RuntimeContext) -> ClaimResult:
    """Claim a queued run, if it may start now."""

    def step(tx: Transaction) -> ClaimResult:
        run = tx.get_run(run_id)
        if run is None or run.status is not Status.QUEUED:
            return ClaimResult.NOT_QUEUED
        claim_result = _try_claim_slot(run, tx, context, is_new=False)
        if claim_result is ClaimResult.CLAIMED:
            started = _start_run(run, context)
            tx.update_run(started)
            tx.emit(make_event("run.started", started, context, attempt=started.attempts))
        return claim_result

    return await context.ledger.write(step)


def _try_claim_slot(run: Run, tx: Transaction, context: RuntimeContext, *, is_new: bool) -> ClaimResult:
    """Check whether a run may start; the caller's transaction then marks it as running.

    Counting and claiming happen in the same transaction.
    """
    if is_new and run.request.announce_if_busy and _is_session_busy(run, tx, context, is_new=True):
        return ClaimResult.SESSION_BUSY
    if tx.count_runs(Status.RUNNING) >= context.limits.max_live:
        return ClaimResult.NO_FREE_SLOT
    if _is_requester_at_limit(run, tx, context):
        return ClaimResult.REQUESTER_LIMIT
    return (
        ClaimResult.SESSION_BUSY if _is_session_busy(run, tx, context, is_new=is_new) else ClaimResult.CLAIMED
    )


def _is_requester_at_limit(run: Run, tx: Transaction, context: RuntimeContext) -> bool:
    if run.request.parent_run is None:
        return False
    live = tx.count_runs(Status.RUNNING, requester=run.request.requester)
    return live >= context.limits.max_live_per_requester


def _is_session_busy(run: Run, tx: Transaction, context: RuntimeContext, *, is_new: bool) -> bool:
    """Return True if the run must wait for other runs of its session.

    It waits for a run that is running or suspended inside a call; a run suspended with no call open does not
    block. A new run waits for all queued ones. A queued run waits only for runs requested earlier that may
    start: the session may have become free since one of them found it busy.
    """
    live = tx.find_runs(status=LIVE_STATUSES, session=run.session_id)
    if any(other.status is not Status.QUEUED and not other.waits_between_turns for other in live):
        return True
    queued = (each for each in live if each.status is Status.QUEUED and each.id != run.id)
    if is_new:
        return next(queued, None) is not None
    # Two runs may have the same timestamp: their ids decide, or each would wait for the other.
    own_order = (run.created_at, run.id)
    earlier = (
        each for each in queued if each.owner_id == run.owner_id and (each.created_at, each.id) < own_order
    )
    return any(
        other.started_at is not None or not _is_requester_at_limit(other, tx, context) for other in earlier
    )


def _start_run(run: Run, context: RuntimeContext) -> Run:
    timeout = timedelta(seconds=context.limits.run_timeout_s(run.request.deadline_seconds))
    return run.start(owner_id=context.owners.own_id, at=context.clock.now(), timeout=timeout)


def _new_run(request: RunRequest, session: Session, context: RuntimeContext, owner: str) -> Run:
    run_id = context.clock.new_entry_id()
    return Run(
        id=run_id,
        request=_redact_request(request, context),
        session_id=session.id,
        slug=session.slug,
        session_key=session.key,
        agent=session.agent,
        transcript_path=f"{session.path}/session.md",
        root_id=run_id,
        depth=session.depth,
        model=context.redact(request.model or ""),
        thinking=request.thinking or "",
        workspace=session.workspace.root,
        owner_id=owner,
        is_awaited=request.wait,
        created_at=context.clock.now(),
    )


def _redact_request(request: RunRequest, context: RuntimeContext) -> RunRequest:
    """Redact the request's text fields: a key may be pasted anywhere, even as a model name."""
    original = (request.task, request.label, request.model)
    task, label, model = (each and context.redact(each) for each in original)
    return (
        request if (task, label, model) == original else replace(request, task=task, label=label, model=model)
    )


def _check_tree_limits(run: Run, tx: Transaction, context: RuntimeContext) -> Run:
    """Check the limits on depth and runs per tree, and set depth and root from the requesting run's row.

    They are never taken from a model's output.
    """
    if run.request.parent_run is None:
        return run
    parent = tx.get_run(run.request.parent_run)
    if parent is None:
        raise Refused(f"The requesting run {run.request.parent_run} is not in the ledger.")
    if parent.status.is_final and parent.status is not Status.DONE:
        raise Refused(f"{parent.agent} was stopped ({parent.status}) before it could start {run.agent}.")
    depth = parent.depth + 1
    max_depth = min(context.limits.max_depth, MAX_CONFIGURABLE_DEPTH)
    if depth > max_depth:
        raise Refused(
            f"{parent.agent} at depth {parent.depth} may not start {run.agent}: the maximum depth is {max_depth}."
        )
    if tx.count_runs(root=parent.root_id) >= context.limits.max_runs_per_tree:
        raise Refused(
            f"{parent.agent} may not start {run.agent}: the tree of {parent.root_id} has reached its limit of "
            f"{context.limits.max_runs_per_tree} runs (limits.max_runs_per_tree)."
        )
    return replace(run, root_id=parent.root_id, depth=depth)
