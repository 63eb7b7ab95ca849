"""The daemon as a real process, and a client that sends arbitrary bytes over its sockets."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from commands import RETINUE, WarmProcess, run_process

from retinue.server import static_page
from retinue.server.connection_limits import ConnectionLimits
from retinue.server.routing import Route

TIMEOUT_S = 60.0


INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
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
class DaemonClient:
    """A client of a daemon over its TCP port and its local socket, down to single bytes."""

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

    def connect(self, transport: str = "port") -> socket.socket:
        if transport == "port":
            return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.settimeout(TIMEOUT_S)
        found.connect(os.fspath(self.home / "daemon.sock"))
        return found

    def send_raw(self, *pieces: bytes, transport: str = "port") -> bytes:
        """All that is read_response to these bytes, until the daemon closes. Whoever is closed on while speaking listens."""
        with self.connect(transport) as line:
            with suppress(BrokenPipeError, ConnectionResetError):
                for piece in pieces:
                    line.sendall(piece)
            found = b""
            with suppress(ConnectionResetError):
                while piece := line.recv(1 << 16):
                    found += piece
            return found

    def request(
        self,
        method: str,
        path: str,
        *headers: str,
        body: bytes | None = None,
        token: str | None = None,
        host: str | None = None,
        transport: str = "port",
        connection: socket.socket | None = None,
    ) -> HttpResponse:
        """One request as it is written here, letter by letter. Of a stream, the head is read."""
        lines = [
            f"{method} {path} HTTP/1.1",
            *([f"Host: {host or self.host}"] if host != "" else []),
            *headers,
        ]
        lines += [f"Authorization: Bearer {token}"] if token is not None else []
        lines += [f"Content-Length: {len(body)}"] if body is not None else []
        used = connection or self.connect(transport)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                used.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
            return read_response(used, method)
        finally:
            if connection is None:
                used.close()

    def request_as_owner(self, method: str, path: str, *headers: str, **more: Any) -> HttpResponse:
        """The same with the token of the home."""
        return self.request(method, path, *headers, token=self.token, **more)


def read_response(line: socket.socket, method: str = "GET") -> HttpResponse:
    reply = http.client.HTTPResponse(line, method=method)
    try:
        reply.begin()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        streams = headers.get("content-type", "").startswith("text/event-stream")
        return HttpResponse(status=reply.status, headers=headers, body=b"" if streams else reply.read())
    finally:
        reply.close()


@dataclass(slots=True, kw_only=True)
class DaemonProcess:
    """A process of `retinue serve`, and the command line with the same home."""

    env: dict[str, str]
    folder: Path
    arguments: Sequence[str] = ()
    stderr_text: str = ""
    process: subprocess.Popen[bytes] | None = None
    client: DaemonClient = field(init=False)

    @property
    def home(self) -> Path:
        return Path(self.env["RETINUE_HOME"])

    @property
    def link(self) -> str:
        """The link that it printed when it started."""
        found = re.search(r"http://\S+/enter/\S+", self.stderr_text)
        assert found, self.stderr_text
        return found[0]

    def start(self) -> None:
        self.process = WarmProcess(
            [*RETINUE, "serve", "--port", "0", *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )
        assert self.process.stderr is not None
        while "/enter/" not in self.stderr_text:
            line = self.process.stderr.readline().decode()
            assert line, f"the daemon ended: {self.stderr_text}"
            self.stderr_text += line
        port = re.search(r":(\d+)/enter/", self.stderr_text)
        assert port
        self.client_at(int(port[1]))

    def client_at(self, port: int) -> DaemonClient:
        """The way in, where somebody else started it."""
        self.client = DaemonClient(home=self.home, port=port)
        return self.client

    def stop(self) -> str:
        """All that it ever told, once it has ended."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=TIMEOUT_S)
        self.stderr_text += rest.decode()
        return self.stderr_text

    def run_command(self, *arguments: str) -> Any:
        """What a command prints as JSON."""
        words = [*RETINUE, *arguments, "--json"]
        done = run_process(words, env=self.env, cwd=self.folder, timeout=TIMEOUT_S)
        return json.loads(done.stdout)


def make_environment(place: Path) -> dict[str, str]:
    folders = {"HOME": "user", "RETINUE_HOME": "home", "RETINUE_CONFIG": "config"}
    for name in (*folders.values(), "work"):
        (place / name).mkdir(mode=0o700)
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return kept | {name: str(place / folder) for name, folder in folders.items()}


class MakeDaemon(Protocol):
    """Make a daemon with these arguments of `retinue serve`; the test starts it."""

    def __call__(self, *arguments: str) -> DaemonProcess: ...


class OpenServer(Protocol):
    """Open the server in this process, with routes, limits and static files of the test."""

    def __call__(
        self, *routes: Route, limits: ConnectionLimits | None = None, static: Path = static_page.STATIC_FOLDER
    ) -> AbstractAsyncContextManager[DaemonClient]: ...
