"""Finish a run: record its end, deliver its result and wake the requester in one ledger transaction."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from retinue.domain.approval import ApprovalState
from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.run import CANCEL_REASONS, LIVE_STATUSES, ClaimResult, Reason, Run, Status, WaitReason
from retinue.errors import Cancelled, NotFound, RetinueError
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.child_report import format_announcement
from retinue.runtime.run_clock import start_parent_clocks, stop_idle_parent_clocks, suspended_for_children
from retinue.runtime.run_creation import (
    WAKE_KEY_PREFIX,
    WAKE_SOURCE,
    create_wake_run,
)
from retinue.runtime.run_events import make_event
from retinue.runtime.suspension import save_suspended

MAX_EVENT_RESULT_CHARS = 1_000
CANCEL_MESSAGES = {
    Reason.USER_CANCEL: "cancelled",
    Reason.DESERTED: "stopped: the parent run ended without waiting for the result",
}


@dataclass(slots=True)
class RunsToSubmit:
    """Runs that a transaction queued, to be submitted to the worker after its commit."""

    runs: list[tuple[Run, ClaimResult]] = field(default_factory=list[tuple[Run, ClaimResult]])

    def submit(self, context: RuntimeContext) -> None:
        for run, claim in self.runs:
            if run.owner_id == context.owners.own_id:
                context.worker.submit(
                    run.id, claimed=claim is ClaimResult.CLAIMED, at_front=run.started_at is not None
                )


async def finish_run(
    run: Run, status: Status, context: RuntimeContext, *, reason: Reason | None = None, error: str = ""
) -> Run:
    """Finish a run, unless it must wait for children or has undelivered announcements.

    The first end counts: a run that has already ended is returned unchanged. A run that is done but still has
    live children or unread announcements does not end: it is returned suspended or running.
    """
    to_submit = RunsToSubmit()

    def step(tx: Transaction) -> Run:
        to_submit.runs.clear()
        current = tx.get_run(run.id)
        if current is None or current.status.is_final:
            return current or run
        updated = replace(
            current,
            transcript_path=run.transcript_path,
            text=context.redact(run.text),
            turns=run.turns,
            tool_calls=run.tool_calls,
            effective_calls=run.effective_calls,
            usage=run.usage,
            long_prompt_usage=run.long_prompt_usage,
            model=run.model or current.model,
            scope_hash=run.scope_hash or current.scope_hash,
            exit_tool=run.exit_tool,
            report=run.report,
        )
        final_reason, final_error = reason, error
        if status is Status.CANCELLED and current.reason is Reason.DESERTED:
            final_reason, final_error = Reason.DESERTED, CANCEL_MESSAGES[Reason.DESERTED]
        no_pending_work = not tx.has_undelivered_work(run.id, run.session_id)  # the common case
        if (
            status is Status.DONE
            and not no_pending_work
            and (deferred := _defer_finish(updated, tx, context))
        ):
            return deferred
        return mark_finished(
            updated,
            status,
            tx,
            context,
            to_submit,
            reason=final_reason,
            error=final_error,
            no_pending_work=no_pending_work,
        )

    return await context.ledger.write(step, lambda _: to_submit.submit(context))


def _defer_finish(run: Run, tx: Transaction, context: RuntimeContext) -> Run | None:
    """Return a done run that must stay live for announcements or children; None if it can end.

    The caller ends it in the same transaction, so no announcement can arrive in between.
    """
    if run.tool_calls:
        release_waiting_calls(run, tx, context)
    if undelivered_announcements(run, tx, limit=1):
        tx.update_run(run)
        return run
    if not tx.has_live_children(run.id):
        return None
    if run.reason in CANCEL_REASONS:
        raise Cancelled(
            "cancelled"
        )  # another process asked to cancel it, and a suspended run would not notice
    at = context.clock.now()
    run = replace(run, recovery=run.recovery.record_progress())
    suspended = suspended_for_children(run, tx, at, between_turns=True)
    save_suspended(suspended, tx, context, at)
    return suspended


def release_waiting_calls(
    run: Run,
    tx: Transaction,
    context: RuntimeContext,
    *,
    open_call_ids: Collection[str] = (),
    answered_elsewhere: Collection[str] = (),
) -> None:
    """Announce results whose tool call is no longer open, instead of answering the call.

    A run that has given its final reply has no open calls. Other runs may have lost theirs after their process
    died: another process answered the call, or a person removed it from the file. `answered_elsewhere` are
    calls that another process answered: a result that such a call had taken when its process died never
    arrived, so it is announced too.
    """
    for delivery in (
        tx.find_deliveries(requester_run=run.id, state=[DeliveryState.DELIVERED], answers_call=True)
        if answered_elsewhere
        else ()
    ):
        if delivery.taken_by in answered_elsewhere and (child := tx.get_run(delivery.run)) is not None:
            tx.update_delivery(delivery.switch_to_announcement(format_announcement(child, context)))
    for child in runs_without_open_call(run, tx, open_call_ids=open_call_ids):
        if child.status.is_live:
            tx.update_run(replace(child, is_awaited=False))
        for delivery in tx.find_deliveries(run=child.id, state=[DeliveryState.PENDING], answers_call=True):
            tx.update_delivery(delivery.switch_to_announcement(format_announcement(child, context)))


def announce_discarded_results(run: Run, tx: Transaction, context: RuntimeContext) -> None:
    """Announce the results of sub-agents for which the ended run waited, so that a run that continues it gets them."""
    for delivery in tx.find_deliveries(
        requester_run=run.id, state=[DeliveryState.DISCARDED], answers_call=True
    ):
        if (child := tx.get_run(delivery.run)) is not None:
            tx.update_delivery(delivery.switch_to_announcement(format_announcement(child, context)))


def runs_without_open_call(run: Run, tx: Transaction, *, open_call_ids: Collection[str]) -> list[Run]:
    """Return the children whose result belongs to a call of the run that is not in `open_call_ids`."""
    deliveries = tx.find_deliveries(requester_run=run.id, state=[DeliveryState.PENDING], answers_call=True)
    ended_children = [found for each in deliveries if (found := tx.get_run(each.run)) is not None]
    children = [*tx.find_runs(parent_run=run.id, awaited=True, status=LIVE_STATUSES), *ended_children]
    key_prefixes = tuple(f"call:{run.id}/{call}" for call in open_call_ids)
    return [each for each in children if not each.request.key.startswith(key_prefixes)]


def mark_finished(  # noqa: PLR0913  (one argument per fact about the end)
    run: Run,
    status: Status,
    tx: Transaction,
    context: RuntimeContext,
    to_submit: RunsToSubmit,
    *,
    reason: Reason | None = None,
    error: str = "",
    no_pending_work: bool = False,
) -> Run:
    """Mark a live run as ended; the caller's transaction has checked that it is live.

    Its pending approvals are voided, and results meant for its open calls are discarded. `no_pending_work`:
    the caller knows that there are none.
    """
    ended = run.finish(status, at=context.clock.now(), reason=reason, error=context.redact(error))
    tx.update_run(ended)
    if not no_pending_work:
        for approval in tx.find_approvals(run=run.id, state=[ApprovalState.PENDING]):
            tx.update_approval(approval.void())
        for delivery in tx.find_deliveries(
            requester_run=run.id, state=[DeliveryState.PENDING], answers_call=True
        ):
            tx.update_delivery(delivery.discard())
    tx.emit(
        make_event(
            "run.ended",
            ended,
            context,
            status=str(status),
            reason=reason and str(reason),
            duration_ms=ended.duration_ms,
            result=_truncate_event_result(ended.text),
        )
    )
    if ended.request.source == WAKE_SOURCE and status not in (Status.DONE, Status.CANCELLED):
        _fail_wake_delivery(ended, tx)
    _report_to_requester(ended, tx, context, to_submit, answers_call=run.is_awaited)
    if status is not Status.CANCELLED and not no_pending_work:
        if status is not Status.DONE:
            _forward_announcements(ended, tx, context, to_submit)
        _start_pending_callback(ended, tx, context, to_submit)
    return ended


def _report_to_requester(
    ended: Run, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit, *, answers_call: bool
) -> None:
    if ended.request.is_callback:
        return  # its answer stays in its own session
    if ended.request.parent_run is not None:
        _deliver_result(ended, tx, context, to_submit, answers_call=answers_call)
    elif ended.request.inbox:
        _deliver_to_inbox(ended, tx, context)
    elif ended.request.announce_to:
        _announce_to_session(ended, tx, context)


def _start_pending_callback(
    ended: Run, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit
) -> None:
    """Start the run that reads the answers of independent runs which arrived while this run was live."""
    for delivery in tx.find_deliveries(
        session=ended.session_id, state=[DeliveryState.PENDING], answers_call=False
    ):
        if delivery.requester_run == ended.id and _is_callback_delivery(delivery, tx):
            _start_callback_run(ended, delivery, tx, context, to_submit)
            return


def _start_callback_run(
    requesting_run: Run, delivery: Delivery, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit
) -> None:
    """Start a run of the session that reads the answer of an independent run, unless a live one will read it."""
    live = _live_readers(requesting_run.session_id, tx, is_callback=True)
    if not live:
        to_submit.runs.append(create_wake_run(requesting_run, delivery.id, tx, context, is_callback=True))
    else:
        _wake_reader(live, tx, context, to_submit)


def _live_readers(session: str, tx: Transaction, *, is_callback: bool) -> list[Run]:
    """Return the session's live runs that read such announcements: answers of independent runs, or all others."""
    live = tx.find_runs(session=session, status=LIVE_STATUSES)
    return [run for run in live if run.request.is_callback is is_callback]


def _is_callback_delivery(delivery: Delivery, tx: Transaction) -> bool:
    """Return True if the delivery is the answer of an independent run."""
    run = tx.get_run(delivery.run)
    return run is not None and run.request.is_independent


def _truncate_event_result(text: str) -> str:
    """Shorten a result for an event; the run record keeps all of it."""
    return text if len(text) <= MAX_EVENT_RESULT_CHARS else f"{text[:MAX_EVENT_RESULT_CHARS]}…"


def _forward_announcements(
    ended: Run, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit
) -> None:
    """Pass announcements that an ended run did not read to another run of its session, or wake one.

    This happens once per announcement: if the woken run cannot read it either, no further run is woken.
    """
    for delivery in undelivered_announcements(ended, tx):
        parent = tx.get_run(delivery.requester_run)
        if parent is not None and tx.get_run_by_key(f"{WAKE_KEY_PREFIX}{delivery.id}") is None:
            _wake_for_announcement(parent, delivery, tx, context, to_submit)
            return


def _fail_wake_delivery(ended: Run, tx: Transaction) -> None:
    """Mark as failed the delivery that a wake run was created for and could not read.

    It is not retried again; the inbox shows it to a person.
    """
    delivery = tx.get_delivery(ended.request.key.removeprefix(WAKE_KEY_PREFIX))
    if delivery is not None and delivery.state is DeliveryState.PENDING:
        tx.update_delivery(replace(delivery, state=DeliveryState.FAILED, attempts=delivery.attempts + 1))


def _deliver_result(
    ended: Run, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit, *, answers_call: bool
) -> None:
    """Create the run's one delivery, and wake the run that must receive it.

    Posting the delivery and checking whether a recipient is live happen in one transaction.
    """
    parent = tx.get_run(ended.request.parent_run or "")
    if parent is None:
        return
    delivery = Delivery(
        id=context.clock.new_entry_id(),
        run=ended.id,
        requester_run=parent.id,
        session=parent.session_id,
        answers_call=answers_call,
        text="" if answers_call else format_announcement(ended, context),
        keep_session=ended.request.keep_session,
        created_at=context.clock.now(),
    )
    empty_reply = not answers_call and _is_empty_reply(ended)
    if empty_reply or parent.status is Status.CANCELLED or (answers_call and parent.status.is_final):
        tx.add_delivery(delivery.discard())
        # There is nothing to deliver, but the parent may have been waiting only for this run.
        if _can_be_woken(parent, tx):
            to_submit.runs.append((requeue_waiting_run(parent, tx, context), ClaimResult.NO_FREE_SLOT))
        return
    tx.add_delivery(delivery)
    tx.emit(make_event("announcement.posted", ended, context, delivery=delivery.id, to=parent.session_id))
    if answers_call:
        _wake_waiting_caller(parent, ended, tx, context, to_submit)
    else:
        _wake_for_announcement(parent, delivery, tx, context, to_submit)


def _deliver_to_inbox(ended: Run, tx: Transaction, context: RuntimeContext) -> None:
    """Deliver the result to the inbox of the session for which a person requested the run.

    The session's agent did not request it, so no model sees it unless the person passes it on.
    """
    at = context.clock.now()
    delivery = Delivery(
        id=context.clock.new_entry_id(),
        run=ended.id,
        requester_run="",
        session=ended.request.inbox,
        answers_call=False,
        text=format_announcement(ended, context),
        created_at=at,
    )
    tx.add_delivery(delivery.mark_delivered("person", at=at))
    tx.emit(make_event("announcement.posted", ended, context, delivery=delivery.id, to=delivery.session))


def _announce_to_session(ended: Run, tx: Transaction, context: RuntimeContext) -> None:
    """Announce the result to the session for which a person requested the run.

    No run is woken: the session's next run reads the announcement, unless it was written to the file before.
    """
    delivery = Delivery(
        id=context.clock.new_entry_id(),
        run=ended.id,
        requester_run="",
        session=ended.request.announce_to,
        answers_call=False,
        text=format_announcement(ended, context),
        created_at=context.clock.now(),
    )
    tx.add_delivery(delivery)
    tx.emit(make_event("announcement.posted", ended, context, delivery=delivery.id, to=delivery.session))


def _is_empty_reply(ended: Run) -> bool:
    """Return True for an empty reply to `agents_message`: it is not announced."""
    return (
        ended.request.entry_point == "agents_message"
        and ended.status is Status.DONE
        and not ended.text.strip()
    )


def _wake_waiting_caller(
    parent: Run, ended: Run, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit
) -> None:
    """Wake a parent that waits inside its tool calls once the last awaited child has ended."""
    waits = (
        parent.status is Status.WAITING
        and parent.waiting_for is WaitReason.CHILD
        and not parent.waits_between_turns
    )
    if waits and not tx.has_live_children(parent.id, awaited=True):
        to_submit.runs.append((requeue_waiting_run(parent, tx, context), ClaimResult.NO_FREE_SLOT))
    elif waits:
        stop_idle_parent_clocks(ended, tx, context.clock.now())


def _wake_for_announcement(
    parent: Run, delivery: Delivery, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit
) -> None:
    """Wake the requesting run, another run of its session, or a new run to read the announcement.

    A run that is running reads the announcement before its next turn, and does not end before it has.
    """
    if _is_callback_delivery(delivery, tx):
        if parent.status.is_final:  # else the end of the parent starts it
            _start_callback_run(parent, delivery, tx, context, to_submit)
        return
    if parent.status.is_live:
        if _can_be_woken(parent, tx):
            to_submit.runs.append((requeue_waiting_run(parent, tx, context), ClaimResult.NO_FREE_SLOT))
        return
    session_runs = _live_readers(parent.session_id, tx, is_callback=parent.request.is_callback)
    if not session_runs:
        to_submit.runs.append(create_wake_run(parent, delivery.id, tx, context))
    else:
        _wake_reader(session_runs, tx, context, to_submit)


def _wake_reader(
    session_runs: Sequence[Run], tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit
) -> None:
    """Wake one of the session's runs to read an announcement, unless one is active and will read it."""
    readers = [each for each in session_runs if not each.is_suspended_for_person]
    if readers and all(each.waits_between_turns for each in session_runs):
        to_submit.runs.append((requeue_waiting_run(readers[0], tx, context), ClaimResult.NO_FREE_SLOT))


def _can_be_woken(run: Run, tx: Transaction) -> bool:
    """Return True if an announcement continues the waiting run; a run suspended for a person reads it later."""
    return run.waits_between_turns and not run.is_suspended_for_person and not _awaits_all_children(run, tx)


def _awaits_all_children(run: Run, tx: Transaction) -> bool:
    """Return True if an interrupted run must wait for all its children, so that it summarises only once."""
    return run.reason is Reason.INTERRUPTED and tx.has_live_children(run.id)


def requeue_waiting_run(
    run: Run, tx: Transaction, context: RuntimeContext, *, makes_progress: bool = True
) -> Run:
    """Queue a waiting run again; if its process is gone, the local worker takes it over.

    The clocks of its parents stay stopped if it only tries whether its model answers again.
    """
    at = context.clock.now()
    requeued = run.requeue_after_wait(at=at)
    if not context.owners.is_alive(requeued.owner_id):
        requeued = replace(requeued, owner_id=context.owners.id_for_new_run())
    tx.update_run(requeued)
    if makes_progress:
        start_parent_clocks(requeued, tx, at)
    return requeued


def wake_run(run: Run, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit) -> None:
    """Wake a run that waits for a child although no child has ended: on timeout or at a person's request."""
    if run.status is Status.WAITING:
        to_submit.runs.append((requeue_waiting_run(run, tx, context), ClaimResult.NO_FREE_SLOT))


def undelivered_announcements(run: Run, tx: Transaction, *, limit: int | None = None) -> list[Delivery]:
    """Return the announcements a run has not read yet.

    This includes announcements for other runs of the session that have ended and can no longer read them. The
    answers of independent runs are read by a callback run alone.
    """
    found: list[Delivery] = []
    for each in tx.find_deliveries(session=run.session_id, state=[DeliveryState.PENDING], answers_call=False):
        if _is_for_run(each, run, tx):
            found.append(each)
        if limit is not None and len(found) >= limit:
            break
    return found


def _is_for_run(delivery: Delivery, run: Run, tx: Transaction) -> bool:
    is_callback = _is_callback_delivery(delivery, tx)
    if delivery.requester_run == run.id:
        return not is_callback
    requesting_run = tx.get_run(delivery.requester_run)
    if requesting_run is None:
        return run.request.is_callback is is_callback
    is_callback = is_callback or requesting_run.request.is_callback
    return requesting_run.status.is_final and run.request.is_callback is is_callback


async def mark_delivered(deliveries: list[Delivery], context: RuntimeContext, *, receiver: str = "") -> None:
    """Mark deliveries as delivered once they are in the transcript, and delete temporary sessions."""

    def step(tx: Transaction) -> list[Delivery]:
        marked: list[Delivery] = []
        for each in deliveries:
            current = tx.get_delivery(each.id) or each
            if current.state is not DeliveryState.PENDING:
                continue
            delivered = current.mark_delivered(receiver or current.id, at=context.clock.now())
            tx.update_delivery(delivered)
            if (run := tx.get_run(delivered.run)) is not None:
                tx.emit(
                    make_event(
                        "announcement.delivered", run, context, delivery=delivered.id, to=delivered.session
                    )
                )
            marked.append(delivered)
        return marked

    for each in await context.ledger.write(step):
        await delete_temporary_session(each, context)


async def delete_temporary_session(delivery: Delivery, context: RuntimeContext) -> None:
    """Delete a temporary session after its result was delivered; its runs then name the transcript in the trash.

    If that fails now, a later start retries it.
    """
    if delivery.keep_session or delivery.is_session_deleted:
        return
    run = await context.ledger.read(lambda tx: tx.get_run(delivery.run))
    folder_in_trash = ""

    def step(tx: Transaction) -> None:
        tx.update_delivery(replace(tx.get_delivery(delivery.id) or delivery, is_session_deleted=True))
        if run is not None and folder_in_trash:
            for each in tx.find_runs(session=run.session_id):
                name = each.transcript_path.rpartition("/")[2]
                tx.update_run(replace(each, transcript_path=f"{folder_in_trash}/{name}"))
        if run is not None:
            tx.emit(make_event("session.changed", run, context, change="deleted"))

    with suppress(RetinueError):
        if run is not None:
            with suppress(NotFound):
                session = await context.store.find(run.transcript_path)
                folder = await context.store.delete(session, at=run.ended_at)
                # The folder of a top-level session contains branches; its runs keep the old path.
                folder_in_trash = "" if session.is_top_level else folder
        await context.ledger.write(step)


async def delete_temporary_sessions(context: RuntimeContext) -> None:
    """Delete the temporary sessions that a crash left behind."""
    for each in await context.ledger.read(lambda tx: tx.find_deliveries(with_session_to_delete=True)):
        await delete_temporary_session(each, context)
