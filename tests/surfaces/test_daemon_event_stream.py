"""Streams of a real daemon: taken up again after a kill, cut off where nobody reads, and heard across processes."""

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture

from retinue import daemon_client
from retinue.domain.event import Event
from retinue.interfaces import Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer, Script
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

PATIENCE = 60.0
TODO = "---\nname: todo\n---\nYou keep a list.\n"


class Ear:
    """A client that reads."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader) -> None:
        self.head = head
        self.heard: list[dict[str, Any]] = []
        self.numbers: list[int] = []
        self.last: int | None = None
        self.whole = False
        """Whether the stream came to its end in good order."""
        self._reader = reader
        self._rest = ""

    def words(self, session: str = "") -> str:
        told = (each for each in self.heard if each["kind"] == "text.delta")
        return "".join(each["text"] for each in told if session in ("", each["session"]))

    async def until(self, when: Callable[[], Any]) -> list[dict[str, Any]]:
        async with asyncio.timeout(PATIENCE):
            while not when():
                assert await self._more(), f"the stream ended before; the last were {self.heard[-3:]}"
        return self.heard

    async def hears(self, kind: str, times: int = 1) -> list[dict[str, Any]]:
        return await self.until(lambda: [each["kind"] for each in self.heard].count(kind) >= times)

    async def to_the_end(self, last: int | None = None) -> None:
        """Of the stream, or to an event before it."""
        async with asyncio.timeout(PATIENCE):
            while await self._more():
                if last is not None and self.last == last:
                    return

    async def _more(self) -> bool:
        try:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            self._rest += (await self._reader.readexactly(size)).decode()
            await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        *blocks, self._rest = self._rest.split("\n\n")
        for block in blocks:
            self._take(
                {name: value for name, _, value in (line.partition(": ") for line in block.split("\n"))}
            )
        self.whole = not size
        return bool(size)

    def _take(self, fields: dict[str, str]) -> None:
        number = int(fields["id"]) if "id" in fields else None
        self.last = self.last if number is None else number
        if "data" in fields:
            self.heard.append(json.loads(fields["data"]) | {"id": number})
            self.numbers += [] if number is None else [number]


class House:
    """A home with a daemon that is started and killed."""

    def __init__(self, command: CliFixture, url: str) -> None:
        self.command = command
        self.home = Path(command.env["RETINUE_HOME"])
        self.process: subprocess.Popen[bytes] | None = None
        command.env |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "key", "RETINUE_MODEL": "openai:m"}
        agents = Path(command.env["RETINUE_CONFIG"]) / "agents"
        agents.mkdir(exist_ok=True)
        (agents / "todo.md").write_text(TODO)

    async def starts(self) -> None:
        process: subprocess.Popen[bytes] = self.command.start("serve", "--port", "0")
        self.process = process
        async with asyncio.timeout(PATIENCE):
            while await daemon_client.ping_daemon(self.home) is None:
                assert process.poll() is None
                await asyncio.sleep(0.05)

    async def ends(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        await asyncio.to_thread(self.process.wait, PATIENCE)

    @asynccontextmanager
    async def listening(self, path: str = "/api/events", *, last: int | None = None) -> AsyncGenerator[Ear]:
        with daemon_client.socket_path(self.home) as place:
            reader, writer = await asyncio.open_unix_connection(place)
        try:
            more = [] if last is None else [f"Last-Event-ID: {last}"]
            writer.write("\r\n".join([f"GET {path} HTTP/1.1", "host: daemon", *more, "", ""]).encode())
            async with asyncio.timeout(PATIENCE):
                yield Ear(await reader.readuntil(b"\r\n\r\n"), reader)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def session(self, agent: str = "general") -> str:
        made = await daemon_client.request_json(
            self.home, "POST", "/api/sessions", {"agent": agent, "workspace": str(self.home.parent)}
        )
        assert made is not None
        return made["session_id"]

    async def says(self, session: str, text: str) -> str:
        body = {"content": text, "mode": "async"}
        told = await daemon_client.request_json(self.home, "POST", f"/api/sessions/{session}/messages", body)
        assert told is not None
        return told["responseId"]

    async def written(self, count: int, *, at_once: int) -> None:
        """Events by another process."""
        ledger = SqliteLedger(self.home / "ledger.db")

        def step(tx: Transaction) -> None:
            for _ in range(at_once):
                tx.emit(Event(kind="session.changed", at=datetime.now(UTC), session="S"))

        for _ in range(count // at_once):
            await ledger.write(step)
        await ledger.close()

    async def kept(self) -> list[tuple[int, str]]:
        """What stands in the ledger."""
        ledger = SqliteLedger(self.home / "ledger.db")
        try:
            found = await ledger.read(lambda tx: tx.find_events(limit=100_000))
        finally:
            await ledger.close()
        return [(event.seq, event.kind) for event in found]


def slowly(text: str, *, pace: float) -> Callable[[CapturedRequest], FakeResponse]:
    """The same answer for everybody."""
    return lambda _asked: text_reply(text, pace=pace)


@asynccontextmanager
async def house(retinue: CliFixture, script: Script) -> AsyncGenerator[House]:
    async with FakeModelServer(script) as server:
        made = House(retinue, server.url)
        await made.starts()
        yield made


async def test_who_is_cut_off_by_kills_hears_everything_once_in_the_end(cli: CliFixture):
    """The daemon is killed three times with runs on their way, and goes on; so does its client.

    Shows: A15, C18."""
    async with house(cli, slowly("Some words. " * 40, pace=0.02)) as home:
        last = 0
        heard: list[tuple[int, str]] = []
        sessions = [await home.session() for _ in range(3)]
        for session in sessions:
            async with home.listening(last=last) as ear:
                run = await home.says(session, "Speak.")
                await ear.until(lambda ear=ear, run=run: _speaks(ear, run))
                await home.ends(signal.SIGKILL)
                await ear.to_the_end()
                assert not ear.whole
                heard += [(each["id"], each["kind"]) for each in ear.heard if each["id"] is not None]
                last = ear.last or last
            await home.starts()
        async with home.listening(last=last) as ear:
            begun = [kind for _, kind in heard].count("run.ended")
            await ear.hears("run.ended", times=3 - begun)
            heard += [(each["id"], each["kind"]) for each in ear.heard if each["id"] is not None]
        kept = await home.kept()
        assert heard == kept[: len(heard)]
        assert [kind for _, kind in heard].count("run.ended") == 3


def _speaks(ear: Ear, run: str) -> bool:
    return any(each["run"] == run and each["kind"] == "text.delta" for each in ear.heard)


async def test_a_client_that_goes_in_mid_stream_stops_nothing_and_hears_the_rest_later(cli: CliFixture):
    """Shows: A15."""
    async with house(cli, slowly("Some words. " * 40, pace=0.01)) as home:
        session = await home.session()
        async with home.listening(f"/api/sessions/{session}/events") as ear:
            run = await home.says(session, "Speak.")
            await ear.until(lambda: _speaks(ear, run))
        async with home.listening(f"/api/sessions/{session}/events", last=ear.last) as again:
            await again.hears("run.ended")
            assert again.heard[-1]["status"] == "done"
        assert [*ear.numbers, *again.numbers] == [number for number, _ in await home.kept()][1:]


async def test_who_never_reads_is_cut_off_and_comes_back_by_its_number(cli: CliFixture):
    """Another process writes a hundred thousand events.

    Shows: C18."""
    async with house(cli, []) as home:
        with socket.socket(socket.AF_UNIX) as deaf, daemon_client.socket_path(home.home) as place:
            deaf.connect(place)
            deaf.sendall(b"GET /api/events HTTP/1.1\r\nhost: daemon\r\n\r\n")
            async with asyncio.TaskGroup() as group:
                group.create_task(home.written(100_000, at_once=500))
                hearing = group.create_task(_heard_up_to(100_000, home))
            assert hearing.result() == list(range(1, 100_001))
            deaf.settimeout(PATIENCE)
            raw = await asyncio.to_thread(_all_of, deaf)
        last = int(raw.rpartition(b"\nid: ")[2].partition(b"\n")[0])
        assert last < 20_000, "what the kernel had room for, and not what came after it"
        async with home.listening(last=last) as again:
            await again.until(lambda: again.last == 100_000)
            assert again.numbers == list(range(last + 1, 100_001))
        assert _memory(home) < 150


async def _heard_up_to(last: int, home: House) -> list[int]:
    """By somebody who reads, and who comes back where it was whenever it could not keep up."""
    numbers: list[int] = []
    while not numbers or numbers[-1] < last:
        async with home.listening(last=numbers[-1] if numbers else 0) as ear:
            await ear.to_the_end(last)
            numbers += ear.numbers
    return numbers


def _all_of(line: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionError):
        while piece := line.recv(1 << 16):
            found += piece
    return found


def _memory(home: House) -> float:
    """Megabytes at most, so far."""
    assert home.process is not None
    status = Path(f"/proc/{home.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


async def test_what_a_command_works_beside_the_daemon_is_heard_in_order_and_once(cli: CliFixture):
    """Their settings differ, so each works its own; both write at the same time."""
    async with house(cli, slowly("Words. " * 20, pace=0.01)) as home, home.listening() as ear:
        sessions = [await home.session() for _ in range(4)]
        there = [cli.start("run", "--model", "openai:other", "Speak.") for _ in range(2)]
        here = [await home.says(session, "Speak.") for session in sessions]
        await ear.hears("run.ended", times=6)
        for each in there:
            assert await asyncio.to_thread(each.wait, PATIENCE) == 0
        assert set(here) < {each["run"] for each in ear.heard}
        numbers = [number for number, _ in await home.kept()]
        assert ear.numbers == numbers


async def test_who_listens_to_a_session_hears_the_answer_to_another_agents_message(cli: CliFixture):
    """Shows: C043."""

    def script(asked: CapturedRequest) -> FakeResponse:
        said = json.dumps(asked.messages)
        if "Add milk." in said and "Ask todo" not in said:
            return text_reply("Added: milk.")
        if asked.reply_count:
            return text_reply("I asked.")
        message = {"agentId": "todo", "session": "latest", "content": "Add milk.", "mode": "async"}
        return tool_call_reply(("agents_message", message))

    async with house(cli, script) as home:
        target = await home.session("todo")
        async with home.listening(f"/api/sessions/{target}/events") as ear:
            await home.says(await home.session(), "Ask todo to add milk.")
            await ear.hears("run.ended")
            assert ear.words(target) == "Added: milk."
            assert {each["session"] for each in ear.heard} == {target}


async def test_an_edit_of_the_file_is_told_to_who_looks_at_it(cli: CliFixture):
    async with house(cli, [text_reply("Hello.")]) as home:
        session = await home.session()
        async with home.listening(f"/api/events?deltas={session}") as ear:
            await home.says(session, "Hi.")
            await ear.hears("run.ended")
            shown = await daemon_client.request_json(home.home, "GET", f"/api/sessions/{session}")
            assert shown is not None
            path = Path(shown["path"])
            path.write_text(path.read_text() + "Typed by hand.\n")
            told = (await ear.hears("session.changed"))[-1]
            assert (told["session"], told["change"], told["id"]) == (session, "file", None)


async def test_a_daemon_that_stops_ends_its_streams_in_good_order(cli: CliFixture):
    async with house(cli, [text_reply("Hello.")]) as home, home.listening() as ear:
        session = await home.session()
        await ear.hears("session.changed")
        await home.ends(signal.SIGTERM)
        await ear.to_the_end()
        assert ear.whole
        assert [each["session"] for each in ear.heard] == [session]


async def test_a_stream_says_what_it_is_and_how_to_come_back(cli: CliFixture):
    async with house(cli, [text_reply("Hello.")]) as home, home.listening() as ear:
        head = ear.head.decode().lower()
        assert head.startswith("http/1.1 200")
        assert "content-type: text/event-stream" in head
        assert "cache-control: no-store" in head
        assert "x-accel-buffering: no" in head
        await ear.until(lambda: ear.last is not None)
        assert ear.last == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/sessions/nobody/events", 404),
        ("/api/events?deltas=nobody", 404),
        ("/api/events?after=soon", 400),
        ("/api/events?after=-1", 400),
        ("/api/events?before=3", 400),
    ],
)
async def test_a_wish_that_cannot_be_met_is_answered_plainly(cli: CliFixture, path: str, status: int):
    async with house(cli, []) as home, home.listening(path) as ear:
        assert ear.head.startswith(f"HTTP/1.1 {status} ".encode())
