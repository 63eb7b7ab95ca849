"""Patience with a model that gets nowhere: it is told first, and stopped then."""

from collections.abc import Sequence

from retinue.domain.limits import MAX_BAD_REPLIES, MAX_EMPTY_REPLIES, Limits
from retinue.domain.transcript import Called, Entry, Returned
from retinue.errors import ModelFailed

EMPTY = "Your last reply was empty. Answer, or call a tool."
AGAIN = "You have made this very call {n} times in a row, and its answer will not change. Do something else, or answer."


class Patience:
    """Counts of one run: empty replies and identical calls in a row, and replies with calls that could not be made at all."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._empty = 0
        self._bad = 0
        self._impossible = False
        self._last: tuple[str, str] = ("", "")
        self._same = 0

    def recall(self, entries: Sequence[Entry], run: str) -> None:
        """What was called in a row before the run was put aside, as far as it was answered: a call that is open is made
        again, and counts then."""
        answered: set[str] = set()
        for entry in reversed(entries):
            if isinstance(entry, Returned):
                answered.add(entry.of)
            elif isinstance(entry, Called) and entry.run == run and entry.id in answered:
                this = (entry.tool, entry.args)
                if self._same and this != self._last:
                    return
                self._last, self._same = this, self._same + 1

    def with_silence(self) -> str:
        """What to tell a model that said nothing."""
        self._empty += 1
        if self._empty >= MAX_EMPTY_REPLIES:
            raise ModelFailed(f"{self._empty} empty replies in a row", reason="stuck")
        return EMPTY

    def with_calls(self) -> None:
        """Calls are not silence."""
        self._empty = 0

    def with_call(self, called: Called) -> str:
        """What to tell a model that makes the same call for ever; nothing while it need not be told."""
        this = (called.tool, called.args)
        self._same = self._same + 1 if this == self._last else 1
        self._last = this
        most = self._limits.identical_calls
        if self._same > 2 * most:
            raise ModelFailed(f"the same call to {called.tool} {self._same} times in a row", reason="stuck")
        return AGAIN.format(n=self._same) if self._same > most else ""

    def with_impossible(self) -> None:
        """A call of this reply could not be made: an unknown tool, or arguments it does not understand."""
        self._impossible = True

    def spent(self) -> None:
        """The calls of one reply are answered. However many of them were impossible, the model hears of them all at
        once, so they count as one."""
        self._bad += self._impossible
        self._impossible = False
        if self._bad > MAX_BAD_REPLIES:
            raise ModelFailed(f"{self._bad} replies with calls that could not run", reason="stuck")
