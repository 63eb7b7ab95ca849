"""Deliveries in the ledger: the whole value as one text, with what it is found by beside it."""

import sqlite3
from collections.abc import Sequence
from dataclasses import fields

import msgspec

from retinue.domain.announcement import Delivery, State
from retinue.domain.change import replace
from retinue.errors import Failed, NotFound
from retinue.ledger.rows import whole

_DECODER = msgspec.json.Decoder(Delivery)
_ENCODER = msgspec.json.Encoder()


def written(delivery: Delivery) -> str:
    try:
        return _ENCODER.encode(delivery).decode()
    except UnicodeEncodeError:
        texts = ((each.name, getattr(delivery, each.name)) for each in fields(delivery))
        return _ENCODER.encode(
            replace(delivery, **{name: whole(text) for name, text in texts if type(text) is str})
        ).decode()


def read(text: str) -> Delivery:
    """Raises ValueError for what no delivery can be."""
    return _DECODER.decode(text)


def uncleared(delivery: Delivery) -> bool:
    """Its session was not to be kept, nobody needs it any more, and it is still there."""
    return not delivery.keep and not delivery.cleared and delivery.state is not State.PENDING


def add(connection: sqlite3.Connection, delivery: Delivery) -> None:
    row = (
        whole(delivery.id),
        whole(delivery.run),
        whole(delivery.by),
        whole(delivery.session),
        delivery.state.value,
        int(delivery.answers),
        int(uncleared(delivery)),
        written(delivery),
    )
    try:
        connection.execute(
            "INSERT INTO deliveries (id, run, asker, session, state, answers, uncleared, delivery) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
    except sqlite3.IntegrityError as error:
        raise Failed(f"the end of run {delivery.run} is in the outbox already") from error


def put(connection: sqlite3.Connection, delivery: Delivery) -> None:
    row = (
        delivery.state.value,
        int(delivery.answers),
        int(uncleared(delivery)),
        written(delivery),
        whole(delivery.id),
    )
    sql = "UPDATE deliveries SET state=?, answers=?, uncleared=?, delivery=? WHERE id=?"
    if not connection.execute(sql, row).rowcount:
        raise NotFound(f"there is no delivery {delivery.id}")


def one(connection: sqlite3.Connection, delivery_id: str) -> Delivery | None:
    found = connection.execute("SELECT delivery FROM deliveries WHERE id=?", (whole(delivery_id),)).fetchone()
    return None if found is None else read(found[0])


def find(  # noqa: PLR0913  (one filter each)
    connection: sqlite3.Connection,
    *,
    run: str | None = None,
    by: str | None = None,
    session: str | None = None,
    state: Sequence[State] | None = None,
    answers: bool | None = None,
    uncleared: bool = False,
    limit: int | None = None,
) -> list[Delivery]:
    """Oldest first: their ids sort by time."""
    wishes: list[tuple[str, str | int]] = []
    if run is not None:
        wishes.append(("run=?", whole(run)))
    if by is not None:
        wishes.append(("asker=?", whole(by)))
    if session is not None:
        wishes.append(("session=?", whole(session)))
    if state is not None:
        wishes.append(("state IN (SELECT value FROM json_each(?))", _ENCODER.encode(state).decode()))
    if answers is not None:
        wishes.append(("answers=?", int(answers)))
    if uncleared:
        wishes.append(("uncleared=?", 1))
    where = " WHERE " + " AND ".join(sql for sql, _ in wishes) if wishes else ""
    found = connection.execute(
        f"SELECT delivery FROM deliveries{where} ORDER BY id LIMIT ?",  # noqa: S608  (our own words)
        (*(value for _, value in wishes), -1 if limit is None else max(0, limit)),
    )
    return [read(row[0]) for row in found.fetchall()]
