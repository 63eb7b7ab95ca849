"""Write the results of children that a person started to the transcript of their parent while no run of it is live."""

from contextlib import AsyncExitStack, suppress
from functools import partial

from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.event import Event
from retinue.domain.run import LIVE_STATUSES
from retinue.domain.session import Session
from retinue.domain.timestamps import iso_timestamp_seconds
from retinue.domain.transcript import Notice
from retinue.errors import RetinueError
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.open_conversation import enter_with_retry
from retinue.runtime.run_end import mark_delivered


async def write_idle_announcements(context: RuntimeContext, *, session: str | None = None) -> None:
    """Write pending results that a person requested to the transcript of their session. No model is asked.

    A live run of the session reads them itself, and unsent text in its file is left alone; then, and if the file cannot
    be written now, a later call writes them. Each result is written once: its entry has the id of its delivery, so a
    repetition after a crash adds nothing.

    Args:
        context: The runtime context.
        session: Only results for this session; None for all.
    """
    pending = await context.ledger.read(partial(_idle_deliveries, session))
    for session_id in dict.fromkeys(each.session for each in pending):
        with suppress(RetinueError):
            await _write_to_session(await context.store.find(session_id), context)


async def _write_to_session(session: Session, context: RuntimeContext) -> None:
    manager, conversation = await enter_with_retry(session, context)
    async with AsyncExitStack() as stack:
        stack.push_async_exit(manager)
        # Read again under the lock: another process may have written them meanwhile.
        pending = await context.ledger.read(partial(_idle_deliveries, session.id))
        if not pending or conversation.typed_text().strip():
            return
        at = context.clock.now()
        written_at = iso_timestamp_seconds(at)
        await conversation.append(
            *(Notice(id=each.id, topic="announcement", text=each.text, at=written_at) for each in pending)
        )
        await conversation.write_idle_prompt()
        await mark_delivered(pending, context)
    context.events.emit(
        Event(kind="session.changed", at=at, session=session.id, agent=session.agent, data={"change": "file"})
    )


def _idle_deliveries(session: str | None, tx: Transaction) -> list[Delivery]:
    """Return undelivered results that a person requested, for sessions without a live run."""
    pending = tx.find_deliveries(requester_run="", state=[DeliveryState.PENDING], answers_call=False)
    found = [each for each in pending if session in (None, each.session)]
    return [each for each in found if not tx.find_runs(session=each.session, status=LIVE_STATUSES, limit=1)]
