"""An in-memory ledger with the rules of the one on disk, for tests and experiments."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.delivery import Delivery
from retinue.domain.delivery import DeliveryState as Delivered
from retinue.domain.event import Event
from retinue.domain.run import Reason, Run, Status
from retinue.domain.side_effect import SideEffect
from retinue.domain.watch import Interjection, Watch
from retinue.errors import Failed, NotFound
from retinue.interfaces import Transaction
from retinue.ledger import approvals, deliveries, run_rows, side_effects, watches

T = TypeVar("T")


class WatchTables:
    """Watches and interjections; with `base`, the changes of one transaction on top of it."""

    def __init__(self, base: "WatchTables | None" = None) -> None:
        self._base = base
        self.watches: dict[str, Watch] = {}
        self.interjections: dict[str, Interjection] = {}

    def merge(self, changes: "WatchTables") -> None:
        self.watches |= changes.watches
        self.interjections |= changes.interjections

    def all_watches(self) -> list[Watch]:
        known = {} if self._base is None else self._base.watches
        return sorted((known | self.watches).values(), key=lambda each: each.id)

    def all_interjections(self) -> list[Interjection]:
        known = {} if self._base is None else self._base.interjections
        return sorted((known | self.interjections).values(), key=lambda each: each.id)


class MemoryLedger:
    """A ledger in memory.

    Transactions run one at a time; one that raises leaves no changes.
    """

    def __init__(self, *, on_event: Callable[[Event], None] | None = None) -> None:
        self._on_event = on_event
        self._runs: dict[str, Run] = {}
        self._events: list[Event] = []
        self._approvals: dict[str, Approval] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._side_effects: dict[str, SideEffect] = {}
        self._watch_tables = WatchTables()
        self._closed = False

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        """Run the step and apply its changes.

        Yields to the event loop once, as every durable step does, so that tests see the interleavings that
        production has.
        """
        self._check_open()
        tx = MemoryTransaction(
            self._runs,
            self._events,
            self._approvals,
            self._deliveries,
            self._side_effects,
            self._watch_tables,
        )
        value = step(tx)
        self._runs |= tx.changed_runs
        self._approvals |= tx.changed_approvals
        self._deliveries |= tx.changed_deliveries
        self._side_effects |= tx.changed_side_effects
        self._watch_tables.merge(tx.changed_watches)
        self._events += tx.emitted_events
        loop = asyncio.get_running_loop()
        if self._on_event is not None:
            for event in tx.emitted_events:
                loop.call_soon(self._on_event, event)
        if on_commit is not None:
            loop.call_soon(on_commit, value)
        await asyncio.sleep(0)
        return value

    async def read(self, step: Callable[[Transaction], T]) -> T:
        self._check_open()
        return step(
            ReadOnlyMemoryTransaction(
                self._runs,
                self._events,
                self._approvals,
                self._deliveries,
                self._side_effects,
                self._watch_tables,
            )
        )

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Failed("the ledger is closed")


class MemoryTransaction:
    """A transaction whose changes overlay the stored values until the step has finished."""

    def __init__(
        self,
        runs: dict[str, Run],
        events: list[Event],
        approvals: dict[str, Approval],
        deliveries: dict[str, Delivery],
        side_effects: dict[str, SideEffect],
        watch_tables: WatchTables,
    ) -> None:
        self.changed_watches = WatchTables(base=watch_tables)
        self._runs = runs
        self._side_effects = side_effects
        self.changed_side_effects: dict[str, SideEffect] = {}
        self._deliveries = deliveries
        self.changed_deliveries: dict[str, Delivery] = {}
        self._events = events
        self._approvals = approvals
        self.changed_approvals: dict[str, Approval] = {}
        self.changed_runs: dict[str, Run] = {}
        self.emitted_events: list[Event] = []

    def get_run(self, run_id: str, *, with_children: bool = False) -> Run | None:
        run = self._find_run(run_rows.replace_surrogates(run_id))
        return self._with_children([run])[0] if run is not None and with_children else run

    def get_run_by_key(self, request_key: str) -> Run | None:
        run_id = self._run_id_by_key(run_rows.replace_surrogates(request_key))
        return None if run_id is None else self.get_run(run_id)

    def add_run(self, run: Run) -> None:
        stored = _round_trip(run)
        if self._find_run(stored.id) is not None or self._run_id_by_key(stored.request.key) is not None:
            raise Failed(f"run {run.id} or its key {run.request.key} is already in the ledger")
        self.changed_runs[stored.id] = stored

    def update_run(self, run: Run) -> None:
        stored = _round_trip(run)
        if self._find_run(stored.id) is None:
            raise NotFound(f"there is no run {run.id}")
        if self._run_id_by_key(stored.request.key) not in (None, stored.id):
            raise Failed(f"the key {run.request.key} of run {run.id} is another run's")
        self.changed_runs[stored.id] = stored

    def find_runs(  # noqa: PLR0913  (one filter each)
        self,
        *,
        status: Sequence[Status] | None = None,
        session: str | None = None,
        root: str | None = None,
        parent_run: str | None = None,
        top_only: bool = False,
        prefix: str | None = None,
        reason: Reason | None = None,
        awaited: bool | None = None,
        started: bool | None = None,
        due_by: datetime | None = None,
        with_children: bool = False,
        limit: int | None = None,
    ) -> list[Run]:
        matches = [
            run
            for run in self._all_runs()
            if (status is None or run.status in status)
            and (session is None or run.session_id == run_rows.replace_surrogates(session))
            and (root is None or run.root_id == run_rows.replace_surrogates(root))
            and (parent_run is None or run.request.parent_run == run_rows.replace_surrogates(parent_run))
            and not (top_only and run.request.parent_run is not None)
            and (prefix is None or run.id.startswith(run_rows.replace_surrogates(prefix)))
            and (reason is None or run.reason is reason)
            and (awaited is None or run.is_awaited is awaited)
            and (started is None or (run.started_at is not None) is started)
            and (due_by is None or (run.wake_at is not None and run.wake_at <= due_by))
        ]
        matches.sort(key=_creation_order, reverse=True)
        matches = matches if limit is None else matches[: max(0, limit)]
        return self._with_children(matches) if with_children else matches

    def has_live_children(self, run_id: str, *, awaited: bool | None = None) -> bool:
        live_children = (
            run for run in self._all_runs() if run.request.parent_run == run_id and run.status.is_live
        )
        return any(awaited is None or run.is_awaited is awaited for run in live_children)

    def has_undelivered_work(self, run_id: str, session: str) -> bool:
        undelivered = self.find_deliveries(session=session, state=[Delivered.PENDING])
        return bool(
            self.has_live_children(run_id)
            or undelivered
            or self.find_approvals(run=run_id, state=[ApprovalState.PENDING])
        )

    def find_owner_ids(self, status: Sequence[Status]) -> set[str]:
        return {run.owner_id for run in self._all_runs() if run.status in status}

    def count_runs(
        self, status: Status | None = None, *, root: str | None = None, requester: str | None = None
    ) -> int:
        return sum(
            (status is None or run.status is status)
            and (root is None or run.root_id == root)
            and (requester is None or run.request.requester == requester)
            for run in self._all_runs()
        )

    def get_delivery(self, delivery_id: str) -> Delivery | None:
        return (self._deliveries | self.changed_deliveries).get(delivery_id)

    def add_delivery(self, delivery: Delivery) -> None:
        if self.get_delivery(delivery.id) is not None or self.find_deliveries(run=delivery.run):
            raise Failed(f"the end of run {delivery.run} is in the outbox already")
        self.changed_deliveries[delivery.id] = deliveries.decode_delivery(
            deliveries.encode_delivery(delivery)
        )

    def update_delivery(self, delivery: Delivery) -> None:
        if self.get_delivery(delivery.id) is None:
            raise NotFound(f"there is no delivery {delivery.id}")
        self.changed_deliveries[delivery.id] = deliveries.decode_delivery(
            deliveries.encode_delivery(delivery)
        )

    def find_deliveries(
        self,
        *,
        run: str | None = None,
        by: str | None = None,
        session: str | None = None,
        state: Sequence[Delivered] | None = None,
        answers: bool | None = None,
        uncleared: bool = False,
        limit: int | None = None,
    ) -> list[Delivery]:
        matches = [
            each
            for each in (self._deliveries | self.changed_deliveries).values()
            if (run is None or each.run == run_rows.replace_surrogates(run))
            and (by is None or each.by == run_rows.replace_surrogates(by))
            and (session is None or each.session == run_rows.replace_surrogates(session))
            and (state is None or each.state in state)
            and (answers is None or each.answers is answers)
            and (not uncleared or deliveries.has_removable_session(each))
        ]
        matches.sort(key=lambda each: each.id)
        return matches if limit is None else matches[: max(0, limit)]

    def get_approval(self, approval_id: str) -> Approval | None:
        return (self._approvals | self.changed_approvals).get(approval_id)

    def add_approval(self, approval: Approval) -> None:
        if self.get_approval(approval.id) is not None:
            raise Failed(f"approval {approval.id} is already in the ledger")
        self.changed_approvals[approval.id] = approvals.decode_approval(approvals.encode_approval(approval))

    def update_approval(self, approval: Approval) -> None:
        if self.get_approval(approval.id) is None:
            raise NotFound(f"there is no approval {approval.id}")
        self.changed_approvals[approval.id] = approvals.decode_approval(approvals.encode_approval(approval))

    def find_approvals(
        self,
        *,
        run: str | None = None,
        call: str | None = None,
        state: Sequence[ApprovalState] | None = None,
        prefix: str | None = None,
    ) -> list[Approval]:
        matches = (
            each
            for each in (self._approvals | self.changed_approvals).values()
            if (run is None or each.run == run_rows.replace_surrogates(run))
            and (call is None or each.call == run_rows.replace_surrogates(call))
            and (state is None or each.state in state)
            and (prefix is None or each.id.startswith(run_rows.replace_surrogates(prefix)))
        )
        return sorted(matches, key=lambda each: each.id)

    def get_side_effect(self, call_id: str) -> SideEffect | None:
        return self.changed_side_effects.get(call_id) or self._side_effects.get(call_id)

    def save_side_effect(self, side_effect: SideEffect) -> None:
        self.changed_side_effects[side_effect.call] = side_effects.decode_side_effect(
            side_effects.encode_side_effect(side_effect)
        )

    def find_side_effects(self, run_id: str) -> list[SideEffect]:
        matches = [
            each for each in (self._side_effects | self.changed_side_effects).values() if each.run == run_id
        ]
        return sorted(matches, key=lambda each: each.call)

    def save_watch(self, watch: Watch) -> None:
        self.changed_watches.watches[watch.id] = watches.decode_watch(watches.encode_record(watch))

    def find_watches(
        self, *, session: str | None = None, watcher: str | None = None, on: bool | None = None
    ) -> list[Watch]:
        return [
            each
            for each in self.changed_watches.all_watches()
            if (session is None or each.session == run_rows.replace_surrogates(session))
            and (watcher is None or each.watcher == run_rows.replace_surrogates(watcher))
            and (on is None or each.on is on)
        ]

    def save_interjection(self, interjection: Interjection) -> None:
        self.changed_watches.interjections[interjection.id] = watches.decode_interjection(
            watches.encode_record(interjection)
        )

    def find_interjections(
        self,
        *,
        session: str | None = None,
        call: str | None = None,
        run: str | None = None,
        open_: bool | None = None,
        prefix: str = "",
        limit: int | None = None,
    ) -> list[Interjection]:
        matches = [
            each
            for each in self.changed_watches.all_interjections()
            if (session is None or each.session == run_rows.replace_surrogates(session))
            and (call is None or each.call == run_rows.replace_surrogates(call))
            and (run is None or each.run == run_rows.replace_surrogates(run))
            and (open_ is None or each.open is open_)
            and each.id.startswith(run_rows.replace_surrogates(prefix))
        ]
        return matches if limit is None else matches[max(0, len(matches) - max(0, limit)) :]

    def emit(self, event: Event) -> None:
        seq = len(self._events) + len(self.emitted_events) + 1
        self.emitted_events.append(
            run_rows.event_from_row(
                seq, run_rows.EventRow._make(run_rows.replace_surrogates_in_row(run_rows.event_row(event)))
            )
        )

    def find_events(self, *, after: int = 0, session: str | None = None, limit: int = 1000) -> list[Event]:
        matches = [
            event
            for event in (*self._events, *self.emitted_events)
            if event.seq > after
            and (session is None or event.session == run_rows.replace_surrogates(session))
        ]
        return matches[: max(0, limit)]

    def last_seq(self) -> int:
        return len(self._events) + len(self.emitted_events)

    def _find_run(self, run_id: str) -> Run | None:
        return self.changed_runs.get(run_id) or self._runs.get(run_id)

    def _run_id_by_key(self, request_key: str) -> str | None:
        return next((run.id for run in self._all_runs() if run.request.key == request_key), None)

    def _all_runs(self) -> Iterable[Run]:
        return (self._runs | self.changed_runs).values()

    def _with_children(self, runs: Sequence[Run]) -> list[Run]:
        children: dict[str, list[str]] = {run.id: [] for run in runs}
        child_runs = [run for run in self._all_runs() if run.request.parent_run in children]
        for run in sorted(child_runs, key=_creation_order):
            children[run.request.parent_run or ""].append(run.id)
        return [replace(run, child_ids=tuple(children[run.id])) for run in runs]


class ReadOnlyMemoryTransaction(MemoryTransaction):
    """A transaction for reading only."""

    def add_run(self, run: Run) -> None:
        raise TypeError(f"a look only reads: use do to add run {run.id}")

    def update_run(self, run: Run) -> None:
        raise TypeError(f"a look only reads: use do to change run {run.id}")

    def add_approval(self, approval: Approval) -> None:
        raise TypeError(f"a look only reads: use do to add approval {approval.id}")

    def update_approval(self, approval: Approval) -> None:
        raise TypeError(f"a look only reads: use do to change approval {approval.id}")

    def add_delivery(self, delivery: Delivery) -> None:
        raise TypeError(f"a look only reads: use do to add delivery {delivery.id}")

    def update_delivery(self, delivery: Delivery) -> None:
        raise TypeError(f"a look only reads: use do to change delivery {delivery.id}")

    def save_side_effect(self, side_effect: SideEffect) -> None:
        raise TypeError(f"a look only reads: use do to change the deed of {side_effect.call}")

    def save_watch(self, watch: Watch) -> None:
        raise TypeError(f"a look only reads: use do to change the watch {watch.id}")

    def save_interjection(self, interjection: Interjection) -> None:
        raise TypeError(f"a look only reads: use do to change the interjection {interjection.id}")

    def emit(self, event: Event) -> None:
        raise TypeError(f"a look only reads: use do to emit {event.kind}")


def _round_trip(run: Run) -> Run:
    """Return the run as the database would return it."""
    return run_rows.run_from_row(
        run_rows.RunRow._make(run_rows.replace_surrogates_in_row(run_rows.run_row(run)))
    )


def _creation_order(run: Run) -> tuple[int, str]:
    return run_rows.to_microseconds(run.created_at), run.id
