"""What sessions obey: each preset.md is read once as long as it looks as it did."""

import time
from contextlib import suppress

from retinue.agents import definition_file
from retinue.domain.agent import Agent, preset_hash
from retinue.domain.session import Session
from retinue.errors import BadDefinition, Failed
from retinue.sessions.list_cache import SETTLED_NS
from retinue.storage import file_names
from retinue.storage.file_io import Stamp, read_file, stamp_of

_MOST_KEPT = 1024


class Presets:
    """By the session's folder. A thousand children ask for their parent's."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp, tuple[Agent, str]]] = {}

    def unchanged(self, session: Session) -> tuple[Agent, str] | None:
        """The definition and the hash of its text, where the file looks as it did."""
        known = self._known.get(session.path)
        return known[1] if known and known[0] == stamp_of(_file(session)) else None

    def read(self, session: Session) -> tuple[Agent, str]:
        now, found = stamp_of(_file(session)), _read(session)
        if now is not None and time.time_ns() - now[3] > SETTLED_NS:
            self._keep(session, now, found)
        return found

    def wrote(self, session: Session, text: str, stamp: Stamp) -> None:
        """The file was made with this text, and looked like this then: as long as it does, it need not be read."""
        with suppress(BadDefinition, UnicodeEncodeError):
            text.encode()
            self._keep(session, stamp, _understood(session, text))

    def _keep(self, session: Session, now: Stamp, found: tuple[Agent, str]) -> None:
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known[session.path] = (now, found)


def problems(session: Session) -> list[str]:
    try:
        _read(session)
    except Failed as error:
        return [f"{session.path}/{file_names.PRESET}: {error.__cause__}"]
    return []


def _read(session: Session) -> tuple[Agent, str]:
    try:
        return _understood(session, read_file(_file(session)).decode())
    except (OSError, UnicodeDecodeError, BadDefinition) as error:
        raise Failed(f"Failed to load preset from {session.path}") from error


def _understood(session: Session, text: str) -> tuple[Agent, str]:
    return definition_file.parse_preset(text, _file(session), name=session.agent), preset_hash(text)


def _file(session: Session) -> str:
    return f"{session.path}/{file_names.PRESET}"
