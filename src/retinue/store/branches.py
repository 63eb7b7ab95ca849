"""Branching: a second timeline of a top-level session, with its own copy of every agent."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH102, PTH104, PTH105, PTH112, PTH113, PTH118, PTH119, PTH120, PTH211

import os
import shutil
from dataclasses import replace

from retinue.domain.session import Session
from retinue.domain.transcript import Said
from retinue.errors import NotFound, Refused, Usage
from retinue.ports import Chance
from retinue.store import folder, names
from retinue.store.disk import no_room, read_file, sync_path, unused, write_new
from retinue.store.facts import write_branch, write_facts
from retinue.store.markdown import head
from retinue.store.marker import read_head
from retinue.store.reading import read, starts
from retinue.store.shelf import top_folder
from retinue.store.tail import torn_at

_COPIED = (names.PRESET, names.PLAN, names.TOOLS, names.THOUGHTS)


def branch(session: Session, chance: Chance, *, at: str | None, include: bool, name: str) -> str:
    """Copies the history up to a user prompt (all of it when `at` is None), the configuration and all agents, and
    makes the copy current. Returns the new branch's folder."""
    if not session.top:
        raise Refused(f"{session.slug} is a child session; only top-level sessions have branches")
    data, position = _history(session, at, include=include)
    now = chance.now()
    inside = os.path.dirname(session.path)
    if os.path.basename(inside) != names.BRANCHES:
        raise Refused(f"{session.path} was moved out of its session's folder and cannot be branched")
    temporary = os.path.join(inside, f"{names.NEW}{chance.uuid()}")
    try:
        chosen = os.path.basename(unused(inside, names.branch(name, now)))
        twin = replace(
            session,
            id=chance.uuid(),
            branch=chosen,
            created_at=now,
            aliases=(),
            path=temporary,
            pinned_at=None,
        )
        _copy(session.path, twin, data, chance)
        write_new(
            os.path.join(temporary, names.BRANCH_FACTS),
            write_branch(session.branch, now, position),
            sync=True,
        )
        _sync(temporary)
        final = os.path.join(inside, chosen)
        os.rename(temporary, final)
        sync_path(inside)
        make_current(top_folder(session), chosen, chance.uuid())
    except OSError as error:
        raise no_room(inside, error) from error
    finally:
        if os.path.lexists(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def make_current(top: str, branch_name: str, token: str) -> None:
    """Moves the link in one step, so that a session is never without a current branch."""
    temporary = os.path.join(top, f".{names.CURRENT}-{token}")
    os.symlink(os.path.join(names.BRANCHES, branch_name), temporary)
    os.replace(temporary, os.path.join(top, names.CURRENT))
    sync_path(top)


def _history(session: Session, at: str | None, *, include: bool) -> tuple[bytes, int]:
    where = os.path.join(session.path, names.SESSION)
    data = read_file(where)
    data = data[: torn_at(data)]
    reading = read(data, where)
    if at is None:
        return data[: reading.end], reading.end
    offsets = [*starts(data, reading), reading.end]
    for index, entry in enumerate(reading.entries):
        if entry.id == at and isinstance(entry, Said):
            if entry.by != "user":
                raise Usage(f"{at} is a reply; a branch starts at a user prompt")
            position = offsets[index + 1] if include else offsets[index]
            return data[:position], position
    raise NotFound(f"There is no user prompt {at!r} in {session.slug}/{session.branch}")


def _copy(source: str, twin: Session, data: bytes, chance: Chance) -> None:
    """A session's files under the twin's identity, and its agents under new ids below it."""
    os.mkdir(twin.path, 0o700)
    write_new(os.path.join(twin.path, names.SESSION), _with_head(data, twin))
    write_new(os.path.join(twin.path, names.FACTS), write_facts(twin))
    for name in _COPIED:
        if os.path.isfile(os.path.join(source, name)):
            write_new(os.path.join(twin.path, name), read_file(os.path.join(source, name)))
    inside = os.path.join(twin.path, names.AGENTS)
    for child in folder.children(source):
        if not os.path.isdir(inside):
            os.mkdir(inside, 0o700)
        known = folder.read(child).session
        path = os.path.join(inside, os.path.basename(child))
        copied = replace(known, id=chance.uuid(), parent=twin.id, aliases=(), path=path)
        _copy(child, copied, read_file(os.path.join(child, names.SESSION)), chance)


def _with_head(data: bytes, twin: Session) -> bytes:
    """The same text under the twin's own head line."""
    line, _, rest = data.partition(b"\n")
    if read_head(line.decode("utf-8", "replace")) is None:
        return data
    return head(twin).rstrip("\n").encode() + b"\n" + rest


def _sync(path: str) -> None:
    for above, _, files in os.walk(path):
        for name in files:
            sync_path(os.path.join(above, name))
        sync_path(above)
