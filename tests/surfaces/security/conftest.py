"""A daemon as a separate process, and a client that sends any bytes over raw sockets."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from daemon_fixture import DaemonClient, DaemonProcess, MakeDaemon, OpenServer, make_environment

import retinue
from retinue.server import static_page
from retinue.server.asgi_app import create_asgi_app
from retinue.server.auth import Authenticator
from retinue.server.connection_limits import ConnectionLimits
from retinue.server.context import ServerContext
from retinue.server.event_broadcaster import EventBroadcaster
from retinue.server.listeners import ApiServer, open_tcp_socket, open_unix_socket
from retinue.server.routing import Route


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[DaemonProcess]:
    """One daemon for a whole module: no test may change what another one sees."""
    folder = tmp_path_factory.mktemp("daemon")
    process = DaemonProcess(env=make_environment(folder), folder=folder / "work")
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def client(daemon: DaemonProcess) -> DaemonClient:
    return daemon.client


@pytest.fixture
def make_daemon(tmp_path: Path) -> Generator[MakeDaemon]:
    """Make further daemons for one test; those still running are stopped after it."""
    daemons: list[DaemonProcess] = []

    def make(*arguments: str) -> DaemonProcess:
        daemons.append(
            DaemonProcess(env=make_environment(tmp_path), folder=tmp_path / "work", arguments=arguments)
        )
        return daemons[-1]

    yield make
    for daemon in daemons:
        if daemon.process is not None and daemon.process.returncode is None:
            daemon.stop()


@pytest.fixture
def open_server(tmp_path: Path) -> OpenServer:
    """Open the server in this process, with routes and limits of the test."""

    @asynccontextmanager
    async def open_with(
        *routes: Route, limits: ConnectionLimits | None = None, static: Path = static_page.STATIC_FOLDER
    ) -> AsyncGenerator[DaemonClient]:
        home = Path((env := make_environment(tmp_path))["RETINUE_HOME"])
        async with retinue.open(env=env) as app:
            listener = open_tcp_socket("127.0.0.1", 0)
            client = DaemonClient(home=home, port=listener.getsockname()[1])
            context = ServerContext(
                app=app,
                broadcaster=EventBroadcaster(app),
                authenticator=Authenticator(home),
                started_at=datetime.now(UTC),
                page_url=client.url,
                wake=lambda: True,
                stop=lambda: None,
            )
            server = ApiServer(create_asgi_app(context, routes, static=static), limits)
            async with server.serve_sockets(open_unix_socket(home), listener):
                yield client

    return open_with
