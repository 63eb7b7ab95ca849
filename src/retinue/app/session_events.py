"""A change to a session, told: every process hears of it, and so does whoever comes later."""

from contextlib import suppress

from retinue.domain.clock import Chance
from retinue.domain.event import Event
from retinue.domain.session import Session
from retinue.errors import RetinueError
from retinue.interfaces import Ledger


async def told(session: Session, what: str, ledger: Ledger, chance: Chance) -> Session:
    """It is so on disk by now: a ledger that cannot be written costs the telling, and nothing else."""
    event = Event(
        kind="session.changed",
        at=chance.now(),
        session=session.id,
        agent=session.agent,
        data={"what": what},
    )
    with suppress(RetinueError):
        await ledger.do(lambda tx: tx.emit(event))
    return session
