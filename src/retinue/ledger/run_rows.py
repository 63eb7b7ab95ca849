"""Conversion of runs and events to database rows and back."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from retinue.domain.event import Event, EventKind
from retinue.domain.run import (
    NO_USAGE,
    Reason,
    RecoveryState,
    Run,
    RunReport,
    RunRequest,
    Status,
    Usage,
    WaitReason,
)

Row = tuple[Any, ...]


class RunRow(NamedTuple):
    """The columns of a run that are read, by their stored names, in the order of every SELECT."""

    id: str
    ask: str
    session_id: str
    slug: str
    key: str
    agent: str
    path: str
    status: str
    waiting_for: str | None
    reason: str | None
    root: str
    depth: int
    model: str
    thinking: str
    text: str
    error: str
    turns: int
    tool_calls: int
    made: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    long_prompt: str
    attempts: int
    owner: str
    scope_hash: str
    workspace: str
    created_at: int
    started_at: int | None
    ended_at: int | None
    deadline_at: int | None
    awaited: int
    aside: int
    wake_at: int | None
    exit: str
    time_left: int | None
    recovery: str
    report: str
    task: str | None


class EventRow(NamedTuple):
    """The columns of an event, by their stored names."""

    at: int
    kind: str
    session: str
    run: str
    parent_run: str
    agent: str
    data: str


INDEPENDENT = -1
"""Value of the column `awaited` for a run that its parent never waits for."""

RUN_COLUMNS = RunRow._fields
REQUEST_COLUMNS = ("ask_key", "requester", "parent_run", "door", "source", "label")
"""Columns used only in searches; the encoded request also contains their values."""

EVENT_COLUMNS = EventRow._fields

ROW_ERRORS = (ValueError, TypeError, OverflowError)
"""Exceptions raised on reading a row with a column value that is invalid for a run or an event."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_REQUEST_DECODER = msgspec.json.Decoder(RunRequest)
_RECOVERY_DECODER = msgspec.json.Decoder(RecoveryState)
_NO_RECOVERY = RecoveryState()
_REPORT_DECODER = msgspec.json.Decoder(RunReport)
_NO_REPORT = RunReport()
_USAGE_DECODER = msgspec.json.Decoder(Usage)
_MAX_CACHED_CHARS = 4_000
_MAX_CACHED_REQUESTS = 2_048
_STATUS_BY_VALUE = {each.value: each for each in Status}
_DATA_DECODER = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()

_STORED_EVENT_NAMES: Mapping[str, Mapping[str, str]] = {
    "run.queued": {"entry_point": "door"},
    "run.state": {"torn_tail_path": "torn"},
    "session.changed": {"change": "what"},
    "watch.ended": {"reason": "why"},
}
"""Event kind → field of its data → its name in stored JSON, where the two differ."""
_EVENT_FIELD_NAMES = {
    kind: {stored: name for name, stored in names.items()} for kind, names in _STORED_EVENT_NAMES.items()
}


def run_row(run: Run) -> RunRow:
    """Return the row of a run."""
    request = run.request
    return RunRow(
        id=run.id,
        ask=_encode_request(request),
        session_id=run.session_id,
        slug=run.slug,
        key=run.session_key,
        agent=run.agent,
        path=run.transcript_path,
        status=run.status.value,
        waiting_for=None if run.waiting_for is None else run.waiting_for.value,
        reason=None if run.reason is None else run.reason.value,
        root=run.root_id,
        depth=run.depth,
        model=run.model,
        thinking=run.thinking,
        text=run.text,
        error=run.error,
        turns=run.turns,
        tool_calls=run.tool_calls,
        made=run.effective_calls,
        input_tokens=run.usage.input,
        output_tokens=run.usage.output,
        cached_tokens=run.usage.cached,
        cache_write_tokens=run.usage.cache_write,
        long_prompt=""
        if run.long_prompt_usage == NO_USAGE
        else _ENCODER.encode(run.long_prompt_usage).decode(),
        attempts=run.attempts,
        owner=run.owner_id,
        scope_hash=run.scope_hash,
        workspace=run.workspace,
        created_at=to_microseconds(run.created_at),
        started_at=_optional_microseconds(run.started_at),
        ended_at=_optional_microseconds(run.ended_at),
        deadline_at=_optional_microseconds(run.deadline_at),
        awaited=INDEPENDENT if request.is_independent else int(run.is_awaited),
        aside=int(run.waits_between_turns),
        wake_at=_optional_microseconds(run.wake_at),
        exit=run.exit_tool,
        time_left=None if run.time_left is None else run.time_left // _MICROSECOND,
        recovery="" if run.recovery == _NO_RECOVERY else _ENCODER.encode(run.recovery).decode(),
        report="" if run.report == _NO_REPORT else _ENCODER.encode(run.report).decode(),
        task=request.task,
    )


def request_row(request: RunRequest) -> Row:
    """Return the row of a request in the order of `REQUEST_COLUMNS`."""
    return (
        request.key,
        request.requester,
        request.parent_run,
        request.entry_point,
        request.source,
        request.label,
    )


def run_from_row(row: RunRow, children: Iterable[str] = ()) -> Run:
    """Decode a row; raises one of `ROW_ERRORS`."""
    return Run(
        id=row.id,
        request=_decode_request(row.ask, row.task),
        session_id=row.session_id,
        slug=row.slug,
        session_key=row.key,
        agent=row.agent,
        transcript_path=row.path,
        status=_STATUS_BY_VALUE.get(row.status) or Status(row.status),
        waiting_for=None if row.waiting_for is None else WaitReason(row.waiting_for),
        reason=None if row.reason is None else Reason(row.reason),
        root_id=row.root,
        depth=row.depth,
        model=row.model,
        thinking=row.thinking,
        text=row.text,
        error=row.error,
        turns=row.turns,
        tool_calls=row.tool_calls,
        effective_calls=row.made,
        usage=Usage(
            input=row.input_tokens,
            output=row.output_tokens,
            cached=row.cached_tokens,
            cache_write=row.cache_write_tokens,
        ),
        long_prompt_usage=_USAGE_DECODER.decode(row.long_prompt) if row.long_prompt else NO_USAGE,
        attempts=row.attempts,
        owner_id=row.owner,
        scope_hash=row.scope_hash,
        workspace=row.workspace,
        created_at=from_microseconds(row.created_at),
        started_at=_optional_time(row.started_at),
        ended_at=_optional_time(row.ended_at),
        deadline_at=_optional_time(row.deadline_at),
        is_awaited=row.awaited == 1,
        waits_between_turns=bool(row.aside),
        wake_at=_optional_time(row.wake_at),
        exit_tool=row.exit,
        time_left=None if row.time_left is None else timedelta(microseconds=row.time_left),
        recovery=_RECOVERY_DECODER.decode(row.recovery) if row.recovery else _NO_RECOVERY,
        report=_REPORT_DECODER.decode(row.report) if row.report else _NO_REPORT,
        child_ids=tuple(children),
    )


def event_row(event: Event) -> EventRow:
    """Return the row of an event."""
    stored = _rename_keys(event.data, _STORED_EVENT_NAMES.get(event.kind))
    try:
        data = _ENCODER.encode(stored).decode()
    except UnicodeEncodeError:
        data = _ENCODER.encode(_replace_surrogates_deep(stored)).decode()
    return EventRow(
        at=to_microseconds(event.at),
        kind=event.kind,
        session=event.session,
        run=event.run,
        parent_run=event.parent_run,
        agent=event.agent,
        data=data,
    )


def event_from_row(seq: int, row: EventRow) -> Event:
    """Decode a row; raises one of `ROW_ERRORS`."""
    return Event(
        seq=seq,
        at=from_microseconds(row.at),
        kind=cast("EventKind", row.kind),
        session=row.session,
        run=row.run,
        parent_run=row.parent_run,
        agent=row.agent,
        data=_rename_keys(_DATA_DECODER.decode(row.data), _EVENT_FIELD_NAMES.get(row.kind)),
    )


def _rename_keys(data: dict[str, Any], new_names: Mapping[str, str] | None) -> dict[str, Any]:
    return data if new_names is None else {new_names.get(name, name): value for name, value in data.items()}


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
    stored = replace(request, task=None)
    try:
        text = _ENCODER.encode(stored).decode()
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(stored)
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


def _optional_time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)


def _optional_microseconds(at: datetime | None) -> int | None:
    return None if at is None else to_microseconds(at)
