"""Emit the durable event for a changed session."""

from contextlib import suppress

from retinue.domain.clock import Clock
from retinue.domain.event import Event
from retinue.domain.session import Session
from retinue.errors import RetinueError
from retinue.interfaces import Ledger


async def emit_session_changed(session: Session, changes: str, ledger: Ledger, clock: Clock) -> Session:
    """Emit `session.changed` for a session whose change is already on disk, and return the session.

    If the ledger cannot be written, only the event is lost.
    """
    event = Event(
        kind="session.changed",
        at=clock.now(),
        session=session.id,
        agent=session.agent,
        data={"change": changes},
    )
    with suppress(RetinueError):
        await ledger.write(lambda tx: tx.emit(event))
    return session
