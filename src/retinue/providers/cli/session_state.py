"""What a program remembers of a conversation, and whether that is still what the conversation's file says."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from retinue.domain.transcript import Called, Entry, Notice, Returned, Said
from retinue.domain.value import value

BLOCK = "program"
MAX_HISTORY = 60_000
"""Characters of what was said before that a program without memory is given."""
MAX_SHOWN = 2_000
"""Characters of one call's result in there."""
BEFORE = "This conversation began before you came to it. What was said and done in it so far:"
GO_ON = (
    "Go on from there. Nothing of it is to be done again unless you are asked to. What is said to you now:"
)
LEFT_OUT = "[what came before this is left out]"


@value
class Place:
    """Where a memory lies: it is found again only there."""

    program: str
    session: str
    level: str
    cwd: str


@value
class Recalled:
    """The id to resume, or none; and what the program is to be told now."""

    id: str
    text: str


def recalled(entries: Sequence[Entry], place: Place) -> Recalled:
    """The program goes on by its own memory only if the file still says what it said then."""
    at = _last_reply(entries)
    fresh = entries[at + 1 :]
    if at >= 0 and (name := _matching(entries[: at + 1], place)):
        return Recalled(id=name, text=_words(fresh))
    return Recalled(id="", text=from_the_file(entries))


def from_the_file(entries: Sequence[Entry]) -> str:
    """The whole conversation, for a program that remembers nothing of it."""
    at = _last_reply(entries)
    if at < 0:
        return _words(entries)
    return "\n\n".join((BEFORE, _history(entries[: at + 1]), GO_ON, _words(entries[at + 1 :])))


def block(name: str, place: Place, entries: Sequence[Entry], reply: Sequence[str]) -> str:
    """What is kept with a reply: the program's name for the conversation, and a hash of all that it then knew. `reply`
    holds the words of the reply as they will stand in the file."""
    first = entries[0].id if entries else ""
    texts = [*_texts(entries), *(f"agent {text}" for text in reply)]
    return json.dumps({BLOCK: {**asdict(place), "id": name, "first": first, "hash": _hash(texts)}})


def _matching(entries: Sequence[Entry], place: Place) -> str:
    last = entries[-1]
    for each in last.thoughts if isinstance(last, Said) else ():
        known = _read(each)
        here = all(known.get(key) == value for key, value in asdict(place).items())
        since = _since(entries, str(known.get("first")))
        if here and since is not None and known.get("hash") == _hash(_texts(since)):
            return str(known.get("id") or "")
    return ""


def _since(entries: Sequence[Entry], first: str) -> Sequence[Entry] | None:
    """Of a long conversation the beginning may not be held any more: then nobody can say that it is the same."""
    return next((entries[at:] for at, entry in enumerate(entries) if entry.id == first), None)


def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    known = found.get(BLOCK) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  (a block of any driver's)
    return known if isinstance(known, dict) else {}  # pyright: ignore[reportUnknownVariableType]  (the same)


def _texts(entries: Sequence[Entry]) -> Iterator[str]:
    """Words only: what it did by itself it knows better than the file."""
    for entry in entries:
        if isinstance(entry, Said):
            yield f"{entry.by} {entry.text}"
        elif isinstance(entry, Notice):
            yield f"notice {entry.text}"


def _hash(texts: Sequence[str] | Iterator[str]) -> str:
    joined = "\0".join(text.strip() for text in texts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _last_reply(entries: Sequence[Entry]) -> int:
    for at in range(len(entries) - 1, -1, -1):
        entry = entries[at]
        if not isinstance(entry, Notice) and not (isinstance(entry, Said) and entry.by == "user"):
            return at
    return -1


def _words(entries: Sequence[Entry]) -> str:
    return "\n\n".join(
        entry.text for entry in entries if isinstance(entry, Said | Notice) and entry.text.strip()
    )


def _history(entries: Sequence[Entry]) -> str:
    """The newest of it that has room, oldest first."""
    kept: list[str] = []
    room = MAX_HISTORY
    for entry in reversed(entries):
        shown = _shown(entry)
        room -= len(shown)
        if room < 0:
            kept.append(LEFT_OUT)
            break
        if shown:
            kept.append(shown)
    return "\n\n".join(reversed(kept))


def _shown(entry: Entry) -> str:
    match entry:
        case Said():
            return f"[{'you' if entry.by == 'agent' else 'user'}] {entry.text}" if entry.text.strip() else ""
        case Notice():
            return f"[notice] {entry.text}"
        case Called():
            return f"[you called {entry.tool}] {entry.args[:MAX_SHOWN]}"
        case Returned():
            return f"[result] {entry.text[:MAX_SHOWN]}"
