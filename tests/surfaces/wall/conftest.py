"""The daemon as a stranger meets it: a real process, spoken to over bare sockets, so that anything can be said."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from commands import RETINUE, Started, ran

import retinue
from retinue.surfaces.web import page
from retinue.surfaces.web.asgi import application
from retinue.surfaces.web.house import House
from retinue.surfaces.web.hub import Hub
from retinue.surfaces.web.keys import Keys
from retinue.surfaces.web.line import Limits
from retinue.surfaces.web.route import Route
from retinue.surfaces.web.server import Server, local_socket, page_socket

PATIENCE = 60.0
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The two ways into a daemon, and a hand to write anything into them."""

    home: Path
    port: int

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def opened(self, way: str = "port") -> socket.socket:
        if way == "port":
            return socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.settimeout(PATIENCE)
        found.connect(os.fspath(self.home / "daemon.sock"))
        return found

    def says(self, *pieces: bytes, way: str = "port") -> bytes:
        """All that is answered to these bytes, until the daemon closes. Whoever is closed on while speaking listens."""
        with self.opened(way) as line:
            with suppress(BrokenPipeError, ConnectionResetError):
                for piece in pieces:
                    line.sendall(piece)
            found = b""
            with suppress(ConnectionResetError):
                while piece := line.recv(1 << 16):
                    found += piece
            return found

    def asks(
        self,
        method: str,
        path: str,
        *headers: str,
        body: bytes | None = None,
        token: str | None = None,
        host: str | None = None,
        way: str = "port",
        line: socket.socket | None = None,
    ) -> Answer:
        """One request as it is written here, letter by letter. Of a stream, the head is read."""
        lines = [
            f"{method} {path} HTTP/1.1",
            *([f"Host: {host or self.host}"] if host != "" else []),
            *headers,
        ]
        lines += [f"Authorization: Bearer {token}"] if token is not None else []
        lines += [f"Content-Length: {len(body)}"] if body is not None else []
        used = line or self.opened(way)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                used.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
            return answered(used, method)
        finally:
            if line is None:
                used.close()

    def owner(self, method: str, path: str, *headers: str, **more: Any) -> Answer:
        """The same with the token of the home."""
        return self.asks(method, path, *headers, token=self.token, **more)


def answered(line: socket.socket, method: str = "GET") -> Answer:
    reply = http.client.HTTPResponse(line, method=method)
    try:
        reply.begin()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        streams = headers.get("content-type", "").startswith("text/event-stream")
        return Answer(status=reply.status, headers=headers, body=b"" if streams else reply.read())
    finally:
        reply.close()


@dataclass(slots=True, kw_only=True)
class Daemon:
    """A process of `retinue serve`, and the command line beside it."""

    env: dict[str, str]
    folder: Path
    arguments: Sequence[str] = ()
    told: str = ""
    process: subprocess.Popen[bytes] | None = None
    door: Door = field(init=False)

    @property
    def home(self) -> Path:
        return Path(self.env["RETINUE_HOME"])

    @property
    def link(self) -> str:
        """The link that it printed when it started."""
        found = re.search(r"http://\S+/enter/\S+", self.told)
        assert found, self.told
        return found[0]

    def start(self) -> None:
        self.process = Started(
            [*RETINUE, "serve", "--port", "0", *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )
        assert self.process.stderr is not None
        while "/enter/" not in self.told:
            line = self.process.stderr.readline().decode()
            assert line, f"the daemon ended: {self.told}"
            self.told += line
        port = re.search(r":(\d+)/enter/", self.told)
        assert port
        self.at(int(port[1]))

    def at(self, port: int) -> Door:
        """The way in, where somebody else started it."""
        self.door = Door(home=self.home, port=port)
        return self.door

    def stop(self) -> str:
        """All that it ever told, once it has ended."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=PATIENCE)
        self.told += rest.decode()
        return self.told

    def command(self, *arguments: str) -> Any:
        """What a command prints as JSON."""
        words = [*RETINUE, *arguments, "--json"]
        done = ran(words, env=self.env, cwd=self.folder, timeout=PATIENCE)
        return json.loads(done.stdout)


def environment(place: Path) -> dict[str, str]:
    folders = {"HOME": "user", "RETINUE_HOME": "home", "RETINUE_CONFIG": "config"}
    for name in (*folders.values(), "work"):
        (place / name).mkdir(mode=0o700)
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {name: str(place / folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemon]:
    """One daemon for a whole file of tests: none of them may leave a mark on it that another sees."""
    place = tmp_path_factory.mktemp("daemon")
    found = Daemon(env=environment(place), folder=place / "work")
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def door(daemon: Daemon) -> Door:
    return daemon.door


@pytest.fixture
def serves(tmp_path: Path) -> Generator[Callable[..., Daemon]]:
    """Another daemon, of this test only."""
    made: list[Daemon] = []

    def make(*arguments: str) -> Daemon:
        made.append(Daemon(env=environment(tmp_path), folder=tmp_path / "work", arguments=arguments))
        return made[-1]

    yield make
    for each in made:
        if each.process is not None and each.process.returncode is None:
            each.stop()


Built = Callable[..., AbstractAsyncContextManager[Door]]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """The server in this process, with routes and limits of a test's own."""

    @asynccontextmanager
    async def make(
        *routes: Route, limits: Limits | None = None, static: Path = page.STATIC
    ) -> AsyncGenerator[Door]:
        home = Path((env := environment(tmp_path))["RETINUE_HOME"])
        async with retinue.open(env=env) as app:
            listener = page_socket("127.0.0.1", 0)
            door = Door(home=home, port=listener.getsockname()[1])
            house = House(
                app=app,
                hub=Hub(app),
                keys=Keys(home),
                started_at=datetime.now(UTC),
                url=door.url,
                look=lambda: True,
                stop=lambda: None,
            )
            server = Server(application(house, routes, static=static), limits)
            async with server.listening(local_socket(home), listener):
                yield door

    return make
