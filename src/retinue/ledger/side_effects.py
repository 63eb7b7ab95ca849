"""Side effects in the ledger: one JSON text each, with the columns used in searches."""

import sqlite3

import msgspec
from msgspec.structs import fields, replace

from retinue.domain.side_effect import SideEffect
from retinue.ledger.run_rows import execute_statement, replace_surrogates

_DECODER = msgspec.json.Decoder(SideEffect)
_ENCODER = msgspec.json.Encoder()


def encode_side_effect(side_effect: SideEffect) -> str:
    try:
        return _ENCODER.encode(side_effect).decode()
    except UnicodeEncodeError:
        texts = ((each.name, getattr(side_effect, each.name)) for each in fields(side_effect))
        cleaned = {name: replace_surrogates(text) for name, text in texts if type(text) is str}
        return _ENCODER.encode(replace(side_effect, **cleaned)).decode()


def decode_side_effect(text: str) -> SideEffect:
    """Decode a side effect; raise ValueError if the text is not one."""
    return _DECODER.decode(text)


def upsert_side_effect(connection: sqlite3.Connection, side_effect: SideEffect) -> None:
    execute_statement(
        connection,
        "INSERT INTO deeds (call, run, progress, deed) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (call) DO UPDATE SET progress=excluded.progress, deed=excluded.deed",
        (side_effect.call, side_effect.run, side_effect.progress.value, encode_side_effect(side_effect)),
    )


def select_side_effect(connection: sqlite3.Connection, call: str) -> SideEffect | None:
    row = execute_statement(connection, "SELECT deed FROM deeds WHERE call=?", (call,)).fetchone()
    if row is None:
        return None
    (text,) = row
    return decode_side_effect(text)


def select_run_side_effects(connection: sqlite3.Connection, run: str) -> list[SideEffect]:
    """Return the side effects of a run, oldest first (call ids sort by time)."""
    found = execute_statement(connection, "SELECT deed FROM deeds WHERE run=? ORDER BY call", (run,))
    return [decode_side_effect(text) for (text,) in found.fetchall()]
