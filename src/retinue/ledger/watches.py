"""Watches and interjections in the ledger: one JSON text each, with the columns used in searches."""

import sqlite3
from typing import Any, TypeVar

import msgspec
from msgspec.structs import fields, replace

from retinue.domain.watch import Interjection, Watch
from retinue.ledger.run_rows import replace_surrogates

T = TypeVar("T", Watch, Interjection)

_WATCH_DECODER = msgspec.json.Decoder(Watch)
_INTERJECTION_DECODER = msgspec.json.Decoder(Interjection)
_ENCODER = msgspec.json.Encoder()


def encode_record(value: Watch | Interjection) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        texts = ((each.name, getattr(value, each.name)) for each in fields(value))
        cleaned: dict[str, Any] = {
            name: replace_surrogates(text) for name, text in texts if type(text) is str
        }
        return _ENCODER.encode(replace(value, **cleaned)).decode()


def decode_watch(text: str) -> Watch:
    """Decode a watch; raise ValueError if the text is not one."""
    return _WATCH_DECODER.decode(text)


def decode_interjection(text: str) -> Interjection:
    """Decode an interjection; raise ValueError if the text is not one."""
    return _INTERJECTION_DECODER.decode(text)


def upsert_watch(connection: sqlite3.Connection, watch: Watch) -> None:
    connection.execute(
        "INSERT INTO watches (id, session, watcher, watching, watch) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET watching=excluded.watching, watcher=excluded.watcher, watch=excluded.watch",
        (
            replace_surrogates(watch.id),
            replace_surrogates(watch.session),
            replace_surrogates(watch.watcher),
            int(watch.on),
            encode_record(watch),
        ),
    )


def upsert_interjection(connection: sqlite3.Connection, interjection: Interjection) -> None:
    connection.execute(
        "INSERT INTO interjections (id, call, run, session, open, interjection) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET open=excluded.open, interjection=excluded.interjection",
        (
            replace_surrogates(interjection.id),
            replace_surrogates(interjection.call),
            replace_surrogates(interjection.run),
            replace_surrogates(interjection.session),
            int(interjection.open),
            encode_record(interjection),
        ),
    )


def select_watches(
    connection: sqlite3.Connection,
    *,
    session: str | None = None,
    watcher: str | None = None,
    on: bool | None = None,
) -> list[Watch]:
    """Return matching watches, oldest first (their ids sort by time)."""
    rows = _select_rows(
        connection, "SELECT watch FROM watches", {"session": session, "watcher": watcher, "watching": on}
    )
    return [decode_watch(text) for (text,) in rows]


def select_interjections(
    connection: sqlite3.Connection,
    *,
    session: str | None = None,
    call: str | None = None,
    run: str | None = None,
    open_: bool | None = None,
    prefix: str = "",
    limit: int | None = None,
) -> list[Interjection]:
    """Return matching interjections, oldest first; if there are more than `limit`, the newest ones.

    `prefix` matches the start of the id.
    """
    filters = {"session": session, "call": call, "run": run, "open": open_}
    sql = "SELECT interjection FROM interjections"
    rows = _select_rows(connection, sql, filters, prefix=prefix, limit=limit)
    return [decode_interjection(text) for (text,) in rows]


def _select_rows(
    connection: sqlite3.Connection,
    select: str,
    filters: dict[str, str | bool | None],
    *,
    prefix: str = "",
    limit: int | None = None,
) -> list[tuple[str]]:
    """Select rows by filters.

    Flags are literals in the statement, because only then does SQLite use the partial index.
    """
    active_filters = [(name, value) for name, value in filters.items() if value is not None]
    terms = [
        f"{name}={int(value)}" if isinstance(value, bool) else f"{name}=?" for name, value in active_filters
    ]
    where = f" WHERE {' AND '.join(terms)}" if terms else ""
    values = [replace_surrogates(value) for _, value in active_filters if isinstance(value, str)]
    if prefix:
        where += f"{' AND' if where else ' WHERE'} id >= ? AND id < ?"
        values += [replace_surrogates(prefix), f"{replace_surrogates(prefix)}\U0010ffff"]
    row_limit = -1 if limit is None else max(0, limit)
    sql = f"{select}{where} ORDER BY id DESC LIMIT ?"
    return connection.execute(sql, (*values, row_limit)).fetchall()[::-1]
