"""Ids of tool calls on the wire: the server's own for calls that it issued, else short ones that any server accepts."""

from collections.abc import Iterable

from retinue.domain.transcript import ToolCall
from retinue.providers.reply_data import short_call_id, vendor_call_id
from retinue.providers.request_changes import CALL_IDS
from retinue.providers.wire_format import RequestTarget


class CallIds:
    """The ids of one exchange's calls, each used once."""

    def __init__(self, calls: Iterable[ToolCall], target: RequestTarget) -> None:
        self._ids: dict[str, str] = {}
        used: set[str] = set()
        for call in calls:
            own_id = vendor_call_id(call.vendor_id, target.server)
            if not own_id or own_id in used or target.changes.treatment_of(CALL_IDS):
                own_id = short_call_id(call.id)
            used.add(own_id)
            self._ids[call.id] = own_id

    def __getitem__(self, call: ToolCall) -> str:
        return self._ids[call.id]
