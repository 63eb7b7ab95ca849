"""Approvals in the ledger: one JSON text each, with the columns used in searches."""

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import fields, replace

from retinue.domain.approval import Approval, ApprovalState
from retinue.errors import Failed, NotFound
from retinue.ledger.run_rows import execute_statement, replace_surrogates

_DECODER = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()

_STORED_SCOPE_ACCESS = "more"
"""Stored name of the access `scope`."""


def encode_approval(approval: Approval) -> str:
    try:
        return _ENCODER.encode(_stored_fields(approval)).decode()
    except UnicodeEncodeError:
        texts = ((each.name, getattr(approval, each.name)) for each in fields(approval))
        cleaned = {name: replace_surrogates(text) for name, text in texts if type(text) is str}
        cleaned_approval = replace(approval, **cleaned, chain=tuple(map(replace_surrogates, approval.chain)))
        return _ENCODER.encode(_stored_fields(cleaned_approval)).decode()


def _stored_fields(approval: Approval) -> Approval | dict[str, Any]:
    if approval.access != "scope":
        return approval
    return msgspec.to_builtins(approval) | {"touch": _STORED_SCOPE_ACCESS}


def decode_approval(text: str) -> Approval:
    """Decode an approval; raise ValueError if the text is not one."""
    stored = _DECODER.decode(text)
    if stored.get("touch") == _STORED_SCOPE_ACCESS:
        stored["touch"] = "scope"
    return msgspec.convert(stored, Approval)


def insert_approval(connection: sqlite3.Connection, approval: Approval) -> None:
    row = (approval.id, approval.run, approval.call, approval.state.value, encode_approval(approval))
    try:
        execute_statement(
            connection, "INSERT INTO approvals (id, run, call, state, approval) VALUES (?, ?, ?, ?, ?)", row
        )
    except sqlite3.IntegrityError as error:
        raise Failed(f"Approval {approval.id} is already in the ledger.") from error


def update_approval(connection: sqlite3.Connection, approval: Approval) -> None:
    row = (approval.state.value, encode_approval(approval), approval.id)
    if not connection.execute("UPDATE approvals SET state=?, approval=? WHERE id=?", row).rowcount:
        raise NotFound(f"Approval {approval.id} not found.")


def select_approvals(
    connection: sqlite3.Connection,
    *,
    run: str | None = None,
    call: str | None = None,
    state: Sequence[ApprovalState] | None = None,
    prefix: str | None = None,
) -> list[Approval]:
    """Return matching approvals, oldest first (their ids sort by time)."""
    values = (run, call, prefix, None if prefix is None else f"{prefix}\U0010ffff")
    is_given = tuple([each is not None for each in values])
    sql = _select_statement(is_given, None if state is None else ",".join(state))
    cursor = execute_statement(connection, sql, [each for each in values if each is not None])
    return [decode_approval(text) for (text,) in cursor.fetchall()]


@cache
def _select_statement(is_given: tuple[bool, ...], state: str | None) -> str:
    """Build the statement.

    Many approvals may be pending at once while few belong to one run; the query planner does not detect
    that, so the index is named.
    """
    all_conditions = ("run=?", "call=?", "id >= ?", "id < ?")
    conditions = [term for term, given in zip(all_conditions, is_given, strict=True) if given]
    if state is not None:
        states = ", ".join(f"'{ApprovalState(each).value}'" for each in state.split(",") if each)
        conditions.append(f"state IN ({states})")
    index = " INDEXED BY approvals_by_run" if is_given[0] else ""
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT approval FROM approvals{index}{where} ORDER BY id"  # noqa: S608  (constant text only)
