"""Lineage: in which conversations an event is heard, so that who looks at one hears of everything below it."""

from collections.abc import Awaitable, Callable, Sequence

from retinue.domain.event import Event

MOST = 4096
"""Runs that are remembered: who was forgotten is asked for again."""


class Lineage:
    """Of each run, its own session and those of the runs that asked for it."""

    def __init__(self, look: Callable[[str], Awaitable[Sequence[str]]]) -> None:
        self._look = look
        self._known: dict[str, Sequence[str]] = {}

    async def of(self, event: Event) -> Sequence[str]:
        """The ledger is asked once for a run, and not at all for one whose parent is known."""
        if not event.run:
            return (event.session,)
        if (found := self._known.get(event.run)) is None:
            if len(self._known) >= MOST:
                self._known.clear()
            found = self._known[event.run] = await self._found(event)
        return found

    async def _found(self, event: Event) -> Sequence[str]:
        if not event.parent_run:
            return (event.session,)
        if (above := self._known.get(event.parent_run)) is None:
            above = await self._look(event.parent_run)
            self._known[event.parent_run] = above
        return (event.session, *above)
