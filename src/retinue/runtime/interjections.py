"""Interjections of watchers: stored in the inbox for a person; the severest kind interrupts the watched run."""

from msgspec import Struct

from retinue.domain.event import Event, EventKind
from retinue.domain.run import CANCEL_REASONS, LIVE_STATUSES, Reason, Run
from retinue.domain.watch import Interjection, Severity, Watch
from retinue.errors import NotFound, Refused
from retinue.interfaces import Call, RuntimeContext, Transaction
from retinue.runtime.interrupts import interrupt_run
from retinue.runtime.session_scope import load_definition

MAX_INTERJECTIONS_PER_RUN = 3
"""Limit per run of a watcher, as more would not be read."""
MAX_TEXT_CHARS = 4_000
"""Maximum length of a reason, and of a suggestion."""


class InterjectionText(Struct, frozen=True, kw_only=True):
    severity: Severity
    reason: str
    suggestion: str = ""


async def post_interjection(text: InterjectionText, call: Call, context: RuntimeContext) -> Interjection:
    """Record an interjection, and interrupt the watched run if its severity is `interrupt`.

    A repeated call records it only once, even after a crash. A run that it interrupts ends like one that a
    person interrupts.
    """
    agent = await load_definition(call.session, context)
    can_interrupt = agent.interrupts

    def step(tx: Transaction) -> Interjection:
        if existing := tx.find_interjections(call=call.id):
            return existing[0]
        watch = next(iter(tx.find_watches(watcher=call.session.id, on=True)), None)
        if watch is None:
            raise Refused("This session does not watch another session any more. Finish your run.")
        if len(tx.find_interjections(run=call.run.id)) >= MAX_INTERJECTIONS_PER_RUN:
            raise Refused(
                f"The limit of {MAX_INTERJECTIONS_PER_RUN} interjections per update is reached. Finish your run."
            )
        interjection = _make_interjection(
            text,
            watch,
            call,
            context,
            can_interrupt=can_interrupt,
            interrupted_run=_run_to_interrupt(watch, call, tx) if can_interrupt else "",
        )
        tx.save_interjection(interjection)
        tx.emit(_make_interjection_event("interjection.posted", interjection, context, watch.name))
        return interjection

    interjection = await context.ledger.write(step)
    if interjection.interrupts:
        await interrupt_run(interjection.interrupts, context)
    return interjection


async def dismiss_interjection(ref: str, context: RuntimeContext, *, by: str) -> Interjection:
    """Mark an interjection as read or dismissed."""

    def step(tx: Transaction) -> Interjection:
        if (interjection := find_interjection(ref, tx)) is None:
            raise NotFound(f"Interjection {ref} not found. List them with `retinue inbox`.")
        if not interjection.open:
            return interjection
        dismissed = interjection.dismiss(by, at=context.clock.now())
        tx.save_interjection(dismissed)
        tx.emit(_make_interjection_event("interjection.dismissed", dismissed, context, dismissed.agent))
        return dismissed

    return await context.ledger.write(step)


def find_interjection(ref: str, tx: Transaction) -> Interjection | None:
    """Return the interjection with this id or unambiguous prefix, if there is one."""
    found = tx.find_interjections(prefix=ref, limit=2) if ref else []
    return found[0] if len(found) == 1 else None


def find_interrupting_comment(run: Run, tx: Transaction) -> Interjection | None:
    """Return the comment with which a watcher interrupted the run or one of its ancestors."""
    current: Run | None = run
    while current is not None:
        for each in reversed(tx.find_interjections(session=current.session_id)):
            if each.interrupts == current.id:
                return each
        parent = current.request.parent_run
        current = tx.get_run(parent) if parent else None
    return None


def _make_interjection(
    text: InterjectionText,
    watch: Watch,
    call: Call,
    context: RuntimeContext,
    *,
    can_interrupt: bool,
    interrupted_run: str,
) -> Interjection:
    """Build the interjection; a watcher that may not interrupt warns instead."""
    severity = text.severity
    if severity is Severity.INTERRUPT and not can_interrupt:
        severity = Severity.WARNING
    return Interjection(
        id=context.clock.new_entry_id(),
        call=call.id,
        run=call.run.id,
        watch=watch.id,
        session=watch.session,
        slug=watch.slug,
        watcher=watch.watcher,
        agent=watch.agent,
        severity=severity,
        reason=context.redact(text.reason)[:MAX_TEXT_CHARS],
        suggestion=context.redact(text.suggestion)[:MAX_TEXT_CHARS],
        interrupts=interrupted_run if severity is Severity.INTERRUPT else "",
        created_at=context.clock.now(),
    )


def _run_to_interrupt(watch: Watch, call: Call, tx: Transaction) -> str:
    """Return the id of the live run that the watcher saw, or an empty string; runs started later do not count."""
    for run in reversed(tx.find_runs(session=watch.session, status=LIVE_STATUSES)):
        if run.waits_between_turns or run.reason in (*CANCEL_REASONS, Reason.INTERRUPTED):
            continue
        if run.created_at <= call.run.created_at:
            return run.id
    return ""


def _make_interjection_event(
    kind: EventKind, interjection: Interjection, context: RuntimeContext, name: str
) -> Event:
    return Event(
        kind=kind,
        at=context.clock.now(),
        session=interjection.session,
        agent=interjection.agent,
        data={
            "interjection": interjection.id,
            "severity": str(interjection.severity),
            "reason": interjection.reason,
            "suggestion": interjection.suggestion,
            "interrupts": interjection.interrupts,
            "watcher": interjection.watcher,
            "name": name,
            "by": interjection.dismissed_by or interjection.run,
        },
    )
