"""Side effects: tool executions that must not happen twice, as stored in the ledger."""

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.timestamps import iso_timestamp

MAX_STORED_RESULT_CHARS = 8_000
"""Maximum length of a result in the ledger, which is used if the process dies before it is in the transcript."""


class SideEffectState(StrEnum):
    STARTED = "started"
    ENDED = "ended"
    UNKNOWN = "unknown"
    """The process died during the call: it may or may not have happened, and was not repeated."""


class SideEffect(Struct, frozen=True, kw_only=True):
    call: str
    """Id of the call's transcript entry, unique among side effects."""
    run: str
    tool: str
    digest: str
    """Hash of the tool and its arguments."""
    progress: SideEffectState = SideEffectState.STARTED
    ok: bool = False
    text: str = ""
    note: str = ""
    """The intent the tool recorded before it acted, to find out later whether it did."""
    started_at: datetime
    ended_at: datetime | None = None

    def finish(self, *, ok: bool, text: str, at: datetime) -> Self:
        return replace(self, progress=SideEffectState.ENDED, ok=ok, text=shorten_result(text), ended_at=at)

    def mark_unknown(self) -> Self:
        return replace(self, progress=SideEffectState.UNKNOWN)


def shorten_result(text: str) -> str:
    if len(text) <= MAX_STORED_RESULT_CHARS:
        return text
    half = MAX_STORED_RESULT_CHARS // 2
    return f"{text[:half]}\n[… the middle was not stored: the process ended before the full result was saved …]\n{text[-half:]}"


def tool_call_hash(tool: str, arguments: str) -> str:
    return hashlib.sha256(f"{tool}\0{arguments}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def side_effect_as_json(side_effect: SideEffect) -> dict[str, Any]:
    """Return an item of `effects` in `runs show --json`."""
    return {
        "call": side_effect.call,
        "tool": side_effect.tool,
        "arguments_hash": side_effect.digest,
        "state": str(side_effect.progress),
        "ok": side_effect.ok if side_effect.progress is SideEffectState.ENDED else None,
        "started_at": iso_timestamp(side_effect.started_at),
        "ended_at": iso_timestamp(side_effect.ended_at),
    }
