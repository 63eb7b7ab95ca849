"""The event broadcaster: stored events in ledger order and once, live events at once, and no waiting for slow clients."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

import retinue
from retinue.app import App
from retinue.domain.event import Event, EventKind
from retinue.domain.transcript import public_entry_id
from retinue.interfaces import Ledger, Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.server.event_broadcaster import EventBroadcaster, encode_sse_event, merge_deltas
from retinue.server.event_queue import MAX_QUEUED_EVENTS, NO_DELTAS, EventFilter, EventQueue
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, dropped_connection, text_reply, tool_call_reply

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMEOUT_S = 30.0


def decode_events(raw: bytes) -> list[dict[str, Any]]:
    """Decode a part of an event stream. Only stored events have an id."""
    found: list[dict[str, Any]] = []
    for block in raw.decode().split("\n\n"):
        parts = (line.partition(": ") for line in block.split("\n"))
        fields = {name: value for name, _, value in parts}
        if "data" in fields:
            found.append(json.loads(fields["data"]) | {"id": int(fields["id"]) if "id" in fields else None})
            assert found[-1]["kind"] == fields["event"]
    return found


class EventReader:
    """Reads an event stream, like a connection whose client keeps up."""

    def __init__(self, broadcaster: EventBroadcaster, stream: EventQueue) -> None:
        self.broadcaster, self.stream = broadcaster, stream
        self.events: list[dict[str, Any]] = []
        self.numbers: list[int] = []

    async def read_until(self, condition: Callable[[], Any]) -> list[dict[str, Any]]:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition() and (
                raw := await self.broadcaster.read_backlog(self.stream) or await self.stream.take()
            ):
                fresh = decode_events(raw)
                self.events += fresh
                self.numbers += [each["id"] for each in fresh if each["id"] is not None]
        assert condition(), f"the event never came; the last events: {self.events[-3:]}"
        return self.events

    async def read_event(self, kind: str) -> list[dict[str, Any]]:
        return await self.read_until(lambda: any(each["kind"] == kind for each in self.events))


class BroadcasterFixture:
    """An application with an event broadcaster, in its own home."""

    def __init__(self, app: App, broadcaster: EventBroadcaster) -> None:
        self.app, self.broadcaster = app, broadcaster

    async def subscribe(self, after: int | None = None, **filters: str) -> EventReader:
        session = filters.get("session") or filters.get("deltas", "")
        watched_session = await self.app.sessions.find(session) if len(session) > len(NO_DELTAS) else None
        return EventReader(
            self.broadcaster, await self.broadcaster.subscribe(EventFilter(**filters), after, watched_session)
        )

    async def write_events(self, count: int, ledger: Ledger | None = None, session: str = "S") -> None:
        def emit_events(tx: Transaction) -> None:
            for number in range(count):
                tx.emit(Event(kind="session.changed", at=NOW, session=session, data={"number": number}))

        await (ledger or self.app.context.ledger).write(emit_events)

    async def write_and_read_one(self, after: int | None = None) -> list[int]:
        """Subscribe, write one event, and return the numbers of the first events that arrive."""
        reader = await self.subscribe(after)
        await self.write_events(1)
        await reader.read_until(lambda: reader.numbers)
        return reader.numbers


@asynccontextmanager
async def open_app(env: dict[str, str], url: str = "") -> AsyncGenerator[BroadcasterFixture]:
    keys = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "key"} if url else {}
    async with retinue.open(env=env | keys | {"RETINUE_MODEL": "openai:m"}, approvals="auto") as app:
        broadcaster = EventBroadcaster(app)
        async with asyncio.TaskGroup() as group:
            group.create_task(broadcaster.run())
            yield BroadcasterFixture(app, broadcaster)
            broadcaster.close()


@asynccontextmanager
async def second_ledger(env: dict[str, str]) -> AsyncGenerator[SqliteLedger]:
    """Open the ledger a second time, like another process."""
    ledger = SqliteLedger(Path(env["RETINUE_HOME"]) / "ledger.db")
    yield ledger
    await ledger.close()


async def test_events_of_two_concurrent_processes_arrive_in_order_and_once(isolated_env: dict[str, str]):
    rng = random.Random(7)
    async with open_app(isolated_env) as fixture, second_ledger(isolated_env) as other:
        reader = await fixture.subscribe()

        async def write_at_random_times(ledger: Ledger | None) -> None:
            for _ in range(60):
                await fixture.write_events(rng.randint(1, 4), ledger)
                await asyncio.sleep(rng.random() * 0.01)

        async with asyncio.TaskGroup() as group:
            for ledger in (None, other):
                group.create_task(write_at_random_times(ledger))
        last = await fixture.app.events.last_seq()
        await reader.read_until(lambda: last in reader.numbers)
        assert reader.numbers == list(range(1, last + 1))


async def test_events_that_only_another_process_writes_arrive(isolated_env: dict[str, str]):
    async with open_app(isolated_env) as fixture, second_ledger(isolated_env) as other:
        reader = await fixture.subscribe()
        await fixture.write_events(3, other)
        await reader.read_until(lambda: len(reader.numbers) == 3)


class SlowEvents:
    """Stored events whose first read takes as long as a whole run."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.has_run = False

    async def list(self, *, after: int, limit: int) -> list[Event]:
        if not self.has_run:
            self.has_run = True
            await self.app.run("Say it.")
        return await self.app.events.list(after=after, limit=limit)

    async def last_seq(self) -> int:
        return await self.app.events.last_seq()


class SlowApp:
    """An application with slow events."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.events = SlowEvents(app)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)


async def test_the_end_of_a_run_comes_after_its_text_even_if_the_ledger_is_read_during_the_run(
    isolated_env: dict[str, str],
):
    async with (
        FakeModelServer([text_reply("Said at last.")]) as server,
        open_app(isolated_env, server.url) as fixture,
    ):
        broadcaster: Any = EventBroadcaster(cast("Any", SlowApp(fixture.app)))
        async with asyncio.TaskGroup() as group:
            reader = await BroadcasterFixture(fixture.app, broadcaster).subscribe(deltas="all")
            group.create_task(broadcaster.run())
            kinds = [each["kind"] for each in await reader.read_event("run.ended")]
            broadcaster.close()
        assert "text.delta" in kinds
        assert kinds[-1] == "run.ended"


async def test_a_reconnecting_client_receives_the_missed_events_once(isolated_env: dict[str, str]):
    """Shows: C18."""
    async with open_app(isolated_env) as fixture, second_ledger(isolated_env) as other:
        await fixture.write_events(700)
        for after in (0, 1, 255, 256, 257, 699, 700):
            reader = await fixture.subscribe(after)
            await fixture.write_events(2)
            await fixture.write_events(1, other)
            last = await fixture.app.events.last_seq()
            await reader.read_until(lambda reader=reader, last=last: last in reader.numbers)
            assert reader.numbers == list(range(after + 1, last + 1))
            fixture.broadcaster.unsubscribe(reader.stream)


async def test_a_client_without_a_last_event_id_receives_only_new_events(isolated_env: dict[str, str]):
    async with open_app(isolated_env) as fixture:
        await fixture.write_events(5)
        assert await fixture.write_and_read_one() == [6]


async def test_a_last_event_id_beyond_the_ledger_is_ignored(isolated_env: dict[str, str]):
    async with open_app(isolated_env) as fixture:
        await fixture.write_events(5)
        assert await fixture.write_and_read_one(10**18) == [6]


async def test_a_burst_of_events_disconnects_no_client_that_reads(isolated_env: dict[str, str]):
    async with open_app(isolated_env) as fixture, second_ledger(isolated_env) as other:
        reader = await fixture.subscribe()
        reading = asyncio.create_task(reader.read_until(lambda: len(reader.numbers) == 8 * MAX_QUEUED_EVENTS))
        await fixture.write_events(4 * MAX_QUEUED_EVENTS, other)
        await fixture.write_events(4 * MAX_QUEUED_EVENTS)
        await reading
        assert reader.numbers == list(range(1, 8 * MAX_QUEUED_EVENTS + 1))


async def test_a_client_that_never_reads_is_disconnected_and_its_queue_freed_while_others_read_on(
    isolated_env: dict[str, str],
):
    """A hundred thousand events are written.

    Shows: C18."""
    aborted = asyncio.Event()
    async with open_app(isolated_env) as fixture:
        idle_stream = (await fixture.subscribe()).stream
        idle_stream.abort_connection = aborted.set
        reader = await fixture.subscribe()
        for _ in range(100):
            before = len(reader.numbers)
            await fixture.write_events(1000)
            await reader.read_until(lambda before=before: len(reader.numbers) == before + 1000)
            assert idle_stream.queued_events <= MAX_QUEUED_EVENTS
        assert (idle_stream.is_cut_off, idle_stream.is_ended, idle_stream.queued_events) == (True, True, 0)
        assert await idle_stream.take() == b""
        async with asyncio.timeout(TIMEOUT_S):
            await aborted.wait()
        again = await fixture.subscribe(0)
        await again.read_until(lambda: len(again.numbers) == 100_000)
        assert again.numbers == list(range(1, 100_001))


async def test_events_are_not_broadcast_while_no_client_is_subscribed(isolated_env: dict[str, str]):
    async with open_app(isolated_env) as fixture:
        assert not fixture.broadcaster.has_listeners
        reader = await fixture.subscribe()
        assert fixture.broadcaster.has_listeners
        fixture.broadcaster.unsubscribe(reader.stream)
        assert not fixture.broadcaster.has_listeners
        await fixture.write_events(3)
        assert await fixture.write_and_read_one() == [4]


async def test_closing_the_broadcaster_ends_streams_after_their_last_event(isolated_env: dict[str, str]):
    async with open_app(isolated_env) as fixture, second_ledger(isolated_env) as other:
        reader = await fixture.subscribe()
        await fixture.write_events(2, other)
        fixture.broadcaster.close()
        await reader.read_until(lambda: reader.stream.is_ended and not reader.stream.queued_events)
        assert reader.numbers == [1, 2]


async def test_live_events_are_numbered_and_discarded_text_is_announced(isolated_env: dict[str, str]):
    """The connection drops in the middle of the first reply, and the request is retried."""
    script = [
        dropped_connection(1500, text_reply("A false beginning of an answer. " * 9)),
        text_reply("The answer."),
    ]
    async with FakeModelServer(script) as server, open_app(isolated_env, server.url) as fixture:
        reader = await fixture.subscribe()
        run = await fixture.app.run("Answer.")
        events = await reader.read_event("run.ended")
        live = [each for each in events if each["id"] is None]
        assert [each["live_seq"] for each in live] == list(range(1, len(live) + 1))
        kinds = [each["kind"] for each in live]
        discard_index = kinds.index("text.discarded")
        assert "text.delta" in kinds[:discard_index]
        assert (
            "".join(each["text"] for each in live[discard_index:] if each["kind"] == "text.delta") == run.text
        )
        assert [each["entry_kind"] for each in live if each["kind"] == "entry.saved"] == ["user", "agent"]
        assert all(each["seq"] == 2 for each in live), (
            "a live event carries the number of the last stored event"
        )


async def test_text_deltas_can_be_requested_for_all_sessions_none_or_one(isolated_env: dict[str, str]):
    async with (
        FakeModelServer([text_reply("One."), text_reply("Two."), text_reply("Three.")]) as server,
        open_app(isolated_env, server.url) as fixture,
    ):
        first = await fixture.app.run("One?")
        readers = [await fixture.subscribe(deltas=each) for each in ("all", "none", first.session_id)]
        await fixture.app.run("Two?", session=first.session_id)
        await fixture.app.run("Three?")
        texts: list[str] = []
        for reader in readers:
            await reader.read_until(
                lambda reader=reader: [each["kind"] for each in reader.events].count("run.ended") == 2
            )
            texts.append("".join(each["text"] for each in reader.events if each["kind"] == "text.delta"))
            assert [each["entry_kind"] for each in reader.events if each["kind"] == "entry.saved"] == [
                "user",
                "agent",
            ] * 2
        assert texts == ["Two.Three.", "", "Two."]


async def test_a_session_stream_includes_its_child_sessions_and_nothing_else(isolated_env: dict[str, str]):
    """The parent's stream has the events of parent and child, the child's stream only its own. Replaying the stored
    events gives the same."""
    child = {"preset": "general", "description": "look", "prompt": "Look."}
    script = [tool_call_reply(("PersistentAgent", child)), text_reply("Seen."), text_reply("Done.")]
    async with (
        FakeModelServer(_reply_by_task(script)) as server,
        open_app(isolated_env, server.url) as fixture,
    ):
        parent = await fixture.app.runs.start("Delegate it.")
        above = await fixture.subscribe(0, session=parent.session_id)
        await fixture.app.runs.wait(parent.id)
        other = await fixture.app.run("Do it yourself.")
        below = next(
            run for run in await fixture.app.runs.list(live=False) if run.request.parent_run == parent.id
        )
        beneath = await fixture.subscribe(0, session=below.session_id)
        everything = await fixture.subscribe(0)
        last = await fixture.app.events.last_seq()
        await everything.read_until(lambda: last in everything.numbers)
        await above.read_until(lambda: _has_run_ended(above, parent.id))
        await beneath.read_until(lambda: _has_run_ended(beneath, below.id))
        assert {each["run"] for each in everything.events} >= {parent.id, below.id, other.id}
        assert {each["run"] for each in above.events} == {parent.id, below.id}
        assert {each["run"] for each in beneath.events} == {below.id}
        again = await fixture.subscribe(0, session=parent.session_id)
        await again.read_until(lambda: _has_run_ended(again, parent.id))
        assert again.numbers == above.numbers


def _reply_by_task(script: Sequence[Any]) -> Callable[[Any], Any]:
    """Reply with the first item to the parent, with the second to the child, and with the third after the result."""

    def choose_reply(request: CapturedRequest) -> FakeResponse:
        messages = json.dumps(request.messages)
        if "Delegate it." not in messages:
            return script[1]
        return script[2] if request.reply_count else script[0]

    return choose_reply


def _has_run_ended(reader: EventReader, run: str) -> bool:
    return any(each["kind"] == "run.ended" and each["run"] == run for each in reader.events)


async def test_every_saved_entry_is_an_event_with_its_id_and_kind(
    isolated_env: dict[str, str], tmp_path: Path
):
    (tmp_path / "a.txt").write_text("Contents.")
    script = [
        tool_call_reply(("read", {"path": "a.txt"}), text="I look."),
        text_reply(""),
        text_reply("Contents, it says."),
    ]
    async with FakeModelServer(script) as server, open_app(isolated_env, server.url) as fixture:
        reader = await fixture.subscribe()
        run = await fixture.app.run("What does a.txt say?", workspace=tmp_path)
        events = await reader.read_event("run.ended")
        saved = [(each["entry"], each["entry_kind"]) for each in events if each["kind"] == "entry.saved"]
        entries = await fixture.app.sessions.entries(run.session_id)
        assert [entry for entry, _ in saved] == [public_entry_id(entry) for entry in entries]
        assert {kind for _, kind in saved} == {"user", "agent", "call", "result", "notice"}


async def test_changes_of_a_session_are_stored_events_for_all_clients(isolated_env: dict[str, str]):
    async with (
        FakeModelServer([text_reply("Hello.")]) as server,
        open_app(isolated_env, server.url) as fixture,
    ):
        run = await fixture.app.run("Hi.")
        before = await fixture.app.events.last_seq()
        reader = await fixture.subscribe()
        await fixture.app.sessions.rename(run.session_id, "A name")
        await fixture.app.sessions.pin(run.session_id)
        await fixture.app.sessions.unpin(run.session_id)
        branch = await fixture.app.sessions.branch(run.session_id)
        await fixture.app.sessions.clear(branch.id)
        await fixture.app.sessions.delete(run.session_id)
        await reader.read_until(lambda: len(reader.numbers) == 6)
        changes = [(each["kind"], each["change"]) for each in reader.events]
        kinds = ["renamed", "pinned", "pinned", "branched", "cleared", "deleted"]
        assert changes == [("session.changed", kind) for kind in kinds]
        assert reader.numbers == list(range(before + 1, before + 7))
        assert {each["session"] for each in reader.events} == {run.session_id, branch.id}


async def test_an_edit_of_the_session_file_is_an_event_while_a_client_streams_the_session(
    isolated_env: dict[str, str],
):
    async with (
        FakeModelServer([text_reply("Hello."), text_reply("Yes.")]) as server,
        open_app(isolated_env, server.url) as fixture,
    ):
        run = await fixture.app.run("Hi.")
        path = Path(run.transcript_path)
        for parameter in ("session", "deltas"):
            reader = await fixture.subscribe(None, **{parameter: run.session_id})
            path.write_text(path.read_text() + "Typed by hand.\n")
            events = await reader.read_event("session.changed")
            assert [(each["session"], each["change"], each["id"]) for each in events] == [
                (run.session_id, "file", None)
            ]
            fixture.broadcaster.unsubscribe(reader.stream)


async def test_what_a_run_saves_is_not_reported_as_a_user_edit(isolated_env: dict[str, str]):
    async with (
        FakeModelServer([text_reply("Hello."), text_reply("Yes.")]) as server,
        open_app(isolated_env, server.url) as fixture,
    ):
        run = await fixture.app.run("Hi.")
        reader = await fixture.subscribe(session=run.session_id)
        await fixture.app.run("Again.", session=run.session_id)
        await reader.read_event("run.ended")
        await asyncio.sleep(0)
        path = Path(run.transcript_path)
        path.write_text(path.read_text() + "Typed.\n")
        await reader.read_event("session.changed")
        assert [each["kind"] for each in reader.events].count("session.changed") == 1


def test_consecutive_deltas_of_one_run_are_merged_and_other_events_are_not():
    def event(run: str, kind: EventKind, text: str = "", seq: int = 0) -> Event:
        data = {"text": text, "entry": f"reply of {run}"} if text else {}
        return Event(kind=kind, at=NOW, session="S", run=run, seq=seq, live_seq=0 if seq else 1, data=data)

    merged = merge_deltas(
        [
            event("A", "thinking.delta", "Hm"),
            event("A", "thinking.delta", "m."),
            event("A", "text.delta", "One "),
            event("B", "text.delta", "uno "),
            event("A", "text.delta", "two "),
            event("B", "run.state"),
            event("B", "text.delta", "due"),
            event("A", "text.discarded"),
            event("A", "text.delta", "three"),
            event("A", "run.ended", seq=7),
            event("A", "text.delta", "four"),
        ]
    )
    assert all(each.data["entry"] == f"reply of {each.run}" for each in merged if each.data)
    assert [(each.run, each.kind, each.data.get("text", "")) for each in merged] == [
        ("A", "thinking.delta", "Hmm."),
        ("A", "text.delta", "One two "),
        ("B", "text.delta", "uno "),
        ("B", "run.state", ""),
        ("B", "text.delta", "due"),
        ("A", "text.discarded", ""),
        ("A", "text.delta", "three"),
        ("A", "run.ended", ""),
        ("A", "text.delta", "four"),
    ]


@given(
    data=st.dictionaries(
        st.text(), st.text(st.characters(exclude_categories=())) | st.integers() | st.none()
    ),
    seq=st.integers(0, 10**12),
    n=st.integers(0, 3),
)
def test_any_event_is_encoded_as_one_block(data: dict[str, Any], seq: int, n: int):
    event = Event(kind="run.state", at=NOW, session="S", run="R", agent="a", seq=seq, live_seq=n, data=data)
    raw = encode_sse_event(event)
    assert raw.endswith(b"\n\n")
    assert raw.count(b"\n\n") == 1
    (event_json,) = decode_events(raw)
    assert (event_json["kind"], event_json["seq"], event_json["session"], event_json["run"]) == (
        "run.state",
        seq,
        "S",
        "R",
    )
    assert event_json["id"] == (None if n else seq)
    own = {name: value for name, value in data.items() if name not in event_json or event_json[name] == value}
    assert {name: event_json[name] for name in own} == own


def test_at_most_1024_events_are_queued_for_a_client():
    assert MAX_QUEUED_EVENTS == 1024
