"""Approvals in the ledger: the whole question as one value, with what it is found by beside it."""

import sqlite3
from collections.abc import Sequence
from dataclasses import fields

import msgspec

from retinue.domain.approval import Approval, State
from retinue.domain.change import replace
from retinue.errors import Failed, NotFound
from retinue.ledger.rows import whole

_DECODER = msgspec.json.Decoder(Approval)
_ENCODER = msgspec.json.Encoder()


def written(approval: Approval) -> str:
    try:
        return _ENCODER.encode(approval).decode()
    except UnicodeEncodeError:
        texts = ((each.name, getattr(approval, each.name)) for each in fields(approval))
        sound = {name: whole(text) for name, text in texts if type(text) is str}
        return _ENCODER.encode(replace(approval, **sound, chain=tuple(map(whole, approval.chain)))).decode()


def read(text: str) -> Approval:
    """Raises ValueError for what no approval can be."""
    return _DECODER.decode(text)


def add(connection: sqlite3.Connection, approval: Approval) -> None:
    row = (approval.id, whole(approval.run), whole(approval.call), approval.state.value, written(approval))
    try:
        connection.execute(
            "INSERT INTO approvals (id, run, call, state, approval) VALUES (?, ?, ?, ?, ?)", row
        )
    except sqlite3.IntegrityError as error:
        raise Failed(f"approval {approval.id} is already in the ledger") from error


def put(connection: sqlite3.Connection, approval: Approval) -> None:
    row = (approval.state.value, written(approval), approval.id)
    if not connection.execute("UPDATE approvals SET state=?, approval=? WHERE id=?", row).rowcount:
        raise NotFound(f"there is no approval {approval.id}")


def find(
    connection: sqlite3.Connection,
    *,
    run: str | None = None,
    call: str | None = None,
    state: Sequence[State] | None = None,
    prefix: str | None = None,
) -> list[Approval]:
    """Oldest first: their ids sort by time."""
    wishes: list[tuple[str, tuple[str, ...]]] = []
    if run is not None:
        wishes.append(("run=?", (whole(run),)))
    if call is not None:
        wishes.append(("call=?", (whole(call),)))
    if state is not None:
        wishes.append(("state IN (SELECT value FROM json_each(?))", (_ENCODER.encode(state).decode(),)))
    if prefix is not None:
        wishes.append(("id >= ? AND id < ?", (whole(prefix), whole(prefix) + "\U0010ffff")))
    where = " WHERE " + " AND ".join(sql for sql, _ in wishes) if wishes else ""
    values = [value for _, some in wishes for value in some]
    found = connection.execute(f"SELECT approval FROM approvals{where} ORDER BY id", values)  # noqa: S608  (our own words)
    return [read(row[0]) for row in found.fetchall()]
