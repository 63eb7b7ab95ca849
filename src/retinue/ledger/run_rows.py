"""Rows: how a run and an event are written in columns, and read back as the same values."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, cast

import msgspec

from retinue.domain.change import maker, replace
from retinue.domain.event import Event, Kind
from retinue.domain.run import Ask, Reason, Run, Status, Usage, Waiting

Row = tuple[Any, ...]

FACTS = (
    "id", "ask", "session_id", "slug", "key", "agent", "path", "status", "waiting_for", "reason", "root", "depth",
    "model", "thinking", "text", "error", "turns", "tool_calls", "made", "input_tokens", "attempts", "owner",
    "scope_hash", "workspace", "created_at", "started_at", "ended_at", "deadline_at", "awaited", "aside", "wake_at",
    "exit", "task", "output_tokens", "cached_tokens",
)  # fmt: skip
"""Columns that are read, in the order of a run's own fields: where one is made of several columns, the first of them
stands there and the others at the end. The task stands where the children do, which no column holds."""

ASKED = ("ask_key", "requester", "parent_run", "door", "source", "label")
"""Columns that are only asked by: the ask has them too."""

EVENT = ("at", "kind", "session", "run", "parent_run", "agent", "data")

DAMAGE = (ValueError, TypeError, OverflowError)
"""What reading a row raises when a column holds what no run and no event can hold."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ASK = msgspec.json.Decoder(Ask)
_KEPT = msgspec.defstruct(
    "Kept",
    [(each.name, Any) if each.default is MISSING else (each.name, Any, each.default) for each in fields(Ask)],
    omit_defaults=True,
)
"""An ask as its row keeps it: without what is as it would be anyway."""
_asked = attrgetter(*(each.name for each in fields(Ask)))
_TASK = [each.name for each in fields(Ask)].index("task")
_LONG = 4_000
_MOST_ASKS = 2_048
_run = maker(Run)
_usage = maker(Usage)
_STATUS = {each.value: each for each in Status}
_DATA = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()


def facts_row(run: Run) -> Row:
    """In the order of `FACTS`."""
    ask = run.ask
    return (
        run.id,
        _written(ask),
        run.session_id,
        run.slug,
        run.key,
        run.agent,
        run.path,
        run.status.value,
        None if run.waiting_for is None else run.waiting_for.value,
        None if run.reason is None else run.reason.value,
        run.root,
        run.depth,
        run.model,
        run.thinking,
        run.text,
        run.error,
        run.turns,
        run.tool_calls,
        run.made,
        run.usage.input,
        run.attempts,
        run.owner,
        run.scope_hash,
        run.workspace,
        micros(run.created_at),
        _maybe_micros(run.started_at),
        _maybe_micros(run.ended_at),
        _maybe_micros(run.deadline_at),
        int(run.awaited),
        int(run.aside),
        _maybe_micros(run.wake_at),
        run.exit,
        ask.task,
        run.usage.output,
        run.usage.cached,
    )


def asked_row(ask: Ask) -> Row:
    """In the order of `ASKED`."""
    return (ask.key, ask.requester, ask.parent_run, ask.door, ask.source, ask.label)


def run_from(row: Sequence[Any], children: Iterable[str] = ()) -> Run:
    """`row` in the order of `FACTS`; raises one of `DAMAGE`."""
    facts = list(row)
    facts[1] = _read(row[1], row[32])
    facts[7] = _STATUS.get(row[7]) or Status(row[7])
    if row[8] is not None:
        facts[8] = Waiting(row[8])
    if row[9] is not None:
        facts[9] = Reason(row[9])
    facts[19] = _usage((row[19], row[33], row[34]))
    facts[24] = moment(row[24])
    for at in (25, 26, 27, 30):
        if row[at] is not None:
            facts[at] = moment(row[at])
    facts[28] = bool(row[28])
    facts[29] = bool(row[29])
    facts[32] = tuple(children)
    return _run(facts[:33])


def event_row(event: Event) -> Row:
    """In the order of `EVENT`."""
    try:
        data = _ENCODER.encode(event.data).decode()
    except UnicodeEncodeError:
        data = _ENCODER.encode(_whole_data(event.data)).decode()
    return (
        micros(event.at),
        event.kind,
        event.session,
        event.run,
        event.parent_run,
        event.agent,
        data,
    )


def event_from(seq: int, row: Sequence[Any]) -> Event:
    """`row` in the order of `EVENT`; raises one of `DAMAGE`."""
    return Event(
        seq=seq,
        at=moment(row[0]),
        kind=cast("Kind", row[1]),
        session=row[2],
        run=row[3],
        parent_run=row[4],
        agent=row[5],
        data=_DATA.decode(row[6]),
    )


def asked(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
    """One statement with its values, each text of them `whole`: nearly every one is, and the database says so first."""
    try:
        return connection.execute(sql, values)
    except UnicodeEncodeError:
        return connection.execute(sql, whole_row(values))


def whole_row(row: Iterable[Any]) -> Row:
    return tuple(whole(each) if isinstance(each, str) else each for each in row)


def micros(at: datetime) -> int:
    """Exact, where a float of seconds would not be."""
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(at: int) -> datetime:
    return _EPOCH + timedelta(0, 0, at)


def whole(text: str) -> str:
    """Half a surrogate pair has no place in a file of UTF-8: it becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _written(ask: Ask) -> str:
    """Without the task, which has a column of its own."""
    facts = list(_asked(ask))
    facts[_TASK] = None
    try:
        text = _ENCODER.encode(_KEPT(*facts)).decode()
    except UnicodeEncodeError:
        kept = msgspec.to_builtins(_KEPT(*facts))
        return _ENCODER.encode(_whole_data(kept)).decode()
    if ask.task is None or ask.task.isascii():
        _remember(text, ask.task, ask)
    return text


def _read(text: str, task: str | None) -> Ask:
    """A run is read many times in its life, and its ask stays the same: whoever wrote it has it at hand."""
    known = _asks.get((text, task))
    if known is None:
        # Rows of older ledgers have the task in both places.
        known = _ASK.decode(text)
        if task is not None and known.task is None:
            known = replace(known, task=task)
        _remember(text, task, known)
    return known


_asks: dict[tuple[str, str | None], Ask] = {}


def _remember(text: str, task: str | None, ask: Ask) -> None:
    """A long one is not worth the room."""
    if len(text) + len(task or "") < _LONG:
        if len(_asks) >= _MOST_ASKS:
            _asks.clear()
        _asks[text, task] = ask


def _whole_data(value: Any) -> Any:
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return {_whole_data(key): _whole_data(inner) for key, inner in pairs}
    if isinstance(value, list | tuple):
        return [_whole_data(inner) for inner in cast("Sequence[Any]", value)]
    return value


def _maybe_micros(at: datetime | None) -> int | None:
    return None if at is None else micros(at)
