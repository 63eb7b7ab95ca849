"""Replay of a daemon's run events without gaps or duplicates.

Text deltas are sent only once, when they are produced. A client that joins in the middle of a reply, or loses
the connection during one, gets the complete reply from the file as soon as it is saved.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from retinue.domain.event import Event, EventKind
from retinue.domain.run import Run
from retinue.domain.transcript import Message


class EventReplay:
    """Event stream of runs that another process works on, completed from their files."""

    def __init__(
        self, emit: Callable[[Event], None], load_replies: Callable[[Run], Awaitable[list[Message]]]
    ) -> None:
        self._emit = emit
        self._load_replies = load_replies
        """Returns the agent's replies of a run that are in the file so far."""
        self._followed: dict[str, Run] = {}
        self._last_counts: dict[str, int] = {}
        """Count of the last event, for runs whose current reply was received from its start."""
        self._known_replies: dict[str, set[str]] = {}
        """Replies that were already in the file when a run was first followed; only their events are new."""
        self._emitted_replies: dict[str, set[str]] = {}
        self._partial_replies: dict[str, Event] = {}
        self._runs_with_gaps: set[str] = set()
        """Runs for which whole replies may have been missed."""

    def track_new_run(self, run: str) -> None:
        """Register a run that has no replies yet."""
        self._known_replies.setdefault(run, set())
        self._last_counts.setdefault(run, 0)

    async def follow(self, runs: Iterable[Run]) -> None:
        """Follow these runs: from now on none of their text is lost."""
        for run in runs:
            if run.id not in self._known_replies:
                self._known_replies[run.id] = {reply.id for reply in await self._load_replies(run)}
            self._followed[run.id] = run

    def unfollow(self, run: str) -> None:
        """Stop following a run that has ended, or whose events arrive another way from now on."""
        self._followed.pop(run, None)

    async def receive(self, event: Event) -> None:
        """Receive one event from the daemon, and forward it unless it is incomplete or a duplicate."""
        if event.live_seq and event.run:
            await self._check_count(event)
        is_complete = event.run in self._last_counts
        if event.kind == "text.delta" and not is_complete:
            return
        if event.kind == "entry.saved" and event.data.get("entry_kind") == "agent":
            entry_id = event.data["entry"]
            if not is_complete and event.run in self._followed:
                await self._emit_missed_replies(event.run, entry_id)
            emitted = self._emitted_replies.setdefault(event.run, set())
            if entry_id in emitted:
                self._discard_partial(event.run)
                return
            emitted.add(entry_id)
        if event.kind == "run.ended":
            await self._finish_run(event.run)
        self._forward(event)

    async def on_disconnect(self) -> None:
        """Discard partial replies after a lost connection, and emit the replies that are saved already.

        The process that continues the run sends the discarded text again.
        """
        for run in [*self._partial_replies]:
            self._discard_partial(run)
        self._last_counts.clear()
        self._runs_with_gaps.update(self._followed)
        await self.emit_missed()

    async def emit_missed(self) -> None:
        """Emit the replies that were missed, once no more events are on their way."""
        for run in [each for each in self._followed if each not in self._last_counts]:
            await self._emit_missed_replies(run)

    async def _check_count(self, event: Event) -> None:
        """Track whether the current reply is complete: received from its start, with no event missing since."""
        is_turn_start = (
            event.kind == "run.state" and event.data.get("phase") == "wait" and "note" not in event.data
        )
        starts_reply = is_turn_start or event.kind == "text.discarded"
        last_count = self._last_counts.pop(event.run, None)
        if has_gap := last_count != event.live_seq - 1:
            self._discard_partial(event.run)
            if last_count is not None:
                self._runs_with_gaps.add(event.run)
            if starts_reply and event.run in self._runs_with_gaps and event.run in self._followed:
                self._runs_with_gaps.discard(event.run)
                await self._emit_missed_replies(event.run)
        if starts_reply or not has_gap:
            self._last_counts[event.run] = event.live_seq

    def _discard_partial(self, run: str) -> None:
        """Emit `text.discarded` for a partial reply that is incomplete or was emitted before."""
        if (event := self._partial_replies.pop(run, None)) is not None:
            self._emit(replace(event, kind="text.discarded", data={}))

    async def _finish_run(self, run: str) -> None:
        if run in self._followed and run not in self._last_counts:
            await self._emit_missed_replies(run)
        self.unfollow(run)
        for by_run in (self._last_counts, self._known_replies, self._emitted_replies):
            by_run.pop(run, None)

    async def _emit_missed_replies(self, run: str, entry_id: str = "") -> None:
        if (followed_run := self._followed.get(run)) is None:
            return  # the run ended while another run's file was read
        known, emitted = self._known_replies[run], self._emitted_replies.setdefault(run, set())
        for reply in await self._load_replies(followed_run):
            if reply.id not in emitted and (reply.id == entry_id or reply.id not in known):
                emitted.add(reply.id)
                if reply.text:
                    self._emit(_make_event("text.delta", followed_run, text=reply.text, entry=reply.id))
                self._emit(_make_event("entry.saved", followed_run, entry=reply.id, entry_kind="agent"))

    def _forward(self, event: Event) -> None:
        if event.kind == "text.delta":
            self._partial_replies[event.run] = event
        elif event.kind in ("entry.saved", "text.discarded", "run.ended"):
            self._partial_replies.pop(event.run, None)
        self._emit(event)


def _make_event(kind: EventKind, run: Run, **data: Any) -> Event:
    return Event(
        kind=kind,
        at=datetime.now(UTC),
        session=run.session_id,
        run=run.id,
        parent_run=run.request.parent_run or "",
        agent=run.agent,
        data=data,
    )
