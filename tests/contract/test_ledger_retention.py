"""Pruning the ledger: what goes, what stays, and what is left of a pruned run."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_file import change_ledger, query_ledger

from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.event import Event
from retinue.domain.limits import RetentionSettings
from retinue.domain.purge import PurgeTarget
from retinue.domain.run import Run, RunRequest, Status, Usage, WaitReason
from retinue.errors import RetinueError, SessionLocked
from retinue.interfaces import Transaction
from retinue.ledger.database import open_database
from retinue.ledger.purge import purge_ledger
from retinue.ledger.retention import LedgerPruner, PruneResult
from retinue.ledger.transaction import SqliteTransaction
from retinue.testing.ledgers import open_ledger

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=200)
WEEK = RetentionSettings(runs_days=7, events_days=7)
FINAL = (Status.DONE, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT, Status.LOST)


def make_run(
    run_id: str,
    *,
    status: Status = Status.DONE,
    at: datetime = LONG_AGO,
    parent: str = "",
    text: str = "Result.",
) -> Run:
    return Run(
        id=run_id,
        request=RunRequest(
            key=f"http:{run_id}", agent="general", task=f"Task {run_id}", parent_run=parent or None
        ),
        session_id=f"session-{run_id}",
        slug=f"general-{run_id}",
        session_key=f"general-{run_id}/main",
        agent="general",
        transcript_path=f"/home/sessions/general-{run_id}/branches/main/session.md",
        status=status,
        waiting_for=WaitReason.APPROVAL if status is Status.WAITING else None,
        root_id=parent or run_id,
        model="openai:m",
        text=text,
        turns=2,
        usage=Usage(input=10, output=5),
        created_at=at,
        started_at=at,
        ended_at=at if status in FINAL else None,
    )


def fill(path: Path, *steps: Callable[[Transaction], object]) -> None:
    with closing(open_database(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for step in steps:
            step(SqliteTransaction(connection, path))
        connection.execute("COMMIT")


def add_runs(path: Path, *runs: Run) -> None:
    def step(tx: Transaction) -> None:
        for run in runs:
            tx.add_run(run)

    fill(path, step)


def add_events(path: Path, *runs: Run) -> None:
    def step(tx: Transaction) -> None:
        for run in runs:
            data = {"result": "x" * 50}
            tx.emit(Event(kind="run.ended", at=run.created_at, session=run.session_id, run=run.id, data=data))

    fill(path, step)


def make_delivery(run: Run, requester: Run, state: DeliveryState, **fields: Any) -> Delivery:
    return Delivery(
        id=f"d-{run.id}", run=run.id, requester_run=requester.id, session=requester.session_id, answers_call=False,
        text="Result.", state=state, created_at=LONG_AGO, **fields,
    )  # fmt: skip


def prune(
    path: Path, settings: RetentionSettings = WEEK, *, now: datetime = NOW, window_s: float = 86_400
) -> PruneResult:
    return LedgerPruner(path, settings, resume_window_s=window_s).prune(now)


def run_ids(path: Path) -> set[str]:
    return {run_id for (run_id,) in query_ledger(path, "SELECT id FROM runs")}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_old_ended_runs_are_pruned_and_young_ones_stay(ledger: Path):
    add_runs(ledger, *(make_run(f"old-{each}", status=each) for each in FINAL), make_run("new", at=NOW))
    assert prune(ledger).runs == len(FINAL)
    assert run_ids(ledger) == {"new"}


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.WAITING])
def test_a_live_run_and_its_whole_tree_stay_however_old(ledger: Path, status: Status):
    parent, live = make_run("parent"), make_run("live", status=status, parent="parent")
    sibling = make_run("sibling", parent="parent")
    add_runs(ledger, parent, live, sibling, make_run("other"))
    add_events(ledger, parent, live, sibling)
    fill(ledger, lambda tx: tx.emit(Event(kind="session.changed", at=NOW, session="s")))
    assert prune(ledger) == PruneResult(runs=1)
    assert run_ids(ledger) == {"parent", "live", "sibling"}


@pytest.mark.parametrize("status", [Status.FAILED, Status.LOST, Status.TIMED_OUT])
def test_a_run_that_can_be_resumed_stays_until_the_window_has_passed(ledger: Path, status: Status):
    add_runs(ledger, make_run("failed", status=status, at=NOW - timedelta(days=10)))
    assert prune(ledger, window_s=20 * 86_400).runs == 0
    assert prune(ledger, window_s=5 * 86_400).runs == 1


@pytest.mark.parametrize(
    ("state", "fields", "stays"),
    [
        (DeliveryState.PENDING, {}, True),
        (DeliveryState.DELIVERED, {"keep_session": False}, True),
        (DeliveryState.DELIVERED, {}, False),
        (DeliveryState.FAILED, {}, False),
    ],
)
def test_a_run_stays_until_its_result_is_delivered_and_its_temporary_session_deleted(
    ledger: Path, state: DeliveryState, fields: dict[str, Any], stays: bool
):
    parent, child = make_run("parent"), make_run("child", parent="parent")
    add_runs(ledger, parent, child)
    fill(ledger, lambda tx: tx.add_delivery(make_delivery(child, parent, state, **fields)))
    prune(ledger)
    assert run_ids(ledger) == ({"parent", "child"} if stays else set())
    assert len(query_ledger(ledger, "SELECT id FROM deliveries")) == stays


async def test_a_pruned_run_is_found_by_its_id_and_key_without_any_text(ledger: Path):
    add_runs(ledger, make_run("r", text="The result."))
    prune(ledger)
    async with open_ledger(ledger) as opened:
        by_id = await opened.read(lambda tx: tx.get_run("r"))
        by_key = await opened.read(lambda tx: tx.get_run_by_key("http:r"))
        assert await opened.read(lambda tx: tx.get_run_by_key("http:other")) is None
    assert by_id == by_key
    assert by_id is not None
    assert (by_id.is_pruned, by_id.status, by_id.session_id, by_id.ended_at) == (
        True,
        Status.DONE,
        "session-r",
        LONG_AGO,
    )
    assert (by_id.text, by_id.request.task, by_id.transcript_path, len(by_id.result_hash)) == ("", "", "", 64)


def test_the_days_sums_of_pruned_runs_remain(ledger: Path):
    add_runs(ledger, make_run("a"), make_run("b"))
    prune(ledger)
    add_runs(ledger, make_run("c"))
    prune(ledger)
    sums = query_ledger(
        ledger, "SELECT day, agent, model, runs, turns, input_tokens, output_tokens FROM daily_usage"
    )
    assert sums == [("2026-05-03", "general", "openai:m", 3, 6, 30, 15)]


def test_old_events_of_ended_runs_are_pruned_but_never_the_newest(ledger: Path):
    """Its number decides the next one, which must not be used twice."""
    runs = [make_run(f"r{number}") for number in range(3)]
    add_runs(ledger, *runs)
    add_events(ledger, *runs)
    assert prune(ledger, RetentionSettings(runs_days=0, events_days=7)).events == 2
    assert query_ledger(ledger, "SELECT seq FROM events") == [(3,)]
    assert query_ledger(ledger, "SELECT value FROM retention") == [(2,)]
    assert run_ids(ledger) == {"r0", "r1", "r2"}


def test_zero_days_keep_everything(ledger: Path):
    add_runs(ledger, run := make_run("r"), other := make_run("s"))
    add_events(ledger, run, other)
    assert prune(ledger, RetentionSettings(runs_days=0, events_days=0)) == PruneResult()


def test_a_ledger_above_its_size_loses_its_oldest_ended_runs_and_shrinks(ledger: Path):
    runs = [
        make_run(f"r{number:04}", at=NOW - timedelta(minutes=5000 - number), text="x" * 4000)
        for number in range(1500)
    ]
    add_runs(ledger, *runs, make_run("live", status=Status.RUNNING, text="x" * 4000))
    size = ledger.stat().st_size
    result = prune(ledger, RetentionSettings(ledger_mb=3))
    remaining = sorted(run_ids(ledger) - {"live"})
    assert "live" in run_ids(ledger)
    assert remaining == [run.id for run in runs[len(runs) - len(remaining) :]]
    assert 100 < len(remaining) < 1000
    assert ledger.stat().st_size < 3_200_000 < size
    assert result.freed_bytes >= size - ledger.stat().st_size


def test_a_run_that_ended_a_moment_ago_is_not_pruned_by_size(ledger: Path):
    """Its row may not have been read by the process that waited for it."""
    ages = {"old": timedelta(minutes=1), "new": timedelta(seconds=5)}
    add_runs(ledger, *(make_run(name, at=NOW - age, text="x" * 1_000_000) for name, age in ages.items()))
    prune(ledger, RetentionSettings(ledger_mb=1))
    assert run_ids(ledger) == {"new"}


@given(
    statuses=st.lists(
        st.sampled_from([*FINAL, Status.QUEUED, Status.RUNNING, Status.WAITING]), min_size=1, max_size=12
    ),
    ages=st.lists(st.integers(0, 30), min_size=12, max_size=12),
    parents=st.lists(st.integers(0, 11), min_size=12, max_size=12),
)
def test_no_tree_with_a_live_young_or_resumable_run_is_ever_touched(
    tmp_path_factory: pytest.TempPathFactory,
    statuses: Sequence[Status],
    ages: Sequence[int],
    parents: Sequence[int],
):
    ledger = tmp_path_factory.mktemp("home") / "ledger.db"
    runs: list[Run] = []
    for number, status in enumerate(statuses):
        root = runs[parents[number]].root_id if parents[number] < number else ""
        runs.append(
            make_run(
                f"r{number:02}", status=status, at=NOW - timedelta(days=ages[number], hours=1), parent=root
            )
        )
    add_runs(ledger, *runs)
    prune(ledger, window_s=20 * 86_400)

    def is_needed(run: Run) -> bool:
        is_resumable = run.status in (Status.FAILED, Status.LOST, Status.TIMED_OUT)
        age = NOW - (run.ended_at or NOW)
        return run.status.is_live or age <= timedelta(days=20 if is_resumable else 7)

    needed_roots = {run.root_id for run in runs if is_needed(run)}
    assert run_ids(ledger) == {run.id for run in runs if run.root_id in needed_roots}


def test_a_crash_between_two_batches_loses_nothing_that_must_stay(ledger: Path):
    runs = [make_run(f"r{number:03}") for number in range(120)]
    add_runs(ledger, *runs, make_run("new", at=NOW))

    def crash() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LedgerPruner(ledger, WEEK, resume_window_s=0).prune(NOW, pause=crash)
    pruned = {run_id for (run_id,) in query_ledger(ledger, "SELECT id FROM pruned_runs")}
    assert 0 < len(pruned) < 120
    assert run_ids(ledger) | pruned == {*(run.id for run in runs), "new"}
    assert not run_ids(ledger) & pruned
    assert prune(ledger).runs == 120 - len(pruned)
    assert query_ledger(ledger, "SELECT sum(runs) FROM daily_usage") == [(120,)]


async def test_another_process_reads_and_writes_while_the_ledger_is_pruned(ledger: Path):
    add_runs(ledger, *(make_run(f"r{number:03}", text="x" * 3000) for number in range(400)))
    with closing(sqlite3.connect(ledger, timeout=10)) as other:
        written: list[int] = []

        def write() -> None:
            with other:
                other.execute(
                    "INSERT INTO events (at, kind, session, run, parent_run, agent, data) VALUES (2000000000000000, 'k', '', '', '', '', '{}')"
                )
            written.append(other.execute("SELECT count(*) FROM runs").fetchone()[0])

        result = LedgerPruner(ledger, WEEK, resume_window_s=0).prune(NOW, pause=write)
    assert result.runs == 400
    assert written == sorted(written, reverse=True)
    assert len(written) > 5


def test_a_purge_also_removes_what_an_earlier_deletion_left_in_the_file(ledger: Path):
    """As SQLite does where it is built without secure deletion."""
    add_runs(ledger, *(make_run(f"r{number}", text="zanzibarquux " * 200) for number in range(5)))
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("PRAGMA secure_delete=OFF")
        connection.execute("DELETE FROM runs WHERE id < 'r3'")
    change_ledger(ledger, "UPDATE runs SET text='short'")
    assert b"zanzibarquux" in ledger.read_bytes()
    target = PurgeTarget(
        session="session-r4", session_ids=frozenset({"session-r4"}), removed_ids=frozenset(), folders=()
    )
    assert purge_ledger(ledger, target, NOW) == {"r4"}
    assert b"zanzibarquux" not in b"".join(each.read_bytes() for each in ledger.parent.iterdir())


def test_a_purge_says_when_a_reader_keeps_the_removed_text_in_the_file(ledger: Path):
    add_runs(ledger, make_run("r", text="zanzibarquux"))
    target = PurgeTarget(
        session="session-r", session_ids=frozenset({"session-r"}), removed_ids=frozenset(), folders=()
    )
    with closing(sqlite3.connect(ledger, isolation_level=None)) as reader:
        reader.execute("BEGIN").execute("SELECT count(*) FROM runs").fetchone()
        with pytest.raises(SessionLocked, match="repeat the purge"):
            purge_ledger(ledger, target, NOW, timeout_s=0.1)
        reader.execute("COMMIT")
        purge_ledger(ledger, target, NOW)
        assert b"zanzibarquux" not in b"".join(each.read_bytes() for each in ledger.parent.iterdir())


@pytest.mark.parametrize("content", [b"not a database at all" * 400, b""])
def test_a_damaged_ledger_is_reported_and_not_a_crash(ledger: Path, content: bytes):
    add_runs(ledger, *(make_run(f"r{number}", text="x" * 3000) for number in range(50)))
    data = ledger.read_bytes()
    ledger.write_bytes(data[:4096] + content + data[4096 + len(content) :] if content else content)
    if content:
        with pytest.raises(RetinueError):
            prune(ledger)
    else:
        assert prune(ledger) == PruneResult()
