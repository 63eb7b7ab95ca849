"""Changes that servers have taught, kept in `<home>/learned.json` for 30 days, so that each is refused only once."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct

from retinue.domain.clock import Clock
from retinue.errors import RetinueError
from retinue.providers.request_changes import NO_CHANGES, RequestChange, RequestChanges
from retinue.storage.file_io import replace_file

LEARNED_FILE = "learned.json"
MAX_AGE = timedelta(days=30)
_VERSION = 1
_MAX_BYTES = 4 << 20


class LearnedChange(Struct, frozen=True, kw_only=True):
    """A change, and when and why it was learned."""

    treatment: str
    since: Annotated[datetime, msgspec.Meta(tz=True)]
    said: str = ""
    """The server's words."""


_Table = dict[str, dict[str, LearnedChange]]


class _File(Struct, frozen=True, kw_only=True):
    version: int
    learned: _Table
    """Server and model → name of the change → change."""


class LearnedChanges:
    """The changes that servers have taught; without a path, they last until the process ends."""

    def __init__(self, clock: Clock, path: Path | None = None) -> None:
        self._path = path
        self._clock = clock
        self._table: _Table | None = None

    def changes_for(self, base_url: str, model: str) -> RequestChanges:
        learned = self.learned_about(base_url, model)
        if not learned:
            return NO_CHANGES
        return RequestChanges(treatments={name: each.treatment for name, each in learned.items()})

    def learned_about(self, base_url: str, model: str) -> Mapping[str, LearnedChange]:
        """Return what was learned about a model of a server, by the name of the change."""
        if self._table is None:
            self._table = self._read()
        return self._table.get(_key(base_url, model), {})

    def learn(self, base_url: str, model: str, changes: Sequence[RequestChange]) -> None:
        """Remember changes after which the server accepted a request; other processes' changes are kept."""
        now = self._clock.now()
        table = self._read() if self._path else self._table or {}
        table[_key(base_url, model)] = table.get(_key(base_url, model), {}) | {
            each.name: LearnedChange(treatment=each.treatment, since=now, said=each.reason[:500])
            for each in changes
        }
        self._table = table
        if self._path is not None:
            data = msgspec.json.format(msgspec.json.encode(_File(version=_VERSION, learned=table)), indent=2)
            with suppress(OSError, RetinueError):  # what is not remembered is learned again
                replace_file(str(self._path), data + b"\n", token=self._clock.new_uuid())

    def _read(self) -> _Table:
        """Read the file without changes that are too old; a damaged file counts as empty."""
        if self._path is None:
            return {}
        try:
            stored = msgspec.json.decode(self._path.read_bytes()[:_MAX_BYTES], type=_File)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return {}
        oldest = self._clock.now() - MAX_AGE
        table = {
            key: {name: each for name, each in changes.items() if each.since > oldest}
            for key, changes in stored.learned.items()
        }
        return {key: changes for key, changes in table.items() if changes}


def _key(base_url: str, model: str) -> str:
    return f"{base_url} {model}"
