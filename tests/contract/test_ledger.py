"""One contract for every ledger: on disk and in memory."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.domain.approval import Approval
from retinue.domain.delivery import Delivery
from retinue.domain.event import Event, EventKind
from retinue.domain.run import Reason, Run, RunRequest, Status, Usage, WaitReason
from retinue.errors import Failed, NotFound
from retinue.interfaces import Ledger, Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.testing.memory_ledger import MemoryLedger

AT = datetime(2026, 11, 15, 18, 42, 7, 123456, tzinfo=UTC)

AnyLedger = SqliteLedger | MemoryLedger


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture(params=["sqlite", "memory"])
async def ledger(
    request: pytest.FixtureRequest, tmp_path: Path, heard: list[Event]
) -> AsyncGenerator[AnyLedger]:
    opened: AnyLedger = (
        SqliteLedger(tmp_path / "ledger.db", on_event=heard.append)
        if request.param == "sqlite"
        else MemoryLedger(on_event=heard.append)
    )
    yield opened
    await opened.close()


def a_run(name: str, *, parent: str | None = None, minute: int = 0, **facts: Any) -> Run:
    ask = RunRequest(key=f"key of {name}", agent="main", task="look around", parent_run=parent)
    run = Run(
        id=name,
        request=ask,
        session_id="session",
        slug="main-20261115184207",
        session_key="main-20261115184207/main",
        agent="main",
        transcript_path="session.md",
        created_at=AT + timedelta(minutes=minute),
    )
    return replace(run, **facts)


def added(*runs: Run) -> Callable[[Transaction], None]:
    def step(tx: Transaction) -> None:
        for run in runs:
            tx.add_run(run)

    return step


def an_event(kind: EventKind = "run.queued", session: str = "session", **data: Any) -> Event:
    return Event(kind=kind, at=AT, session=session, run="r1", parent_run="r0", agent="main", data=data)


async def names(ledger: AnyLedger, **wish: Any) -> list[str]:
    return [run.id for run in await ledger.read(lambda tx: tx.find_runs(**wish))]


async def test_a_run_comes_back_as_it_was_in_every_field(ledger: AnyLedger):
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
        usage=Usage(input=1204, output=88),
        attempts=2,
        owner_id="owner",
        scope_hash="abc",
        workspace="work",
        created_at=AT,
        started_at=AT + timedelta(microseconds=1),
        ended_at=AT + timedelta(seconds=1),
        deadline_at=AT + timedelta(hours=1),
    )
    await ledger.write(added(run))
    assert await ledger.read(lambda tx: tx.get_run("0198-a")) == run
    assert await ledger.read(lambda tx: tx.get_run_by_key("call:r0/01J")) == run
    assert await ledger.read(lambda tx: tx.find_runs()) == [run]


async def test_a_changed_run_replaces_the_old_one_and_leaves_the_others(ledger: AnyLedger):
    first, second = a_run("r1"), a_run("r2")
    await ledger.write(added(first, second))
    started = first.start(owner_id="o", at=AT, deadline_at=AT + timedelta(hours=1))
    await ledger.write(lambda tx: tx.update_run(started))
    assert await ledger.read(lambda tx: (tx.get_run("r1"), tx.get_run("r2"))) == (started, second)


async def test_changing_a_run_that_is_not_there_is_not_found(ledger: AnyLedger):
    with pytest.raises(NotFound, match="Run r1 not found"):
        await ledger.write(lambda tx: tx.update_run(a_run("r1")))


async def test_what_a_run_was_asked_for_can_change_too(ledger: AnyLedger):
    run = a_run("r1", parent="r0", root_id="r0")
    await ledger.write(added(run))
    for ask in (replace(run.request, model="m:large"), replace(run.request, task="another"), run.request):
        changed = replace(run, request=ask, turns=run.turns + 1)
        await ledger.write(lambda tx, changed=changed: tx.update_run(changed))
        assert await ledger.read(lambda tx: (tx.get_run("r1"), tx.find_runs(parent_run="r0"))) == (
            changed,
            [changed],
        )


async def test_a_run_that_moves_is_found_where_it_is_and_nowhere_else(ledger: AnyLedger):
    run = a_run("r1", root_id="r1", session_id="s1")
    await ledger.write(added(run))
    for moved in (replace(run, session_id="s2"), replace(run, root_id="r0"), replace(run, created_at=AT)):
        await ledger.write(lambda tx, moved=moved: tx.update_run(moved))
        for wish in ({"session": "s1"}, {"session": "s2"}, {"root": "r1"}, {"root": "r0"}):
            live = await names(ledger, status=[Status.QUEUED], **wish)
            fits = getattr(moved, "session_id" if "session" in wish else "root_id") in wish.values()
            assert (await names(ledger, **wish), live) == ((["r1"], ["r1"]) if fits else ([], []))


async def test_a_tree_has_its_root_and_all_that_name_it(ledger: AnyLedger):
    await ledger.write(
        added(
            a_run("top", root_id="top"),
            a_run("one", parent="top", root_id="top", minute=1),
            a_run("two", parent="one", root_id="top", minute=2, status=Status.DONE, ended_at=AT),
            a_run("apart", root_id="apart"),
        )
    )
    assert await names(ledger, root="top") == ["two", "one", "top"]
    assert await names(ledger, root="top", limit=2) == ["two", "one"]
    assert await names(ledger, root="top", status=[Status.QUEUED, Status.WAITING]) == ["one", "top"]
    assert await names(ledger, root="top", status=[Status.QUEUED, Status.DONE], limit=1) == ["two"]
    assert await names(ledger, root="top", top_only=True) == ["top"]
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


async def test_what_is_not_there_is_none(ledger: AnyLedger):
    assert await ledger.read(lambda tx: (tx.get_run("r1"), tx.get_run_by_key("k"))) == (None, None)


@pytest.mark.parametrize(
    "second",
    [
        a_run("r1", request=RunRequest(key="other", agent="main", task=None)),
        a_run("r2", request=a_run("r1").request),
    ],
    ids=["the same id", "the same key"],
)
async def test_a_second_birth_fails_and_leaves_the_first(ledger: AnyLedger, second: Run):
    await ledger.write(added(a_run("r1")))
    with pytest.raises(Failed, match="already in the ledger"):
        await ledger.write(added(second))
    assert await ledger.read(lambda tx: tx.find_runs()) == [a_run("r1")]


async def test_no_run_can_take_the_key_of_another(ledger: AnyLedger):
    await ledger.write(added(a_run("r1"), a_run("r2")))
    with pytest.raises(Failed, match="belongs to another run"):
        await ledger.write(lambda tx: tx.update_run(replace(a_run("r2"), request=a_run("r1").request)))


async def test_children_are_whoever_names_the_run_as_parent_oldest_first(ledger: AnyLedger):
    await ledger.write(
        added(
            a_run("r1", child_ids=("ghost",)),
            a_run("r4", parent="r1", minute=1),
            a_run("r3", parent="r1", minute=2),
            a_run("r2", parent="r1", minute=2),
            a_run("r5", parent="r4", minute=3),
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
    await ledger.write(added(a_run("r2"), a_run("r1"), a_run("r3"), a_run("r0", minute=1)))
    assert await names(ledger) == ["r0", "r3", "r2", "r1"]
    assert await names(ledger, limit=2) == ["r0", "r3"]
    assert await names(ledger, limit=0) == []


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
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


@pytest.mark.parametrize(("wish", "expected"), FILTERS)
async def test_filters_narrow_the_list_and_combine(
    ledger: AnyLedger, wish: dict[str, Any], expected: list[str]
):
    await ledger.write(
        added(
            a_run("a"),
            a_run("b", minute=1, status=Status.DONE, session_id="other"),
            a_run("d1", minute=2, parent="a", root_id="a", status=Status.RUNNING),
            a_run("d2", minute=3, parent="a", root_id="a"),
        )
    )
    assert await names(ledger, **wish) == expected


async def test_whether_anybody_is_at_work_for_a_run_is_known_without_reading_them(ledger: AnyLedger):
    """Those that have ended do not count, and a question may be only of those that are waited for."""

    def asked(tx: Transaction) -> tuple[bool, ...]:
        return tuple(tx.has_live_children("above", awaited=each) for each in (None, False, True))

    over: dict[str, Any] = {"status": Status.DONE, "ended_at": AT, "is_awaited": True}
    await ledger.write(
        added(
            a_run("above"),
            a_run("queued", parent="above"),
            a_run("over", parent="above", **over),
            a_run("of another", parent="elsewhere", is_awaited=True),
        )
    )
    assert await ledger.read(asked) == (True, True, False)
    await ledger.write(lambda tx: tx.update_run(a_run("queued", parent="above", is_awaited=True)))
    assert await ledger.read(asked) == (True, False, True)
    await ledger.write(lambda tx: tx.update_run(a_run("queued", parent="above", **over)))
    assert await ledger.read(asked) == (False, False, False)


async def test_a_run_is_held_by_whom_it_asked_by_what_nobody_heard_and_by_an_open_question(ledger: AnyLedger):
    async def held() -> bool:
        return await ledger.read(lambda tx: tx.has_undelivered_work("above", "session"))

    over: dict[str, Any] = {"status": Status.DONE, "ended_at": AT}
    await ledger.write(added(a_run("above"), a_run("over", parent="above", **over), a_run("alone")))
    assert not await held()
    await ledger.write(added(a_run("asked", parent="above")))
    assert await held()
    await ledger.write(lambda tx: tx.update_run(a_run("asked", parent="above", **over)))
    assert not await held()

    left = Delivery(
        id="d1",
        run="over",
        requester_run="above",
        session="session",
        created_at=AT,
        answers=False,
        text="Done.",
    )
    await ledger.write(lambda tx: tx.add_delivery(left))
    assert await held()
    await ledger.write(lambda tx: tx.update_delivery(left.mark_delivered("above", at=AT)))
    await ledger.write(lambda tx: tx.add_delivery(replace(left, id="d2", run="asked", session="another")))
    assert not await held()

    asked = Approval(
        id="a1", run="above", session="session", agent="main", call="c1", tool="bash", access="run",
        resource="ls", args="{}", asked_at=AT, expires_at=AT,
    )  # fmt: skip
    await ledger.write(lambda tx: tx.add_approval(replace(asked, id="a0", run="alone")))
    assert not await held()
    await ledger.write(lambda tx: tx.add_approval(asked))
    assert await held()
    await ledger.write(lambda tx: tx.update_approval(asked.void()))
    assert not await held()


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
async def test_hostile_filters_are_only_values(ledger: AnyLedger, text: str):
    """Shows: P29."""
    await ledger.read(lambda tx: (tx.get_run(text), tx.get_run_by_key(text), tx.find_events(session=text)))
    for wish in ("session", "root", "parent_run", "prefix"):
        if text:
            assert await names(ledger, **{wish: text}) == []


async def test_the_count_of_a_status_follows_its_moves(ledger: AnyLedger):
    await ledger.write(added(a_run("r1"), a_run("r2"), a_run("r3", status=Status.DONE)))
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


async def test_a_step_sees_its_own_changes(ledger: AnyLedger):
    def step(tx: Transaction) -> tuple[int, list[str], int]:
        tx.add_run(a_run("r1"))
        tx.add_run(a_run("r2", parent="r1"))
        tx.emit(an_event())
        run = tx.get_run("r1", with_children=True)
        assert run is not None
        return tx.count_runs(Status.QUEUED), list(run.child_ids), len(tx.find_events())

    assert await ledger.write(step) == (2, ["r2"], 1)


async def test_a_step_that_raises_is_undone_alone_and_its_error_reaches_only_its_asker(
    ledger: AnyLedger, heard: list[Event]
):
    def bad(tx: Transaction) -> None:
        tx.add_run(a_run("bad"))
        tx.emit(an_event("run.ended"))
        raise KeyError("no")

    def good(name: str) -> Callable[[Transaction], str]:
        def step(tx: Transaction) -> str:
            tx.add_run(a_run(name))
            tx.emit(an_event(name=name))
            return name

        return step

    outcomes = await asyncio.gather(
        ledger.write(good("r1")), ledger.write(bad), ledger.write(good("r2")), return_exceptions=True
    )
    assert outcomes[0::2] == ["r1", "r2"]
    assert isinstance(outcomes[1], KeyError)
    assert await names(ledger) == ["r2", "r1"]
    assert [(event.seq, event.data) for event in heard] == [(1, {"name": "r1"}), (2, {"name": "r2"})]
    assert await ledger.read(lambda tx: tx.find_events()) == heard


async def test_steps_that_ask_and_reserve_never_go_over_a_limit(ledger: AnyLedger):
    def claim(name: str) -> Callable[[Transaction], bool]:
        def step(tx: Transaction) -> bool:
            if tx.count_runs(Status.RUNNING) >= 12:
                return False
            tx.add_run(a_run(name, status=Status.RUNNING))
            return True

        return step

    claims = await asyncio.gather(*(ledger.write(claim(f"r{number}")) for number in range(40)))
    assert claims == [True] * 12 + [False] * 28


async def test_durable_events_are_numbered_from_one_and_heard_in_order_before_the_step_returns(
    ledger: AnyLedger, heard: list[Event]
):
    def step(tx: Transaction) -> None:
        tx.emit(an_event("run.queued", label="a"))
        tx.emit(an_event("run.started", nested={"list": [1, None, 2.5, "é"]}))

    await ledger.write(step)
    assert [event.seq for event in heard] == [1, 2]
    await asyncio.gather(*(ledger.write(step) for _ in range(5)))
    assert [event.seq for event in heard] == list(range(1, 13))
    assert heard[1] == Event(
        kind="run.started",
        at=AT,
        session="session",
        run="r1",
        parent_run="r0",
        agent="main",
        seq=2,
        data={"nested": {"list": [1, None, 2.5, "é"]}},
    )
    assert await ledger.read(lambda tx: tx.find_events()) == heard


async def test_events_can_be_taken_up_after_a_number_of_one_session_and_in_pages(ledger: AnyLedger):
    def step(tx: Transaction) -> None:
        for number in range(6):
            tx.emit(an_event(session="odd" if number % 2 else "even"))

    await ledger.write(step)

    async def seqs(**wish: Any) -> list[int]:
        return [event.seq for event in await ledger.read(lambda tx: tx.find_events(**wish))]

    assert await seqs() == [1, 2, 3, 4, 5, 6]
    assert await seqs(after=4) == [5, 6]
    assert await seqs(session="odd") == [2, 4, 6]
    assert await seqs(session="odd", after=2, limit=1) == [4]
    assert await seqs(after=6) == []
    assert await seqs(limit=0) == []


async def test_a_listener_that_raises_loses_no_event_and_no_step(
    tmp_path: Path, ledger: AnyLedger, heard: list[Event]
):
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def deaf(event: Event) -> None:
        heard.append(event)
        raise ValueError("deaf")

    deaf_ledger: AnyLedger = (
        SqliteLedger(tmp_path / "deaf.db", on_event=deaf)
        if isinstance(ledger, SqliteLedger)
        else MemoryLedger(on_event=deaf)
    )

    def step(tx: Transaction) -> str:
        tx.emit(an_event())
        tx.emit(an_event())
        return "done"

    assert await deaf_ledger.write(step) == "done"
    assert [event.seq for event in heard] == [1, 2]
    assert len(complaints) == 2
    for _ in range(4):  # together with others, and when it has been alone for a while

        def given_up(_: str) -> None:
            raise asyncio.CancelledError

        assert await deaf_ledger.write(lambda _: "and on", given_up) == "and on"
    await deaf_ledger.close()
    asyncio.get_running_loop().set_exception_handler(None)


async def test_a_look_cannot_write(ledger: AnyLedger):
    def changed(tx: Transaction) -> None:
        tx.update_run(a_run("r1"))

    def emitted(tx: Transaction) -> None:
        tx.emit(an_event())

    for step in (added(a_run("r1")), changed, emitted):
        with pytest.raises(TypeError, match="a read transaction cannot write"):
            await ledger.read(step)
    assert await ledger.read(lambda tx: (tx.find_runs(), tx.find_events())) == ([], [])


async def test_a_step_may_raise_even_stop_iteration(ledger: AnyLedger):
    with pytest.raises(RuntimeError):
        await ledger.write(lambda tx: next(iter(tx.find_runs())))
    assert await ledger.write(lambda tx: tx.count_runs(Status.DONE)) == 0


async def test_any_text_is_kept_and_half_a_surrogate_becomes_a_replacement_character(ledger: AnyLedger):
    odd = "\x00 é \U0001f600 \r\n ' \u2028"
    ask = RunRequest(key=f"k{odd}", agent="main", task=f"{odd}\ud800", label="\udc00", parent_run=None)
    run = a_run("r1", request=ask, text=f"{odd}\ud83d\ude00\ud800", error=odd)

    def step(tx: Transaction) -> None:
        tx.add_run(run)
        tx.update_run(run)
        tx.emit(an_event(text="\ud800", deep=[{"\udfff": odd}]))

    await ledger.write(step)
    kept = await ledger.read(lambda tx: tx.get_run("r1"))
    assert kept is not None
    assert (kept.request.key, kept.request.task, kept.request.label) == (f"k{odd}", f"{odd}\ufffd", "\ufffd")
    assert (kept.text, kept.error) == (f"{odd}\U0001f600\ufffd", odd)
    assert [event.data for event in await ledger.read(lambda tx: tx.find_events())] == [
        {"text": "\ufffd", "deep": [{"\ufffd": odd}]}
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.datetimes(
        datetime(1970, 1, 2),  # noqa: DTZ001  (hypothesis adds the zone)
        datetime(9000, 1, 1),  # noqa: DTZ001  (the same)
        timezones=st.sampled_from([UTC]),
    ),
    number=st.integers(0, 2**62),
    text=st.text(st.characters(codec="utf-8"), max_size=50),
)
async def test_every_time_number_and_text_comes_back_exactly(
    ledger: AnyLedger, at: datetime, number: int, text: str
):
    def step(tx: Transaction) -> tuple[Run, Run | None]:
        name = f"r{len(tx.find_runs())}"
        ask = RunRequest(key=name, agent=text, task=text)
        run = a_run(name, request=ask, created_at=at, deadline_at=at, turns=number, text=text, workspace=text)
        tx.add_run(run)
        return run, tx.get_run(name)

    before, after = await ledger.write(step)
    assert before == after


async def test_a_cancelled_wait_does_not_take_the_step_back(ledger: AnyLedger):
    await ledger.read(lambda tx: tx.find_runs())
    task = asyncio.create_task(ledger.write(added(a_run("r1"))))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ledger.write(added(a_run("r2")))
    assert await names(ledger) == ["r2", "r1"]


async def test_what_is_to_happen_then_happens_once_after_the_listeners_and_before_the_step_returns(
    ledger: AnyLedger, heard: list[Event]
):
    told: list[tuple[str, int]] = []

    def named(name: str) -> Callable[[Transaction], str]:
        def step(tx: Transaction) -> str:
            tx.emit(an_event(name=name))
            return name

        return step

    for number in range(6):
        await ledger.write(named(f"r{number}"), lambda name: told.append((name, len(heard))))
        assert told[number:] == [(f"r{number}", number + 1)]
    await asyncio.gather(
        *(ledger.write(named(f"s{each}"), lambda name: told.append((name, 0))) for each in "abc")
    )
    assert [name for name, _ in told[6:]] == ["sa", "sb", "sc"]


async def test_what_is_to_happen_then_happens_though_nobody_waits_any_more_and_never_after_a_failure(
    ledger: AnyLedger,
):
    told: list[str] = []

    def bad(tx: Transaction) -> str:
        tx.add_run(a_run("bad"))
        raise KeyError("no")

    for number in range(6):
        task = asyncio.create_task(
            ledger.write(added(a_run(f"r{number}")), lambda _, number=number: told.append(f"r{number}"))
        )
        failing = asyncio.create_task(ledger.write(bad, lambda _: told.append("bad")))
        if not number:
            await ledger.read(lambda tx: tx.find_runs())
        await asyncio.sleep(0)
        for each in (task, failing):
            each.cancel()
        await asyncio.gather(task, failing, return_exceptions=True)
        await ledger.write(lambda tx: tx.count_runs())
    assert told == [f"r{number}" for number in range(6)]
    assert len(await names(ledger)) == 6


async def test_after_closing_every_use_says_so_and_closing_again_is_nothing(ledger: AnyLedger):
    await ledger.write(added(a_run("r1")))
    await ledger.close()
    await ledger.close()
    with pytest.raises(Failed, match="the ledger is closed"):
        await ledger.write(lambda tx: tx.find_runs())
    with pytest.raises(Failed, match="the ledger is closed"):
        await ledger.read(lambda tx: tx.find_runs())


async def test_runs_are_found_by_reason_and_their_owners_by_state(ledger: Ledger):
    asked = replace(a_run("asked"), status=Status.RUNNING, owner_id="p1", reason=Reason.USER_CANCEL)
    other = replace(a_run("other"), status=Status.WAITING, owner_id="p2")
    ended = replace(a_run("ended"), status=Status.DONE, owner_id="p3")

    def add(tx: Transaction) -> None:
        for run in (asked, other, ended):
            tx.add_run(run)

    await ledger.write(add)
    found = await ledger.read(lambda tx: tx.find_runs(reason=Reason.USER_CANCEL))
    assert [run.id for run in found] == ["asked"]
    assert await ledger.read(lambda tx: tx.find_owner_ids([Status.RUNNING, Status.WAITING])) == {"p1", "p2"}


async def test_whoever_looks_after_a_step_sees_it_though_others_looked_in_the_same_moment(ledger: AnyLedger):
    await ledger.write(added(a_run("r1")))
    for turns in range(1, 30):
        before, _, after = await asyncio.gather(
            ledger.read(lambda tx: tx.get_run("r1")),
            ledger.write(lambda tx, turns=turns: tx.update_run(a_run("r1", turns=turns))),
            _after(ledger, turns),
        )
        assert before is not None
        assert (before.turns, after) == (turns - 1, turns)


async def _after(ledger: AnyLedger, turns: int) -> int:
    """What is seen once the ledger has been written to again."""
    await ledger.write(lambda tx: tx.emit(an_event("run.state", turns=turns)))
    found = await ledger.read(lambda tx: tx.get_run("r1"))
    assert found is not None
    return found.turns


async def test_what_one_step_changes_the_next_of_the_same_moment_reads_and_counts(ledger: AnyLedger):
    def seen(tx: Transaction) -> tuple[int, int, int]:
        run = tx.get_run("r1")
        running = tx.count_runs(Status.RUNNING)
        return (0 if run is None else run.turns), running, tx.count_runs(root="r1")

    def undone(tx: Transaction) -> None:
        tx.update_run(a_run("r1", turns=9, status=Status.RUNNING, root_id="r1"))
        tx.add_run(a_run("r9", root_id="r1", status=Status.RUNNING))
        assert seen(tx) == (9, 3, 3)
        raise ValueError("no")

    def born(name: str) -> Callable[[Transaction], tuple[int, int, int]]:
        def step(tx: Transaction) -> tuple[int, int, int]:
            seen(tx)
            tx.add_run(a_run(name, root_id="r1", status=Status.RUNNING))
            return seen(tx)

        return step

    def moved(tx: Transaction) -> tuple[int, int, int]:
        tx.update_run(a_run("r1", turns=1, root_id="r1", status=Status.DONE, ended_at=AT))
        return seen(tx)

    await ledger.write(added(a_run("r1", root_id="r1", status=Status.RUNNING)))
    found = await asyncio.gather(
        ledger.write(seen), ledger.write(born("r2")), ledger.write(undone), ledger.write(moved), ledger.write(seen),
        return_exceptions=True,
    )  # fmt: skip
    assert (found[0], found[1], found[3], found[4]) == ((0, 1, 1), (0, 2, 2), (1, 1, 2), (1, 1, 2))
    assert isinstance(found[2], ValueError)
