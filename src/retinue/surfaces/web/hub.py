"""The hub: every event once, in the ledger's order, to everybody who listens, and nobody is waited for."""

from collections.abc import Generator
from contextlib import contextmanager

from retinue.app import App
from retinue.domain.event import Event


class Hub:
    """Fans the application's events out to streams."""

    def __init__(self, app: App) -> None:
        self._app = app

    @contextmanager
    def listening(self) -> Generator[None]:
        """While this lasts, streams are fed."""
        with self._app.listen(self._heard):
            yield

    async def caught_up(self) -> None:
        """Durable events that other processes wrote reach the streams too."""

    def close(self) -> None:
        """Ends every stream: those who listen come back to the next daemon."""

    def _heard(self, event: Event) -> None:
        pass
