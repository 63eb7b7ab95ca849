"""The contract of every ledger: on disk and in memory."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Unpack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.domain.approval import Approval
from retinue.domain.delivery import Delivery
from retinue.domain.event import Event, EventKind
from retinue.domain.run import Reason, Run, RunRequest, Status, Usage, WaitReason
from retinue.errors import Failed, NotFound
from retinue.interfaces import Ledger, RunFilters, Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.testing.memory_ledger import MemoryLedger

NOW = datetime(2026, 11, 15, 18, 42, 7, 123456, tzinfo=UTC)

AnyLedger = SqliteLedger | MemoryLedger


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture(params=["sqlite", "memory"])
async def ledger(
    request: pytest.FixtureRequest, tmp_path: Path, events: list[Event]
) -> AsyncGenerator[AnyLedger]:
    opened: AnyLedger = (
        SqliteLedger(tmp_path / "ledger.db", on_event=events.append)
        if request.param == "sqlite"
        else MemoryLedger(on_event=events.append)
    )
    yield opened
    await opened.close()


def make_run(name: str, *, parent: str | None = None, minute: int = 0, **fields: Any) -> Run:
    request = RunRequest(key=f"key of {name}", agent="main", task="look around", parent_run=parent)
    run = Run(
        id=name,
        request=request,
        session_id="session",
        slug="main-20261115184207",
        session_key="main-20261115184207/main",
        agent="main",
        transcript_path="session.md",
        created_at=NOW + timedelta(minutes=minute),
    )
    return replace(run, **fields)


def add_runs(*runs: Run) -> Callable[[Transaction], None]:
    """Return a transaction that adds the runs."""

    def add(tx: Transaction) -> None:
        for run in runs:
            tx.add_run(run)

    return add


def make_event(kind: EventKind = "run.queued", session: str = "session", **data: Any) -> Event:
    return Event(kind=kind, at=NOW, session=session, run="r1", parent_run="r0", agent="main", data=data)


async def find_run_ids(ledger: AnyLedger, **filters: Unpack[RunFilters]) -> list[str]:
    return [run.id for run in await ledger.read(lambda tx: tx.find_runs(**filters))]


async def test_a_run_is_stored_with_every_field(ledger: AnyLedger):
    """Shows: E009, E028."""
    run = Run(
        id="0198-a",
        request=RunRequest(
            key="call:r0/01J",
            agent="researcher",
            task="Research XFS history",
            session="s1",
            requester="agent:main:main",
            parent_run="r0",
            entry_point="sessions_spawn",
            source="subagent",
            label="research",
            model="openai:small",
            thinking="low",
            deadline_seconds=120.5,
        ),
        session_id="s1",
        slug="researcher-20261115184207-xfs",
        session_key="agent:main:subagent:0198",
        agent="researcher",
        transcript_path="sessions/x/session.md",
        status=Status.WAITING,
        waiting_for=WaitReason.CHILD,
        reason=Reason.RATE_LIMITED,
        root_id="r0",
        depth=2,
        model="openai:small",
        thinking="low",
        text="so far",
        error="429",
        turns=3,
        tool_calls=4,
        usage=Usage(input=1204, output=88, cached=900, cache_write=200),
        long_prompt_usage=Usage(input=1000, output=8, cached=900),
        attempts=2,
        owner_id="owner",
        scope_hash="abc",
        workspace="work",
        created_at=NOW,
        started_at=NOW + timedelta(microseconds=1),
        ended_at=NOW + timedelta(seconds=1),
        deadline_at=NOW + timedelta(hours=1),
    )
    await ledger.write(add_runs(run))
    assert await ledger.read(lambda tx: tx.get_run("0198-a")) == run
    assert await ledger.read(lambda tx: tx.get_run_by_key("call:r0/01J")) == run
    assert await ledger.read(lambda tx: tx.find_runs()) == [run]


async def test_updating_a_run_does_not_change_other_runs(ledger: AnyLedger):
    first, second = make_run("r1"), make_run("r2")
    await ledger.write(add_runs(first, second))
    started = first.start(owner_id="o", at=NOW, timeout=timedelta(hours=1))
    await ledger.write(lambda tx: tx.update_run(started))
    assert await ledger.read(lambda tx: (tx.get_run("r1"), tx.get_run("r2"))) == (started, second)


async def test_updating_a_missing_run_raises_not_found(ledger: AnyLedger):
    with pytest.raises(NotFound, match="Run r1 not found"):
        await ledger.write(lambda tx: tx.update_run(make_run("r1")))


async def test_the_request_of_a_run_can_be_updated(ledger: AnyLedger):
    run = make_run("r1", parent="r0", root_id="r0")
    await ledger.write(add_runs(run))
    for request in (replace(run.request, model="m:large"), replace(run.request, task="another"), run.request):
        changed = replace(run, request=request, turns=run.turns + 1)
        await ledger.write(lambda tx, changed=changed: tx.update_run(changed))
        assert await ledger.read(lambda tx: (tx.get_run("r1"), tx.find_runs(parent_run="r0"))) == (
            changed,
            [changed],
        )


async def test_a_run_whose_session_or_root_changed_is_found_only_by_the_new_value(ledger: AnyLedger):
    run = make_run("r1", root_id="r1", session_id="s1")
    await ledger.write(add_runs(run))
    for changed in (
        replace(run, session_id="s2"),
        replace(run, root_id="r0"),
        replace(run, created_at=NOW),
    ):
        await ledger.write(lambda tx, changed=changed: tx.update_run(changed))
        conditions: list[tuple[RunFilters, bool]] = [
            ({"session": "s1"}, changed.session_id == "s1"),
            ({"session": "s2"}, changed.session_id == "s2"),
            ({"root": "r1"}, changed.root_id == "r1"),
            ({"root": "r0"}, changed.root_id == "r0"),
        ]
        for filters, matches in conditions:
            expected = ["r1"] if matches else []
            assert await find_run_ids(ledger, **filters) == expected
            live: RunFilters = {**filters, "status": [Status.QUEUED]}
            assert await find_run_ids(ledger, **live) == expected


async def test_runs_of_a_tree_are_found_and_counted_by_their_root(ledger: AnyLedger):
    await ledger.write(
        add_runs(
            make_run("top", root_id="top"),
            make_run("one", parent="top", root_id="top", minute=1),
            make_run("two", parent="one", root_id="top", minute=2, status=Status.DONE, ended_at=NOW),
            make_run("apart", root_id="apart"),
        )
    )
    assert await find_run_ids(ledger, root="top") == ["two", "one", "top"]
    assert await find_run_ids(ledger, root="top", limit=2) == ["two", "one"]
    assert await find_run_ids(ledger, root="top", status=[Status.QUEUED, Status.WAITING]) == ["one", "top"]
    assert await find_run_ids(ledger, root="top", status=[Status.QUEUED, Status.DONE], limit=1) == ["two"]
    assert await find_run_ids(ledger, root="top", top_only=True) == ["top"]
    counts = await ledger.read(
        lambda tx: [
            tx.count_runs(root="top"),
            tx.count_runs(root="apart"),
            tx.count_runs(root="one"),
            tx.count_runs(Status.QUEUED, root="top"),
            tx.count_runs(Status.DONE, root="top"),
            tx.count_runs(root="top", requester="person"),
            tx.count_runs(root="top", requester="nobody"),
        ]
    )
    assert counts == [3, 1, 0, 2, 1, 3, 0]


async def test_a_missing_run_is_none(ledger: AnyLedger):
    assert await ledger.read(lambda tx: (tx.get_run("r1"), tx.get_run_by_key("k"))) == (None, None)


@pytest.mark.parametrize(
    "second",
    [
        make_run("r1", request=RunRequest(key="other", agent="main", task=None)),
        make_run("r2", request=make_run("r1").request),
    ],
    ids=["same id", "same key"],
)
async def test_a_run_with_a_duplicate_id_or_key_is_refused(ledger: AnyLedger, second: Run):
    await ledger.write(add_runs(make_run("r1")))
    with pytest.raises(Failed, match="already in the ledger"):
        await ledger.write(add_runs(second))
    assert await ledger.read(lambda tx: tx.find_runs()) == [make_run("r1")]


async def test_updating_a_run_to_the_key_of_another_is_refused(ledger: AnyLedger):
    await ledger.write(add_runs(make_run("r1"), make_run("r2")))
    with pytest.raises(Failed, match="belongs to another run"):
        await ledger.write(lambda tx: tx.update_run(replace(make_run("r2"), request=make_run("r1").request)))


async def test_children_are_the_runs_with_this_parent_oldest_first(ledger: AnyLedger):
    await ledger.write(
        add_runs(
            make_run("r1", child_ids=("ghost",)),
            make_run("r4", parent="r1", minute=1),
            make_run("r3", parent="r1", minute=2),
            make_run("r2", parent="r1", minute=2),
            make_run("r5", parent="r4", minute=3),
        )
    )
    runs = await ledger.read(lambda tx: tx.find_runs(with_children=True))
    assert {run.id: run.child_ids for run in runs} == {
        "r1": ("r4", "r2", "r3"),
        "r2": (),
        "r3": (),
        "r4": ("r5",),
        "r5": (),
    }
    alone = await ledger.read(lambda tx: tx.get_run("r1", with_children=True))
    assert alone is not None
    assert alone.child_ids == ("r4", "r2", "r3")


async def test_runs_are_listed_newest_first_and_equal_times_by_id(ledger: AnyLedger):
    await ledger.write(add_runs(make_run("r2"), make_run("r1"), make_run("r3"), make_run("r0", minute=1)))
    assert await find_run_ids(ledger) == ["r0", "r3", "r2", "r1"]
    assert await find_run_ids(ledger, limit=2) == ["r0", "r3"]
    assert await find_run_ids(ledger, limit=0) == []


FILTERS: list[tuple[RunFilters, list[str]]] = [
    ({}, ["d2", "d1", "b", "a"]),
    ({"status": [Status.DONE]}, ["b"]),
    ({"status": [Status.DONE, Status.RUNNING]}, ["d1", "b"]),
    ({"status": []}, []),
    ({"session": "other"}, ["b"]),
    ({"session": "oth"}, []),
    ({"root": "a"}, ["d2", "d1"]),
    ({"parent_run": "a"}, ["d2", "d1"]),
    ({"parent_run": ""}, []),
    ({"top_only": True}, ["b", "a"]),
    ({"prefix": "d"}, ["d2", "d1"]),
    ({"prefix": "d1"}, ["d1"]),
    ({"prefix": ""}, ["d2", "d1", "b", "a"]),
    ({"prefix": "D"}, []),
    ({"prefix": "%"}, []),
    ({"prefix": "_"}, []),
    ({"status": [Status.QUEUED], "parent_run": "a", "prefix": "d"}, ["d2"]),
    ({"limit": 1, "top_only": True}, ["b"]),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS)
async def test_filters_narrow_the_list_and_combine(
    ledger: AnyLedger, filters: RunFilters, expected: list[str]
):
    await ledger.write(
        add_runs(
            make_run("a"),
            make_run("b", minute=1, status=Status.DONE, session_id="other"),
            make_run("d1", minute=2, parent="a", root_id="a", status=Status.RUNNING),
            make_run("d2", minute=3, parent="a", root_id="a"),
        )
    )
    assert await find_run_ids(ledger, **filters) == expected


async def test_live_children_of_a_run_are_detected(ledger: AnyLedger):
    """Ended children do not count, and the query may be limited to awaited children."""

    def read_live_children(tx: Transaction) -> tuple[bool, ...]:
        return tuple(tx.has_live_children("above", awaited=awaited) for awaited in (None, False, True))

    done_fields: dict[str, Any] = {"status": Status.DONE, "ended_at": NOW, "is_awaited": True}
    await ledger.write(
        add_runs(
            make_run("above"),
            make_run("queued", parent="above"),
            make_run("over", parent="above", **done_fields),
            make_run("of another", parent="elsewhere", is_awaited=True),
        )
    )
    assert await ledger.read(read_live_children) == (True, True, False)
    await ledger.write(lambda tx: tx.update_run(make_run("queued", parent="above", is_awaited=True)))
    assert await ledger.read(read_live_children) == (True, False, True)
    await ledger.write(lambda tx: tx.update_run(make_run("queued", parent="above", **done_fields)))
    assert await ledger.read(read_live_children) == (False, False, False)


async def test_undelivered_work_is_a_live_child_a_pending_delivery_or_an_open_approval(ledger: AnyLedger):
    async def has_undelivered_work() -> bool:
        return await ledger.read(lambda tx: tx.has_undelivered_work("above", "session"))

    done_fields: dict[str, Any] = {"status": Status.DONE, "ended_at": NOW}
    await ledger.write(
        add_runs(make_run("above"), make_run("over", parent="above", **done_fields), make_run("alone"))
    )
    assert not await has_undelivered_work()
    await ledger.write(add_runs(make_run("asked", parent="above")))
    assert await has_undelivered_work()
    await ledger.write(lambda tx: tx.update_run(make_run("asked", parent="above", **done_fields)))
    assert not await has_undelivered_work()

    delivery = Delivery(
        id="d1",
        run="over",
        requester_run="above",
        session="session",
        created_at=NOW,
        answers_call=False,
        text="Done.",
    )
    await ledger.write(lambda tx: tx.add_delivery(delivery))
    assert await has_undelivered_work()
    await ledger.write(lambda tx: tx.update_delivery(delivery.mark_delivered("above", at=NOW)))
    await ledger.write(lambda tx: tx.add_delivery(replace(delivery, id="d2", run="asked", session="another")))
    assert not await has_undelivered_work()

    approval = Approval(
        id="a1", run="above", session="session", agent="main", call="c1", tool="bash", access="run",
        resource="ls", args="{}", asked_at=NOW, expires_at=NOW,
    )  # fmt: skip
    await ledger.write(lambda tx: tx.add_approval(replace(approval, id="a0", run="alone")))
    assert not await has_undelivered_work()
    await ledger.write(lambda tx: tx.add_approval(approval))
    assert await has_undelivered_work()
    await ledger.write(lambda tx: tx.update_approval(approval.void()))
    assert not await has_undelivered_work()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(max_size=20),
        st.text(st.characters(codec=None), max_size=5),
        st.sampled_from(
            ["' OR 1=1", "a') --", '");--', "$.ask", "x' ; DROP TABLE runs; --", "%", "*", "\x00"]
        ),
    )
)
async def test_hostile_filter_values_find_nothing(ledger: AnyLedger, text: str):
    """Shows: P29."""
    await ledger.read(lambda tx: (tx.get_run(text), tx.get_run_by_key(text), tx.find_events(session=text)))
    conditions: list[RunFilters] = [{"session": text}, {"root": text}, {"parent_run": text}, {"prefix": text}]
    for filters in conditions if text else []:
        assert await find_run_ids(ledger, **filters) == []


async def test_runs_are_counted_by_status(ledger: AnyLedger):
    await ledger.write(add_runs(make_run("r1"), make_run("r2"), make_run("r3", status=Status.DONE)))
    assert await ledger.read(lambda tx: [tx.count_runs(status) for status in Status]) == [
        2,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
    ]


async def test_a_transaction_sees_its_own_changes(ledger: AnyLedger):
    def change_and_read(tx: Transaction) -> tuple[int, list[str], int]:
        tx.add_run(make_run("r1"))
        tx.add_run(make_run("r2", parent="r1"))
        tx.emit(make_event())
        run = tx.get_run("r1", with_children=True)
        assert run is not None
        return tx.count_runs(Status.QUEUED), list(run.child_ids), len(tx.find_events())

    assert await ledger.write(change_and_read) == (2, ["r2"], 1)


async def test_a_failed_transaction_is_rolled_back_alone_and_raises_only_to_its_caller(
    ledger: AnyLedger, events: list[Event]
):
    def fail(tx: Transaction) -> None:
        tx.add_run(make_run("bad"))
        tx.emit(make_event("run.ended"))
        raise KeyError("no")

    def add_named(name: str) -> Callable[[Transaction], str]:
        def add_run_and_event(tx: Transaction) -> str:
            tx.add_run(make_run(name))
            tx.emit(make_event(name=name))
            return name

        return add_run_and_event

    results = await asyncio.gather(
        ledger.write(add_named("r1")),
        ledger.write(fail),
        ledger.write(add_named("r2")),
        return_exceptions=True,
    )
    assert results[0::2] == ["r1", "r2"]
    assert isinstance(results[1], KeyError)
    assert await find_run_ids(ledger) == ["r2", "r1"]
    assert [(event.seq, event.data) for event in events] == [(1, {"name": "r1"}), (2, {"name": "r2"})]
    assert await ledger.read(lambda tx: tx.find_events()) == events


async def test_concurrent_check_and_claim_transactions_never_exceed_a_limit(ledger: AnyLedger):
    def claim(name: str) -> Callable[[Transaction], bool]:
        def try_claim(tx: Transaction) -> bool:
            if tx.count_runs(Status.RUNNING) >= 12:
                return False
            tx.add_run(make_run(name, status=Status.RUNNING))
            return True

        return try_claim

    claims = await asyncio.gather(*(ledger.write(claim(f"r{number}")) for number in range(40)))
    assert claims == [True] * 12 + [False] * 28


async def test_events_are_numbered_from_one_and_reach_the_listener_in_order_before_the_write_returns(
    ledger: AnyLedger, events: list[Event]
):
    def emit_two_events(tx: Transaction) -> None:
        tx.emit(make_event("run.queued", label="a"))
        tx.emit(make_event("run.started", nested={"list": [1, None, 2.5, "é"]}))

    await ledger.write(emit_two_events)
    assert [event.seq for event in events] == [1, 2]
    await asyncio.gather(*(ledger.write(emit_two_events) for _ in range(5)))
    assert [event.seq for event in events] == list(range(1, 13))
    assert events[1] == Event(
        kind="run.started",
        at=NOW,
        session="session",
        run="r1",
        parent_run="r0",
        agent="main",
        seq=2,
        data={"nested": {"list": [1, None, 2.5, "é"]}},
    )
    assert await ledger.read(lambda tx: tx.find_events()) == events


async def test_events_are_found_by_number_session_and_limit(ledger: AnyLedger):
    def emit_six_events(tx: Transaction) -> None:
        for number in range(6):
            tx.emit(make_event(session="odd" if number % 2 else "even"))

    await ledger.write(emit_six_events)

    async def event_numbers(**filters: Any) -> list[int]:
        return [event.seq for event in await ledger.read(lambda tx: tx.find_events(**filters))]

    assert await event_numbers() == [1, 2, 3, 4, 5, 6]
    assert await event_numbers(after=4) == [5, 6]
    assert await event_numbers(session="odd") == [2, 4, 6]
    assert await event_numbers(session="odd", after=2, limit=1) == [4]
    assert await event_numbers(after=6) == []
    assert await event_numbers(limit=0) == []


async def test_a_listener_that_raises_loses_no_event_and_no_write(
    tmp_path: Path, ledger: AnyLedger, events: list[Event]
):
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail_to_listen(event: Event) -> None:
        events.append(event)
        raise ValueError("listener failed")

    failing_ledger: AnyLedger = (
        SqliteLedger(tmp_path / "failing-listener.db", on_event=fail_to_listen)
        if isinstance(ledger, SqliteLedger)
        else MemoryLedger(on_event=fail_to_listen)
    )

    def emit_two_events(tx: Transaction) -> str:
        tx.emit(make_event())
        tx.emit(make_event())
        return "done"

    assert await failing_ledger.write(emit_two_events) == "done"
    assert [event.seq for event in events] == [1, 2]
    assert len(reported) == 2
    for _ in range(4):  # batched at first, later as single writes

        def cancel(_: str) -> None:
            raise asyncio.CancelledError

        assert await failing_ledger.write(lambda _: "later", cancel) == "later"
    await failing_ledger.close()
    asyncio.get_running_loop().set_exception_handler(None)


async def test_a_read_transaction_cannot_write(ledger: AnyLedger):
    def change_run(tx: Transaction) -> None:
        tx.update_run(make_run("r1"))

    def emit_event(tx: Transaction) -> None:
        tx.emit(make_event())

    for write in (add_runs(make_run("r1")), change_run, emit_event):
        with pytest.raises(TypeError, match="a read transaction cannot write"):
            await ledger.read(write)
    assert await ledger.read(lambda tx: (tx.find_runs(), tx.find_events())) == ([], [])


async def test_a_transaction_may_raise_stop_iteration(ledger: AnyLedger):
    with pytest.raises(RuntimeError):
        await ledger.write(lambda tx: next(iter(tx.find_runs())))
    assert await ledger.write(lambda tx: tx.count_runs(Status.DONE)) == 0


async def test_any_text_is_stored_and_lone_surrogates_are_replaced(ledger: AnyLedger):
    unusual_text = "\x00 é \U0001f600 \r\n ' \u2028"
    request = RunRequest(
        key=f"k{unusual_text}", agent="main", task=f"{unusual_text}\ud800", label="\udc00", parent_run=None
    )
    run = make_run("r1", request=request, text=f"{unusual_text}\ud83d\ude00\ud800", error=unusual_text)

    def store_run(tx: Transaction) -> None:
        tx.add_run(run)
        tx.update_run(run)
        tx.emit(make_event(text="\ud800", deep=[{"\udfff": unusual_text}]))

    await ledger.write(store_run)
    stored = await ledger.read(lambda tx: tx.get_run("r1"))
    assert stored is not None
    assert (stored.request.key, stored.request.task, stored.request.label) == (
        f"k{unusual_text}",
        f"{unusual_text}\ufffd",
        "\ufffd",
    )
    assert (stored.text, stored.error) == (f"{unusual_text}\U0001f600\ufffd", unusual_text)
    assert [event.data for event in await ledger.read(lambda tx: tx.find_events())] == [
        {"text": "\ufffd", "deep": [{"\ufffd": unusual_text}]}
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    time=st.datetimes(
        datetime(1970, 1, 2),  # noqa: DTZ001  (hypothesis adds the zone)
        datetime(9000, 1, 1),  # noqa: DTZ001  (hypothesis adds the zone)
        timezones=st.sampled_from([UTC]),
    ),
    number=st.integers(0, 2**62),
    text=st.text(st.characters(codec="utf-8"), max_size=50),
)
async def test_times_numbers_and_texts_are_stored_exactly(
    ledger: AnyLedger, time: datetime, number: int, text: str
):
    def store_run(tx: Transaction) -> tuple[Run, Run | None]:
        name = f"r{len(tx.find_runs())}"
        request = RunRequest(key=name, agent=text, task=text)
        run = make_run(
            name, request=request, created_at=time, deadline_at=time, turns=number, text=text, workspace=text
        )
        tx.add_run(run)
        return run, tx.get_run(name)

    before, after = await ledger.write(store_run)
    assert before == after


async def test_cancelling_the_caller_does_not_undo_its_write(ledger: AnyLedger):
    await ledger.read(lambda tx: tx.find_runs())
    task = asyncio.create_task(ledger.write(add_runs(make_run("r1"))))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ledger.write(add_runs(make_run("r2")))
    assert await find_run_ids(ledger) == ["r2", "r1"]


async def test_the_callback_of_a_write_runs_once_after_the_listeners_and_before_the_write_returns(
    ledger: AnyLedger, events: list[Event]
):
    calls: list[tuple[str, int]] = []

    def emit_named(name: str) -> Callable[[Transaction], str]:
        def emit(tx: Transaction) -> str:
            tx.emit(make_event(name=name))
            return name

        return emit

    for number in range(6):
        await ledger.write(emit_named(f"r{number}"), lambda name: calls.append((name, len(events))))
        assert calls[number:] == [(f"r{number}", number + 1)]
    await asyncio.gather(
        *(ledger.write(emit_named(f"s{letter}"), lambda name: calls.append((name, 0))) for letter in "abc")
    )
    assert [name for name, _ in calls[6:]] == ["sa", "sb", "sc"]


async def test_the_callback_of_a_write_runs_even_if_the_caller_is_cancelled_and_never_after_a_failure(
    ledger: AnyLedger,
):
    calls: list[str] = []

    def fail(tx: Transaction) -> str:
        tx.add_run(make_run("bad"))
        raise KeyError("no")

    for number in range(6):
        task = asyncio.create_task(
            ledger.write(
                add_runs(make_run(f"r{number}")), lambda _, number=number: calls.append(f"r{number}")
            )
        )
        failing = asyncio.create_task(ledger.write(fail, lambda _: calls.append("bad")))
        if not number:
            await ledger.read(lambda tx: tx.find_runs())
        await asyncio.sleep(0)
        for pending in (task, failing):
            pending.cancel()
        await asyncio.gather(task, failing, return_exceptions=True)
        await ledger.write(lambda tx: tx.count_runs())
    assert calls == [f"r{number}" for number in range(6)]
    assert len(await find_run_ids(ledger)) == 6


async def test_a_closed_ledger_refuses_reads_and_writes_and_may_be_closed_twice(ledger: AnyLedger):
    await ledger.write(add_runs(make_run("r1")))
    await ledger.close()
    await ledger.close()
    with pytest.raises(Failed, match="the ledger is closed"):
        await ledger.write(lambda tx: tx.find_runs())
    with pytest.raises(Failed, match="the ledger is closed"):
        await ledger.read(lambda tx: tx.find_runs())


async def test_runs_are_found_by_reason_and_owners_by_status(ledger: Ledger):
    cancelling = replace(make_run("asked"), status=Status.RUNNING, owner_id="p1", reason=Reason.USER_CANCEL)
    other = replace(make_run("other"), status=Status.WAITING, owner_id="p2")
    finished = replace(make_run("ended"), status=Status.DONE, owner_id="p3")

    def add(tx: Transaction) -> None:
        for run in (cancelling, other, finished):
            tx.add_run(run)

    await ledger.write(add)
    results = await ledger.read(lambda tx: tx.find_runs(reason=Reason.USER_CANCEL))
    assert [run.id for run in results] == ["asked"]
    assert await ledger.read(lambda tx: tx.find_owner_ids([Status.RUNNING, Status.WAITING])) == {"p1", "p2"}


async def test_a_read_after_a_write_sees_the_write_despite_concurrent_reads(ledger: AnyLedger):
    await ledger.write(add_runs(make_run("r1")))
    for turns in range(1, 30):
        before, _, after = await asyncio.gather(
            ledger.read(lambda tx: tx.get_run("r1")),
            ledger.write(lambda tx, turns=turns: tx.update_run(make_run("r1", turns=turns))),
            _read_after_write(ledger, turns),
        )
        assert before is not None
        assert (before.turns, after) == (turns - 1, turns)


async def _read_after_write(ledger: AnyLedger, turns: int) -> int:
    """Write to the ledger, and return the number of turns read after that."""
    await ledger.write(lambda tx: tx.emit(make_event("run.state", turns=turns)))
    run = await ledger.read(lambda tx: tx.get_run("r1"))
    assert run is not None
    return run.turns


async def test_transactions_of_one_batch_see_the_changes_of_earlier_ones(ledger: AnyLedger):
    def read_counts(tx: Transaction) -> tuple[int, int, int]:
        run = tx.get_run("r1")
        running = tx.count_runs(Status.RUNNING)
        return (0 if run is None else run.turns), running, tx.count_runs(root="r1")

    def change_and_fail(tx: Transaction) -> None:
        tx.update_run(make_run("r1", turns=9, status=Status.RUNNING, root_id="r1"))
        tx.add_run(make_run("r9", root_id="r1", status=Status.RUNNING))
        assert read_counts(tx) == (9, 3, 3)
        raise ValueError("no")

    def add_counted(name: str) -> Callable[[Transaction], tuple[int, int, int]]:
        def add_and_read(tx: Transaction) -> tuple[int, int, int]:
            read_counts(tx)
            tx.add_run(make_run(name, root_id="r1", status=Status.RUNNING))
            return read_counts(tx)

        return add_and_read

    def finish_run(tx: Transaction) -> tuple[int, int, int]:
        tx.update_run(make_run("r1", turns=1, root_id="r1", status=Status.DONE, ended_at=NOW))
        return read_counts(tx)

    await ledger.write(add_runs(make_run("r1", root_id="r1", status=Status.RUNNING)))
    results = await asyncio.gather(
        ledger.write(read_counts), ledger.write(add_counted("r2")), ledger.write(change_and_fail), ledger.write(finish_run), ledger.write(read_counts),
        return_exceptions=True,
    )  # fmt: skip
    assert (results[0], results[1], results[3], results[4]) == ((0, 1, 1), (0, 2, 2), (1, 1, 2), (1, 1, 2))
    assert isinstance(results[2], ValueError)
