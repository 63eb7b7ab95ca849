"""Approvals in the ledger: the whole question as one value, with what it is found by beside it."""

import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from functools import cache

import msgspec

from retinue.domain.approval import Approval, State
from retinue.domain.change import replace
from retinue.errors import Failed, NotFound
from retinue.ledger.run_rows import asked, whole

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
    row = (approval.id, approval.run, approval.call, approval.state.value, written(approval))
    try:
        asked(
            connection, "INSERT INTO approvals (id, run, call, state, approval) VALUES (?, ?, ?, ?, ?)", row
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
    given = (run, call, prefix, None if prefix is None else f"{prefix}\U0010ffff")
    wished = tuple([each is not None for each in given])
    sql = _finding(wished, None if state is None else ",".join(state))
    found = asked(connection, sql, [each for each in given if each is not None])
    return [read(row[0]) for row in found.fetchall()]


@cache
def _finding(wished: tuple[bool, ...], state: str | None) -> str:
    """Many may wait at once, and few are of one run: the planner cannot know that."""
    terms = ("run=?", "call=?", "id >= ?", "id < ?")
    wishes = [term for term, wish in zip(terms, wished, strict=True) if wish]
    if state is not None:
        listed = ", ".join(f"'{State(each).value}'" for each in state.split(",") if each)
        wishes.append(f"state IN ({listed})")
    index = " INDEXED BY approvals_by_run" if wished[0] else ""
    where = f" WHERE {' AND '.join(wishes)}" if wishes else ""
    return f"SELECT approval FROM approvals{index}{where} ORDER BY id"  # noqa: S608  (our own words)
