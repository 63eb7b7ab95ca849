"""Event replay: every text of a followed run is delivered once, even if live events are missed."""

from datetime import UTC, datetime
from typing import Any

from retinue.app.event_replay import EventReplay
from retinue.domain.event import Event, EventKind
from retinue.domain.run import Run
from retinue.domain.transcript import Message
from retinue.testing.ledgers import make_run

NOW = datetime(2026, 11, 16, tzinfo=UTC)
RUN = make_run("R", session_id="S", agent="general")


class ReplyCollector:
    """Collects replies from replayed events: the text of a reply is complete once the reply is saved."""

    def __init__(self) -> None:
        self.entries: list[Message] = []
        self.replies: list[str] = []
        self._deltas: list[str] = []
        self.replay = EventReplay(self._on_event, self._read_entries)
        self._last_seq = 0

    async def _read_entries(self, _run: Run) -> list[Message]:
        return list(self.entries)

    def _on_event(self, event: Event) -> None:
        if event.kind == "text.delta":
            self._deltas.append(event.data["text"])
        elif event.kind == "text.discarded":
            self._deltas.clear()
        elif event.kind == "entry.saved" and self._deltas:
            self.replies.append("".join(self._deltas))
            self._deltas.clear()

    async def emit(self, kind: EventKind, *, lost: bool = False, durable: bool = False, **data: Any) -> None:
        if not durable:
            self._last_seq += 1
        if not lost:
            live_seq = 0 if durable else self._last_seq
            await self.replay.receive(
                Event(
                    kind=kind,
                    at=NOW,
                    session="S",
                    run="R",
                    agent="general",
                    live_seq=live_seq,
                    data=data,
                )
            )

    async def reply(self, text: str, *, lost: str = "") -> None:
        """Emit the events of one reply and save it.

        `lost` names the events that are not received: `b` for the beginning, `s` for saved, or letters of the text.
        """
        await self.emit("run.state", lost="b" in lost, phase="wait")
        for letter in text:
            await self.emit("text.delta", lost=letter in lost, text=letter)
        self.entries.append(Message(id=f"e{len(self.entries)}", role="agent", text=text, run="R"))
        await self.emit("entry.saved", lost="s" in lost, entry=self.entries[-1].id, entry_kind="agent")


async def follow_run(*, from_start: bool = True) -> ReplyCollector:
    collector = ReplyCollector()
    if from_start:
        collector.replay.track_new_run("R")
    await collector.replay.follow([RUN])
    return collector


async def test_a_run_followed_from_its_start_is_replayed_live():
    collector = await follow_run()
    for text in ("XYZ", "", "XX"):
        await collector.reply(text)
    assert collector.replies == ["XYZ", "XX"]


async def test_a_reply_with_missed_events_is_delivered_completely_and_once():
    for lost in ("b", "s", "X", "Y", "Z", "bXYZ", "XYZ", "bX", "YZ", "Zs", "XYZs", "bXYZs"):
        collector = await follow_run()
        await collector.reply("XYZ", lost=lost)
        await collector.reply("ZYX")
        await collector.emit("run.ended", durable=True, status="done")
        assert collector.replies == ["XYZ", "ZYX"], lost


async def test_a_missed_reply_is_delivered_before_the_next_reply_or_at_the_end_of_the_run():
    collector = await follow_run()
    await collector.reply("X")
    await collector.reply("Y", lost="bYs")
    await collector.reply("Z", lost="b")
    await collector.reply("V", lost="bVs")
    await collector.emit("run.ended", durable=True, status="done")
    assert collector.replies == ["X", "Y", "Z", "V"]


async def test_following_a_run_later_does_not_deliver_earlier_replies():
    collector = ReplyCollector()
    collector.entries.append(Message(id="before", role="agent", text="Old.", run="R"))
    await collector.replay.follow([RUN])
    await collector.reply("XYZ", lost="bX")
    assert collector.replies == ["XYZ"]


async def test_a_disconnect_discards_the_partial_reply_and_delivers_the_saved_reply():
    collector = await follow_run()
    await collector.emit("run.state", phase="wait")
    await collector.emit("text.delta", text="X")
    await collector.replay.on_disconnect()
    assert collector.replies == []
    await collector.emit("text.delta", text="Y")
    collector.entries.append(Message(id="e0", role="agent", text="XYZ", run="R"))
    await collector.replay.on_disconnect()
    await collector.emit("entry.saved", entry="e0", entry_kind="agent")
    assert collector.replies == ["XYZ"]


async def test_a_reply_saved_before_its_events_arrive_is_delivered_once():
    for disconnected in (False, True):
        collector = await follow_run(from_start=False)
        if disconnected:
            await collector.replay.on_disconnect()
        collector.entries.append(Message(id="e0", role="agent", text="XYZ", run="R"))
        await collector.emit("run.state", phase="wait")
        for letter in "XYZ":
            await collector.emit("text.delta", text=letter)
        await collector.emit("entry.saved", entry="e0", entry_kind="agent")
        await collector.replay.emit_missed()
        assert collector.replies == ["XYZ"], disconnected


async def test_a_reply_whose_saved_event_arrives_after_following_is_delivered_although_already_saved():
    collector = ReplyCollector()
    collector.entries += [Message(id=name, role="agent", text=name, run="R") for name in ("old", "XYZ")]
    await collector.replay.follow([RUN])
    await collector.emit("text.delta", text="Z")
    await collector.emit("entry.saved", entry="XYZ", entry_kind="agent")
    await collector.reply("Y")
    await collector.replay.on_disconnect()
    assert collector.replies == ["XYZ", "Y"]


async def test_an_unfollowed_run_is_not_read_from_its_file():
    collector = await follow_run()
    collector.replay.unfollow("R")
    collector.entries.append(Message(id="e0", role="agent", text="XYZ", run="R"))
    await collector.replay.on_disconnect()
    assert collector.replies == []


async def test_a_discarded_partial_reply_is_replaced_by_the_retried_reply():
    collector = await follow_run()
    await collector.emit("run.state", phase="wait")
    await collector.emit("text.delta", text="half")
    await collector.emit("text.discarded")
    await collector.emit("text.delta", text="whole")
    collector.entries.append(Message(id="e0", role="agent", text="whole", run="R"))
    await collector.emit("entry.saved", entry="e0", entry_kind="agent")
    assert collector.replies == ["whole"]
