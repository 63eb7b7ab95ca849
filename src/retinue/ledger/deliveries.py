"""Deliveries in the ledger: the whole value as one text, with what it is found by beside it."""

import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from functools import cache

import msgspec

from retinue.domain.change import replace
from retinue.domain.delivery import Delivery, State
from retinue.errors import Failed, NotFound
from retinue.ledger.run_rows import asked, whole

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
        delivery.id,
        delivery.run,
        delivery.by,
        delivery.session,
        delivery.state.value,
        int(delivery.answers),
        int(uncleared(delivery)),
        written(delivery),
    )
    try:
        asked(
            connection,
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
        delivery.id,
    )
    sql = "UPDATE deliveries SET state=?, answers=?, uncleared=?, delivery=? WHERE id=?"
    if not asked(connection, sql, row).rowcount:
        raise NotFound(f"there is no delivery {delivery.id}")


def one(connection: sqlite3.Connection, delivery_id: str) -> Delivery | None:
    found = asked(connection, "SELECT delivery FROM deliveries WHERE id=?", (delivery_id,)).fetchone()
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
    if limit is not None and limit <= 0:
        return []
    given = (run, by, session)
    wished = tuple([each is not None for each in given])
    sql = _finding(wished, None if state is None else ",".join(state), answers, uncleared)
    cursor = asked(connection, sql, [each for each in given if each is not None])
    found = cursor.fetchall() if limit is None else cursor.fetchmany(limit)
    cursor.close()
    return [read(row[0]) for row in found]


@cache
def _finding(wished: tuple[bool, ...], state: str | None, answers: bool | None, uncleared: bool) -> str:
    """What is one of few stands in the statement itself: only then does it find the index of those that have it."""
    wishes = [term for term, wish in zip(("run=?", "asker=?", "session=?"), wished, strict=True) if wish]
    if state is not None:
        listed = ", ".join(f"'{State(each).value}'" for each in state.split(",") if each)
        wishes.append(f"state IN ({listed})")
    wishes += [] if answers is None else [f"answers={int(answers)}"]
    wishes += ["uncleared=1"] if uncleared else []
    where = f" WHERE {' AND '.join(wishes)}" if wishes else ""
    return f"SELECT delivery FROM deliveries{where} ORDER BY id"  # noqa: S608  (our own words)
