"""This process's connection to the daemon of its home."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from retinue.app.daemon_link import STATE_CHANGE_KINDS, DaemonLink, DaemonLinkState, open_daemon_link
from retinue.app.event_hub import EventHub
from retinue.app.event_replay import EventReplay
from retinue.config.load import Config
from retinue.domain.event import Event
from retinue.domain.run import Run
from retinue.domain.transcript import Message
from retinue.errors import RetinueError
from retinue.sessions.store import FileStore
from retinue.worker.worker import LocalWorker


class DaemonConnection:
    """Opens the link to the daemon, and decides which process works on new runs."""

    def __init__(
        self,
        config: Config,
        owner_id: str,
        is_owner_alive: Callable[[str], bool],
        *,
        events: EventHub,
        worker: LocalWorker,
        store: FileStore,
    ) -> None:
        self._config = config
        self._owner_id = owner_id
        self._is_owner_alive = is_owner_alive
        self._events = events
        self._worker = worker
        self._store = store

    @property
    def link(self) -> DaemonLink | None:
        """The open link, or None."""
        return self._events.daemon_link

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[DaemonLinkState]:
        """Connect to the daemon of this home while the context is open.

        A daemon with the same settings works on runs started here, and its events reach the listeners here.
        If the daemon dies, this process continues on its own.
        """
        replay = EventReplay(self._receive_event, self._saved_replies)
        async with open_daemon_link(self._config, replay) as (state, link):
            self._events.daemon_link = link
            try:
                yield state
            finally:
                self._events.daemon_link = None

    async def follow(self, runs: Sequence[Run]) -> None:
        """Notify the daemon, and follow those of these runs that it owns.

        If the connection is lost, missed events are replayed from the runs' files.
        """
        if (link := self.link) is not None:
            link.request_notification()
            await link.replay.follow(run for run in runs if run.status.is_live and run.owner_id == link.owner)

    def new_run_owner_id(self) -> str:
        """Return the id of the process that works on runs created here: the daemon, or this process."""
        link = self.link
        return self._owner_id if link is None or not self._is_owner_alive(link.owner) else link.owner

    async def _saved_replies(self, run: Run) -> list[Message]:
        with suppress(RetinueError):
            entries, _ = await self._store.read_entries(await self._store.find(run.transcript_path))
            return [
                each
                for each in entries
                if isinstance(each, Message) and each.role == "agent" and each.run == run.id
            ]
        return []

    def _receive_event(self, event: Event) -> None:
        self._events.notify_listeners(event)
        if event.kind in STATE_CHANGE_KINDS:
            self._worker.notify()
