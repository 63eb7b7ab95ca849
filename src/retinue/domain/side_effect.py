"""A deed: one execution of a tool that must not happen twice, as the ledger knows it."""

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from retinue.domain.change import replace
from retinue.domain.run import iso
from retinue.domain.value import value

MAX_KEPT = 8_000
"""Of a result's text: what the ledger keeps in case the process dies before the file has it."""


class Progress(StrEnum):
    STARTED = "started"
    ENDED = "ended"
    UNKNOWN = "unknown"
    """The process died in between: it may or may not have happened, and it was not done again."""


@value
class Deed:
    call: str
    """The call's entry: one deed for each."""
    run: str
    tool: str
    digest: str
    """Of the arguments."""
    progress: Progress = Progress.STARTED
    ok: bool = False
    text: str = ""
    note: str = ""
    """What the tool wrote down before it acted, to know afterwards whether it had."""
    started_at: datetime
    ended_at: datetime | None = None

    def ended(self, *, ok: bool, text: str, at: datetime) -> Self:
        return replace(self, progress=Progress.ENDED, ok=ok, text=kept(text), ended_at=at)

    def lost(self) -> Self:
        return replace(self, progress=Progress.UNKNOWN)


def kept(text: str) -> str:
    if len(text) <= MAX_KEPT:
        return text
    half = MAX_KEPT // 2
    return f"{text[:half]}\n[… the middle was not kept: the process died before the whole was written …]\n{text[-half:]}"


def digest(tool: str, args: str) -> str:
    return hashlib.sha256(f"{tool}\0{args}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def as_json(deed: Deed) -> dict[str, Any]:
    """An item of `effects` in `runs show --json`."""
    return {
        "call": deed.call,
        "tool": deed.tool,
        "arguments_hash": deed.digest,
        "state": str(deed.progress),
        "ok": deed.ok if deed.progress is Progress.ENDED else None,
        "started_at": iso(deed.started_at),
        "ended_at": iso(deed.ended_at),
    }
