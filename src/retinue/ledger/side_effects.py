"""Deeds in the ledger: the whole value as one text, with what it is found by beside it."""

import sqlite3
from dataclasses import fields

import msgspec

from retinue.domain.change import replace
from retinue.domain.side_effect import Deed
from retinue.ledger.run_rows import asked, whole

_DECODER = msgspec.json.Decoder(Deed)
_ENCODER = msgspec.json.Encoder()


def written(deed: Deed) -> str:
    try:
        return _ENCODER.encode(deed).decode()
    except UnicodeEncodeError:
        texts = ((each.name, getattr(deed, each.name)) for each in fields(deed))
        sound = {name: whole(text) for name, text in texts if type(text) is str}
        return _ENCODER.encode(replace(deed, **sound)).decode()


def read(text: str) -> Deed:
    """Raises ValueError for what no deed can be."""
    return _DECODER.decode(text)


def put(connection: sqlite3.Connection, deed: Deed) -> None:
    asked(
        connection,
        "INSERT INTO deeds (call, run, progress, deed) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (call) DO UPDATE SET progress=excluded.progress, deed=excluded.deed",
        (deed.call, deed.run, deed.progress.value, written(deed)),
    )


def one(connection: sqlite3.Connection, call: str) -> Deed | None:
    found = asked(connection, "SELECT deed FROM deeds WHERE call=?", (call,)).fetchone()
    return None if found is None else read(found[0])


def of(connection: sqlite3.Connection, run: str) -> list[Deed]:
    """Oldest first: the ids of calls sort by time."""
    found = asked(connection, "SELECT deed FROM deeds WHERE run=? ORDER BY call", (run,))
    return [read(row[0]) for row in found.fetchall()]
