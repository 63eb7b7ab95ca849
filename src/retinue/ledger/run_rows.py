"""Conversion of runs and events to database rows and back."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, cast

import msgspec

from retinue.domain.change import maker, replace
from retinue.domain.event import Event, EventKind
from retinue.domain.run import Reason, Run, RunRequest, Status, Usage, WaitReason

Row = tuple[Any, ...]

RUN_COLUMNS = (
    "id", "ask", "session_id", "slug", "key", "agent", "path", "status", "waiting_for", "reason", "root", "depth",
    "model", "thinking", "text", "error", "turns", "tool_calls", "made", "input_tokens", "attempts", "owner",
    "scope_hash", "workspace", "created_at", "started_at", "ended_at", "deadline_at", "awaited", "aside", "wake_at",
    "exit", "task", "output_tokens", "cached_tokens",
)  # fmt: skip
"""Columns that are read, in the order of a run's fields.

Where a field takes several columns, the first stands in the field's place and the others at the end. `task`
stands in the place of `children`, which no column holds.
"""

REQUEST_COLUMNS = ("ask_key", "requester", "parent_run", "door", "source", "label")
"""Columns that are only searched by; the request holds their values too."""

EVENT_COLUMNS = ("at", "kind", "session", "run", "parent_run", "agent", "data")

ROW_ERRORS = (ValueError, TypeError, OverflowError)
"""Exceptions raised on reading a row with a column value that is invalid for a run or an event."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REQUEST_DECODER = msgspec.json.Decoder(RunRequest)
_StoredRequest = msgspec.defstruct(
    "Kept",
    [
        (each.name, Any) if each.default is MISSING else (each.name, Any, each.default)
        for each in fields(RunRequest)
    ],
    omit_defaults=True,
)
"""The stored form of a request, without fields that have their default value."""
_request_values = attrgetter(*(each.name for each in fields(RunRequest)))
_TASK_POSITION = [each.name for each in fields(RunRequest)].index("task")
_MAX_CACHED_CHARS = 4_000
_MAX_CACHED_REQUESTS = 2_048
_make_run = maker(Run)
_make_usage = maker(Usage)
_STATUS_BY_VALUE = {each.value: each for each in Status}
_DATA_DECODER = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()


def run_row(run: Run) -> Row:
    """Return the row of a run in the order of `RUN_COLUMNS`."""
    request = run.request
    return (
        run.id,
        _encode_request(request),
        run.session_id,
        run.slug,
        run.session_key,
        run.agent,
        run.transcript_path,
        run.status.value,
        None if run.waiting_for is None else run.waiting_for.value,
        None if run.reason is None else run.reason.value,
        run.root_id,
        run.depth,
        run.model,
        run.thinking,
        run.text,
        run.error,
        run.turns,
        run.tool_calls,
        run.effective_calls,
        run.usage.input,
        run.attempts,
        run.owner_id,
        run.scope_hash,
        run.workspace,
        to_microseconds(run.created_at),
        _optional_microseconds(run.started_at),
        _optional_microseconds(run.ended_at),
        _optional_microseconds(run.deadline_at),
        int(run.is_awaited),
        int(run.is_suspended),
        _optional_microseconds(run.wake_at),
        run.exit_tool,
        request.task,
        run.usage.output,
        run.usage.cached,
    )


def request_row(request: RunRequest) -> Row:
    """Return the row of a request in the order of `REQUEST_COLUMNS`."""
    return (request.key, request.requester, request.parent_run, request.door, request.source, request.label)


def run_from_row(row: Sequence[Any], children: Iterable[str] = ()) -> Run:
    """Decode a row in the order of `RUN_COLUMNS`; raises one of `ROW_ERRORS`."""
    values = list(row)
    values[1] = _decode_request(row[1], row[32])
    values[7] = _STATUS_BY_VALUE.get(row[7]) or Status(row[7])
    if row[8] is not None:
        values[8] = WaitReason(row[8])
    if row[9] is not None:
        values[9] = Reason(row[9])
    values[19] = _make_usage((row[19], row[33], row[34]))
    values[24] = from_microseconds(row[24])
    for position in (25, 26, 27, 30):
        if row[position] is not None:
            values[position] = from_microseconds(row[position])
    values[28] = bool(row[28])
    values[29] = bool(row[29])
    values[32] = tuple(children)
    return _make_run(values[:33])


def event_row(event: Event) -> Row:
    """Return the row of an event in the order of `EVENT_COLUMNS`."""
    try:
        data = _ENCODER.encode(event.data).decode()
    except UnicodeEncodeError:
        data = _ENCODER.encode(_replace_surrogates_deep(event.data)).decode()
    return (
        to_microseconds(event.at),
        event.kind,
        event.session,
        event.run,
        event.parent_run,
        event.agent,
        data,
    )


def event_from_row(seq: int, row: Sequence[Any]) -> Event:
    """Decode a row in the order of `EVENT_COLUMNS`; raises one of `ROW_ERRORS`."""
    return Event(
        seq=seq,
        at=from_microseconds(row[0]),
        kind=cast("EventKind", row[1]),
        session=row[2],
        run=row[3],
        parent_run=row[4],
        agent=row[5],
        data=_DATA_DECODER.decode(row[6]),
    )


def execute_statement(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
    """Execute a statement; if SQLite rejects its values, replace lone surrogates in them (rare)."""
    try:
        return connection.execute(sql, values)
    except UnicodeEncodeError:
        return connection.execute(sql, replace_surrogates_in_row(values))


def replace_surrogates_in_row(row: Iterable[Any]) -> Row:
    return tuple(replace_surrogates(each) if isinstance(each, str) else each for each in row)


def to_microseconds(at: datetime) -> int:
    """Convert a time to microseconds since the epoch, exactly, unlike a float of seconds."""
    elapsed = at - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def from_microseconds(microseconds: int) -> datetime:
    return _EPOCH + timedelta(0, 0, microseconds)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _encode_request(request: RunRequest) -> str:
    """Encode a request without its task, which has a column of its own."""
    values = list(_request_values(request))
    values[_TASK_POSITION] = None
    try:
        text = _ENCODER.encode(_StoredRequest(*values)).decode()
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(_StoredRequest(*values))
        return _ENCODER.encode(_replace_surrogates_deep(plain)).decode()
    if request.task is None or request.task.isascii():
        _cache_request(text, request.task, request)
    return text


def _decode_request(text: str, task: str | None) -> RunRequest:
    """Decode a request, from the cache if possible.

    A run is read many times in its life and its request never changes.
    """
    request = _request_cache.get((text, task))
    if request is None:
        # Rows of older ledgers hold the task in both places.
        request = _REQUEST_DECODER.decode(text)
        if task is not None and request.task is None:
            request = replace(request, task=task)
        _cache_request(text, task, request)
    return request


_request_cache: dict[tuple[str, str | None], RunRequest] = {}


def _cache_request(text: str, task: str | None, request: RunRequest) -> None:
    """Cache a decoded request unless it is long."""
    if len(text) + len(task or "") < _MAX_CACHED_CHARS:
        if len(_request_cache) >= _MAX_CACHED_REQUESTS:
            _request_cache.clear()
        _request_cache[text, task] = request


def _replace_surrogates_deep(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return {_replace_surrogates_deep(key): _replace_surrogates_deep(inner) for key, inner in pairs}
    if isinstance(value, list | tuple):
        return [_replace_surrogates_deep(inner) for inner in cast("Sequence[Any]", value)]
    return value


def _optional_microseconds(at: datetime | None) -> int | None:
    return None if at is None else to_microseconds(at)
