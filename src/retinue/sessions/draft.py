"""What a person is typing, kept where it would be sent from: below the open user line of the session's file."""

# Names are joined below descriptors: text is enough.
# ruff: noqa: PTH118, PTH120

import os
from contextlib import suppress

from retinue.domain.clock import Chance
from retinue.domain.session import Session
from retinue.errors import Conflict, Failed
from retinue.sessions.markdown.parser import Reading, typed_text
from retinue.sessions.markdown.torn_tail import end_of, ends
from retinue.sessions.markdown.writer import escape, head, open_line
from retinue.sessions.pagination import last_reading
from retinue.storage import file_names
from retinue.storage.file_io import no_room, open_file, sync_path, write_all
from retinue.storage.file_lock import held


def typed_in(path: str) -> str:
    """What stands below the open user line; the last few entries are read, and nothing is locked."""
    try:
        file = open_file(path)
    except OSError:
        return ""
    try:
        return last_reading(file, path, end_of(file)).typed
    finally:
        os.close(file)


def put(session: Session, text: str, chance: Chance) -> None:
    """Replaces what is typed there, by anybody; blank words leave the line open and empty."""
    with held(session.path) as directory:
        try:
            file = os.open(file_names.SESSION, os.O_RDWR | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise Failed(f"{session.path}/{file_names.SESSION} cannot be opened: {error.strerror}") from error
        try:
            _put(file, session, text, chance)
        finally:
            os.close(file)


def _put(file: int, session: Session, text: str, chance: Chance) -> None:
    where = f"{session.path}/{file_names.SESSION}"
    size, torn = ends(file)
    if torn is not None:
        raise Conflict(f"{where} ends in the midst of an entry: send something, and it is put in order first")
    reading = last_reading(file, where, size)
    if reading.problem is not None:
        raise reading.problem
    if reading.typed and reading.opened_at < 0:
        raise Conflict(f"{where} holds words that were typed there by hand: send or remove them first")
    if typed_text(text) == reading.typed and (reading.opened or not reading.typed):
        return
    at = reading.opened_at if reading.opened_at >= 0 else size
    data = _new_end(session, text, reading, chance, fresh=not size)
    try:
        os.ftruncate(file, at)
        os.lseek(file, at, os.SEEK_SET)
        write_all(file, data)
        os.fsync(file)
        if not size:
            _sync_folders(session)
    except OSError as error:
        raise no_room(where, error) from error


def _sync_folders(session: Session) -> None:
    """A new folder reaches the disk together with the first words in it."""
    for name in (file_names.PRESET, file_names.FACTS):
        with suppress(FileNotFoundError):
            sync_path(os.path.join(session.path, name))
    folder = session.path
    for _ in range(4 if session.top else 3):
        sync_path(folder)
        folder = os.path.dirname(folder)


def _new_end(session: Session, text: str, reading: Reading, chance: Chance, *, fresh: bool) -> bytes:
    """All from the open line on, or from the end where there is none yet."""
    body, escaped = escape(text.rstrip())
    line = open_line(reading.opened or chance.entry_id(), escaped=escaped)
    words = f"{body}\n" if body.strip() else ""
    opening = head(session).encode() if fresh else b"" if reading.opened_at >= 0 else reading.gap
    return opening + (line + words).encode()
