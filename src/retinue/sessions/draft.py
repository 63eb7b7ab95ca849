"""A person's draft, stored below the open user line of the session's file."""

# Paths are joined as plain strings here, like in the modules around.
# ruff: noqa: PTH118, PTH120

import os
from contextlib import suppress

from retinue.domain.clock import Clock
from retinue.domain.session import Session
from retinue.errors import Conflict, Failed
from retinue.sessions.markdown.parser import ParsedTranscript, strip_draft
from retinue.sessions.markdown.torn_tail import intact_end, size_and_torn_offset
from retinue.sessions.markdown.writer import escape_body, render_head, render_open_line
from retinue.sessions.pagination import parse_last_chunk
from retinue.storage import file_names
from retinue.storage.file_io import fsync_path, open_regular_file, write_all, write_error
from retinue.storage.file_lock import session_lock


def read_draft(path: str) -> str:
    """Read the draft below the open user line from the last few entries, without a lock."""
    try:
        fd = open_regular_file(path)
    except OSError:
        return ""
    try:
        return parse_last_chunk(fd, path, intact_end(fd)).draft
    finally:
        os.close(fd)


def write_draft(session: Session, text: str, clock: Clock) -> None:
    """Replace the draft, regardless of its author; blank text leaves the line open and empty."""
    with session_lock(session.path) as dir_fd:
        try:
            fd = os.open(file_names.SESSION, os.O_RDWR | os.O_CLOEXEC, dir_fd=dir_fd)
        except OSError as error:
            raise Failed(f"{session.path}/{file_names.SESSION} cannot be opened: {error.strerror}") from error
        try:
            _write_draft_to_file(fd, session, text, clock)
        finally:
            os.close(fd)


def _write_draft_to_file(fd: int, session: Session, text: str, clock: Clock) -> None:
    path = f"{session.path}/{file_names.SESSION}"
    size, torn_offset = size_and_torn_offset(fd)
    if torn_offset is not None:
        raise Conflict(
            f"{path} ends with an incomplete entry. Send a message to repair the file, then try again."
        )
    parsed = parse_last_chunk(fd, path, size)
    if parsed.error is not None:
        raise parsed.error
    if parsed.draft and parsed.open_line_at < 0:
        raise Conflict(f"{path} contains text that was typed by hand. Send or remove it first.")
    if strip_draft(text) == parsed.draft and (parsed.open_line_id or not parsed.draft):
        return
    offset = parsed.open_line_at if parsed.open_line_at >= 0 else size
    new_end = _render_draft(session, text, parsed, clock, is_new_file=not size)
    try:
        os.ftruncate(fd, offset)
        os.lseek(fd, offset, os.SEEK_SET)
        write_all(fd, new_end)
        os.fsync(fd)
        if not size:
            _sync_new_session(session)
    except OSError as error:
        raise write_error(path, error) from error


def _sync_new_session(session: Session) -> None:
    """Sync a new session's folders together with the first text in it."""
    for name in (file_names.PRESET, file_names.METADATA):
        with suppress(FileNotFoundError):
            fsync_path(os.path.join(session.path, name))
    folder = session.path
    for _ in range(4 if session.is_top_level else 3):
        fsync_path(folder)
        folder = os.path.dirname(folder)


def _render_draft(
    session: Session, text: str, parsed: ParsedTranscript, clock: Clock, *, is_new_file: bool
) -> bytes:
    """Render the file from the open user line on, or from the end if there is no such line yet."""
    body, escaped = escape_body(text.rstrip())
    line = render_open_line(parsed.open_line_id or clock.new_entry_id(), escaped=escaped)
    draft = f"{body}\n" if body.strip() else ""
    opening = (
        render_head(session).encode()
        if is_new_file
        else b""
        if parsed.open_line_at >= 0
        else parsed.missing_newlines
    )
    return opening + (line + draft).encode()
