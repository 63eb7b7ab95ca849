"""The inbox: status and results of delegated tasks, and what a person can do with them."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from retinue.app.agent_display_names import display_names_by_run
from retinue.app.context import AppContext
from retinue.app.references import find_session
from retinue.domain.delivery import (
    Delivery,
    DeliveryState,
    delimited_block,
    escape_role_markers,
    failure_summary,
    run_inbox_row,
)
from retinue.domain.event import Event
from retinue.domain.run import LIVE_STATUSES, Run, Status
from retinue.domain.session import Session
from retinue.domain.timestamps import iso_timestamp_seconds
from retinue.domain.transcript import Message
from retinue.domain.watch import Interjection, interjection_inbox_row, interjection_text
from retinue.errors import Conflict, NotFound, UsageError
from retinue.interfaces import Transaction
from retinue.runtime.child_report import format_report, make_nonce
from retinue.runtime.inbox import RunDelivery, pair_with_runs, pending_inbox_rows
from retinue.runtime.interjections import dismiss_interjection, find_interjection
from retinue.runtime.run_end import mark_delivered

PERSON = "person"
RECENT_LIMIT = 50
"""Number of delivered results listed besides the new ones."""
PROMOTED_SUFFIX = "-passed"
"""Suffix of the entry id when a person promotes a result that was announced before."""
RESULT_INTRO = "The user forwarded this result from {agent}:"
INTERJECTION_INTRO = "The user forwarded this comment from the watcher {agent}:"
RESULT_FIELDS = {"kind": "result", "severity": None, "reason": None, "suggestion": None, "interrupts": None}
"""Fields that only interjections fill."""

InboxRow = dict[str, Any]


class InboxService:
    """Results of delegated runs, as a person sees them."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def unread_count(self) -> int:
        """Return the number of undelivered results and open interjections."""

        def step(tx: Transaction) -> int:
            results = tx.find_deliveries(state=[DeliveryState.PENDING], answers_call=False)
            return len(results) + len(tx.find_interjections(open_=True))

        return await self._context.ledger.read(step)

    async def dismiss(self, ref: str, *, by: str = PERSON) -> InboxRow:
        """Dismiss a watcher's interjection and return its row."""
        interjection = await dismiss_interjection(ref, self._context.runtime, by=by)
        row = await self._context.ledger.read(
            lambda tx: interjection_inbox_row(interjection, tx.get_run(interjection.run))
        )
        return (await self._add_display_names([row]))[0]

    async def drain(self, session: str | None = None) -> list[InboxRow]:
        """Mark results as read by a person, so that they are no longer announced to a model, and return them.

        Results that an open tool call waits for are left alone.
        """
        session_id = await self._session_id(session)
        pending = await self._context.ledger.read(
            lambda tx: tx.find_deliveries(
                session=session_id, state=[DeliveryState.PENDING], answers_call=False
            )
        )
        await mark_delivered(pending, self._context.runtime, receiver=PERSON)

        def step(tx: Transaction) -> list[InboxRow]:
            current = [tx.get_delivery(each.id) or each for each in pending]
            return [
                _result_row(row, tx)
                for row in pair_with_runs([each for each in current if each.taken_by == PERSON], tx)
            ]

        interjections = await self._context.ledger.read(
            lambda tx: tx.find_interjections(session=session_id, open_=True)
        )
        return [
            *await self._add_display_names(await self._context.ledger.read(step)),
            *[await self.dismiss(each.id) for each in interjections],
        ]

    async def promote(self, ref: str) -> InboxRow:
        """Add a result or an interjection to its conversation as a message from a person.

        The message names its author. Nothing is written if it is there already.

        Args:
            ref: The id of a row or its run, or an unambiguous prefix of that.

        Returns:
            The row, with the entry's id and whether it already existed.

        Raises:
            NotFound: There is no such result.
            Conflict: The run has no result, the session is busy, or its file has unsent text.
        """
        context = self._context
        if interjection := await context.ledger.read(lambda tx: find_interjection(ref, tx)):
            return await self._promote_interjection(interjection)
        delivery, run = await context.ledger.read(lambda tx: _find_promotable(ref, tx))
        session = await context.store.find(delivery.session)
        is_pending = delivery.state is DeliveryState.PENDING and not delivery.answers_call
        message = Message(
            id=delivery.id if is_pending else f"{delivery.id}{PROMOTED_SUFFIX}",
            role="user",
            text=f"{RESULT_INTRO.format(agent=run.agent)}\n{format_report(run, run.text, context.runtime)}",
            at=iso_timestamp_seconds(context.clock.now()),
            origin=f"agent:{run.agent}",
        )
        existing_entry = await self._append_once(message, session, source_id=delivery.id)
        if is_pending:
            await mark_delivered([delivery], context.runtime, receiver=message.id)
        self._emit_file_changed(session)
        outcome = {"entry": existing_entry or message.id, "already_promoted": existing_entry is not None}
        row = await context.ledger.read(
            lambda tx: _result_row(RunDelivery(run, tx.get_delivery(delivery.id)), tx)
        )
        return (await self._add_display_names([row]))[0] | outcome

    async def _append_once(self, message: Message, session: Session, *, source_id: str) -> str | None:
        """Append a message unless it is already there; return the id of the existing entry, if any."""
        async with self._context.store.open(session) as conversation:
            if conversation.typed_text().strip():
                raise Conflict(f"Unsent text at the end of {session.path}/session.md. Send it first.")
            existing_entry = await self._find_promoted_entry(source_id, session)
            if existing_entry is None:
                await conversation.append(message)
                await conversation.write_idle_prompt()
        return existing_entry

    async def _promote_interjection(self, interjection: Interjection) -> InboxRow:
        context = self._context
        session = await context.store.find(interjection.session)
        message = Message(
            id=interjection.id,
            role="user",
            text=f"{INTERJECTION_INTRO.format(agent=interjection.agent)}\n{delimited_block(escape_role_markers(interjection_text(interjection)), make_nonce(context.runtime))}",
            at=iso_timestamp_seconds(context.clock.now()),
            origin=f"agent:{interjection.agent}",
        )
        existing_entry = await self._append_once(message, session, source_id=interjection.id)
        dismissed = await self.dismiss(interjection.id)
        self._emit_file_changed(session)
        return dismissed | {"entry": message.id, "already_promoted": existing_entry is not None}

    def _emit_file_changed(self, session: Session) -> None:
        """Emit a live event, so that open views reload the conversation."""
        at, data = self._context.clock.now(), {"change": "file"}
        self._context.runtime.events.emit(
            Event(kind="session.changed", at=at, session=session.id, agent=session.agent, data=data)
        )

    async def _find_promoted_entry(self, source_id: str, session: Session) -> str | None:
        """Return the id of the entry with which a person promoted this before.

        The file decides, however long it is: an entry that was removed from it may be promoted again.
        """
        ids = (source_id, f"{source_id}{PROMOTED_SUFFIX}")
        async for chunk in self._context.store.iter_entries(session):
            for entry in chunk:
                if isinstance(entry, Message) and entry.id in ids:
                    return entry.id
        return None

    async def _add_display_names(self, rows: Sequence[InboxRow]) -> "list[InboxRow]":
        display_names = await display_names_by_run(
            {row["runId"]: row["agentId"] for row in rows}, self._context
        )
        return [row | {"agentDisplayName": display_names[row["runId"]]} for row in rows]

    async def _session_id(self, session: str | None) -> str | None:
        return None if session is None else (await find_session(session, self._context)).id

    # Last, because further down in this class `list` would no longer be the type.
    async def list(self, session: str | None = None, *, recent: int = RECENT_LIMIT) -> list[InboxRow]:
        """Return live delegated runs, undelivered results and some delivered ones, newest first.

        Args:
            session: Only rows for this session; None for all.
            recent: How many delivered results to include.
        """
        session_id = await self._session_id(session)

        def step(tx: Transaction) -> list[InboxRow]:
            delivered = [
                each
                for each in tx.find_deliveries(session=session_id)
                if each.state is not DeliveryState.PENDING
            ]
            run_rows = [
                *_open_rows(session_id, tx),
                *pair_with_runs(delivered[max(0, len(delivered) - recent) :], tx),
            ]
            keyed_rows = [(row.run.id, _result_row(row, tx)) for row in run_rows]
            interjections = {
                each.id: each for each in tx.find_interjections(session=session_id, limit=recent)
            }
            interjections |= {each.id: each for each in tx.find_interjections(session=session_id, open_=True)}
            keyed_rows += [
                (interjection_id, interjection_inbox_row(each, tx.get_run(each.run)))
                for interjection_id, each in interjections.items()
            ]
            return [row for _, row in sorted(keyed_rows, key=itemgetter(0), reverse=True)]

        return await self._add_display_names(await self._context.ledger.read(step))


def _open_rows(session: str | None, tx: Transaction) -> list[RunDelivery]:
    if session is not None:
        return pending_inbox_rows(session, tx)
    live = [run for run in tx.find_runs(status=LIVE_STATUSES) if run.request.parent_run is not None]
    return [
        *(RunDelivery(run, None) for run in live),
        *pair_with_runs(tx.find_deliveries(state=[DeliveryState.PENDING]), tx),
    ]


def _result_row(row: RunDelivery, tx: Transaction) -> InboxRow:
    """Return the JSON row, including which conversation receives the result."""
    requester = tx.get_run(row.run.request.parent_run or "")
    slug = requester.slug if requester is not None else _receiving_slug(row.delivery, tx)
    return run_inbox_row(*row) | {"recipient": slug} | RESULT_FIELDS


def _receiving_slug(delivery: Delivery | None, tx: Transaction) -> str | None:
    """Return the slug of the session that receives a result a person requested there."""
    runs = tx.find_runs(session=delivery.session, limit=1) if delivery is not None else []
    return runs[0].slug if runs else None


def _find_promotable(ref: str, tx: Transaction) -> tuple[Delivery, Run]:
    """Return the delivery and run to promote; fails while its session is busy."""
    if not ref:
        raise UsageError("The result is missing. List the results with `retinue inbox`.")
    delivery_by_id = tx.get_delivery(ref)
    found = tx.find_runs(prefix=delivery_by_id.run if delivery_by_id else ref, limit=2)
    if len(found) > 1:
        raise UsageError(f"{ref} matches several runs: {', '.join(run.id for run in found)} …")
    run_deliveries = tx.find_deliveries(run=found[0].id) if found else []
    if not run_deliveries:
        raise NotFound(f"Result {ref} not found. List the results with `retinue inbox`.")
    run, delivery = found[0], run_deliveries[0]
    if run.status is not Status.DONE:
        raise Conflict(f"{run.slug} has no result: {failure_summary(run)}")
    if any(
        not each.waits_between_turns for each in tx.find_runs(session=delivery.session, status=LIVE_STATUSES)
    ):
        raise Conflict(
            f"The parent conversation of {run.slug} is busy. Try again when its run has ended (see `retinue runs list`)."
        )
    return delivery, run
