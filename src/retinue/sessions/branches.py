"""Branches: alternative timelines of a top-level session, each with its own copy of every agent."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH102, PTH104, PTH105, PTH112, PTH113, PTH118, PTH119, PTH120, PTH211

import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from retinue.domain.agent_pool import COPIED_FROM_ATTRIBUTE
from retinue.domain.clock import Clock
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message
from retinue.errors import Failed, NotFound, Refused, UsageError
from retinue.sessions import folder, session_tree
from retinue.sessions.lookup import top_folder
from retinue.sessions.markdown.chunks import LineCounter, iter_chunks
from retinue.sessions.markdown.marker import parse_head
from retinue.sessions.markdown.parser import entry_offsets, parse_chunk
from retinue.sessions.markdown.torn_tail import find_torn_tail
from retinue.sessions.markdown.writer import render_head
from retinue.sessions.metadata_files import render_branch_metadata, render_metadata
from retinue.storage import file_names
from retinue.storage.file_io import (
    EXISTS_ERRNOS,
    MISSING_ERRNOS,
    copy_byte_range,
    create_file,
    fsync_path,
    move_error,
    open_regular_file,
    read_at,
    unused_path,
)

_MAX_HEAD_BYTES = 64 * 1024
_COPIED_FILES = (file_names.PRESET, file_names.PLAN, file_names.TOOLS, file_names.PROVIDER_DATA)


def create_branch(session: Session, clock: Clock, *, prompt_id: str | None, include: bool, name: str) -> str:
    """Create a branch and make it current; return its folder.

    Copies the history up to a user prompt (all of it without a prompt), the configuration and all agents.
    """
    if not session.is_top_level:
        raise Refused(f"{session.slug} is a child session; only top-level sessions have branches")
    if os.path.basename(os.path.dirname(session.path)) != file_names.BRANCHES:
        raise Refused(f"{session.path} was moved out of its session's folder and cannot be branched")
    with _open_with_size(os.path.join(session.path, file_names.SESSION)) as (fd, size):
        torn_offset = find_torn_tail(fd, size)
        end = _branch_offset(
            session, prompt_id, fd, size if torn_offset is None else torn_offset, include=include
        )
        while (branch_path := _try_create_branch(session, fd, end, name, clock)) is None:
            pass
        return branch_path


def _try_create_branch(session: Session, fd: int, end: int, name: str, clock: Clock) -> str | None:
    """Try to create the branch; None if another process took the name and the next one must be tried."""
    now = clock.now()
    branches_folder = os.path.dirname(session.path)
    temporary = os.path.join(branches_folder, f"{file_names.NEW_PREFIX}{clock.new_uuid()}")
    try:
        branch_name = os.path.basename(unused_path(branches_folder, file_names.branch_folder_name(name, now)))
        copy = replace(
            session,
            id=clock.new_uuid(),
            branch=branch_name,
            created_at=now,
            aliases=(),
            path=temporary,
            pinned_at=None,
        )
        _copy_session(session.path, fd, end, copy, clock)
        create_file(
            os.path.join(temporary, file_names.BRANCH_METADATA),
            render_branch_metadata(session.branch, now, end),
            fsync=True,
        )
        _sync_tree(temporary)
        branch_path = os.path.join(branches_folder, branch_name)
        try:
            os.rename(temporary, branch_path)
        except OSError as error:
            if error.errno in EXISTS_ERRNOS:
                return None
            raise
        fsync_path(branches_folder)
        set_current_branch(top_folder(session), branch_name, clock.new_uuid())
    except OSError as error:
        raise move_error(session.path, error) from error
    finally:
        if os.path.lexists(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
    return branch_path


def set_current_branch(top: str, branch_name: str, token: str) -> None:
    """Replace the link atomically, so that a session always has a current branch."""
    temporary = os.path.join(top, f".{file_names.CURRENT}-{token}")
    os.symlink(os.path.join(file_names.BRANCHES, branch_name), temporary)
    os.replace(temporary, os.path.join(top, file_names.CURRENT))
    fsync_path(top)


def _branch_offset(session: Session, prompt_id: str | None, fd: int, end: int, *, include: bool) -> int:
    """Return the byte offset in session.md where the branch starts.

    Everything before it is parsed; raises Unreadable if that fails.
    """
    path = os.path.join(session.path, file_names.SESSION)
    line_counter = LineCounter(fd)
    for chunk in iter_chunks(fd, 0, end):
        parsed = parse_chunk(chunk, path, count_lines_before=line_counter.count_before)
        end = parsed.end
        index = _prompt_index(parsed.entries, prompt_id)
        if index is not None:
            return [*entry_offsets(chunk, parsed), end][index + include]
    if prompt_id is None:
        return end
    raise NotFound(f"There is no user prompt {prompt_id!r} in {session.slug}/{session.branch}")


def _prompt_index(entries: Sequence[Entry], prompt_id: str | None) -> int | None:
    for index, entry in enumerate(entries):
        if entry.id == prompt_id and isinstance(entry, Message):
            if entry.role != "user":
                raise UsageError(f"{prompt_id} is a reply; a branch starts at a user prompt")
            return index
    return None


@contextmanager
def _open_with_size(path: str) -> Generator[tuple[int, int]]:
    """Open a file and yield its descriptor and size."""
    try:
        fd = open_regular_file(path)
    except OSError as error:
        if error.errno in MISSING_ERRNOS:
            raise move_error(path, error) from error
        raise Failed(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield fd, os.fstat(fd).st_size
    finally:
        os.close(fd)


def _copy_session(source: str, fd: int, end: int, copy: Session, clock: Clock) -> None:
    """Copy a session's files under a new identity.

    The conversation is copied up to `end`; the agents below get new ids.
    """
    os.mkdir(copy.path, 0o700)
    head_line, start = _replace_head_line(fd, end, copy)
    copy_byte_range(os.path.join(copy.path, file_names.SESSION), fd, start, end, prefix=head_line)
    create_file(os.path.join(copy.path, file_names.METADATA), render_metadata(copy))
    for name in _COPIED_FILES:
        if os.path.isfile(os.path.join(source, name)):
            with _open_with_size(os.path.join(source, name)) as (source_fd, size):
                copy_byte_range(os.path.join(copy.path, name), source_fd, 0, size)
    agents_folder = os.path.join(copy.path, file_names.AGENTS)
    for child in session_tree.child_folders(source):
        if not os.path.isdir(agents_folder):
            os.mkdir(agents_folder, 0o700)
        child_session = folder.load_session(child).session
        path = os.path.join(agents_folder, os.path.basename(child))
        attributes = {**child_session.attributes, COPIED_FROM_ATTRIBUTE: child_session.id}
        copied = replace(
            child_session,
            id=clock.new_uuid(),
            parent_id=copy.id,
            aliases=(),
            path=path,
            attributes=attributes,
        )
        with _open_with_size(os.path.join(child, file_names.SESSION)) as (child_fd, size):
            _copy_session(child, child_fd, size, copied, clock)


def _replace_head_line(fd: int, end: int, copy: Session) -> tuple[bytes, int]:
    """Return the copy's head line and the offset where the old one ends; empty if there is none."""
    line, newline, _ = read_at(fd, 0, min(_MAX_HEAD_BYTES, end)).partition(b"\n")
    if parse_head(line.decode("utf-8", "replace")) is None:
        return b"", 0
    return render_head(copy).rstrip("\n").encode() + b"\n", len(line) + len(newline)


def _sync_tree(path: str) -> None:
    for folder_path, _, files in os.walk(path):
        for name in files:
            fsync_path(os.path.join(folder_path, name))
        fsync_path(folder_path)
