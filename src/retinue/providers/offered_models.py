"""The last answers of servers about the models they offer, kept in `<home>/offered.json`."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from retinue.domain.clock import Clock
from retinue.errors import RetinueError
from retinue.storage.file_io import replace_file

OFFERED_FILE = "offered.json"
_MAX_BYTES = 16 << 20


class OfferedModel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    context_window: int | None = None


class OfferedModels(Struct, frozen=True, kw_only=True):
    """A server's answer, and when it was given."""

    at: datetime
    models: tuple[OfferedModel, ...]


def read_offered_models(home: Path, base_url: str) -> OfferedModels | None:
    """Return a server's last answer, or None if it was never asked; a damaged file counts as absent."""
    return _read_file(home / OFFERED_FILE).get(base_url.rstrip("/"))


def offered_names(home: Path, base_url: str) -> frozenset[str]:
    """Return the names of a server's models, as it is asked for them; empty if it was never asked."""
    answer = read_offered_models(home, base_url)
    return frozenset(each.name.removeprefix("models/") for each in answer.models) if answer else frozenset()


def save_offered_models(home: Path, base_url: str, models: Sequence[OfferedModel], clock: Clock) -> None:
    """Keep a server's answer; that it cannot be kept is no error."""
    path = home / OFFERED_FILE
    answer = OfferedModels(at=clock.now(), models=tuple(models))
    data = msgspec.json.encode(_read_file(path) | {base_url.rstrip("/"): answer})
    with suppress(OSError, RetinueError):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(str(path), data + b"\n", token=clock.new_uuid())


def _read_file(path: Path) -> dict[str, OfferedModels]:
    try:
        return msgspec.json.decode(path.read_bytes()[:_MAX_BYTES], type=dict[str, OfferedModels])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return {}
