"""Watches and interjections in the ledger: the whole value as one text, with what it is found by beside it."""

import sqlite3
from dataclasses import fields, replace
from typing import Any, TypeVar

import msgspec

from retinue.domain.watch import Interjection, Watch
from retinue.ledger.run_rows import whole

T = TypeVar("T", Watch, Interjection)

_WATCH = msgspec.json.Decoder(Watch)
_INTERJECTION = msgspec.json.Decoder(Interjection)
_ENCODER = msgspec.json.Encoder()


def written(value: Watch | Interjection) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        texts = ((each.name, getattr(value, each.name)) for each in fields(value))
        sound: dict[str, Any] = {name: whole(text) for name, text in texts if type(text) is str}
        return _ENCODER.encode(replace(value, **sound)).decode()


def read_watch(text: str) -> Watch:
    """Raises ValueError for what no watch can be."""
    return _WATCH.decode(text)


def read_interjection(text: str) -> Interjection:
    """The same for an interjection."""
    return _INTERJECTION.decode(text)


def put_watch(connection: sqlite3.Connection, watch: Watch) -> None:
    connection.execute(
        "INSERT INTO watches (id, session, watcher, watching, watch) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET watching=excluded.watching, watcher=excluded.watcher, watch=excluded.watch",
        (whole(watch.id), whole(watch.session), whole(watch.watcher), int(watch.on), written(watch)),
    )


def put_interjection(connection: sqlite3.Connection, said: Interjection) -> None:
    connection.execute(
        "INSERT INTO interjections (id, call, run, session, open, interjection) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET open=excluded.open, interjection=excluded.interjection",
        (
            whole(said.id),
            whole(said.call),
            whole(said.run),
            whole(said.session),
            int(said.open),
            written(said),
        ),
    )


def watches(
    connection: sqlite3.Connection,
    *,
    session: str | None = None,
    watcher: str | None = None,
    on: bool | None = None,
) -> list[Watch]:
    """Oldest first: their ids sort by time."""
    found = _found(
        connection, "SELECT watch FROM watches", {"session": session, "watcher": watcher, "watching": on}
    )
    return [read_watch(row[0]) for row in found]


def interjections(
    connection: sqlite3.Connection,
    *,
    session: str | None = None,
    call: str | None = None,
    run: str | None = None,
    open_: bool | None = None,
    prefix: str = "",
    limit: int | None = None,
) -> list[Interjection]:
    """Oldest first, and of more than `limit` the newest. `prefix`: of the id."""
    wishes = {"session": session, "call": call, "run": run, "open": open_}
    sql = "SELECT interjection FROM interjections"
    found = _found(connection, sql, wishes, prefix=prefix, limit=limit)
    return [read_interjection(row[0]) for row in found]


def _found(
    connection: sqlite3.Connection,
    select: str,
    wishes: dict[str, str | bool | None],
    *,
    prefix: str = "",
    limit: int | None = None,
) -> list[tuple[str]]:
    """A flag stands in the statement itself: only then does it find the index of those that have it."""
    given = [(name, value) for name, value in wishes.items() if value is not None]
    terms = [f"{name}={int(value)}" if isinstance(value, bool) else f"{name}=?" for name, value in given]
    where = f" WHERE {' AND '.join(terms)}" if terms else ""
    values = [whole(value) for _, value in given if isinstance(value, str)]
    if prefix:
        where += f"{' AND' if where else ' WHERE'} id >= ? AND id < ?"
        values += [whole(prefix), f"{whole(prefix)}\U0010ffff"]
    bound = -1 if limit is None else max(0, limit)
    sql = f"{select}{where} ORDER BY id DESC LIMIT ?"
    return connection.execute(sql, (*values, bound)).fetchall()[::-1]
