"""Deliver events to the listeners of this process."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from msgspec.structs import replace

from retinue.app.daemon_link import DaemonLink
from retinue.app.event_log import EventLog
from retinue.app.internal_error_log import InternalErrorLog
from retinue.domain.event import Event


class EventHub:
    """The listeners of this process, and the numbering of live events."""

    def __init__(self, event_log: EventLog, internal_errors: InternalErrorLog) -> None:
        self.daemon_link: DaemonLink | None = None
        """The open link to a daemon, which sends the events of its runs and is notified of this process's events."""
        self._event_log = event_log
        self._internal_errors = internal_errors
        self._listeners: list[Callable[[Event], None]] = []
        self._last_durable_seq = 0
        self._live_event_counts: dict[str, int] = {}
        """Number of live events emitted for each run while a listener is registered."""

    @contextmanager
    def listen(self, listener: Callable[[Event], None]) -> Generator[None]:
        """Call `listener` with every event while the context is open."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def emit(self, event: Event) -> None:
        """Log an event of this process and deliver it to the listeners.

        A live event gets the number of the last durable event, so that a listener can order it, and a count
        per run.
        """
        self._event_log.log_event(event)
        if event.seq:
            self._last_durable_seq = event.seq
            if event.kind == "run.ended":
                self._live_event_counts.pop(event.run, None)
            if self.daemon_link is not None and not self.daemon_link.accept_own_event(event):
                return
        elif self._listeners:
            count = self._live_event_counts[event.run] = self._live_event_counts.get(event.run, 0) + 1
            event = replace(event, seq=self._last_durable_seq, live_seq=count)
        self.notify_listeners(event)

    def notify_listeners(self, event: Event) -> None:
        """Deliver an event unchanged; also used for events that another process emitted."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  (a failing listener must not end the run)
                self._internal_errors.record_run_crash(event.run, error)
