"""The sessions an event belongs to: that of its run and those of all ancestors."""

from collections.abc import Awaitable, Callable, Sequence

from retinue.domain.event import Event

MAX_CACHED_RUNS = 4096
"""Number of runs whose ancestry is cached; others are loaded again."""


class SessionAncestry:
    """The session of each run and those of its ancestor runs, cached."""

    def __init__(self, load_ancestors: Callable[[str], Awaitable[Sequence[str]]]) -> None:
        self._load_ancestors = load_ancestors
        self._cache: dict[str, Sequence[str]] = {}

    async def sessions_for(self, event: Event) -> Sequence[str]:
        """Return the ids of the sessions in which an event is visible.

        The ledger is read once per run, and not at all if the parent's ancestry is cached.
        """
        if not event.run:
            return (event.session,)
        if (sessions := self._cache.get(event.run)) is None:
            if len(self._cache) >= MAX_CACHED_RUNS:
                self._cache.clear()
            sessions = self._cache[event.run] = await self._find_sessions(event)
        return sessions

    async def _find_sessions(self, event: Event) -> Sequence[str]:
        if not event.parent_run:
            return (event.session,)
        if (ancestors := self._cache.get(event.parent_run)) is None:
            ancestors = await self._load_ancestors(event.parent_run)
            self._cache[event.parent_run] = ancestors
        return (event.session, *ancestors)
