"""Rows of the list of sessions, each encoded once: ten thousand of them are sent without being made anew."""

import asyncio
from collections.abc import Sequence

from retinue.app.session_status import IDLE, Standing
from retinue.domain.session import Session, as_json
from retinue.server.json_encoding import encoded

AT_ONCE = 500
"""Rows that are made before others get their turn."""


class Rows:
    """What a session is called by stays the same value as long as nothing in it changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Session, bytes]] = {}
        self._most = 0
        """How long the longest list was."""

    async def array(self, found: Sequence[tuple[Session, Standing]]) -> bytes:
        """A JSON array."""
        pieces: list[bytes] = []
        fresh = 0
        for session, stands in found:
            known = self._known.get(session.id)
            if known is None or known[0] is not session:
                known = self._known[session.id] = (session, encoded(as_json(session))[:-1])
                fresh += 1
                if fresh % AT_ONCE == 0:
                    await asyncio.sleep(0)
            pieces.append(known[1] + (_IDLE if stands is IDLE else _rest(stands)))
        self._most = max(self._most, len(found))
        if len(self._known) > 2 * self._most + AT_ONCE:
            self._known.clear()  # most of them are gone
        return b"[" + b",".join(pieces) + b"]"


def _rest(stands: Standing) -> bytes:
    return b"," + encoded(stands.as_json())[1:]


_IDLE = _rest(IDLE)
