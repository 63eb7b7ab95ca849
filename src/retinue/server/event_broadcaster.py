"""The hub: every event once, in the ledger's order, to everybody who listens, and nobody is waited for.

A cursor stands at the last durable event that was passed on. One of this process that comes next in number passes at
once; where numbers are missing another process wrote them, and the ledger fills in. What one process alone writes is
looked for a few times a second, and only while somebody listens. Events are gathered for a moment, encoded once, and
given in one piece to all who want the same.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import msgspec

from retinue.app import App
from retinue.domain.event import Event, as_json
from retinue.domain.session import Session
from retinue.errors import RetinueError
from retinue.server.event_ancestry import Lineage
from retinue.server.event_stream import MOST, Stream, Wanted
from retinue.server.session_file_watcher import Watch

LOOK_SECONDS = 0.2
"""How often the ledger is asked what other processes wrote."""
HEARTBEAT_SECONDS = 15.0
GATHER_SECONDS = 0.02
"""How long events are gathered after some were passed on; the first after a silence passes at once."""
GATHER_SECONDS_EACH = 0.0005
"""And longer with every stream: a hundred of them are given something twenty times a second."""
PAGE = 256
"""Events that are passed on before clients get a moment to take them."""
BREATHS = 10
"""How often somebody who reads slowly is waited for, at most, before the next page."""
MOST_WAITING = 16_384
"""Events that may wait to be passed on while the ledger cannot be read; beyond it everybody is cut off, and resumes."""

WORDS = ("text.delta", "thinking.delta")

_ENCODER = msgspec.json.Encoder()


class Channel:
    """All streams that want the same, and what was gathered for them."""

    def __init__(self) -> None:
        self.streams: set[Stream] = set()
        self._gathered: list[bytes] = []

    def put(self, raw: bytes) -> None:
        self._gathered.append(raw)

    def flush(self) -> bool:
        if not self._gathered:
            return False
        raw, count = b"".join(self._gathered), len(self._gathered)
        self._gathered.clear()
        for stream in self.streams:
            stream.put(raw, count)
        return True


class Hub:
    """Fans the application's events out to streams."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._channels: dict[Wanted, Channel] = {}
        self._lineage = Lineage(app.conversations)
        self._watch = Watch(app.chance.now)
        self._cursor = 0
        self._counts: dict[str, int] = {}
        """How many live events of each run were passed on."""
        self._waiting: list[Event] = []
        self._awake = asyncio.Event()
        self._listening = ExitStack()
        self._joining = asyncio.Lock()
        self._closed = False
        self._look_at = self._beat_at = 0.0

    @property
    def listened(self) -> bool:
        """Whether anybody does."""
        return bool(self._channels)

    async def join(self, wanted: Wanted, after: int | None, looked_at: Session | None = None) -> Stream:
        """A new stream: of what comes from now on, or of all that came past the number `after`. A number that the
        ledger does not know yet is another ledger's, and counts for nothing."""
        async with self._joining:
            if not self._channels:
                await self._begin()
            channel = self._channels.setdefault(wanted, Channel())
            channel.flush()
            start = self._cursor if after is None or after > self._cursor else after
            stream = Stream(wanted, after=start, until=self._cursor)
            channel.streams.add(stream)
        if looked_at is not None:
            self._watch.look_at(looked_at)
        if self._closed:
            stream.end()
        self._awake.set()
        return stream

    def leave(self, stream: Stream) -> None:
        channel = self._channels[stream.wanted]
        channel.streams.discard(stream)
        if not channel.streams:
            self._channels.pop(stream.wanted)
            self._watch.only(wanted.looks_at for wanted in self._channels)
        if not self._channels:
            self._listening.close()
            self._waiting.clear()
            self._counts.clear()

    async def earlier(self, stream: Stream) -> bytes:
        """The next of what a stream wants that stood in the ledger before it was there; nothing: that was all. Where
        it is comes with it, so that who is cut off in between goes on from there."""
        while stream.after < stream.until:
            await asyncio.sleep(0)  # a look at the ledger does not leave the loop, and others wait for it
            limit = min(PAGE, stream.until - stream.after)
            events = await self._app.events(after=stream.after, limit=limit)
            if not events:
                stream.after = stream.until
                break
            stream.after = events[-1].seq
            wanted = [each for each in events if stream.wanted.takes(each, await self._lineage.of(each))]
            if raw := b"".join(encoded(each) for each in wanted if each.seq <= stream.until):
                return raw
        return b""

    async def feed(self) -> None:
        """Until it is closed."""
        while not self._closed:
            await self._something()
            if await self._passed_on():
                streams = sum(len(each.streams) for each in self._channels.values())
                await asyncio.sleep(max(GATHER_SECONDS, GATHER_SECONDS_EACH * streams))
        self._look_at = 0.0
        while self._channels and not self._look_at:
            await self._passed_on()
        for stream in self._streams():
            stream.end()

    def close(self) -> None:
        """Ends every stream when all is told: those who listen come back to the next daemon."""
        self._closed = True
        self._awake.set()

    async def _begin(self) -> None:
        """From the first stream on."""
        self._listening.enter_context(self._app.listen(self._heard))
        try:
            self._cursor = await self._app.last_seq()
        except BaseException:
            self._listening.close()
            raise
        self._beat_at = asyncio.get_running_loop().time() + HEARTBEAT_SECONDS

    def _heard(self, event: Event) -> None:
        self._watch.heard(event)  # now: when it is passed on, somebody else may have written since
        self._waiting.append(event)
        self._awake.set()
        if len(self._waiting) > MOST_WAITING:
            self._waiting.clear()
            for stream in self._streams():
                stream.cut_off()

    async def _something(self) -> None:
        """Waits for an event, or until it is time to look for those of others; without streams, for the first."""
        if self._waiting:
            return
        self._awake.clear()
        if not self._channels:
            await self._awake.wait()
            return
        timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._awake.set)
        await self._awake.wait()
        timer.cancel()

    async def _passed_on(self) -> bool:
        """In order: what was heard, then what others wrote, then what a person typed. False: there was nothing."""
        if not self._channels:
            return False
        waiting, self._waiting = self._waiting, []
        with suppress(RetinueError):  # a ledger that cannot be read now: it is asked again soon
            for at, event in enumerate(joined(waiting), 1):
                await self._pass(event)
                if at % PAGE == 0:
                    await self._breathed()
            now = asyncio.get_running_loop().time()
            if now >= self._look_at:
                self._look_at = now + LOOK_SECONDS
                await self._looked(until=None)
                for change in self._watch.changes(now):
                    await self._give(change)
        found = await self._flushed()
        self._beat()
        return found

    async def _pass(self, event: Event) -> None:
        if event.n:
            await self._give(event)
        elif event.seq > self._cursor:
            if event.seq > self._cursor + 1:
                await self._looked(until=event.seq - 1)
            await self._give(event)

    async def _looked(self, *, until: int | None) -> None:
        """Everything that stands in the ledger past the cursor, up to a number. Without one it is left for the next time
        if something was heard meanwhile: what was said before an end would come after it."""
        while until is None or self._cursor < until:
            limit = PAGE if until is None else min(PAGE, until - self._cursor)
            events = await self._app.events(after=self._cursor, limit=limit)
            if until is None and self._waiting:
                self._look_at = 0.0
                return
            for event in events:
                if until is None or event.seq <= until:
                    await self._give(event)
            if len(events) < limit or (until is not None and events[-1].seq >= until):
                return
            await self._breathed()

    async def _give(self, event: Event) -> None:
        """The cursor and what is gathered change in one stroke: who joins sees both before, or both after."""
        heard_in = await self._lineage.of(event) if self._by_session() else ()
        if event.n:
            event = self._placed(event)
        elif event.seq <= self._cursor:
            return
        else:
            self._cursor = event.seq
            if event.kind == "run.ended":
                self._counts.pop(event.run, None)
        raw: bytes | None = None
        for wanted, channel in self._channels.items():
            if wanted.takes(event, heard_in):
                raw = raw or encoded(event)
                channel.put(raw)

    def _placed(self, event: Event) -> Event:
        """A live event says after which durable one it came, and which of its run's live ones it is."""
        count = self._counts[event.run] = self._counts.get(event.run, 0) + 1
        return replace(event, seq=self._cursor, n=count)

    def _by_session(self) -> bool:
        return any(wanted.session for wanted in self._channels)

    async def _flushed(self) -> bool:
        if found := [channel for channel in self._channels.values() if channel.flush()]:
            await asyncio.sleep(0)
        return bool(found)

    async def _breathed(self) -> None:
        """Between two pages of very much, who reads gets a moment to take what waits. Who does not is soon cut off."""
        await self._flushed()
        for _ in range(BREATHS):
            if all(stream.waiting <= MOST // 2 for stream in self._streams()):
                return
            await asyncio.sleep(GATHER_SECONDS)

    def _beat(self) -> None:
        """A sign of life that says where the ledger is: who hears little goes on from there, and not from long ago."""
        if (now := asyncio.get_running_loop().time()) < self._beat_at:
            return
        self._beat_at = now + HEARTBEAT_SECONDS
        for stream in self._streams():
            if stream.still():
                stream.put(b": \nid: %d\n\n" % self._cursor, 1)
            else:
                stream.cut_off()

    def _streams(self) -> list[Stream]:
        return [stream for channel in self._channels.values() for stream in channel.streams]


def joined(events: Sequence[Event]) -> list[Event]:
    """The same, with words of one run that came one after the other in one piece: however fast a model speaks, those
    who listen are told a few times a second."""
    told: list[Event] = []
    words: dict[int, list[str]] = {}
    latest: dict[str, int] = {}
    for event in events:
        at = latest.get(event.run, -1)
        if event.kind in WORDS and at >= 0 and told[at].kind == event.kind:
            words.setdefault(at, [told[at].data["text"]]).append(event.data["text"])
            continue
        latest[event.run] = len(told)
        told.append(event)
    for at, pieces in words.items():
        told[at] = replace(told[at], data={**told[at].data, "text": "".join(pieces)})
    return told


def encoded(event: Event) -> bytes:
    """An event as it goes over the line. Only a durable one has an id: a stream is taken up again after it."""
    facts = as_json(event)
    try:
        data = _ENCODER.encode(facts)
    except UnicodeEncodeError:  # half a surrogate pair, as a model may say it
        data = json.dumps(facts).encode()
    number = b"" if event.n else b"id: %d\n" % event.seq
    return b"event: %s\n%sdata: %s\n\n" % (event.kind.encode(), number, data)
