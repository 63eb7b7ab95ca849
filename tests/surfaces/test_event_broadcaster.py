"""The hub: every durable event in the ledger's order and once, live ones as they come, and nobody is waited for."""

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
PATIENCE = 30.0


def decoded(raw: bytes) -> list[dict[str, Any]]:
    """The events in some bytes of a stream; those that stand in the ledger have an id."""
    found: list[dict[str, Any]] = []
    for block in raw.decode().split("\n\n"):
        parts = (line.partition(": ") for line in block.split("\n"))
        fields = {name: value for name, _, value in parts}
        if "data" in fields:
            found.append(json.loads(fields["data"]) | {"id": int(fields["id"]) if "id" in fields else None})
            assert found[-1]["kind"] == fields["event"]
    return found


class Ear:
    """Takes what a stream gives, as the line does for a client that reads."""

    def __init__(self, hub: EventBroadcaster, stream: EventQueue) -> None:
        self.hub, self.stream = hub, stream
        self.heard: list[dict[str, Any]] = []
        self.numbers: list[int] = []

    async def until(self, when: Callable[[], Any]) -> list[dict[str, Any]]:
        async with asyncio.timeout(PATIENCE):
            while not when() and (
                raw := await self.hub.read_backlog(self.stream) or await self.stream.take()
            ):
                fresh = decoded(raw)
                self.heard += fresh
                self.numbers += [each["id"] for each in fresh if each["id"] is not None]
        assert when(), f"it was never told; the last were {self.heard[-3:]}"
        return self.heard

    async def hears(self, kind: str) -> list[dict[str, Any]]:
        return await self.until(lambda: any(each["kind"] == kind for each in self.heard))


class World:
    """An application with a hub, on a home of its own."""

    def __init__(self, app: App, hub: EventBroadcaster) -> None:
        self.app, self.hub = app, hub

    async def listens(self, after: int | None = None, **wanted: str) -> Ear:
        session = wanted.get("session") or wanted.get("deltas", "")
        looked_at = await self.app.sessions.find(session) if len(session) > len(NO_DELTAS) else None
        return Ear(self.hub, await self.hub.subscribe(EventFilter(**wanted), after, looked_at))

    async def tells(self, count: int, ledger: Ledger | None = None, session: str = "S") -> None:
        """Writes durable events."""

        def step(tx: Transaction) -> None:
            for number in range(count):
                tx.emit(Event(kind="session.changed", at=NOW, session=session, data={"number": number}))

        await (ledger or self.app.context.ledger).write(step)


@asynccontextmanager
async def opened(env: dict[str, str], url: str = "") -> AsyncGenerator[World]:
    keys = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "key"} if url else {}
    async with retinue.open(env=env | keys | {"RETINUE_MODEL": "openai:m"}, approvals="auto") as app:
        hub = EventBroadcaster(app)
        async with asyncio.TaskGroup() as group:
            group.create_task(hub.run())
            yield World(app, hub)
            hub.close()


@asynccontextmanager
async def beside(env: dict[str, str]) -> AsyncGenerator[SqliteLedger]:
    """The ledger as another process has it."""
    ledger = SqliteLedger(Path(env["RETINUE_HOME"]) / "ledger.db")
    yield ledger
    await ledger.close()


async def test_what_two_processes_write_at_once_is_heard_in_order_and_once(isolated_env: dict[str, str]):
    chance = random.Random(7)
    async with opened(isolated_env) as world, beside(isolated_env) as other:
        ear = await world.listens()

        async def writes(ledger: Ledger | None) -> None:
            for _ in range(60):
                await world.tells(chance.randint(1, 4), ledger)
                await asyncio.sleep(chance.random() * 0.01)

        async with asyncio.TaskGroup() as group:
            for each in (None, other):
                group.create_task(writes(each))
        last = await world.app.events.last_seq()
        await ear.until(lambda: last in ear.numbers)
        assert ear.numbers == list(range(1, last + 1))


async def test_what_only_another_process_writes_is_heard_soon(isolated_env: dict[str, str]):
    async with opened(isolated_env) as world, beside(isolated_env) as other:
        ear = await world.listens()
        await world.tells(3, other)
        await ear.until(lambda: len(ear.numbers) == 3)


class SlowEvents:
    """Durable events from a ledger that once takes so long to be read that a whole run goes by."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.went_by = False

    async def list(self, *, after: int, limit: int) -> list[Event]:
        if not self.went_by:
            self.went_by = True
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


async def test_an_end_is_not_told_before_what_was_said_though_the_ledger_is_read_meanwhile(
    isolated_env: dict[str, str],
):
    async with (
        FakeModelServer([text_reply("Said at last.")]) as server,
        opened(isolated_env, server.url) as world,
    ):
        hub: Any = EventBroadcaster(cast("Any", SlowApp(world.app)))
        async with asyncio.TaskGroup() as group:
            ear = await World(world.app, hub).listens(deltas="all")
            group.create_task(hub.run())
            told = [each["kind"] for each in await ear.hears("run.ended")]
            hub.close()
        assert "text.delta" in told
        assert told[-1] == "run.ended"


async def test_who_comes_back_hears_what_was_missed_and_nothing_twice(isolated_env: dict[str, str]):
    """Shows: C18."""
    async with opened(isolated_env) as world, beside(isolated_env) as other:
        await world.tells(700)
        for after in (0, 1, 255, 256, 257, 699, 700):
            ear = await world.listens(after)
            await world.tells(2)
            await world.tells(1, other)
            last = await world.app.events.last_seq()
            await ear.until(lambda ear=ear, last=last: last in ear.numbers)
            assert ear.numbers == list(range(after + 1, last + 1))
            world.hub.unsubscribe(ear.stream)


async def test_who_names_no_number_hears_what_comes(isolated_env: dict[str, str]):
    async with opened(isolated_env) as world:
        await world.tells(5)
        ear = await world.listens()
        await world.tells(1)
        await ear.until(lambda: ear.numbers)
        assert ear.numbers == [6]


async def test_a_number_of_another_ledger_counts_for_nothing(isolated_env: dict[str, str]):
    async with opened(isolated_env) as world:
        await world.tells(5)
        ear = await world.listens(10**18)
        await world.tells(1)
        await ear.until(lambda: ear.numbers)
        assert ear.numbers == [6]


async def test_much_at_once_cuts_nobody_off_who_takes_it(isolated_env: dict[str, str]):
    async with opened(isolated_env) as world, beside(isolated_env) as other:
        ear = await world.listens()
        hearing = asyncio.create_task(ear.until(lambda: len(ear.numbers) == 8 * MAX_QUEUED_EVENTS))
        await world.tells(4 * MAX_QUEUED_EVENTS, other)
        await world.tells(4 * MAX_QUEUED_EVENTS)
        await hearing
        assert ear.numbers == list(range(1, 8 * MAX_QUEUED_EVENTS + 1))


async def test_who_takes_nothing_is_cut_off_and_holds_nothing_while_others_hear_on(
    isolated_env: dict[str, str],
):
    """A hundred thousand events.

    Shows: C18."""
    aborted = asyncio.Event()
    async with opened(isolated_env) as world:
        deaf = (await world.listens()).stream
        deaf.abort_connection = aborted.set
        ear = await world.listens()
        for _ in range(100):
            before = len(ear.numbers)
            await world.tells(1000)
            await ear.until(lambda before=before: len(ear.numbers) == before + 1000)
            assert deaf.queued_events <= MAX_QUEUED_EVENTS
        assert (deaf.is_cut_off, deaf.is_ended, deaf.queued_events) == (True, True, 0)
        assert await deaf.take() == b""
        async with asyncio.timeout(PATIENCE):
            await aborted.wait()
        again = await world.listens(0)
        await again.until(lambda: len(again.numbers) == 100_000)
        assert again.numbers == list(range(1, 100_001))


async def test_nobody_is_asked_for_anything_while_nobody_listens(isolated_env: dict[str, str]):
    async with opened(isolated_env) as world:
        assert not world.hub.has_listeners
        ear = await world.listens()
        assert world.hub.has_listeners
        world.hub.unsubscribe(ear.stream)
        assert not world.hub.has_listeners
        await world.tells(3)
        ear = await world.listens()
        await world.tells(1)
        await ear.until(lambda: ear.numbers)
        assert ear.numbers == [4]


async def test_the_end_of_the_hub_is_told_after_everything_else(isolated_env: dict[str, str]):
    async with opened(isolated_env) as world, beside(isolated_env) as other:
        ear = await world.listens()
        await world.tells(2, other)
        world.hub.close()
        await ear.until(lambda: ear.stream.is_ended and not ear.stream.queued_events)
        assert ear.numbers == [1, 2]


async def test_words_are_counted_and_what_was_discarded_is_told(isolated_env: dict[str, str]):
    """The first answer breaks off in its middle, and the turn is asked again."""
    script = [
        dropped_connection(1500, text_reply("A false beginning of an answer. " * 9)),
        text_reply("The answer."),
    ]
    async with FakeModelServer(script) as server, opened(isolated_env, server.url) as world:
        ear = await world.listens()
        run = await world.app.run("Answer.")
        heard = await ear.hears("run.ended")
        live = [each for each in heard if each["id"] is None]
        assert [each["live_seq"] for each in live] == list(range(1, len(live) + 1))
        kinds = [each["kind"] for each in live]
        at = kinds.index("text.discarded")
        assert "text.delta" in kinds[:at]
        assert "".join(each["text"] for each in live[at:] if each["kind"] == "text.delta") == run.text
        assert [each["entry_kind"] for each in live if each["kind"] == "entry.saved"] == ["user", "agent"]
        assert all(each["seq"] == 2 for each in live), "a live one says where the ledger is"


async def test_words_come_of_all_of_none_or_of_one(isolated_env: dict[str, str]):
    async with (
        FakeModelServer([text_reply("One."), text_reply("Two."), text_reply("Three.")]) as server,
        opened(isolated_env, server.url) as world,
    ):
        first = await world.app.run("One?")
        ears = [await world.listens(deltas=each) for each in ("all", "none", first.session_id)]
        await world.app.run("Two?", session=first.session_id)
        await world.app.run("Three?")
        told: list[str] = []
        for ear in ears:
            await ear.until(lambda ear=ear: [each["kind"] for each in ear.heard].count("run.ended") == 2)
            told.append("".join(each["text"] for each in ear.heard if each["kind"] == "text.delta"))
            assert [each["entry_kind"] for each in ear.heard if each["kind"] == "entry.saved"] == [
                "user",
                "agent",
            ] * 2
        assert told == ["Two.Three.", "", "Two."]


async def test_a_session_is_heard_with_everything_below_it_and_nothing_else(isolated_env: dict[str, str]):
    """Main asks a helper. Who listens to main hears both, who listens to the helper hears only that, and who comes
    back later hears the same of what is kept."""
    child = {"preset": "general", "description": "look", "prompt": "Look."}
    script = [tool_call_reply(("PersistentAgent", child)), text_reply("Seen."), text_reply("Done.")]
    async with FakeModelServer(_by_task(script)) as server, opened(isolated_env, server.url) as world:
        parent = await world.app.runs.start("Hand it on.")
        above = await world.listens(0, session=parent.session_id)
        await world.app.runs.wait(parent.id)
        other = await world.app.run("Hand nothing on.")
        below = next(
            run for run in await world.app.runs.list(live=False) if run.request.parent_run == parent.id
        )
        beneath = await world.listens(0, session=below.session_id)
        everything = await world.listens(0)
        last = await world.app.events.last_seq()
        await everything.until(lambda: last in everything.numbers)
        await above.until(lambda: _ended(above, parent.id))
        await beneath.until(lambda: _ended(beneath, below.id))
        assert {each["run"] for each in everything.heard} >= {parent.id, below.id, other.id}
        assert {each["run"] for each in above.heard} == {parent.id, below.id}
        assert {each["run"] for each in beneath.heard} == {below.id}
        again = await world.listens(0, session=parent.session_id)
        await again.until(lambda: _ended(again, parent.id))
        assert again.numbers == above.numbers


def _by_task(script: Sequence[Any]) -> Callable[[Any], Any]:
    """The first answer for whoever hands on, the second for whoever looks, the third after the result."""

    def chosen(asked: CapturedRequest) -> FakeResponse:
        said = json.dumps(asked.messages)
        if "Hand it on." not in said:
            return script[1]
        return script[2] if asked.reply_count else script[0]

    return chosen


def _ended(ear: Ear, run: str) -> bool:
    return any(each["kind"] == "run.ended" and each["run"] == run for each in ear.heard)


async def test_every_entry_that_is_saved_is_told_by_its_name(isolated_env: dict[str, str], tmp_path: Path):
    """What a person typed, what the agent said and called, and what came of it."""
    (tmp_path / "a.txt").write_text("Contents.")
    script = [
        tool_call_reply(("read", {"path": "a.txt"}), text="I look."),
        text_reply(""),
        text_reply("Contents, it says."),
    ]
    async with FakeModelServer(script) as server, opened(isolated_env, server.url) as world:
        ear = await world.listens()
        run = await world.app.run("What does a.txt say?", workspace=tmp_path)
        heard = await ear.hears("run.ended")
        told = [(each["entry"], each["entry_kind"]) for each in heard if each["kind"] == "entry.saved"]
        entries = await world.app.sessions.entries(run.session_id)
        assert [entry for entry, _ in told] == [public_entry_id(entry) for entry in entries]
        assert {of for _, of in told} == {"user", "agent", "call", "result", "notice"}


async def test_what_is_done_to_a_session_is_told_to_all_and_kept(isolated_env: dict[str, str]):
    async with FakeModelServer([text_reply("Hello.")]) as server, opened(isolated_env, server.url) as world:
        run = await world.app.run("Hi.")
        before = await world.app.events.last_seq()
        ear = await world.listens()
        await world.app.sessions.rename(run.session_id, "A name")
        await world.app.sessions.pin(run.session_id)
        await world.app.sessions.unpin(run.session_id)
        branch = await world.app.sessions.branch(run.session_id)
        await world.app.sessions.clear(branch.id)
        await world.app.sessions.delete(run.session_id)
        await ear.until(lambda: len(ear.numbers) == 6)
        told = [(each["kind"], each["change"]) for each in ear.heard]
        kinds = ["renamed", "pinned", "pinned", "branched", "cleared", "deleted"]
        assert told == [("session.changed", kind) for kind in kinds]
        assert ear.numbers == list(range(before + 1, before + 7))
        assert {each["session"] for each in ear.heard} == {run.session_id, branch.id}


async def test_an_edit_by_hand_is_told_while_somebody_looks(isolated_env: dict[str, str]):
    async with (
        FakeModelServer([text_reply("Hello."), text_reply("Yes.")]) as server,
        opened(isolated_env, server.url) as world,
    ):
        run = await world.app.run("Hi.")
        path = Path(run.transcript_path)
        for how in ("session", "deltas"):
            ear = await world.listens(None, **{how: run.session_id})
            path.write_text(path.read_text() + "Typed by hand.\n")
            heard = await ear.hears("session.changed")
            assert [(each["session"], each["change"], each["id"]) for each in heard] == [
                (run.session_id, "file", None)
            ]
            world.hub.unsubscribe(ear.stream)


async def test_what_a_run_saves_itself_is_no_edit_by_hand(isolated_env: dict[str, str]):
    async with (
        FakeModelServer([text_reply("Hello."), text_reply("Yes.")]) as server,
        opened(isolated_env, server.url) as world,
    ):
        run = await world.app.run("Hi.")
        ear = await world.listens(session=run.session_id)
        await world.app.run("Again.", session=run.session_id)
        await ear.hears("run.ended")
        await asyncio.sleep(0)
        path = Path(run.transcript_path)
        path.write_text(path.read_text() + "Typed.\n")
        await ear.hears("session.changed")
        assert [each["kind"] for each in ear.heard].count("session.changed") == 1


def test_words_of_one_run_that_come_together_are_told_in_one_piece_and_nothing_else_is():
    def event(run: str, kind: EventKind, text: str = "", seq: int = 0) -> Event:
        data = {"text": text, "entry": f"reply of {run}"} if text else {}
        return Event(kind=kind, at=NOW, session="S", run=run, seq=seq, live_number=0 if seq else 1, data=data)

    told = merge_deltas(
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
    assert all(each.data["entry"] == f"reply of {each.run}" for each in told if each.data)
    assert [(each.run, each.kind, each.data.get("text", "")) for each in told] == [
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
def test_an_event_is_one_block_whatever_it_holds(data: dict[str, Any], seq: int, n: int):
    event = Event(
        kind="run.state", at=NOW, session="S", run="R", agent="a", seq=seq, live_number=n, data=data
    )
    raw = encode_sse_event(event)
    assert raw.endswith(b"\n\n")
    assert raw.count(b"\n\n") == 1
    (told,) = decoded(raw)
    assert (told["kind"], told["seq"], told["session"], told["run"]) == ("run.state", seq, "S", "R")
    assert told["id"] == (None if n else seq)
    own = {name: value for name, value in data.items() if name not in told or told[name] == value}
    assert {name: told[name] for name in own} == own


def test_a_client_may_be_this_far_behind():
    assert MAX_QUEUED_EVENTS == 1024
