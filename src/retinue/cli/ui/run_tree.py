"""A tree of runs as a person sees it: who is at work, below whom, in which state and on what."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

from retinue.cli.ui.terminal import one_line
from retinue.domain.event import Event
from retinue.domain.run import Run, Status, Waiting
from retinue.domain.value import value

WORDS = 80
"""Characters of a call or a description."""


@value
class Seen:
    """A live run, as far as it is known: heard of by an event, or read from its row."""

    id: str
    agent: str
    number: int
    """Its place in its tree, by birth: the first run is 1."""
    parent: str = ""
    about: str = ""
    """What it is to do, in a few words; empty until its row was read."""
    status: Status = Status.QUEUED
    waits_for: str = ""
    since: datetime
    """When it was first started, or asked for while it has not been."""
    asked_at: datetime | None = None
    """Since when its model has been asked, if no tool was called since."""
    total: int = 0
    """Tools called so far."""
    calls: tuple[tuple[str, str], ...] = ()
    """The latest calls, by their ids, in words."""
    open: frozenset[str] = frozenset()
    """Those of them that have no result yet."""
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.agent}#{self.number}"

    @property
    def doing(self) -> str:
        """What it does just now, if there is more to say than its state."""
        if self.status is Status.WAITING:
            return (
                ""
                if self.waits_for in ("", Waiting.CHILD)
                else f"for {FOR.get(self.waits_for, self.waits_for)}"
            )
        under_way = [words for call, words in self.calls if call in self.open]
        return under_way[-1] if under_way else self.note

    def waited(self, now: datetime, patience: timedelta) -> bool:
        """Whether its model has been silent for so long that one should say so."""
        return self.asked_at is not None and now - self.asked_at >= patience

    def lasted(self, now: datetime) -> str:
        return span(now - self.since)


FOR: Mapping[str, str] = {
    Waiting.APPROVAL: "an approval",
    Waiting.PERSON: "a person",
    Waiting.MODEL: "its model",
    Waiting.DISK: "room on the disk",
}


@dataclass(slots=True)
class Tree:
    """The live runs of one tree, or of several beside each other. Numbers are given by birth and never again."""

    live: dict[str, Seen] = field(default_factory=dict[str, Seen])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    above: dict[str, str] = field(default_factory=dict[str, str])
    """Who asked for whom, those included that have ended."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """How many runs a tree has, by its first run."""

    def put(self, runs: Iterable[Run]) -> None:
        """What the ledger says; who has ended there has ended."""
        for run in sorted(runs, key=lambda run: run.id):
            number = self._number(run.id, run.ask.parent_run or "", run.root)
            if run.status.final:
                self.live.pop(run.id, None)
                continue
            known = self.live.get(run.id)
            row = Seen(
                id=run.id,
                agent=run.agent,
                number=number,
                parent=run.ask.parent_run or "",
                about=about(run),
                status=run.status,
                waits_for=run.waiting_for or "",
                since=run.started_at or run.created_at,
                total=run.tool_calls,
            )
            self.live[run.id] = row if known is None else _with_row(known, row)

    def drop(self, gone: Iterable[str]) -> None:
        """Forgets those that live no more, though nobody told of their end."""
        for each in gone:
            self.live.pop(each, None)

    def knows(self, event: Event) -> bool:
        """Whether an event is one of these trees'."""
        return event.run in self.numbers or event.parent_run in self.numbers

    def hear(self, event: Event) -> bool:
        """Whether an event of these trees changed what is to be seen."""
        if not self.knows(event):
            return False
        if event.kind == "run.ended":
            return self.live.pop(event.run, None) is not None
        heard = _HEARD.get(event.kind)
        if heard is None:
            return False
        before = self.live.get(event.run)
        if before is None and event.kind not in ("run.queued", "run.started"):
            return False
        after = heard(before or self._newborn(event), event)
        self.live[event.run] = after
        return after != before

    def unread(self) -> list[str]:
        """Those heard of whose rows say more than the events did."""
        return [each.id for each in self.live.values() if not each.about]

    def below(self) -> dict[str, list[Seen]]:
        """Who works for whom, in order of birth, and below nobody ("") those that work for themselves. Whose asker has
        ended works for whoever asked for that."""
        found: dict[str, list[Seen]] = {}
        for each in sorted(self.live.values(), key=lambda each: each.id):
            over = self._over(each.id)
            found.setdefault(over if over in self.live else "", []).append(each)
        return found

    def name(self, run_id: str, agent: str) -> str:
        return f"{agent}#{self.numbers[run_id]}" if run_id in self.numbers else agent

    def _over(self, run_id: str) -> str:
        above = self.above.get(run_id, "")
        while above and above not in self.live and above in self.above:
            above = self.above[above]
        return above

    def _newborn(self, event: Event) -> Seen:
        number = self._number(event.run, event.parent_run, self._root(event.parent_run))
        return Seen(id=event.run, agent=event.agent, number=number, parent=event.parent_run, since=event.at)

    def _number(self, run_id: str, parent: str, root: str) -> int:
        if run_id not in self.numbers:
            root = root or run_id
            self.counts[root] = self.counts.get(root, 0) + 1
            self.numbers[run_id] = self.counts[root]
            self.above[run_id] = parent
        return self.numbers[run_id]

    def _root(self, run_id: str) -> str:
        while above := self.above.get(run_id):
            run_id = above
        return run_id


def _with_row(known: Seen, row: Seen) -> Seen:
    """Events know what a run does; its row knows what it is about, and whatever another process did with it."""
    return replace(
        known,
        about=row.about,
        status=row.status,
        waits_for=row.waits_for,
        since=row.since,
        total=max(known.total, row.total),
    )


def _queued(seen: Seen, _event: Event) -> Seen:
    return replace(seen, status=Status.QUEUED)


def _started(seen: Seen, event: Event) -> Seen:
    first = seen.status is Status.QUEUED and event.data.get("attempt", 1) == 1 and not seen.total
    return replace(
        seen, status=Status.RUNNING, waits_for="", since=event.at if first else seen.since, asked_at=None
    )


def _state(seen: Seen, event: Event) -> Seen:
    phase = event.data.get("phase")
    if event.data.get("torn"):
        return seen
    if phase == "wait":
        return replace(seen, status=Status.RUNNING, waits_for="", asked_at=event.at, note="")
    if phase == "tool":
        total = event.data.get("total", seen.total)
        return replace(
            seen, status=Status.RUNNING, asked_at=None, note="", total=total, calls=(), open=frozenset()
        )
    if note := event.data.get("note"):
        return replace(seen, note=one_line(note, WORDS))
    return replace(seen, status=Status.WAITING, waits_for=phase or "", asked_at=None)


def _called(seen: Seen, event: Event) -> Seen:
    call = event.data["call"]
    words = spoken(event.data["tool"], event.data.get("args") or "")
    calls = seen.calls if any(call == each for each, _ in seen.calls) else (*seen.calls, (call, words))
    return replace(seen, calls=calls, open=seen.open | {call})


def _answered(seen: Seen, event: Event) -> Seen:
    return replace(seen, open=seen.open - {event.data["call"]})


_HEARD: Mapping[str, Callable[[Seen, Event], Seen]] = {
    "run.queued": _queued,
    "run.started": _started,
    "run.state": _state,
    "tool.started": _called,
    "tool.ended": _answered,
}
"""What each kind of event tells of a run; a kind that is not here tells nothing that is shown."""


def about(run: Run) -> str:
    """What a run is to do, in a few words."""
    return one_line(run.ask.label or run.ask.task or "its task", WORDS)


def spoken(tool: str, args: str) -> str:
    """A call in words: the tool, what it is called with, and the names of further arguments."""
    try:
        found: Any = json.loads(args or "{}", strict=False)
    except (ValueError, RecursionError):
        found = args
    if not isinstance(found, dict):
        return one_line(f"{tool} {found}", WORDS)
    said: list[str] = []
    for name, given in cast("dict[str, Any]", found).items():
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        said.append(text if not said else f"{name}={text}")
    return one_line(" ".join((tool, *said)), WORDS)


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def span(time: timedelta) -> str:
    """How long something took, in at most two units."""
    seconds = max(0, int(time.total_seconds()))
    if seconds < 60:  # noqa: PLR2004  (a minute)
        return f"{seconds}s"
    if seconds < 3600:  # noqa: PLR2004  (an hour)
        return f"{seconds // 60}m {seconds % 60}s"
    return f"{seconds // 3600}h {seconds // 60 % 60}m"


def names(family: Sequence[Run]) -> dict[str, str]:
    """What the runs of whole trees are called, by their ids: each agent with the run's place in its tree."""
    tree = Tree()
    tree.put(family)
    return {run.id: tree.name(run.id, run.agent) for run in family}


def in_order(runs: Sequence[Run], family: Iterable[Run]) -> list[tuple[int, Run]]:
    """These runs with how deep each stands, each below whoever asked for it; if that is not among them, below whoever
    asked for that. The family is all runs of their trees."""
    listed = {run.id for run in runs}
    above = {run.id: run.ask.parent_run or "" for run in (*family, *runs)}
    below: dict[str, list[Run]] = {}
    for run in runs:
        over = above[run.id]
        while over and over not in listed:
            over = above.get(over, "")
        below.setdefault(over, []).append(run)
    found: list[tuple[int, Run]] = []

    def add(run: Run, depth: int) -> None:
        found.append((depth, run))
        for each in sorted(below.get(run.id, ()), key=lambda each: each.id):
            add(each, depth + 1)

    for run in below.get("", ()):
        add(run, 0)
    return found
