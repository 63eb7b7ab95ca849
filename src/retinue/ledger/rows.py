"""Rows: how a run and an event are written in columns, and read back as the same values."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from retinue.domain.change import replace
from retinue.domain.event import Event, Kind
from retinue.domain.run import Ask, Reason, Run, Status, Usage, Waiting

Row = tuple[Any, ...]

ASKED = ("ask", "ask_key", "requester", "parent_run", "door", "source", "label", "task")
"""Columns that the ask alone decides."""

FACTS = (
    "id", "session_id", "slug", "key", "agent", "path", "status", "waiting_for", "reason", "root", "depth",
    "model", "thinking", "text", "error", "turns", "tool_calls", "input_tokens", "output_tokens", "attempts",
    "owner", "scope_hash", "workspace", "created_at", "started_at", "ended_at", "deadline_at", "awaited", "aside",
    "wake_at", "exit", "made", "cached_tokens",
)  # fmt: skip
"""Columns of the run's own fields, in the order of `facts_row`."""

EVENT = ("at", "kind", "session", "run", "parent_run", "agent", "data")

DAMAGE = (ValueError, TypeError, OverflowError)
"""What reading a row raises when a column holds what no run and no event can hold."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ASK = msgspec.json.Decoder(Ask)
_DATA = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()


def asked_row(ask: Ask) -> Row:
    """In the order of `ASKED`."""
    try:
        text = _ENCODER.encode(ask).decode()
    except UnicodeEncodeError:
        ask = _whole_ask(ask)
        text = _ENCODER.encode(ask).decode()
    return (text, ask.key, ask.requester, ask.parent_run, ask.door, ask.source, ask.label, ask.task)


def facts_row(run: Run) -> Row:
    """In the order of `FACTS`."""
    return (
        whole(run.id),
        whole(run.session_id),
        whole(run.slug),
        whole(run.key),
        whole(run.agent),
        whole(run.path),
        run.status.value,
        None if run.waiting_for is None else run.waiting_for.value,
        None if run.reason is None else run.reason.value,
        whole(run.root),
        run.depth,
        whole(run.model),
        whole(run.thinking),
        whole(run.text),
        whole(run.error),
        run.turns,
        run.tool_calls,
        run.usage.input,
        run.usage.output,
        run.attempts,
        whole(run.owner),
        whole(run.scope_hash),
        whole(run.workspace),
        micros(run.created_at),
        _maybe_micros(run.started_at),
        _maybe_micros(run.ended_at),
        _maybe_micros(run.deadline_at),
        int(run.awaited),
        int(run.aside),
        _maybe_micros(run.wake_at),
        whole(run.exit),
        run.made,
        run.usage.cached,
    )


def run_from(ask: str, facts: Sequence[Any], children: Iterable[str] = ()) -> Run:
    """`facts` in the order of `FACTS`; raises one of `DAMAGE`."""
    return Run(
        ask=_ASK.decode(ask),
        id=facts[0],
        session_id=facts[1],
        slug=facts[2],
        key=facts[3],
        agent=facts[4],
        path=facts[5],
        status=Status(facts[6]),
        waiting_for=None if facts[7] is None else Waiting(facts[7]),
        reason=None if facts[8] is None else Reason(facts[8]),
        root=facts[9],
        depth=facts[10],
        model=facts[11],
        thinking=facts[12],
        text=facts[13],
        error=facts[14],
        turns=facts[15],
        tool_calls=facts[16],
        usage=Usage(input=facts[17], output=facts[18], cached=facts[32]),
        attempts=facts[19],
        owner=facts[20],
        scope_hash=facts[21],
        workspace=facts[22],
        created_at=moment(facts[23]),
        started_at=_maybe_moment(facts[24]),
        ended_at=_maybe_moment(facts[25]),
        deadline_at=_maybe_moment(facts[26]),
        awaited=bool(facts[27]),
        aside=bool(facts[28]),
        wake_at=_maybe_moment(facts[29]),
        exit=facts[30],
        made=facts[31],
        children=tuple(children),
    )


def event_row(event: Event) -> Row:
    """In the order of `EVENT`."""
    try:
        data = _ENCODER.encode(event.data).decode()
    except UnicodeEncodeError:
        data = _ENCODER.encode(_whole_data(event.data)).decode()
    return (
        micros(event.at),
        event.kind,
        whole(event.session),
        whole(event.run),
        whole(event.parent_run),
        whole(event.agent),
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


def micros(at: datetime) -> int:
    """Exact, where a float of seconds would not be."""
    return (at - _EPOCH) // _MICROSECOND


def moment(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)


def whole(text: str) -> str:
    """Half a surrogate pair has no place in a file of UTF-8: it becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _whole_ask(ask: Ask) -> Ask:
    facts = ((field.name, getattr(ask, field.name)) for field in fields(ask))
    return replace(ask, **{name: whole(fact) for name, fact in facts if isinstance(fact, str)})


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


def _maybe_moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)
