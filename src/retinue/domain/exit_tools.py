"""Exits: the tools by which alone an agent ends its run, where its definition names some, as the transcript tells them."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, cast

from retinue.domain.transcript import Called, Entry, Notice, Returned, Said

CHANGES = "request_changes"
EXITS = frozenset({"submit_for_review", "ask_for_help", "llm_unreachable", "approve", CHANGES})
"""Tools that do nothing but end a run: only those have them whose definition names them."""
QUESTION = "ask_user"
"""As an exit it ends the run with its question, and nobody is waited for."""

MAX_NUDGES = 3
"""So often in a row an agent is sent back to work; then a person must say how to go on."""
MAX_CHANGES = 3
"""So often changes are asked for in one conversation before a person must decide."""

NUDGE = "nudge"
PARKED = "parked"
"""The kinds of notice that count here."""

SENT_BACK = (
    "Your work does not end with words: it ends when you call one of these tools: {exits}. "
    "Go on with it, or call the one that fits."
)
STANDS = "Your run waits for a person now, because {why}. It goes on with what they say."


def section(exits: Sequence[str]) -> str:
    """What the prompt says of it. The rule holds whether the model reads this or not."""
    return (
        f"You end your work only by calling one of these tools: {', '.join(exits)}. "
        "A reply without a call does not end it. The first such call does, at once."
    )


def nudges(run: str, entries: Sequence[Entry]) -> int:
    """How often in a row it was sent back: a call, or a person's words, begin the count anew."""
    count = 0
    for entry in _latest(run, entries):
        if isinstance(entry, Called | Returned) or _by_person(entry):
            break
        count += isinstance(entry, Notice) and entry.kind == NUDGE
    return count


def parked(run: str, entries: Sequence[Entry]) -> bool:
    """Whether it waits for a person, and nothing has come since."""
    last = next(_latest(run, entries), None)
    return isinstance(last, Notice) and last.kind == PARKED


def turns(run: str, entries: Sequence[Entry]) -> int:
    """The run's replies since a person last said how to go on."""
    count = 0
    for entry in _latest(run, entries):
        if _by_person(entry):
            break
        count += isinstance(entry, Said) and entry.by == "agent"
    return count


def changes(entries: Iterable[Entry]) -> int:
    """How often changes were asked for in a conversation since a person last decided."""
    asked: set[str] = set()
    count = 0
    for entry in entries:
        if _by_person(entry):
            count = 0
        elif isinstance(entry, Called) and entry.tool == CHANGES:
            asked.add(entry.id)
        elif isinstance(entry, Returned) and entry.ok:
            count += entry.of in asked
    return count


def left_by(run: str, exits: Collection[str], entries: Sequence[Entry]) -> tuple[Called, Returned] | None:
    """The call by which the run has ended: the first that was answered well."""
    called = {each.id: each for each in entries if isinstance(each, Called) and each.run == run}
    for entry in entries:
        if isinstance(entry, Returned) and entry.ok and entry.of in called:
            made = called[entry.of]
            if made.tool in exits:
                return made, entry
    return None


def words(called: Called, returned: Returned) -> str:
    """What the run says by its exit: the words it was called with, or what a tool that does more brought back."""
    if called.tool not in EXITS and called.tool != QUESTION:
        return returned.text
    given = _arguments(called.args).values()
    said = [each for each in given if isinstance(each, str) and each.strip()]
    options = [f"- {each}" for some in given if isinstance(some, list) for each in cast("list[Any]", some)]
    return "\n".join((*said, *options))


def _latest(run: str, entries: Sequence[Entry]) -> Iterator[Entry]:
    """The run's own entries, the newest first, and what a person typed into the file meanwhile: that names no run."""
    return (entry for entry in reversed(entries) if entry.run in (run, ""))


def _by_person(entry: Entry) -> bool:
    """Words that a person gave a run on its way: the task itself has the run's own id."""
    return isinstance(entry, Said) and entry.by == "user" and entry.id != entry.run and not entry.origin


def _arguments(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
