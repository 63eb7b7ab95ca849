"""A transcript: the entries of a conversation, in order, as they stand in the file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from retinue.domain.change import replace
from retinue.domain.run import Usage
from retinue.domain.value import value


@value
class Said:
    """Words of a person, of another agent, or of the model itself."""

    id: str
    by: Literal["user", "agent"]
    text: str
    at: str = ""
    """ISO 8601, UTC, seconds."""
    origin: str = ""
    """Whose words a user entry holds: empty for a person, else `agent:<name>` or a session's key."""
    run: str = ""
    model: str = ""
    usage: Usage = Usage()
    stop: str = ""
    """Set when the reply did not end in the ordinary way: `length`, `refused`, `cancelled`."""
    calls: int = 0
    """How many calls belong to this reply: fewer at the very end of a file is a torn tail."""
    thoughts: tuple[str, ...] = ()
    """Blocks the provider wants back unchanged, each a JSON text; kept in a sidecar, never shown."""


@value
class Called:
    """The model wishes a tool to run. The id is minted here, never taken from a provider."""

    id: str
    tool: str
    args: str
    """The arguments' JSON text, as the model wrote it."""
    at: str = ""
    run: str = ""
    broken: str = ""
    """Why this call must never run: its arguments were cut or are no JSON."""


@value
class Returned:
    """What came of a call, as the model is told it."""

    of: str
    text: str
    ok: bool = True
    ms: int = 0
    at: str = ""
    run: str = ""

    @property
    def id(self) -> str:
        return self.of


@value
class Notice:
    """Something the runtime says to the model: never a person's words, never the model's."""

    id: str
    kind: str
    text: str
    at: str = ""
    run: str = ""


Entry = Said | Called | Returned | Notice

KINDS: Mapping[type[Entry], str] = {Said: "said", Called: "called", Returned: "returned", Notice: "notice"}
OF_RESULT = ":result"
"""What the name of a result ends with: a result bears its call's id, and a name is one entry's alone."""


def distinct(entries: Sequence[Entry]) -> list[Entry]:
    """Entries a person copied keep their words and lose the ids they share: each call is its own, and each result
    belongs to the call before it."""
    times: dict[str, int] = {}
    latest: dict[str, str] = {}
    found: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Called):
            times[entry.id] = times.get(entry.id, 0) + 1
            mine = entry.id if times[entry.id] == 1 else f"{entry.id}-{times[entry.id]}"
            latest[entry.id] = mine
            found.append(replace(entry, id=mine))
        elif isinstance(entry, Returned):
            found.append(replace(entry, of=latest.get(entry.of, entry.of)))
        else:
            found.append(entry)
    return found


def dangling(entries: Sequence[Entry]) -> tuple[Called, ...]:
    """Calls without a result. No request may be made while there are any."""
    answered = {entry.of for entry in entries if isinstance(entry, Returned)}
    return tuple(entry for entry in entries if isinstance(entry, Called) and entry.id not in answered)


def name_of(entry: Entry) -> str:
    """What programs call one entry of a conversation."""
    return f"{entry.of}{OF_RESULT}" if isinstance(entry, Returned) else entry.id


def as_json(entry: Entry) -> dict[str, Any]:
    """An entry with its kind, and of a notice what it is about; what a provider wants back is not a reader's business."""
    facts = asdict(entry) | {"id": name_of(entry)}
    facts.pop("thoughts", None)
    if isinstance(entry, Notice):
        facts["about"] = facts.pop("kind")
    return {"kind": KINDS[type(entry)], **facts}


def snippet(entries: Iterable[Entry], limit: int = 120) -> str:
    """The start of the last words, on one line, for lists."""
    last = ""
    for entry in entries:
        if isinstance(entry, Said) and entry.text.strip():
            last = entry.text
    flat = " ".join(last.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
