"""A cache of session presets: each preset.md is parsed once until it changes."""

import time
from contextlib import suppress

from retinue.agents import definition_file
from retinue.domain.agent import Agent, preset_hash
from retinue.domain.session import Session
from retinue.errors import BadDefinition, Failed
from retinue.sessions.list_cache import STAMP_SETTLE_NS
from retinue.storage import file_names
from retinue.storage.file_io import FileStamp, file_stamp, read_file

_MAX_CACHED = 1024


class PresetCache:
    """Preset cache by session folder; a thousand children may need the preset of one parent."""

    def __init__(self) -> None:
        self._cached: dict[str, tuple[FileStamp, tuple[Agent, str]]] = {}

    def get_unchanged(self, session: Session) -> tuple[Agent, str] | None:
        """Return the cached agent and preset hash, or None if the file changed."""
        cached = self._cached.get(session.path)
        return cached[1] if cached and cached[0] == file_stamp(_preset_path(session)) else None

    def load(self, session: Session) -> tuple[Agent, str]:
        current_stamp, preset = file_stamp(_preset_path(session)), _load_preset(session)
        if current_stamp is not None and time.time_ns() - current_stamp[3] > STAMP_SETTLE_NS:
            self._put(session, current_stamp, preset)
        return preset

    def put_written(self, session: Session, text: str, stamp: FileStamp) -> None:
        """Cache a preset that this process has just written, with the stamp of the written file."""
        with suppress(BadDefinition, UnicodeEncodeError):
            text.encode()
            self._put(session, stamp, _parse_preset(session, text))

    def _put(self, session: Session, current_stamp: FileStamp, preset: tuple[Agent, str]) -> None:
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        self._cached[session.path] = (current_stamp, preset)


def preset_problems(session: Session) -> list[str]:
    try:
        _load_preset(session)
    except Failed as error:
        return [f"{session.path}/{file_names.PRESET}: {error.__cause__}"]
    return []


def _load_preset(session: Session) -> tuple[Agent, str]:
    try:
        return _parse_preset(session, read_file(_preset_path(session)).decode())
    except (OSError, UnicodeDecodeError, BadDefinition) as error:
        raise Failed(f"Failed to load preset from {session.path}") from error


def _parse_preset(session: Session, text: str) -> tuple[Agent, str]:
    return definition_file.parse_preset(text, _preset_path(session), name=session.agent), preset_hash(text)


def _preset_path(session: Session) -> str:
    return f"{session.path}/{file_names.PRESET}"
