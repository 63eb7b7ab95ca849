"""Runs: the table of status transitions, and the JSON output."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.domain.run import (
    ALLOWED_TRANSITIONS,
    Reason,
    RecoveryState,
    Run,
    RunRequest,
    Status,
    Usage,
    WaitReason,
    run_as_json,
    run_details_as_json,
)
from retinue.domain.timestamps import iso_timestamp, iso_timestamp_seconds
from retinue.errors import Failed

AT = datetime(2026, 11, 15, 18, 42, 7, 123456, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
LATER = AT + HOUR
RUN = Run(
    id="r1",
    request=RunRequest(key="k", agent="main", task="look", requester="agent:main:main", label="research"),
    session_id="s1",
    slug="main-20261115184207",
    session_key="main-20261115184207/main",
    agent="main",
    transcript_path="sessions/x/session.md",
    created_at=AT,
)


@given(at=st.datetimes(timezones=st.just(UTC)), later=st.timedeltas(timedelta(), timedelta(seconds=3)))
def test_timestamps_have_one_format_also_when_the_second_is_cached(at: datetime, later: timedelta):
    """The last timestamp is cached, and must never be returned for another second."""
    for each in (at, min(at, datetime.max.replace(tzinfo=UTC) - later) + later, at):
        assert iso_timestamp_seconds(each) == f"{each:%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")
        assert iso_timestamp(each) == each.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def change_status(run: Run, status: Status) -> Run:
    """Move the run to a status with the method for that status."""
    if status is Status.RUNNING:
        return run.start(owner_id="o", at=AT, timeout=HOUR)
    if status is Status.WAITING:
        return run.suspend(WaitReason.CHILD, at=AT)
    if status is Status.QUEUED:
        return run.requeue_after_crash(died_at=AT)
    return run.finish(status, at=LATER)


FINAL = {Status.DONE, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT, Status.LOST}
ALLOWED: dict[Status, set[Status]] = {
    Status.QUEUED: {Status.RUNNING, Status.WAITING, *FINAL} - {Status.DONE},
    Status.RUNNING: {Status.QUEUED, Status.WAITING, *FINAL},
    Status.WAITING: {Status.QUEUED, Status.RUNNING, Status.WAITING, *FINAL},
} | {end: set[Status]() for end in FINAL}


@pytest.mark.parametrize("before", list(Status))
@pytest.mark.parametrize("after", list(Status))
def test_a_status_change_is_in_the_table_or_refused_with_both_statuses(before: Status, after: Status):
    run = replace(RUN, status=before)
    if after in ALLOWED[before]:
        assert change_status(run, after).status is after
    else:
        with pytest.raises(Failed, match=f"run r1 is {before} and cannot become {after}"):
            change_status(run, after)


def test_the_transition_table_has_every_status_and_none_after_a_final_status():
    assert set(ALLOWED_TRANSITIONS) == set(Status)
    assert {status for status in Status if status.is_final} == FINAL
    assert all(status.is_live is not status.is_final for status in Status)


@given(statuses=st.lists(st.sampled_from(list(Status)), max_size=12))
def test_a_waiting_run_always_has_a_reason_and_a_finished_run_never_an_owner(statuses: list[Status]):
    run = RUN
    for status in statuses:
        if status in ALLOWED_TRANSITIONS[run.status]:
            run = change_status(run, status)
        assert (run.waiting_for is not None) == (run.status is Status.WAITING)
        assert (run.ended_at is not None) == run.status.is_final
        assert not (run.status.is_final and run.owner_id)
        assert not (run.status is Status.RUNNING and not run.owner_id)


def test_a_restarted_run_keeps_its_first_start_and_the_time_that_was_left():
    started = RUN.start(owner_id="a", at=AT, timeout=HOUR)
    crashed = started.requeue_after_crash(died_at=AT + MINUTE)
    assert (crashed.owner_id, crashed.deadline_at, crashed.time_left) == ("", None, HOUR - MINUTE)
    restarted = crashed.start(owner_id="b", at=AT + timedelta(days=1), timeout=HOUR)
    assert (restarted.started_at, restarted.owner_id, restarted.attempts) == (AT, "b", 2)
    assert (restarted.deadline_at, restarted.time_left) == (
        AT + timedelta(days=1) + HOUR - MINUTE,
        None,
    )


@pytest.mark.parametrize("reason", list(WaitReason))
def test_the_clock_of_a_waiting_run_stops_except_for_its_children(reason: WaitReason):
    waiting = RUN.start(owner_id="a", at=AT, timeout=HOUR).suspend(reason, at=AT + MINUTE)
    if reason is WaitReason.CHILD:
        assert (waiting.deadline_at, waiting.time_left) == (AT + HOUR, None)
    else:
        assert (waiting.deadline_at, waiting.time_left) == (None, HOUR - MINUTE)
    requeued = waiting.requeue_after_wait(at=AT + 2 * MINUTE)
    counted = 2 * MINUTE if reason is WaitReason.CHILD else MINUTE
    assert (requeued.deadline_at, requeued.time_left) == (None, HOUR - counted)


def crash(run: Run, *, after: timedelta, progress: bool) -> Run:
    """Start a run and let its process die after some time of work."""
    started = run.start(owner_id="a", at=AT, timeout=timedelta(hours=24))
    if progress:
        started = replace(started, recovery=started.recovery.record_progress())
    return started.requeue_after_crash(died_at=AT + after)


def test_three_crashes_in_a_row_without_progress_are_too_many():
    run = RUN
    for number in range(1, 4):
        run = crash(run, after=HOUR, progress=False)
        assert run.recovery.crashes_too_often is (number == 3)


def test_a_run_that_makes_progress_may_crash_ten_times_in_an_hour_of_work():
    run = RUN
    for _ in range(30):
        run = crash(run, after=10 * MINUTE, progress=True)
        assert not run.recovery.crashes_too_often
    for number in range(1, 11):
        run = crash(run, after=timedelta(seconds=1), progress=True)
        assert run.recovery.crashes_too_often is (number > 3)


def test_time_in_which_no_process_could_ask_a_server_does_not_count_as_its_outage():
    outage = RecoveryState(outage_server="openai", outage_since=AT)
    assert outage.extend_outage(HOUR).outage_since == LATER
    assert outage.extend_outage(-HOUR) == outage
    assert RecoveryState().extend_outage(HOUR) == RecoveryState()


def test_recording_replies_adds_up_usage_and_keeps_the_last_text():
    run = RUN.record_reply(Usage(input=10, output=2), tool_calls=3, text="first", model="m:a")
    run = run.record_reply(Usage(input=5, output=1), tool_calls=0, text="", model="")
    assert (run.turns, run.tool_calls, run.usage) == (2, 3, Usage(input=15, output=3))
    assert (run.text, run.model) == ("first", "m:a")


def test_a_finished_run_has_its_end_time_and_reason():
    run = RUN.finish(Status.FAILED, at=LATER, reason=Reason.CONFIG, error="no such agent")
    assert (run.ended_at, run.reason, run.error) == (LATER, Reason.CONFIG, "no such agent")


@pytest.mark.parametrize(
    ("started", "ended", "expected"),
    [
        (None, None, None),
        (AT, None, None),
        (None, AT, None),
        (AT, AT, 0),
        (AT, AT + timedelta(milliseconds=1500), 1500),
        (LATER, AT, 0),
    ],
)
def test_the_duration_is_in_whole_milliseconds_and_never_negative(
    started: datetime | None, ended: datetime | None, expected: int | None
):
    assert replace(RUN, started_at=started, ended_at=ended).duration_ms == expected


def test_the_json_of_a_run_has_its_fields_in_order():
    run = replace(RUN.start(owner_id="o", at=AT, timeout=HOUR), child_ids=("r2",))
    assert run_as_json(run) == {
        "run_id": "r1",
        "session_id": "s1",
        "slug": "main-20261115184207",
        "key": "main-20261115184207/main",
        "agent": "main",
        "status": "running",
        "waiting_for": None,
        "reason": None,
        "approvals": [],
        "text": "",
        "output": None,
        "error": None,
        "turns": 0,
        "tool_calls": 0,
        "usage": {"input": 0, "output": 0},
        "started_at": "2026-11-15T18:42:07.123Z",
        "ended_at": None,
        "duration_ms": None,
        "path": "sessions/x/session.md",
        "children": ["r2"],
    }
    assert list(run_details_as_json(run)) == [
        *run_as_json(run),
        "requester", "parent", "continues", "depth", "label", "task", "model", "fallback_models", "thinking", "source", "entry_point", "role", "trigger",
        "keep_session", "timeout_seconds", "deadline_at", "delivery", "attempts", "workspace", "scope_hash", "exit", "evidence",
        "effects", "pruned", "result_hash",
    ]  # fmt: skip


def test_the_details_of_a_run_include_its_request():
    """Shows: E009, E028."""
    run = RUN.start(owner_id="o", at=AT, timeout=HOUR)
    details = run_details_as_json(replace(run, model="m:a", thinking="low", workspace="w", scope_hash="h"))
    assert {
        name: details[name]
        for name in (
            "run_id",
            "key",
            "requester",
            "task",
            "label",
            "model",
            "thinking",
            "source",
            "deadline_at",
        )
    } == {
        "run_id": "r1",
        "key": "main-20261115184207/main",
        "requester": "agent:main:main",
        "task": "look",
        "label": "research",
        "model": "m:a",
        "thinking": "low",
        "source": "person",
        "deadline_at": "2026-11-15T19:42:07.123Z",
    }


def test_missing_texts_are_null_and_statuses_are_plain_words():
    waiting = run_details_as_json(
        RUN.start(owner_id="o", at=AT, timeout=HOUR).suspend(WaitReason.PERSON, at=AT)
    )
    assert (waiting["status"], waiting["waiting_for"]) == ("waiting", "person")
    empty = [
        waiting[name] for name in ("error", "model", "thinking", "workspace", "scope_hash", "deadline_at")
    ]
    assert empty == [None] * 6
    ended = run_as_json(RUN.finish(Status.CANCELLED, at=AT, reason=Reason.USER_CANCEL))
    assert (ended["status"], ended["reason"], ended["ended_at"]) == (
        "cancelled",
        "user_cancel",
        "2026-11-15T18:42:07.123Z",
    )


@given(at=st.datetimes(datetime(1970, 1, 2), timezones=st.just(UTC)))  # noqa: DTZ001  (hypothesis adds the zone)
def test_a_timestamp_is_iso_8601_in_utc_with_milliseconds(at: datetime):
    text = iso_timestamp(at)
    assert text is not None
    assert text.endswith("Z")
    assert timedelta() <= at - datetime.fromisoformat(text) < timedelta(milliseconds=1)
