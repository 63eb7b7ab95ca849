"""The ear: every word of the runs one follows is heard once, whatever is missed of what is told."""

from datetime import UTC, datetime
from typing import Any

from retinue.app.event_replay import EventReplay
from retinue.domain.event import Event, EventKind
from retinue.domain.run import Run
from retinue.domain.transcript import Message
from retinue.testing.ledgers import make_run

NOW = datetime(2026, 11, 16, tzinfo=UTC)
RUN = make_run("R", session_id="S", agent="general")


class Listener:
    """Shows words as a pipe does: those of a reply together, once it is saved."""

    def __init__(self) -> None:
        self.file: list[Message] = []
        self.said: list[str] = []
        self._turn: list[str] = []
        self.ear = EventReplay(self._heard, self._read)
        self._n = 0

    async def _read(self, _run: Run) -> list[Message]:
        return list(self.file)

    def _heard(self, event: Event) -> None:
        if event.kind == "text.delta":
            self._turn.append(event.data["text"])
        elif event.kind == "text.discarded":
            self._turn.clear()
        elif event.kind == "entry.saved" and self._turn:
            self.said.append("".join(self._turn))
            self._turn.clear()

    async def tell(self, kind: EventKind, *, lost: bool = False, durable: bool = False, **data: Any) -> None:
        if not durable:
            self._n += 1
        if not lost:
            n = 0 if durable else self._n
            await self.ear.receive(
                Event(kind=kind, at=NOW, session="S", run="R", agent="general", live_number=n, data=data)
            )

    async def reply(self, text: str, *, lost: str = "") -> None:
        """The model says something; `lost` are the letters of those events that are not heard: b(eginning), the
        words themselves, s(aved)."""
        await self.tell("run.state", lost="b" in lost, phase="wait")
        for word in text:
            await self.tell("text.delta", lost=word in lost, text=word)
        self.file.append(Message(id=f"e{len(self.file)}", role="agent", text=text, run="R"))
        await self.tell("entry.saved", lost="s" in lost, entry=self.file[-1].id, entry_kind="agent")


async def followed(*, from_birth: bool = True) -> Listener:
    listener = Listener()
    if from_birth:
        listener.ear.track_new_run("R")
    await listener.ear.follow([RUN])
    return listener


async def test_what_is_heard_from_its_beginning_is_passed_on_as_it_comes():
    listener = await followed()
    for text in ("XYZ", "", "XX"):
        await listener.reply(text)
    assert listener.said == ["XYZ", "XX"]


async def test_whatever_is_missed_of_a_reply_it_is_heard_whole_and_once():
    for lost in ("b", "s", "X", "Y", "Z", "bXYZ", "XYZ", "bX", "YZ", "Zs", "XYZs", "bXYZs"):
        listener = await followed()
        await listener.reply("XYZ", lost=lost)
        await listener.reply("ZYX")
        await listener.tell("run.ended", durable=True, status="done")
        assert listener.said == ["XYZ", "ZYX"], lost


async def test_replies_of_which_nothing_was_heard_come_before_the_next_or_at_the_end():
    listener = await followed()
    await listener.reply("X")
    await listener.reply("Y", lost="bYs")
    await listener.reply("Z", lost="b")
    await listener.reply("V", lost="bVs")
    await listener.tell("run.ended", durable=True, status="done")
    assert listener.said == ["X", "Y", "Z", "V"]


async def test_whoever_joins_later_hears_nothing_of_what_was_said_before():
    listener = Listener()
    listener.file.append(Message(id="before", role="agent", text="Old.", run="R"))
    await listener.ear.follow([RUN])
    await listener.reply("XYZ", lost="bX")
    assert listener.said == ["XYZ"]


async def test_a_line_that_is_cut_takes_back_what_was_begun_and_brings_what_stands_in_the_file():
    listener = await followed()
    await listener.tell("run.state", phase="wait")
    await listener.tell("text.delta", text="X")
    await listener.ear.on_disconnect()
    assert listener.said == []
    await listener.tell("text.delta", text="Y")
    listener.file.append(Message(id="e0", role="agent", text="XYZ", run="R"))
    await listener.ear.on_disconnect()
    await listener.tell("entry.saved", entry="e0", entry_kind="agent")
    assert listener.said == ["XYZ"]


async def test_a_reply_that_stands_in_the_file_before_it_is_told_is_heard_once():
    for cut in (False, True):
        listener = await followed(from_birth=False)
        if cut:
            await listener.ear.on_disconnect()
        listener.file.append(Message(id="e0", role="agent", text="XYZ", run="R"))
        await listener.tell("run.state", phase="wait")
        for word in "XYZ":
            await listener.tell("text.delta", text=word)
        await listener.tell("entry.saved", entry="e0", entry_kind="agent")
        await listener.ear.emit_missed()
        assert listener.said == ["XYZ"], cut


async def test_what_is_told_after_one_began_to_follow_is_heard_also_if_it_stood_in_the_file_by_then():
    listener = Listener()
    listener.file += [Message(id=name, role="agent", text=name, run="R") for name in ("old", "XYZ")]
    await listener.ear.follow([RUN])
    await listener.tell("text.delta", text="Z")
    await listener.tell("entry.saved", entry="XYZ", entry_kind="agent")
    await listener.reply("Y")
    await listener.ear.on_disconnect()
    assert listener.said == ["XYZ", "Y"]


async def test_a_run_that_this_process_has_taken_up_is_not_read_from_its_file():
    listener = await followed()
    listener.ear.unfollow("R")
    listener.file.append(Message(id="e0", role="agent", text="XYZ", run="R"))
    await listener.ear.on_disconnect()
    assert listener.said == []


async def test_a_reply_that_is_asked_again_begins_anew():
    listener = await followed()
    await listener.tell("run.state", phase="wait")
    await listener.tell("text.delta", text="half")
    await listener.tell("text.discarded")
    await listener.tell("text.delta", text="whole")
    listener.file.append(Message(id="e0", role="agent", text="whole", run="R"))
    await listener.tell("entry.saved", entry="e0", entry_kind="agent")
    assert listener.said == ["whole"]
