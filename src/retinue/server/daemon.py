"""The daemon: serves the HTTP API, and executes runs that other processes submitted or abandoned."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from retinue import __version__, daemon_client
from retinue.app import App
from retinue.errors import Refused, RetinueError
from retinue.server.asgi_app import create_asgi_app
from retinue.server.auth import Authenticator
from retinue.server.context import ServerContext
from retinue.server.event_broadcaster import EventBroadcaster
from retinue.server.listeners import ApiServer, open_tcp_socket, open_unix_socket, page_url
from retinue.server.route_table import ROUTES

RECOVERY_POLL_SECONDS = 2.0
"""Interval at which to look for work of dead processes. Submitted work is announced."""
DRAIN_TIMEOUT_SECONDS = 10.0
TAKEOVER_TIMEOUT_SECONDS = DRAIN_TIMEOUT_SECONDS + 2.0
"""Time that another daemon may take to shut down."""
IDLE_EXIT_SECONDS = 10.0
PRUNE_INTERVAL_SECONDS = 3600.0


async def serve(
    app: App,
    *,
    report: Callable[[str], None],
    host: str = "127.0.0.1",
    port: int | None = None,
    until_idle: bool = False,
    on_start: Callable[[dict[str, Any]], None] | None = None,
    allow_home: bool = False,
) -> None:
    """Serve until stopped, or until idle for a while with `until_idle`.

    `on_start` is called when the daemon accepts requests, with its process and a link to the page. The link
    grants access, so it must not get into a log file.
    """
    await Daemon(app, report=report, allow_home=allow_home).serve(
        host=host, port=port, until_idle=until_idle, on_start=on_start
    )


class Daemon:
    def __init__(self, app: App, *, report: Callable[[str], None], allow_home: bool) -> None:
        self._app = app
        self._report = report
        self._allow_home = allow_home
        self._stop_event = asyncio.Event()
        self._wake_event = asyncio.Event()
        self._home = app.config.home
        self._reported_error = ""
        """The error that was reported last and still persists."""

    async def serve(
        self,
        *,
        host: str,
        port: int | None,
        until_idle: bool,
        on_start: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        lock = await self._acquire_lock()
        if warning := await self._app.repair.replace_damaged_ledger():
            self._report(warning)
        tcp_socket = open_tcp_socket(host, port)
        context = self._make_context(page_url(host, tcp_socket), host)
        self._install_signal_handlers()
        try:
            async with (
                ApiServer(create_asgi_app(context, ROUTES)).serve_sockets(
                    open_unix_socket(self._home), tcp_socket
                ),
                asyncio.TaskGroup() as group,
            ):
                group.create_task(context.broadcaster.run())
                # Probing the sandbox takes a moment: do it before the first request needs it.
                group.create_task(self._app.sandbox_level())
                pruning = group.create_task(self._prune_regularly())
                self._report(f"daemon started for {self._home} (process {os.getpid()})")
                if on_start is not None:
                    url = f"{context.page_url}/enter/{context.authenticator.create_link()}"
                    on_start(
                        {"pid": os.getpid(), "owner": self._app.owner_id, "version": __version__, "url": url}
                    )
                await self._work_until_stopped(context.broadcaster, until_idle=until_idle)
                pruning.cancel()
                await self._app.runs.drain(DRAIN_TIMEOUT_SECONDS)
                context.broadcaster.close()
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        finally:
            with suppress(OSError):
                (self._home / daemon_client.SOCKET_NAME).unlink()
            os.close(lock)

    def _make_context(self, page_url: str, bound_address: str) -> ServerContext:
        authenticator = Authenticator(self._home)
        self._app.context.redact.add_secret(authenticator.token)
        return ServerContext(
            app=self._app,
            broadcaster=EventBroadcaster(self._app),
            authenticator=authenticator,
            started_at=datetime.now(UTC),
            page_url=page_url,
            bound_address=bound_address,
            allow_home=self._allow_home,
            wake=self._wake,
            stop=self._request_stop,
        )

    async def _work_until_stopped(self, broadcaster: EventBroadcaster, *, until_idle: bool) -> None:
        idle_since = asyncio.get_running_loop().time()
        while not self._stop_event.is_set():
            self._wake_event.clear()
            is_active = await self._resume_work()
            now = asyncio.get_running_loop().time()
            if not until_idle or broadcaster.has_listeners or is_active:
                idle_since = now
            elif now - idle_since >= IDLE_EXIT_SECONDS:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake_event.wait(), RECOVERY_POLL_SECONDS)

    async def _resume_work(self) -> bool:
        """Resume and take over pending runs, and return whether any run is active.

        A full disk or a busy ledger does not end the daemon: the error is reported once, and the attempt
        repeated.
        """
        try:
            await self._app.runs.resume()
            await self._app.runs.submit_queued()
            is_active = await self._app.runs.has_active()
        except RetinueError as error:
            if str(error) != self._reported_error:
                self._reported_error = str(error)
                self._report(self._reported_error)
            return True
        self._reported_error = ""
        return is_active

    async def _prune_regularly(self) -> None:
        """Prune old runs and events now and every hour; an error is reported, and the next hour tries again."""
        while True:
            try:
                pruned = await self._app.retention.prune()
            except (RetinueError, OSError) as error:
                self._report(f"the ledger was not pruned: {error}")
            else:
                if pruned.runs or pruned.events:
                    self._report(pruned.describe())
            await asyncio.sleep(PRUNE_INTERVAL_SECONDS)

    async def _acquire_lock(self) -> int:
        """Take the lock that allows one daemon per home.

        The kernel releases the lock of a dead daemon; one that is shutting down is waited for.
        """
        descriptor = os.open(self._home / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = asyncio.get_running_loop().time() + TAKEOVER_TIMEOUT_SECONDS
        while not _try_lock(descriptor):
            daemon_info = await daemon_client.ping_daemon(self._home)
            if (daemon_info and daemon_info["accepts_runs"]) or asyncio.get_running_loop().time() >= deadline:
                os.close(descriptor)
                problem = (
                    f"A daemon is already running for {self._home}."
                    if daemon_info
                    else f"The daemon of {self._home} does not answer, or is another version of Retinue."
                )
                raise Refused(f"{problem} Stop it with `retinue serve --stop`.")
            await asyncio.sleep(0.05)
        return descriptor

    def _wake(self) -> bool:
        self._wake_event.set()
        return not self._stop_event.is_set()

    def _request_stop(self) -> None:
        self._stop_event.set()
        self._wake_event.set()

    def _install_signal_handlers(self) -> None:
        def on_signal() -> None:
            if self._stop_event.is_set():
                os._exit(1)  # second signal: the state on disk is enough to resume from
            self._request_stop()

        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(signal_number, on_signal)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
