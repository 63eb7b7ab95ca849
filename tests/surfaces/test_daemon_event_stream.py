"""Event streams of a daemon process: reconnecting after a kill, slow clients, events of other processes."""

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

TIMEOUT_S = 60.0
TODO = "---\nname: todo\n---\nYou keep a list.\n"


class EventClient:
    """A client that reads an event stream."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader) -> None:
        self.head = head
        self.events: list[dict[str, Any]] = []
        self.numbers: list[int] = []
        self.last_id: int | None = None
        self.is_complete = False
        """Whether the server ended the stream properly."""
        self._reader = reader
        self._rest = ""

    def text(self, session: str = "") -> str:
        deltas = (each for each in self.events if each["kind"] == "text.delta")
        return "".join(each["text"] for each in deltas if session in ("", each["session"]))

    async def read_until(self, condition: Callable[[], Any]) -> list[dict[str, Any]]:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                assert await self._read_chunk(), (
                    f"the stream ended early; its last events: {self.events[-3:]}"
                )
        return self.events

    async def read_events(self, kind: str, times: int = 1) -> list[dict[str, Any]]:
        return await self.read_until(lambda: [each["kind"] for each in self.events].count(kind) >= times)

    async def read_to_end(self, last: int | None = None) -> None:
        """Read to the end of the stream, or to the event with the number `last`."""
        async with asyncio.timeout(TIMEOUT_S):
            while await self._read_chunk():
                if last is not None and self.last_id == last:
                    return

    async def _read_chunk(self) -> bool:
        try:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            self._rest += (await self._reader.readexactly(size)).decode()
            await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        *blocks, self._rest = self._rest.split("\n\n")
        for block in blocks:
            self._add_event(
                {name: value for name, _, value in (line.partition(": ") for line in block.split("\n"))}
            )
        self.is_complete = not size
        return bool(size)

    def _add_event(self, fields: dict[str, str]) -> None:
        number = int(fields["id"]) if "id" in fields else None
        self.last_id = self.last_id if number is None else number
        if "data" in fields:
            self.events.append(json.loads(fields["data"]) | {"id": number})
            self.numbers += [] if number is None else [number]


class DaemonHome:
    """A home whose daemon the test starts and kills."""

    def __init__(self, command: CliFixture, url: str) -> None:
        self.command = command
        self.home = Path(command.env["RETINUE_HOME"])
        self.process: subprocess.Popen[bytes] | None = None
        command.env |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "key", "RETINUE_MODEL": "openai:m"}
        agents = Path(command.env["RETINUE_CONFIG"]) / "agents"
        agents.mkdir(exist_ok=True)
        (agents / "todo.md").write_text(TODO)

    async def start(self) -> None:
        process: subprocess.Popen[bytes] = self.command.start("serve", "--port", "0")
        self.process = process
        async with asyncio.timeout(TIMEOUT_S):
            while await daemon_client.ping_daemon(self.home) is None:
                assert process.poll() is None
                await asyncio.sleep(0.05)

    async def stop(self, sent_signal: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(sent_signal)
        await asyncio.to_thread(self.process.wait, TIMEOUT_S)

    @asynccontextmanager
    async def open_stream(
        self, path: str = "/api/events", *, last: int | None = None
    ) -> AsyncGenerator[EventClient]:
        with daemon_client.socket_path(self.home) as place:
            reader, writer = await asyncio.open_unix_connection(place)
        try:
            headers = [] if last is None else [f"Last-Event-ID: {last}"]
            writer.write("\r\n".join([f"GET {path} HTTP/1.1", "host: daemon", *headers, "", ""]).encode())
            async with asyncio.timeout(TIMEOUT_S):
                yield EventClient(await reader.readuntil(b"\r\n\r\n"), reader)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def create_session(self, agent: str = "general") -> str:
        created = await daemon_client.request_json(
            self.home, "POST", "/api/sessions", {"agent": agent, "workspace": str(self.home.parent)}
        )
        assert created is not None
        return created["session_id"]

    async def send_message(self, session: str, text: str) -> str:
        body = {"content": text, "mode": "async"}
        sent = await daemon_client.request_json(self.home, "POST", f"/api/sessions/{session}/messages", body)
        assert sent is not None
        return sent["responseId"]

    async def write_events(self, count: int, *, batch: int) -> None:
        """Write events to the ledger as another process would."""
        ledger = SqliteLedger(self.home / "ledger.db")

        def emit_events(tx: Transaction) -> None:
            for _ in range(batch):
                tx.emit(Event(kind="session.changed", at=datetime.now(UTC), session="S"))

        for _ in range(count // batch):
            await ledger.write(emit_events)
        await ledger.close()

    async def stored_events(self) -> list[tuple[int, str]]:
        """Return the number and kind of every event in the ledger."""
        ledger = SqliteLedger(self.home / "ledger.db")
        try:
            found = await ledger.read(lambda tx: tx.find_events(limit=100_000))
        finally:
            await ledger.close()
        return [(event.seq, event.kind) for event in found]


def slow_replies(text: str, *, pace: float) -> Callable[[CapturedRequest], FakeResponse]:
    """Reply to every request with the same slow text."""
    return lambda _request: text_reply(text, pace=pace)


@asynccontextmanager
async def running_daemon(retinue: CliFixture, script: Script) -> AsyncGenerator[DaemonHome]:
    async with FakeModelServer(script) as server:
        home = DaemonHome(retinue, server.url)
        await home.start()
        yield home


async def test_a_client_that_reconnects_after_each_kill_receives_every_event_once(cli: CliFixture):
    """The daemon is killed twice during runs and restarted, and its client reconnects.

    Shows: A15, C18."""
    async with running_daemon(cli, slow_replies("Some words. " * 40, pace=0.02)) as home:
        last = 0
        received: list[tuple[int, str]] = []
        sessions = [await home.create_session() for _ in range(2)]
        for session in sessions:
            async with home.open_stream(last=last) as client:
                run = await home.send_message(session, "Speak.")
                await client.read_until(lambda client=client, run=run: _has_text_of(client, run))
                await home.stop(signal.SIGKILL)
                await client.read_to_end()
                assert not client.is_complete
                received += [(each["id"], each["kind"]) for each in client.events if each["id"] is not None]
                last = client.last_id or last
            await home.start()
        async with home.open_stream(last=last) as client:
            ended_runs = [kind for _, kind in received].count("run.ended")
            await client.read_events("run.ended", times=2 - ended_runs)
            received += [(each["id"], each["kind"]) for each in client.events if each["id"] is not None]
        stored = await home.stored_events()
        assert received == stored[: len(received)]
        assert [kind for _, kind in received].count("run.ended") == 2


def _has_text_of(client: EventClient, run: str) -> bool:
    return any(each["run"] == run and each["kind"] == "text.delta" for each in client.events)


async def test_a_client_that_disconnects_does_not_stop_the_run_and_receives_the_rest_later(cli: CliFixture):
    """Shows: A15."""
    async with running_daemon(cli, slow_replies("Some words. " * 40, pace=0.01)) as home:
        session = await home.create_session()
        async with home.open_stream(f"/api/sessions/{session}/events") as client:
            run = await home.send_message(session, "Speak.")
            await client.read_until(lambda: _has_text_of(client, run))
        async with home.open_stream(f"/api/sessions/{session}/events", last=client.last_id) as again:
            await again.read_events("run.ended")
            assert again.events[-1]["status"] == "done"
        assert [*client.numbers, *again.numbers] == [number for number, _ in await home.stored_events()][1:]


async def test_a_client_that_never_reads_is_disconnected_and_can_resume_from_its_last_event(cli: CliFixture):
    """Another process writes a hundred thousand events.

    Shows: C18."""
    async with running_daemon(cli, []) as home:
        with socket.socket(socket.AF_UNIX) as idle_client, daemon_client.socket_path(home.home) as place:
            idle_client.connect(place)
            idle_client.sendall(b"GET /api/events HTTP/1.1\r\nhost: daemon\r\n\r\n")
            async with asyncio.TaskGroup() as group:
                group.create_task(home.write_events(100_000, batch=500))
                reading = group.create_task(_read_numbers_until(100_000, home))
            assert reading.result() == list(range(1, 100_001))
            idle_client.settimeout(TIMEOUT_S)
            raw = await asyncio.to_thread(_read_all, idle_client)
        last = int(raw.rpartition(b"\nid: ")[2].partition(b"\n")[0])
        assert last < 20_000, "only the events that fit into the socket buffer"
        async with home.open_stream(last=last) as again:
            await again.read_until(lambda: again.last_id == 100_000)
            assert again.numbers == list(range(last + 1, 100_001))
        assert _peak_memory_mb(home) < 150


async def _read_numbers_until(last: int, home: DaemonHome) -> list[int]:
    """Read all event numbers with a client that reconnects whenever it is disconnected for being slow."""
    numbers: list[int] = []
    while not numbers or numbers[-1] < last:
        async with home.open_stream(last=numbers[-1] if numbers else 0) as client:
            await client.read_to_end(last)
            numbers += client.numbers
    return numbers


def _read_all(connection: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            found += piece
    return found


def _peak_memory_mb(home: DaemonHome) -> float:
    assert home.process is not None
    status = Path(f"/proc/{home.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


async def test_events_of_runs_in_other_processes_arrive_in_order_and_once(cli: CliFixture):
    """The commands have other settings than the daemon, so they execute their runs themselves, at the same time."""
    async with (
        running_daemon(cli, slow_replies("Words. " * 20, pace=0.01)) as home,
        home.open_stream() as client,
    ):
        sessions = [await home.create_session() for _ in range(4)]
        commands = [cli.start("run", "--model", "openai:other", "Speak.") for _ in range(2)]
        runs = [await home.send_message(session, "Speak.") for session in sessions]
        await client.read_events("run.ended", times=6)
        for each in commands:
            assert await asyncio.to_thread(each.wait, TIMEOUT_S) == 0
        assert set(runs) < {each["run"] for each in client.events}
        numbers = [number for number, _ in await home.stored_events()]
        assert client.numbers == numbers


async def test_a_session_stream_includes_the_reply_to_another_agents_message(cli: CliFixture):
    """Shows: C043."""

    def script(request: CapturedRequest) -> FakeResponse:
        messages = json.dumps(request.messages)
        if "Add milk." in messages and "Ask todo" not in messages:
            return text_reply("Added: milk.")
        if request.reply_count:
            return text_reply("I asked.")
        message = {"agentId": "todo", "session": "latest", "content": "Add milk.", "mode": "async"}
        return tool_call_reply(("agents_message", message))

    async with running_daemon(cli, script) as home:
        target = await home.create_session("todo")
        async with home.open_stream(f"/api/sessions/{target}/events") as client:
            await home.send_message(await home.create_session(), "Ask todo to add milk.")
            await client.read_events("run.ended")
            assert client.text(target) == "Added: milk."
            assert {each["session"] for each in client.events} == {target}


async def test_an_edit_of_the_session_file_is_an_event_for_clients_that_stream_the_session(cli: CliFixture):
    async with running_daemon(cli, [text_reply("Hello.")]) as home:
        session = await home.create_session()
        async with home.open_stream(f"/api/events?deltas={session}") as client:
            await home.send_message(session, "Hi.")
            await client.read_events("run.ended")
            shown = await daemon_client.request_json(home.home, "GET", f"/api/sessions/{session}")
            assert shown is not None
            path = Path(shown["path"])
            path.write_text(path.read_text() + "Typed by hand.\n")
            event = (await client.read_events("session.changed"))[-1]
            assert (event["session"], event["change"], event["id"]) == (session, "file", None)


async def test_the_stream_of_all_events_continues_when_the_session_of_its_deltas_does_not_exist(
    cli: CliFixture,
):
    async with running_daemon(cli, []) as home, home.open_stream("/api/events?deltas=nobody") as client:
        session = await home.create_session()
        await client.read_events("session.changed")
        assert [each["session"] for each in client.events] == [session]


async def test_a_daemon_that_stops_ends_its_streams_properly(cli: CliFixture):
    async with running_daemon(cli, [text_reply("Hello.")]) as home, home.open_stream() as client:
        session = await home.create_session()
        await client.read_events("session.changed")
        await home.stop(signal.SIGTERM)
        await client.read_to_end()
        assert client.is_complete
        assert [each["session"] for each in client.events] == [session]


async def test_the_stream_has_its_headers_and_begins_with_the_last_event_number(cli: CliFixture):
    async with running_daemon(cli, [text_reply("Hello.")]) as home, home.open_stream() as client:
        head = client.head.decode().lower()
        assert head.startswith("http/1.1 200")
        assert "content-type: text/event-stream" in head
        assert "cache-control: no-store" in head
        assert "x-accel-buffering: no" in head
        await client.read_until(lambda: client.last_id is not None)
        assert client.last_id == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/sessions/nobody/events", 404),
        ("/api/sessions/nobody/events?deltas=none", 404),
        ("/api/events?after=soon", 400),
        ("/api/events?after=-1", 400),
        ("/api/events?before=3", 400),
    ],
)
async def test_an_invalid_stream_request_gets_its_error_status(cli: CliFixture, path: str, status: int):
    async with running_daemon(cli, []) as home, home.open_stream(path) as client:
        assert client.head.startswith(f"HTTP/1.1 {status} ".encode())
