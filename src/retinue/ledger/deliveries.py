"""Deliveries in the ledger: one JSON text each, with the columns used in searches."""

import sqlite3
from collections.abc import Sequence
from functools import cache

import msgspec
from msgspec.structs import fields, replace

from retinue.domain.delivery import Delivery, DeliveryState
from retinue.errors import Failed, NotFound
from retinue.ledger.run_rows import execute_statement, replace_surrogates

_DECODER = msgspec.json.Decoder(Delivery)
_ENCODER = msgspec.json.Encoder()


def encode_delivery(delivery: Delivery) -> str:
    try:
        return _ENCODER.encode(delivery).decode()
    except UnicodeEncodeError:
        texts = ((each.name, getattr(delivery, each.name)) for each in fields(delivery))
        return _ENCODER.encode(
            replace(delivery, **{name: replace_surrogates(text) for name, text in texts if type(text) is str})
        ).decode()


def decode_delivery(text: str) -> Delivery:
    """Decode a delivery; raise ValueError if the text is not one."""
    return _DECODER.decode(text)


def has_removable_session(delivery: Delivery) -> bool:
    """Return whether the delivery's session is temporary, no longer needed and not deleted yet."""
    return (
        not delivery.keep_session
        and not delivery.is_session_deleted
        and delivery.state is not DeliveryState.PENDING
    )


def insert_delivery(connection: sqlite3.Connection, delivery: Delivery) -> None:
    row = (
        delivery.id,
        delivery.run,
        delivery.requester_run,
        delivery.session,
        delivery.state.value,
        int(delivery.answers_call),
        int(has_removable_session(delivery)),
        encode_delivery(delivery),
    )
    try:
        execute_statement(
            connection,
            "INSERT INTO deliveries (id, run, asker, session, state, answers, uncleared, delivery) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
    except sqlite3.IntegrityError as error:
        raise Failed(f"Run {delivery.run} already has a delivery.") from error


def update_delivery(connection: sqlite3.Connection, delivery: Delivery) -> None:
    row = (
        delivery.state.value,
        int(delivery.answers_call),
        int(has_removable_session(delivery)),
        encode_delivery(delivery),
        delivery.id,
    )
    sql = "UPDATE deliveries SET state=?, answers=?, uncleared=?, delivery=? WHERE id=?"
    if not execute_statement(connection, sql, row).rowcount:
        raise NotFound(f"Delivery {delivery.id} not found.")


def select_delivery(connection: sqlite3.Connection, delivery_id: str) -> Delivery | None:
    row = execute_statement(
        connection, "SELECT delivery FROM deliveries WHERE id=?", (delivery_id,)
    ).fetchone()
    if row is None:
        return None
    (text,) = row
    return decode_delivery(text)


def select_deliveries(  # noqa: PLR0913  (one filter each)
    connection: sqlite3.Connection,
    *,
    run: str | None = None,
    requester_run: str | None = None,
    session: str | None = None,
    state: Sequence[DeliveryState] | None = None,
    answers_call: bool | None = None,
    with_session_to_delete: bool = False,
    limit: int | None = None,
) -> list[Delivery]:
    """Return matching deliveries, oldest first (their ids sort by time)."""
    if limit is not None and limit <= 0:
        return []
    values = (run, requester_run, session)
    is_given = tuple([each is not None for each in values])
    sql = _select_statement(
        is_given, None if state is None else ",".join(state), answers_call, with_session_to_delete
    )
    cursor = execute_statement(connection, sql, [each for each in values if each is not None])
    rows = cursor.fetchall() if limit is None else cursor.fetchmany(limit)
    cursor.close()
    return [decode_delivery(text) for (text,) in rows]


@cache
def _select_statement(
    is_given: tuple[bool, ...], state: str | None, answers_call: bool | None, with_session_to_delete: bool
) -> str:
    """Build the statement.

    Values with few choices are literals, because only then does SQLite use the partial index.
    """
    conditions = [
        term for term, given in zip(("run=?", "asker=?", "session=?"), is_given, strict=True) if given
    ]
    if state is not None:
        states = ", ".join(f"'{DeliveryState(each).value}'" for each in state.split(",") if each)
        conditions.append(f"state IN ({states})")
    conditions += [] if answers_call is None else [f"answers={int(answers_call)}"]
    conditions += ["uncleared=1"] if with_session_to_delete else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT delivery FROM deliveries{where} ORDER BY id"  # noqa: S608  (constant text only)
