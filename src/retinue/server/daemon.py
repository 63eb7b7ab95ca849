"""The daemon: one process of a home that works what others left to it, and what they left behind."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from retinue import daemon_client
from retinue.app import App
from retinue.errors import Refused, RetinueError
from retinue.server.asgi_app import application
from retinue.server.auth import Keys
from retinue.server.context import House
from retinue.server.event_broadcaster import Hub
from retinue.server.listeners import Server, local_socket, page_socket, url_of
from retinue.server.route_table import ROUTES

LOOK_SECONDS = 2.0
"""How often it looks for what dead processes left behind. What is handed to it, it is told of at once."""
DRAIN_SECONDS = 10.0
LEAVE_SECONDS = DRAIN_SECONDS + 2.0
"""How long another daemon may take to leave."""
IDLE_SECONDS = 10.0


async def serve(
    app: App,
    *,
    tell: Callable[[str], None],
    host: str = "127.0.0.1",
    port: int | None = None,
    until_idle: bool = False,
    link: bool = True,
) -> None:
    """Until it is told to stop, or has had nothing to do for a while. Where what it tells is kept in a file, it tells
    no `link`."""
    await Daemon(app, tell=tell).serve(host=host, port=port, until_idle=until_idle, link=link)


class Daemon:
    def __init__(self, app: App, *, tell: Callable[[str], None]) -> None:
        self._app = app
        self._tell = tell
        self._stop = asyncio.Event()
        self._poked = asyncio.Event()
        self._home = app.config.home
        self._said = ""
        """What is wrong at the moment."""

    async def serve(self, *, host: str, port: int | None, until_idle: bool, link: bool) -> None:
        lock = await self._alone()
        if told := await self._app.sound():
            self._tell(told)
        page = page_socket(host, port)
        house = self._house(url_of(host, page), host)
        self._hear_signals()
        try:
            async with (
                Server(application(house, ROUTES)).listening(local_socket(self._home), page),
                asyncio.TaskGroup() as group,
            ):
                group.create_task(house.hub.feed())
                # Finding it out takes a moment, for which nobody who asks should wait.
                group.create_task(self._app.level())
                self._tell(f"at work in {self._home} (process {os.getpid()})")
                if link:
                    self._tell(f"the page, once: {house.url}/enter/{house.keys.link()}")
                await self._worked(house.hub, until_idle=until_idle)
                await self._app.drain(DRAIN_SECONDS)
                house.hub.close()
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        finally:
            with suppress(OSError):
                (self._home / daemon_client.SOCKET).unlink()
            os.close(lock)

    def _house(self, url: str, bound: str) -> House:
        keys = Keys(self._home)
        self._app.redact.learn(keys.token)
        return House(
            app=self._app,
            hub=Hub(self._app),
            keys=keys,
            started_at=datetime.now(UTC),
            url=url,
            bound=bound,
            look=self._looked,
            stop=self._stopped,
        )

    async def _worked(self, hub: Hub, *, until_idle: bool) -> None:
        idle_since = asyncio.get_running_loop().time()
        while not self._stop.is_set():
            self._poked.clear()
            moving = await self._moved()
            now = asyncio.get_running_loop().time()
            if not until_idle or hub.listened or moving:
                idle_since = now
            elif now - idle_since >= IDLE_SECONDS:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), LOOK_SECONDS)

    async def _moved(self) -> bool:
        """Takes up what there is, and says whether anything goes on. A full disk or a ledger that others hold ends
        nothing: it is said once, and tried again."""
        try:
            await self._app.resume()
            await self._app.take_up()
            moving = await self._app.moving()
        except RetinueError as error:
            if str(error) != self._said:
                self._said = str(error)
                self._tell(self._said)
            return True
        self._said = ""
        return moving

    async def _alone(self) -> int:
        """One daemon for a home; the kernel frees the place of a dead one, and one that leaves is waited for."""
        descriptor = os.open(self._home / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = asyncio.get_running_loop().time() + LEAVE_SECONDS
        while not _locked(descriptor):
            there = await daemon_client.hello(self._home)
            if (there and there["looking"]) or asyncio.get_running_loop().time() >= until:
                os.close(descriptor)
                raise Refused(f"a daemon is at work in {self._home} already: `retinue serve --stop` stops it")
            await asyncio.sleep(0.05)
        return descriptor

    def _looked(self) -> bool:
        self._poked.set()
        return not self._stop.is_set()

    def _stopped(self) -> None:
        self._stop.set()
        self._poked.set()

    def _hear_signals(self) -> None:
        def heard() -> None:
            if self._stop.is_set():
                os._exit(1)  # a second signal: what is on disk is enough to go on from
            self._stopped()

        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(each, heard)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
