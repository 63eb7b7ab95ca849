"""A client process's link to the daemon of its home."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from enum import StrEnum
from typing import Any

from retinue import daemon_client
from retinue.app.event_replay import EventReplay
from retinue.config.load import Config
from retinue.domain.event import Event

STATE_CHANGE_KINDS = frozenset(
    {"run.queued", "run.started", "run.state", "run.ended", "approval.asked", "approval.answered"}
)
"""Events after which a process that waits for a run must check again."""
EVENT_FIELDS = ("kind", "seq", "live_seq", "at", "session", "run", "parent_run", "agent", "live")
DAEMON_TIMEOUT_SECONDS = 2.0
"""Time limit for events that the ledger already has."""
RECONNECT_DELAY_SECONDS = 0.05


class DaemonLinkState(StrEnum):
    """State of the link from this process to the daemon of its home."""

    NO_DAEMON = "no_daemon"
    """There is no daemon, or it is shutting down."""
    LINKED = "linked"
    SETTINGS_DIFFER = "settings_differ"
    """There is a daemon with other settings, so this process executes its own runs."""


class DaemonLink:
    """The link from one process to a daemon."""

    def __init__(self, config: Config, owner: str, replay: EventReplay) -> None:
        self.owner = owner
        self.replay = replay
        self._config = config
        self._own_seqs: set[int] = set()
        self._notification_due = asyncio.Event()
        self._last_seq = 0
        self._received = asyncio.Event()
        self.linked = asyncio.Event()
        self.disconnected = asyncio.Event()
        """Set once the daemon is gone and all its events have been received."""

    def accept_own_event(self, event: Event) -> bool:
        """Record a durable event written by this process and notify the daemon.

        Returns:
            False if the daemon already sent this event, so that it must not be emitted twice.
        """
        if event.kind == "run.queued":
            self.replay.track_new_run(event.run)
        elif event.kind == "run.started":
            self.replay.unfollow(event.run)  # this process claimed it
        if event.seq <= self._last_seq:
            return False
        self._own_seqs.add(event.seq)
        self.request_notification()
        return True

    def request_notification(self) -> None:
        """Ask the notifier task to tell the daemon that there is work for it."""
        self._notification_due.set()

    async def run_notifier(self) -> None:
        while True:
            await self._notification_due.wait()
            await self.notify_daemon()

    async def notify_daemon(self) -> None:
        if self._notification_due.is_set():
            self._notification_due.clear()
            await daemon_client.ping_daemon(self._config.home)

    async def receive_events(self, after: int) -> None:
        """Receive events until the daemon has exited.

        Reconnects if the daemon only dropped the connection, as it does for slow clients.
        """
        self._last_seq = after
        while not self.disconnected.is_set():
            async for payload in daemon_client.stream_events(
                self._config.home, after=self._last_seq, deltas="all"
            ):
                self.linked.set()
                if payload:
                    await self._receive(_decode_event(payload))
            await self.replay.on_disconnect()
            await asyncio.sleep(RECONNECT_DELAY_SECONDS)
            if await daemon_client.ping_daemon(self._config.home) is None:
                self.disconnected.set()
        self.linked.set()
        self._received.set()

    async def _receive(self, event: Event) -> None:
        if event.kind == "events.reset":
            self._last_seq = event.seq
            await self.replay.on_disconnect()
            self._received.set()
            return
        if event.live_seq or event.seq not in self._own_seqs:
            await self.replay.receive(event)
        if not event.live_seq:
            self._own_seqs.discard(event.seq)
            self._last_seq = event.seq
            self._received.set()

    async def wait_for_final_events(self, is_alive: Callable[[str], bool]) -> None:
        """If the daemon is dead, wait until all its events were received.

        Only then may other processes continue its runs.
        """
        if not is_alive(self.owner):
            with suppress(TimeoutError):
                async with asyncio.timeout(DAEMON_TIMEOUT_SECONDS):
                    await self.disconnected.wait()

    async def wait_until_received(self, seq: int) -> None:
        """Wait until every event up to this durable number was received, or the daemon is gone or too slow."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DAEMON_TIMEOUT_SECONDS):
                while self._last_seq < seq and not self.disconnected.is_set():
                    self._received.clear()
                    await self._received.wait()
        await self.replay.emit_missed()


@asynccontextmanager
async def open_daemon_link(
    config: Config, replay: EventReplay
) -> AsyncGenerator[tuple[DaemonLinkState, DaemonLink | None]]:
    """Link to the daemon of this home while the context is open.

    Yields:
        The state of the link, and the link itself, or None if there is no usable daemon.
        A daemon that does not respond in time is not usable.
    """
    daemon_info = (
        await daemon_client.ping_daemon(config.home)
        if config.is_persistent and (config.home / daemon_client.SOCKET_NAME).exists()
        else None
    )
    if (
        daemon_info is None
        or not daemon_info["accepts_runs"]
        or daemon_info.get("settings") != config.fingerprint()
    ):
        yield (
            (
                DaemonLinkState.SETTINGS_DIFFER
                if daemon_info and daemon_info["accepts_runs"]
                else DaemonLinkState.NO_DAEMON
            ),
            None,
        )
        return
    link = DaemonLink(config, daemon_info["owner"], replay)
    tasks = [
        asyncio.ensure_future(link.receive_events(daemon_info["seq"])),
        asyncio.ensure_future(link.run_notifier()),
    ]
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(DAEMON_TIMEOUT_SECONDS):
                await link.linked.wait()
        is_linked = link.linked.is_set() and not link.disconnected.is_set()
        yield (DaemonLinkState.LINKED, link) if is_linked else (DaemonLinkState.NO_DAEMON, None)
        await link.notify_daemon()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _decode_event(payload: dict[str, Any]) -> Event:
    data = {name: value for name, value in payload.items() if name not in EVENT_FIELDS}
    return Event(
        kind=payload["kind"],
        at=datetime.fromisoformat(payload["at"]),
        session=payload["session"],
        run=payload["run"],
        parent_run=payload["parent_run"],
        agent=payload["agent"],
        seq=payload["seq"],
        live_seq=payload.get("live_seq", 0),
        data=data,
    )
