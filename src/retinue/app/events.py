"""Durable events, from all processes."""

from retinue.app.home_access import HomeAccess
from retinue.domain.event import Event


class EventService:
    """Queries about durable events."""

    def __init__(self, home: HomeAccess) -> None:
        self._home = home

    async def list(self, *, after: int, limit: int) -> list[Event]:
        """Return durable events after a sequence number, oldest first, from all processes."""
        return await self._home.ledger.read(lambda tx: tx.find_events(after=after, limit=limit))

    async def pruned_through(self) -> int:
        """Return the number up to which events may have been pruned, or 0."""
        return await self._home.ledger.read(lambda tx: tx.events_pruned_through())

    async def last_seq(self) -> int:
        """Return the sequence number of the newest durable event, or 0."""
        return await self._home.ledger.read(lambda tx: tx.last_seq())
