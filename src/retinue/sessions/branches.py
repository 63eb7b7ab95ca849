"""Branching: a second timeline of a top-level session, with its own copy of every agent."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH102, PTH104, PTH105, PTH112, PTH113, PTH118, PTH119, PTH120, PTH211

import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from retinue.domain.clock import Chance
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Said
from retinue.errors import Failed, NotFound, Refused, Usage
from retinue.sessions import folder, session_tree
from retinue.sessions.lookup import top_folder
from retinue.sessions.markdown.chunks import Lines, portions
from retinue.sessions.markdown.marker import read_head
from retinue.sessions.markdown.parser import read_portion, starts
from retinue.sessions.markdown.torn_tail import torn_from
from retinue.sessions.markdown.writer import head
from retinue.sessions.metadata_files import write_branch, write_facts
from retinue.storage import file_names
from retinue.storage.file_io import (
    GONE,
    TAKEN,
    copy_new,
    not_moved,
    open_file,
    read_at,
    sync_path,
    unused,
    write_new,
)

_HEAD = 64 * 1024
_COPIED = (file_names.PRESET, file_names.PLAN, file_names.TOOLS, file_names.THOUGHTS)


def branch(session: Session, chance: Chance, *, at: str | None, include: bool, name: str) -> str:
    """Copies the history up to a user prompt (all of it when `at` is None), the configuration and all agents, and
    makes the copy current. Returns the new branch's folder."""
    if not session.top:
        raise Refused(f"{session.slug} is a child session; only top-level sessions have branches")
    if os.path.basename(os.path.dirname(session.path)) != file_names.BRANCHES:
        raise Refused(f"{session.path} was moved out of its session's folder and cannot be branched")
    with _opened(os.path.join(session.path, file_names.SESSION)) as (file, size):
        torn = torn_from(file, size)
        end = _position(session, at, file, size if torn is None else torn, include=include)
        while (made := _branched(session, file, end, name, chance)) is None:
            pass
        return made


def _branched(session: Session, file: int, end: int, name: str, chance: Chance) -> str | None:
    """None: another took the name meanwhile, and the next free one is to be tried."""
    now = chance.now()
    inside = os.path.dirname(session.path)
    temporary = os.path.join(inside, f"{file_names.NEW}{chance.uuid()}")
    try:
        chosen = os.path.basename(unused(inside, file_names.branch(name, now)))
        twin = replace(
            session,
            id=chance.uuid(),
            branch=chosen,
            created_at=now,
            aliases=(),
            path=temporary,
            pinned_at=None,
        )
        _copy(session.path, file, end, twin, chance)
        write_new(
            os.path.join(temporary, file_names.BRANCH_FACTS),
            write_branch(session.branch, now, end),
            sync=True,
        )
        _sync(temporary)
        final = os.path.join(inside, chosen)
        try:
            os.rename(temporary, final)
        except OSError as error:
            if error.errno in TAKEN:
                return None
            raise
        sync_path(inside)
        make_current(top_folder(session), chosen, chance.uuid())
    except OSError as error:
        raise not_moved(session.path, error) from error
    finally:
        if os.path.lexists(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def make_current(top: str, branch_name: str, token: str) -> None:
    """Moves the link in one step, so that a session is never without a current branch."""
    temporary = os.path.join(top, f".{file_names.CURRENT}-{token}")
    os.symlink(os.path.join(file_names.BRANCHES, branch_name), temporary)
    os.replace(temporary, os.path.join(top, file_names.CURRENT))
    sync_path(top)


def _position(session: Session, at: str | None, file: int, end: int, *, include: bool) -> int:
    """Where in session.md the branch leaves; what stands before is read, and raises Unreadable if it cannot be."""
    where = os.path.join(session.path, file_names.SESSION)
    lines = Lines(file)
    for portion in portions(file, 0, end):
        reading = read_portion(portion, where, lines=lines.before)
        end = reading.end
        index = _prompt(reading.entries, at)
        if index is not None:
            return [*starts(portion, reading), end][index + include]
    if at is None:
        return end
    raise NotFound(f"There is no user prompt {at!r} in {session.slug}/{session.branch}")


def _prompt(entries: Sequence[Entry], at: str | None) -> int | None:
    for index, entry in enumerate(entries):
        if entry.id == at and isinstance(entry, Said):
            if entry.by != "user":
                raise Usage(f"{at} is a reply; a branch starts at a user prompt")
            return index
    return None


@contextmanager
def _opened(path: str) -> Generator[tuple[int, int]]:
    """A file and its size."""
    try:
        file = open_file(path)
    except OSError as error:
        if error.errno in GONE:
            raise not_moved(path, error) from error
        raise Failed(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield file, os.fstat(file).st_size
    finally:
        os.close(file)


def _copy(source: str, file: int, end: int, twin: Session, chance: Chance) -> None:
    """A session's files under the twin's identity, its conversation up to an end, and its agents under new ids below."""
    os.mkdir(twin.path, 0o700)
    first, start = _new_head(file, end, twin)
    copy_new(os.path.join(twin.path, file_names.SESSION), file, start, end, first=first)
    write_new(os.path.join(twin.path, file_names.FACTS), write_facts(twin))
    for name in _COPIED:
        if os.path.isfile(os.path.join(source, name)):
            with _opened(os.path.join(source, name)) as (other, size):
                copy_new(os.path.join(twin.path, name), other, 0, size)
    inside = os.path.join(twin.path, file_names.AGENTS)
    for child in session_tree.children(source):
        if not os.path.isdir(inside):
            os.mkdir(inside, 0o700)
        known = folder.read(child).session
        path = os.path.join(inside, os.path.basename(child))
        copied = replace(known, id=chance.uuid(), parent=twin.id, aliases=(), path=path)
        with _opened(os.path.join(child, file_names.SESSION)) as (talk, size):
            _copy(child, talk, size, copied, chance)


def _new_head(file: int, end: int, twin: Session) -> tuple[bytes, int]:
    """The twin's own head line, and where the old one ends; nothing where there is none."""
    line, newline, _ = read_at(file, 0, min(_HEAD, end)).partition(b"\n")
    if read_head(line.decode("utf-8", "replace")) is None:
        return b"", 0
    return head(twin).rstrip("\n").encode() + b"\n", len(line) + len(newline)


def _sync(path: str) -> None:
    for above, _, files in os.walk(path):
        for name in files:
            sync_path(os.path.join(above, name))
        sync_path(above)
