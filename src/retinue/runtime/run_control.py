"""Control of runs, whichever process executes them: cancel, detach, and answer their questions."""

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from retinue.domain.approval import Answer, Approval, ApprovalState
from retinue.domain.delivery import DeliveryState
from retinue.domain.question import open_question
from retinue.domain.rules import escape_glob, subtree_pattern
from retinue.domain.run import LIVE_STATUSES, Reason, Run, Status, WaitReason
from retinue.domain.session import Session
from retinue.domain.timestamps import iso_timestamp_seconds
from retinue.domain.transcript import Notice, unanswered_calls
from retinue.errors import Conflict, NotFound, RetinueError, UsageError
from retinue.interfaces import Conversation, RuntimeContext, Transaction
from retinue.runtime import side_effects
from retinue.runtime.approvals import void_approvals
from retinue.runtime.model_outage import probe_servers
from retinue.runtime.recovery import find_delegated_calls, overrule_interruption, split_unanswered_calls
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.run_clock import start_parent_clocks
from retinue.runtime.run_end import CANCEL_MESSAGES, RunsToSubmit, mark_delivered, mark_finished, wake_run
from retinue.runtime.run_events import make_event

ABORT_ON_DENIAL_TOOL = "PersistentAgent"
"""Delegation tool whose agents are cancelled when a person denies an approval, as its specification requires."""
STOPPED_RESULT = "No result: the run was stopped before this call finished."


async def cancel_run(
    run_id: str,
    context: RuntimeContext,
    *,
    is_alive: Callable[[str], bool],
    reason: Reason = Reason.USER_CANCEL,
    keep_background: bool = False,
) -> Run:
    """Cancel a run and its children; with `keep_background`, only the children that a call waits for.

    A run that is queued, waits, or has no live owner is ended in this transaction. A run of this process is stopped
    at once. Another process is asked to stop its run. Whether the owner is alive is checked inside the
    transaction, because another process may have claimed the run a moment before.
    """
    to_submit = RunsToSubmit()

    def request_cancel(tx: Transaction) -> Run:
        to_submit.runs.clear()
        run = tx.get_run(run_id)
        if run is None:
            raise NotFound(f"Run {run_id} not found.")
        if run.status.is_final:
            return run
        if run.status is not Status.RUNNING or not is_alive(run.owner_id):
            return mark_finished(
                run, Status.CANCELLED, tx, context, to_submit, reason=reason, error=CANCEL_MESSAGES[reason]
            )
        run = replace(run, reason=reason)
        tx.update_run(run)
        return run

    before = await context.ledger.read(lambda tx: tx.get_run(run_id))
    run = await context.ledger.write(request_cancel, lambda _: to_submit.submit(context))
    if context.worker.cancel(run_id) and run.status.is_live:
        await context.worker.wait(run_id)
        run = await context.ledger.read(lambda tx: tx.get_run(run_id) or run)
    if before is not None and before.status.is_live and run.status.is_final:
        await close_transcript(run, context)
    awaited = True if keep_background else None
    children = await context.ledger.read(
        lambda tx: tx.find_runs(parent_run=run_id, status=LIVE_STATUSES, awaited=awaited)
    )
    for child in children:
        await cancel_run(child.id, context, is_alive=is_alive, reason=reason, keep_background=keep_background)
    return await context.ledger.read(lambda tx: tx.get_run(run_id) or run)


async def close_transcript(run: Run, context: RuntimeContext) -> None:
    """Give a transcript's open calls a result and write the idle prompt, for a run that no process executes.

    In a run that can be resumed, calls that have started a sub-agent stay open: they are repeated then, and get its
    result. If this fails, the session's next run does it.
    """
    with suppress(RetinueError):
        async with context.store.open(await context.store.find(run.transcript_path)) as conversation:
            open_calls = [call for call in unanswered_calls(conversation.entries) if call.run == run.id]
            own_call_ids = {call.id for call in open_calls}
            if run.status is Status.WAITING:
                own_call_ids -= await find_delegated_calls(open_calls, run, context)
            _, unanswered_results = split_unanswered_calls(conversation.entries, replace(run, id=""))
            at = iso_timestamp_seconds(context.clock.now())
            results = [
                replace(each, text=STOPPED_RESULT, run=run.id, at=at)
                for each in unanswered_results
                if each.call_id in own_call_ids
            ]
            await void_approvals(run.id, own_call_ids, context)
            await RunAttempt(run, context).append_entries(
                conversation, *await side_effects.mark_unknown_outcomes(results, context)
            )
            await conversation.write_idle_prompt()
            await _mark_delivered_notices(run, conversation, context)


async def _mark_delivered_notices(run: Run, conversation: Conversation, context: RuntimeContext) -> None:
    """Mark announcements in the transcript as delivered, in case the process died before it did."""
    notice_ids = {entry.id for entry in conversation.entries if isinstance(entry, Notice)}
    deliveries = await context.ledger.read(
        lambda tx: tx.find_deliveries(
            session=run.session_id, state=[DeliveryState.PENDING], answers_call=False
        )
    )
    if delivered := [each for each in deliveries if each.id in notice_ids]:
        await mark_delivered(delivered, context)


async def requested_cancellations(context: RuntimeContext) -> list[str]:
    """Return the ids of this process's runs that were asked to stop, perhaps by another process."""

    def step(tx: Transaction) -> list[str]:
        return [
            run.id
            for reason in CANCEL_MESSAGES
            for run in tx.find_runs(status=[Status.RUNNING, Status.WAITING], reason=reason)
            if run.owner_id == context.owners.own_id
        ]

    return await context.ledger.read(step)


async def answer_approval(
    approval_id: str, decision: Answer, context: RuntimeContext, *, by: str, is_alive: Callable[[str], bool]
) -> Approval:
    """Record a person's decision and requeue the run, in one transaction.

    The run's process resumes it, or this process if that one is gone.
    """
    approval = await context.ledger.read(lambda tx: tx.get_approval(approval_id))
    if approval is None:
        raise NotFound(
            f"Approval {approval_id} not found. List pending approvals with `retinue approvals list`."
        )
    approval.record_answer(decision, by=by, at=context.clock.now())
    if decision is Answer.ADD:
        await _grant_added_scope(approval, context)

    to_submit = RunsToSubmit()

    def step(tx: Transaction) -> tuple[Approval, Run | None]:
        to_submit.runs.clear()
        current = tx.get_approval(approval_id) or approval
        answered_approval = current.record_answer(decision, by=by, at=context.clock.now())
        tx.update_approval(answered_approval)
        ended = _abort_on_denial(answered_approval, tx, context, to_submit)
        return answered_approval, ended or _requeue_answered_run(answered_approval, tx, context, is_alive)

    answered_approval, run = await context.ledger.write(step)
    to_submit.submit(context)
    if run is not None and run.status.is_final:
        await close_transcript(run, context)
    elif run is not None and run.owner_id == context.owners.own_id:
        context.worker.submit(run.id, at_front=True)
    return answered_approval


def _abort_on_denial(
    approval: Approval, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit
) -> Run | None:
    run = tx.get_run(approval.run)
    if run is None or approval.answer is not Answer.DENY or run.status is not Status.WAITING:
        return None
    if run.request.entry_point != ABORT_ON_DENIAL_TOOL or approval.access == "scope":
        return None  # denying a request for more scope does not end the child
    tx.emit(make_event("approval.answered", run, context, approval=approval.id, state=str(approval.state)))
    return mark_finished(
        run,
        Status.CANCELLED,
        tx,
        context,
        to_submit,
        reason=Reason.USER_CANCEL,
        error="a person denied an approval",
    )


async def expire_approvals(
    context: RuntimeContext, *, is_alive: Callable[[str], bool], take_over: bool = True
) -> list[Approval]:
    """Expire approvals that nobody answered in time; they count as denied, and their runs continue.

    `take_over`: resume runs of dead processes in this process; otherwise they stay queued.
    """

    def overdue_approvals(tx: Transaction) -> list[Approval]:
        now = context.clock.now()
        return [each for each in tx.find_approvals(state=[ApprovalState.PENDING]) if now >= each.expires_at]

    def step(tx: Transaction) -> list[tuple[Approval, Run | None]]:
        expired: list[tuple[Approval, Run | None]] = []
        for each in overdue_approvals(tx):
            tx.update_approval(each.expire())
            expired.append(
                (
                    each.expire(),
                    _requeue_answered_run(each.expire(), tx, context, is_alive, take_over=take_over),
                )
            )
        return expired

    if not await context.ledger.read(overdue_approvals):
        return []
    expired = await context.ledger.write(step)
    for _, run in expired:
        if run is not None and run.owner_id == context.owners.own_id:
            context.worker.submit(run.id, at_front=True)
    return [approval for approval, _ in expired]


async def wake_overdue_runs(context: RuntimeContext) -> None:
    """Wake runs whose wake time has come.

    A call that waited too long for a child gets a result; a run past its deadline ends. Of the runs that wait
    for a model's server, one asks the server again.
    """

    def overdue_runs(tx: Transaction) -> list[Run]:
        return tx.find_runs(status=[Status.WAITING], due_by=context.clock.now())

    def step(tx: Transaction) -> None:
        to_submit.runs.clear()
        runs = overdue_runs(tx)
        for run in runs:
            if run.waiting_for is not WaitReason.MODEL:
                wake_run(run, tx, context, to_submit)
        probe_servers([run for run in runs if run.waiting_for is WaitReason.MODEL], tx, context, to_submit)

    to_submit = RunsToSubmit()
    if await context.ledger.read(overdue_runs):
        await context.ledger.write(step, lambda _: to_submit.submit(context))


async def runs_woken_elsewhere(context: RuntimeContext) -> list[str]:
    """Return the ids of this process's runs that were requeued by another process."""
    queued = await context.ledger.read(lambda tx: tx.find_runs(status=[Status.QUEUED], started=True))
    return [run.id for run in queued if run.owner_id == context.owners.own_id]


async def detach_run(run_id: str, context: RuntimeContext) -> Run:
    """Move an awaited run to the background, so that the tool call returns now and the result is announced."""
    to_submit = RunsToSubmit()

    def step(tx: Transaction) -> Run:
        to_submit.runs.clear()
        run = tx.get_run(run_id)
        if run is None:
            raise NotFound(f"Run {run_id} not found.")
        if run.status.is_final:
            raise Conflict(f"Run {run_id} has ended ({run.status}).")
        if not run.is_awaited:
            raise Conflict(f"Run {run_id} is already running in the background: no call waits for it.")
        run = replace(run, is_awaited=False)
        tx.update_run(run)
        parent = tx.get_run(run.request.parent_run or "")
        if parent is not None and parent.waiting_for is WaitReason.CHILD and not parent.waits_between_turns:
            wake_run(parent, tx, context, to_submit)
        return run

    return await context.ledger.write(step, lambda _: to_submit.submit(context))


async def answer_waiting_run(
    session: Session,
    text: str | None,
    context: RuntimeContext,
    *,
    model: str | None = None,
    owner: str | None = None,
    entry: str = "",
) -> Run | None:
    """Resume the session's run that waits for a person, with their reply.

    The reply is saved first, as the result of the open question, else as a message with the id `entry` if
    given. Without `text`, the reply is what was typed in the file. The run continues here, or in the process
    named by `owner`. Returns None if no run of the session waits for a person.
    """
    waiting_runs = await context.ledger.read(
        lambda tx: tx.find_runs(status=[Status.WAITING], session=session.id)
    )
    waiting_run = next((run for run in reversed(waiting_runs) if run.waiting_for is WaitReason.PERSON), None)
    if waiting_run is None:
        return None
    await _save_person_reply(waiting_run, session, text, context, entry=entry)

    def step(tx: Transaction) -> Run:
        run = tx.get_run(waiting_run.id) or waiting_run
        if run.status is not Status.WAITING or run.waiting_for is not WaitReason.PERSON:
            return run  # already resumed by another request: that run reads this reply too
        at = context.clock.now()
        requeued = replace(
            overrule_interruption(run.requeue_after_wait(at=at), context.redact(model) if model else None),
            owner_id=owner or context.owners.id_for_new_run(),
        )
        tx.update_run(requeued)
        start_parent_clocks(requeued, tx, at)
        return requeued

    run = await context.ledger.write(step)
    if run.owner_id == context.owners.own_id and run.status is Status.QUEUED:
        context.worker.submit(run.id, at_front=True)
    return run


async def _save_person_reply(
    waiting_run: Run, session: Session, text: str | None, context: RuntimeContext, *, entry: str
) -> None:
    """Save a person's reply to the transcript; one typed into the file is read when the run continues."""
    async with context.store.open(session) as conversation:
        if text is not None:
            attempt = RunAttempt(waiting_run, context)
            reply, question = context.redact(text), open_question(waiting_run, conversation.entries)
            draft = attempt.make_user_message(reply)
            message = replace(draft, id=entry or draft.id)
            await attempt.append_entries(
                conversation, message if question is None else attempt.make_answer_result(question, reply)
            )
        elif not conversation.typed_text().strip() or not waiting_run.waits_between_turns:
            raise UsageError(
                f"Run {waiting_run.id} is waiting for your reply. Give a text, or type it at the end of {waiting_run.transcript_path}."
            )


async def resume_waiting_run(run_id: str, context: RuntimeContext, *, model: str | None = None) -> Run:
    """Resume a run that waits for a model's server or for a person's decision, here or in its live process.

    Args:
        run_id: The run.
        context: The runtime context.
        model: Overrides the run's model.

    Raises:
        Conflict: The run no longer waits.
    """

    def step(tx: Transaction) -> Run:
        run = tx.get_run(run_id)
        if run is None:
            raise NotFound(f"Run {run_id} not found.")
        if run.status is not Status.WAITING:
            raise Conflict(
                f"Run {run_id} is {run.status} and no longer waits, so there is nothing to resume."
            )
        at = context.clock.now()
        requeued = overrule_interruption(
            run.requeue_after_wait(at=at), context.redact(model) if model else None
        )
        if not context.owners.is_alive(requeued.owner_id):
            requeued = replace(requeued, owner_id=context.owners.id_for_new_run())
        tx.update_run(requeued)
        start_parent_clocks(requeued, tx, at)
        return requeued

    run = await context.ledger.write(step)
    if run.owner_id == context.owners.own_id:
        context.worker.submit(run.id, at_front=True)
    return run


async def cancel_abandoned_children(ended: Run, context: RuntimeContext) -> None:
    """Cancel the children that a failed or cancelled run was still waiting for."""
    if ended.status is Status.DONE:
        return
    children = await context.ledger.read(
        lambda tx: tx.find_runs(parent_run=ended.id, awaited=True, status=LIVE_STATUSES)
    )
    for child in children:
        await cancel_run(child.id, context, is_alive=context.owners.is_alive, reason=Reason.DESERTED)


async def close_abandoned_run(run: Run, context: RuntimeContext) -> None:
    """Close the transcript of a run that will not be resumed, and cancel the children it waits for."""
    await close_transcript(run, context)
    await cancel_abandoned_children(run, context)


def _requeue_answered_run(
    approval: Approval,
    tx: Transaction,
    context: RuntimeContext,
    is_alive: Callable[[str], bool],
    *,
    take_over: bool = True,
) -> Run | None:
    """Queue the run of an answered approval again; None if it does not wait for an approval any more."""
    run = tx.get_run(approval.run)
    if run is None:
        return None
    tx.emit(make_event("approval.answered", run, context, approval=approval.id, state=str(approval.state)))
    if run.status is not Status.WAITING or run.waiting_for is not WaitReason.APPROVAL:
        return None
    at = context.clock.now()
    requeued = run.requeue_after_wait(at=at)
    if take_over and not is_alive(requeued.owner_id):
        requeued = replace(requeued, owner_id=context.owners.id_for_new_run())
    tx.update_run(requeued)
    start_parent_clocks(requeued, tx, at)
    return requeued


async def _grant_added_scope(approval: Approval, context: RuntimeContext) -> None:
    """Add the approved pattern to the session's own preset.md, even beyond the ceilings of its parents."""
    session = await context.store.find(approval.session)
    tool = context.tools.get(approval.tool)
    access = tool.access if tool is not None else "read"
    pattern = escape_glob(approval.resource)
    patterns = (*await _implicit_write_patterns(session, access, context), pattern)
    await context.store.grant_pattern(session, access, pattern)
    if access in ("read", "write"):
        existing: tuple[str, ...] = getattr(session.user_grants, access) or ()
        added = tuple(each for each in patterns if each not in existing)
        if added:
            await context.store.update(
                session, user_grants=replace(session.user_grants, **{access: (*existing, *added)})
            )


async def _implicit_write_patterns(session: Session, access: str, context: RuntimeContext) -> tuple[str, ...]:
    """Return the workspace pattern that must be listed along with the first added write pattern.

    A definition without a write list allows writes to the workspace after approval. A list with only the added
    file would remove that right.
    """
    preset, _ = await context.store.read_preset(session)
    lists_writes = preset.paths is not None and preset.paths.write is not None
    return (
        (subtree_pattern(session.workspace.root),)
        if access == "write" and session.is_top_level and not lists_writes
        else ()
    )
