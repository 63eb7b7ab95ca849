"""A cache of encoded session rows, so that long session lists are not encoded anew."""

import asyncio
from collections.abc import Sequence

from retinue.agents.registry import DisplayNameFinder
from retinue.app.session_status import IDLE, SessionStatus
from retinue.domain.session import Session, session_as_json
from retinue.server.json_encoding import encode_json

ROWS_BEFORE_YIELD = 500
"""Number of rows encoded before the event loop gets a turn."""


class SessionRowCache:
    """Encoded session rows, by session id.

    An unchanged session is the same object, so that identity shows whether a row is current.
    """

    def __init__(self) -> None:
        self._cache: dict[str, tuple[Session, bytes]] = {}
        self._longest_list = 0
        """Length of the longest list so far."""

    async def encode_list(
        self,
        sessions: Sequence[tuple[Session, SessionStatus]],
        display_names: DisplayNameFinder,
    ) -> bytes:
        """Encode sessions, their status and their agents' display names as a JSON array."""
        pieces: list[bytes] = []
        encoded_count = 0
        for session, status in sessions:
            cached = self._cache.get(session.id)
            if cached is None or cached[0] is not session:
                cached = self._cache[session.id] = (session, encode_json(session_as_json(session))[:-1])
                encoded_count += 1
                if encoded_count % ROWS_BEFORE_YIELD == 0:
                    await asyncio.sleep(0)
            status_fields = _IDLE_STATUS if status is IDLE else _encode_status(status)
            name = display_names.find(session.agent, session.workspace.intended_folder)
            name_field = (
                _NO_DISPLAY_NAME if name is None else b',"agent_display_name":' + encode_json(name) + b"}"
            )
            pieces.append(cached[1] + status_fields + name_field)
        self._longest_list = max(self._longest_list, len(sessions))
        if len(self._cache) > 2 * self._longest_list + ROWS_BEFORE_YIELD:
            self._cache.clear()  # most cached sessions no longer exist
        return b"[" + b",".join(pieces) + b"]"


def _encode_status(status: SessionStatus) -> bytes:
    return b"," + encode_json(status.as_json())[1:-1]


_NO_DISPLAY_NAME = b',"agent_display_name":null}'
_IDLE_STATUS = _encode_status(IDLE)
