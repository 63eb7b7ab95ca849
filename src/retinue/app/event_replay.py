"""The ear: what a daemon tells, passed on so that no word of the runs one follows is lost, and none is heard twice.

Words are told once, as they are said. Whoever joins in the middle of a reply, or is cut off in it, hears the whole of it
from the file as soon as it stands there.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from retinue.domain.event import Event, Kind
from retinue.domain.run import Run
from retinue.domain.transcript import Said


class Ear:
    """One process's hearing of the runs that another works."""

    def __init__(self, heard: Callable[[Event], None], said: Callable[[Run], Awaitable[list[Said]]]) -> None:
        self._heard = heard
        self._said = said
        """What the agent has said in a run so far, as it stands in the file."""
        self._followed: dict[str, Run] = {}
        self._at: dict[str, int] = {}
        """Of runs whose present reply was heard from its beginning: the count of the last event."""
        self._before: dict[str, set[str]] = {}
        """Replies that stood in the file when a run was first followed: only what is told of them is new."""
        self._passed: dict[str, set[str]] = {}
        self._speaking: dict[str, Event] = {}
        self._gaps: set[str] = set()
        """Runs of which whole replies may have been missed."""

    def born(self, run: str) -> None:
        """Nothing was said in it yet."""
        self._before.setdefault(run, set())
        self._at.setdefault(run, 0)

    async def follow(self, runs: Iterable[Run]) -> None:
        """Of these no word is to be missed from now on."""
        for run in runs:
            if run.id not in self._before:
                self._before[run.id] = {said.id for said in await self._said(run)}
            self._followed[run.id] = run

    def leave(self, run: str) -> None:
        """It has ended, or is heard otherwise from now on."""
        self._followed.pop(run, None)

    async def hear(self, event: Event) -> None:
        if event.n and event.run:
            await self._count(event)
        whole = event.run in self._at
        if event.kind == "text.delta" and not whole:
            return
        if event.kind == "entry.saved" and event.data.get("of") == "agent":
            name = event.data["entry"]
            if not whole and event.run in self._followed:
                await self._caught_up(event.run, name)
            passed = self._passed.setdefault(event.run, set())
            if name in passed:
                self._take_back(event.run)
                return
            passed.add(name)
        if event.kind == "run.ended":
            await self._over(event.run)
        self._pass(event)

    async def cut_off(self) -> None:
        """The line is gone. What was being said is said again, by whoever goes on; what stands in the file was said."""
        for run in [*self._speaking]:
            self._take_back(run)
        self._at.clear()
        self._gaps.update(self._followed)
        await self.settle()

    async def settle(self) -> None:
        """Nothing more is on its way: what was missed is heard now."""
        for run in [each for each in self._followed if each not in self._at]:
            await self._caught_up(run)

    async def _count(self, event: Event) -> None:
        """A reply was heard from its beginning when that was heard, and nothing is missing since."""
        turn = event.kind == "run.state" and event.data.get("phase") == "wait" and "note" not in event.data
        begins = turn or event.kind == "text.discarded"
        before = self._at.pop(event.run, None)
        if missed := before != event.n - 1:
            self._take_back(event.run)
            if before is not None:
                self._gaps.add(event.run)
            if begins and event.run in self._gaps and event.run in self._followed:
                self._gaps.discard(event.run)
                await self._caught_up(event.run)
        if begins or not missed:
            self._at[event.run] = event.n

    def _take_back(self, run: str) -> None:
        """Of what is being said something is missing, or it was heard already: none of it counts."""
        if (event := self._speaking.pop(run, None)) is not None:
            self._heard(replace(event, kind="text.discarded", data={}))

    async def _over(self, run: str) -> None:
        if run in self._followed and run not in self._at:
            await self._caught_up(run)
        self.leave(run)
        for each in (self._at, self._before, self._passed):
            each.pop(run, None)

    async def _caught_up(self, run: str, told: str = "") -> None:
        if (about := self._followed.get(run)) is None:
            return  # it ended while another was read
        before, passed = self._before[run], self._passed.setdefault(run, set())
        for said in await self._said(about):
            if said.id not in passed and (said.id == told or said.id not in before):
                passed.add(said.id)
                if said.text:
                    self._heard(_event("text.delta", about, text=said.text, entry=said.id))
                self._heard(_event("entry.saved", about, entry=said.id, of="agent"))

    def _pass(self, event: Event) -> None:
        if event.kind == "text.delta":
            self._speaking[event.run] = event
        elif event.kind in ("entry.saved", "text.discarded", "run.ended"):
            self._speaking.pop(event.run, None)
        self._heard(event)


def _event(kind: Kind, run: Run, **data: Any) -> Event:
    return Event(
        kind=kind,
        at=datetime.now(UTC),
        session=run.session_id,
        run=run.id,
        parent_run=run.ask.parent_run or "",
        agent=run.agent,
        data=data,
    )
