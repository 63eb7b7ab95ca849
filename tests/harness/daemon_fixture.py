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
from environment import create_environment

from retinue.server import static_page
from retinue.server.connection_limits import ConnectionLimits
from retinue.server.routing import Route

TIMEOUT_S = 60.0


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
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(TIMEOUT_S)
        connection.connect(os.fspath(self.home / "daemon.sock"))
        return connection

    def send_raw(self, *pieces: bytes, transport: str = "port") -> bytes:
        """Send these bytes and return all that the daemon sends until it closes, even if it closes while we send."""
        with self.connect(transport) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                for piece in pieces:
                    connection.sendall(piece)
            received = b""
            with suppress(ConnectionResetError):
                while chunk := connection.recv(1 << 16):
                    received += chunk
            return received

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
        """Send one request exactly as given. Of an event stream, only the head is read."""
        head_lines = [
            f"{method} {path} HTTP/1.1",
            *([f"Host: {host or self.host}"] if host != "" else []),
            *headers,
        ]
        head_lines += [f"Authorization: Bearer {token}"] if token is not None else []
        head_lines += [f"Content-Length: {len(body)}"] if body is not None else []
        sock = connection or self.connect(transport)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall("\r\n".join([*head_lines, "", ""]).encode() + (body or b""))
            return read_response(sock, method)
        finally:
            if connection is None:
                sock.close()

    def request_as_owner(self, method: str, path: str, *headers: str, **options: Any) -> HttpResponse:
        """Send a request with the token of the home."""
        return self.request(method, path, *headers, token=self.token, **options)


def read_response(connection: socket.socket, method: str = "GET") -> HttpResponse:
    response = http.client.HTTPResponse(connection, method=method)
    try:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        return HttpResponse(
            status=response.status, headers=headers, body=b"" if is_stream else response.read()
        )
    finally:
        response.close()


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
        """The link to the page, as printed at the start."""
        match = re.search(r"http://\S+/enter/\S+", self.stderr_text)
        assert match, self.stderr_text
        return match[0]

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
        match = re.search(r":(\d+)/enter/", self.stderr_text)
        assert match
        self.set_port(int(match[1]))

    def set_port(self, port: int) -> DaemonClient:
        """Use a daemon that something else started, at this TCP port."""
        self.client = DaemonClient(home=self.home, port=port)
        return self.client

    def stop(self) -> str:
        """Stop the daemon and return all that it wrote to standard error."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=TIMEOUT_S)
        self.stderr_text += rest.decode()
        return self.stderr_text

    def run_command(self, *arguments: str) -> Any:
        """Run a command of the same home and return its JSON output."""
        command = [*RETINUE, *arguments, "--json"]
        result = run_process(command, env=self.env, cwd=self.folder, timeout=TIMEOUT_S)
        return json.loads(result.stdout)


def make_environment(folder: Path) -> dict[str, str]:
    (folder / "work").mkdir(mode=0o700)
    return create_environment(folder)


class MakeDaemon(Protocol):
    """Make a daemon with these arguments of `retinue serve`; the test starts it."""

    def __call__(self, *arguments: str) -> DaemonProcess: ...


class OpenServer(Protocol):
    """Open the server in this process, with routes, limits and static files of the test."""

    def __call__(
        self, *routes: Route, limits: ConnectionLimits | None = None, static: Path = static_page.STATIC_FOLDER
    ) -> AbstractAsyncContextManager[DaemonClient]: ...
