"""Loop detection: warn a model that repeats itself without progress, then stop it."""

import json
import math
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, islice

from msgspec import Struct

from retinue.domain.limits import MAX_BAD_REPLIES, MAX_EMPTY_REPLIES, Limits
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.errors import ModelFailed

EMPTY_REPLY_NUDGE = "Your last reply was empty. Answer, or call a tool."
REPEATED_CALL_WARNING = (
    "You have made this same call {n} times in a row, and its result does not change. "
    "Do something else, or answer. To wait for something, wait inside one call."
)
REPEATED_CYCLE_WARNING = "You have repeated the same {period} steps {n} times, with the same results. Do something else, or answer."
WARNING_PATTERN = re.compile(
    r"You have (?:made this same call \d+ times in a row|repeated the same \d+ steps \d+ times)"
)
"""Recognises a call that did not run because of a warning."""

ANNOUNCEMENT = "announcement"
"""Topic of a notice with the result of another run."""
STOP_FACTOR = 2
"""The model is warned after `limits.identical_calls` repetitions, and stopped after this many times as many."""
MAX_PERIOD = 8
"""Longest cycle of replies that is recognised."""
MAX_RESTORED_CYCLES = 1000
"""Longest history that is restored from a transcript, in cycles of the longest period."""

_CHANGING_TEXT = re.compile(
    r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b|\b[^\W\d]*+\d[\w:.+-]*+|[ \t]++"
)
"""A UUID, a word with a digit (a count, a time, a duration, a process id), or space that aligns columns."""
_UNKNOWN = 0
"""Hash of a result that is not known, or of a call that did not run; it is equal to every other hash."""


class _Step(Struct, frozen=True):
    """One reply: what it called, and what came back, in an order that does not depend on the reply's."""

    calls: tuple[int, ...]
    results: tuple[int, ...]

    def repeats(self, earlier: "_Step") -> bool:
        return self.calls == earlier.calls and all(
            one == other or _UNKNOWN in (one, other)
            for one, other in zip(self.results, earlier.results, strict=True)
        )


class LoopDetector:
    """Counts repeated replies, empty replies, and replies with invalid calls in one run.

    A loop is a cycle of at most MAX_PERIOD replies whose calls are equal in any order, and whose results differ at most in
    numbers, times and ids.
    """

    def __init__(self, limits: Limits) -> None:
        self._warn_after = limits.identical_calls
        self._empty_replies = 0
        self._invalid_replies = 0
        self._has_invalid_call = False
        self._steps: deque[_Step] = deque(maxlen=MAX_PERIOD)
        self._matches = [0] * (MAX_PERIOD + 1)
        """By period: how many of the latest steps each repeat the step one period before."""
        self._seen_calls: set[int] = set()
        """Calls made before; only results of repeated calls are hashed."""
        self._calls: dict[str, int] = {}
        """The calls of the current reply, by id."""
        self._results: dict[str, int] = {}
        self._warning = ""
        self._last_call = 0
        self._repeat_count = 0

    def restore(self, entries: Sequence[Entry], run: str, *, is_woken: bool = False) -> None:
        """Restore the latest replies of a resumed run from its transcript.

        Calls without a result are those of the current reply: they are repeated. If an announcement started the run,
        the runs before it that equal announcements started count too: two agents may send each other messages for ever.
        """
        self._steps.clear()
        self._matches = [0] * (MAX_PERIOD + 1)
        runs = {run, *_runs_with_equal_announcements(entries, run)} if is_woken else {run}
        count = MAX_PERIOD * min(STOP_FACTOR * self._warn_after + 1, MAX_RESTORED_CYCLES)
        for calls, results in reversed([*islice(_latest_replies(entries, runs), count)]):
            self._begin_reply(calls)
            for call in calls:
                if (result := results.get(call.id)) is not None:
                    self.record_result(call, result)
            if len(self._results) == len(self._calls):
                self._add_step()

    def on_empty_reply(self) -> str:
        """Count an empty reply and return the nudge for the model."""
        self._empty_replies += 1
        if self._empty_replies >= MAX_EMPTY_REPLIES:
            raise ModelFailed(f"the model sent {self._empty_replies} empty replies in a row", reason="stuck")
        return EMPTY_REPLY_NUDGE

    def on_tool_calls(self, calls: Sequence[ToolCall], *, is_repeat: bool = False) -> None:
        """Begin a reply with tool calls; decide whether it continues a loop.

        Calls that are repeated after a suspension were allowed before, and are not judged again.

        Raises:
            ModelFailed: The model continued the loop after the warning.
        """
        self._empty_replies = 0
        if is_repeat and all(call.id in self._calls for call in calls):
            return
        self._begin_reply(calls)
        if is_repeat:
            return
        period, cycles = self._longest_loop(tuple(sorted(self._calls.values())))
        if cycles > STOP_FACTOR * self._warn_after:
            what = f"the same call to {calls[0].tool}" if period == 1 else f"the same {period} steps"
            raise ModelFailed(f"the model made {what} {cycles} times in a row", reason="stuck")
        if cycles > self._warn_after:
            template = REPEATED_CALL_WARNING if period == 1 else REPEATED_CYCLE_WARNING
            self._warning = template.format(n=cycles, period=period)

    def check_call(self, tool_call: ToolCall) -> str:
        """Return a warning if this call must not run because it continues a loop, else an empty string.

        A call that is repeated within one reply counts as well.
        """
        signature = _call_hash(tool_call)
        self._repeat_count = self._repeat_count + 1 if signature == self._last_call else 1
        self._last_call = signature
        if self._repeat_count > STOP_FACTOR * self._warn_after:
            raise ModelFailed(
                f"the model made the same call to {tool_call.tool} {self._repeat_count} times in a row",
                reason="stuck",
            )
        if self._repeat_count > self._warn_after:
            return REPEATED_CALL_WARNING.format(n=self._repeat_count)
        return self._warning

    def record_result(self, tool_call: ToolCall, tool_result: ToolResult) -> None:
        """Record the result of a call of the current reply."""
        signature = self._calls.get(tool_call.id, _UNKNOWN)
        is_comparable = signature in self._seen_calls and not WARNING_PATTERN.match(tool_result.text)
        self._results[tool_call.id] = _result_hash(tool_result) if is_comparable else _UNKNOWN

    def on_invalid_call(self) -> None:
        """Note that a call of this reply was invalid: an unknown tool or unreadable arguments."""
        self._has_invalid_call = True

    def on_reply_done(self) -> None:
        """Count a reply once all its calls have results.

        The model learns of all its invalid calls at once, so they count as one.
        """
        self._add_step()
        self._invalid_replies += self._has_invalid_call
        self._has_invalid_call = False
        if self._invalid_replies > MAX_BAD_REPLIES:
            raise ModelFailed(
                f"the model sent {self._invalid_replies} replies with invalid tool calls", reason="stuck"
            )

    def _begin_reply(self, calls: Sequence[ToolCall]) -> None:
        self._calls = {call.id: _call_hash(call) for call in calls}
        self._results = {}
        self._warning = ""
        self._last_call, self._repeat_count = 0, 0

    def _longest_loop(self, calls: tuple[int, ...]) -> tuple[int, int]:
        """Return the shortest period that these calls continue for too long, and the cycles begun so far."""
        for period in range(1, min(MAX_PERIOD, len(self._steps)) + 1):
            if self._steps[-period].calls == calls:
                cycles = math.ceil((self._matches[period] + 1) / period) + 1
                if cycles > self._warn_after:
                    return period, cycles
        return 1, 1

    def _add_step(self) -> None:
        pairs = sorted((call, self._results.get(call_id, _UNKNOWN)) for call_id, call in self._calls.items())
        step = _Step(tuple(call for call, _ in pairs), tuple(result for _, result in pairs))
        for period in range(1, MAX_PERIOD + 1):
            repeats = len(self._steps) >= period and step.repeats(self._steps[-period])
            self._matches[period] = self._matches[period] + 1 if repeats else 0
        self._steps.append(step)
        self._seen_calls.update(step.calls)
        self._calls, self._results = {}, {}


def _runs_with_equal_announcements(entries: Sequence[Entry], run: str) -> Iterator[str]:
    """Yield the runs directly before this one that announcements started which equal its own."""
    own: list[int] | None = None
    for run_id, group in groupby(reversed(entries), key=lambda entry: entry.run):
        found = [
            hash(_normalize(entry.text))
            for entry in group
            if isinstance(entry, Notice) and entry.topic == ANNOUNCEMENT
        ]
        if own is None and run_id == run:
            own = found
        elif own is not None and found == own != []:
            yield run_id
        elif own is not None:
            return


def _latest_replies(
    entries: Sequence[Entry], runs: Collection[str]
) -> Iterator[tuple[list[ToolCall], dict[str, ToolResult]]]:
    """Yield the calls of each reply of these runs with their results, the latest reply first."""
    calls: list[ToolCall] = []
    results: dict[str, ToolResult] = {}
    for entry in reversed(entries):
        if isinstance(entry, ToolResult):
            results[entry.call_id] = entry
        elif entry.run not in runs:
            continue
        elif isinstance(entry, ToolCall):
            calls.append(entry)
        elif isinstance(entry, Message) and entry.role == "agent" and calls:
            yield calls[::-1], results
            calls, results = [], {}


def _call_hash(tool_call: ToolCall) -> int:
    """Return a hash that does not depend on the order and the spacing of the arguments."""
    try:
        args = json.dumps(json.loads(tool_call.args), sort_keys=True)
    except (ValueError, RecursionError):
        args = tool_call.args
    return hash((tool_call.tool, args)) or 1


def _result_hash(tool_result: ToolResult) -> int:
    """Return a hash of a result without what changes by itself: numbers, times, durations and ids."""
    return hash((tool_result.ok, _normalize(tool_result.text))) or 1


def _normalize(text: str) -> str:
    return _CHANGING_TEXT.sub(_normalized_text, text)


def _normalized_text(match: re.Match[str]) -> str:
    return " " if match[0].isspace() else "#"
