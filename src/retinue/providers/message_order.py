"""Entries in the order providers demand: each reply, its calls, their results, then the words that follow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retinue.domain.transcript import Called, Entry, Notice, Returned, Said

NO_RESULT = "[no result of this call was kept]"
ORPHAN = "[result of a call that is no longer here]"
BLANK_RESULT = "(empty)"


@dataclass(slots=True, init=False)
class Unit:
    """One reply of the model with its calls and their results, and what was said to it afterwards.
    The first unit of a conversation has no reply as a rule."""

    start: int
    """Where in the entries it begins: everything up to the next unit's start belongs to it."""
    replies: list[Said]
    calls: dict[str, Called]
    results: dict[str, Returned]
    words: list[str]

    def __init__(self, *, start: int) -> None:
        self.start = start
        self.replies = []
        self.calls = {}
        self.results = {}
        self.words = []

    @property
    def text(self) -> str:
        return "\n\n".join([said.text for said in self.replies if said.text and not said.text.isspace()])

    def result(self, call: Called) -> tuple[str, bool]:
        """What the model is told of a call: every call has an answer, even when a person removed it."""
        returned = self.results.get(call.id)
        if returned is None:
            return NO_RESULT, False
        return returned.text if returned.text.strip() else BLANK_RESULT, returned.ok

    def takes(self, call: Called) -> bool:
        """A call belongs to the reply before it until that reply has all its calls, each answered."""
        if not (self.replies or self.calls) or call.id in self.calls:
            return False
        if len(self.results) < len(self.calls):
            return True
        declared = self.replies[-1].calls if self.replies else 0
        return not self.words and (not self.calls or len(self.calls) < declared)


def units(entries: Sequence[Entry], start: int = 0) -> Iterator[Unit]:
    """The units from `start` on, which must be where a unit begins."""
    unit = Unit(start=start)
    for at in range(start, len(entries)):
        entry = entries[at]
        if isinstance(entry, Said) and entry.by == "agent":
            if not entry.calls and not entry.text.strip():
                continue  # an empty reply without calls: no provider takes it back
            # Replies in a row with nothing between them are one: no provider wants two assistant messages.
            begins = bool(unit.calls or unit.words or not unit.replies)
        else:
            begins = isinstance(entry, Called) and entry.id not in unit.calls and not unit.takes(entry)
        if begins:
            if unit.replies or unit.calls or unit.words:
                yield unit
            unit = Unit(start=at)
        _add(entry, unit)
    yield unit


def _add(entry: Entry, unit: Unit) -> None:
    if isinstance(entry, Said):
        if entry.by == "agent":
            unit.replies.append(entry)
        elif entry.text.strip():
            unit.words.append(entry.text)
    elif isinstance(entry, Called):
        unit.calls.setdefault(entry.id, entry)
    elif isinstance(entry, Notice):
        unit.words.append(f"[notice: {entry.kind}]\n{entry.text}")
    elif entry.of in unit.calls and entry.of not in unit.results:
        unit.results[entry.of] = entry
    else:
        unit.words.append(f"{ORPHAN}\n{entry.text}")
