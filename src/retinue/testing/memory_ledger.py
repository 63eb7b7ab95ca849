"""A ledger that forgets: the same rules as the one on disk, for tests and for trying things out."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from retinue.domain.approval import Approval, State
from retinue.domain.delivery import Delivery
from retinue.domain.delivery import State as Delivered
from retinue.domain.event import Event
from retinue.domain.run import Reason, Run, Status
from retinue.domain.side_effect import Deed
from retinue.domain.watch import Interjection, Watch
from retinue.errors import Failed, NotFound
from retinue.interfaces import Tx
from retinue.ledger import approvals, deliveries, run_rows, side_effects, watches

T = TypeVar("T")


class Watching:
    """What is known of watchers; with `below`, what a step changes of that."""

    def __init__(self, below: "Watching | None" = None) -> None:
        self._below = below
        self.watches: dict[str, Watch] = {}
        self.said: dict[str, Interjection] = {}

    def take(self, changed: "Watching") -> None:
        self.watches |= changed.watches
        self.said |= changed.said

    def all_watches(self) -> list[Watch]:
        known = {} if self._below is None else self._below.watches
        return sorted((known | self.watches).values(), key=lambda each: each.id)

    def all_said(self) -> list[Interjection]:
        known = {} if self._below is None else self._below.said
        return sorted((known | self.said).values(), key=lambda each: each.id)


class MemoryLedger:
    """Steps run one at a time and whole; one that raises leaves nothing behind."""

    def __init__(self, *, listen: Callable[[Event], None] | None = None) -> None:
        self._listen = listen
        self._runs: dict[str, Run] = {}
        self._events: list[Event] = []
        self._approvals: dict[str, Approval] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._deeds: dict[str, Deed] = {}
        self._watching = Watching()
        self._closed = False

    async def do(self, step: Callable[[Tx], T], then: Callable[[T], None] | None = None) -> T:
        """Gives way once, as every durable step does, so that what must not interleave is seen interleaving."""
        self._refuse_when_closed()
        tx = MemoryTx(
            self._runs, self._events, self._approvals, self._deliveries, self._deeds, self._watching
        )
        value = step(tx)
        self._runs |= tx.changed
        self._approvals |= tx.asked
        self._deliveries |= tx.posted
        self._deeds |= tx.done
        self._watching.take(tx.watching)
        self._events += tx.emitted
        loop = asyncio.get_running_loop()
        if self._listen is not None:
            for event in tx.emitted:
                loop.call_soon(self._listen, event)
        if then is not None:
            loop.call_soon(then, value)
        await asyncio.sleep(0)
        return value

    async def look(self, step: Callable[[Tx], T]) -> T:
        self._refuse_when_closed()
        return step(
            LookingMemoryTx(
                self._runs, self._events, self._approvals, self._deliveries, self._deeds, self._watching
            )
        )

    async def close(self) -> None:
        self._closed = True

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Failed("the ledger is closed")


class MemoryTx:
    """What a step changes lies over what was there, until the step is whole."""

    def __init__(
        self,
        runs: dict[str, Run],
        events: list[Event],
        approvals: dict[str, Approval],
        deliveries: dict[str, Delivery],
        deeds: dict[str, Deed],
        watching: Watching,
    ) -> None:
        self.watching = Watching(below=watching)
        self._runs = runs
        self._deeds = deeds
        self.done: dict[str, Deed] = {}
        self._deliveries = deliveries
        self.posted: dict[str, Delivery] = {}
        self._events = events
        self._approvals = approvals
        self.asked: dict[str, Approval] = {}
        self.changed: dict[str, Run] = {}
        self.emitted: list[Event] = []

    def run(self, run_id: str, *, family: bool = False) -> Run | None:
        found = self._get(run_rows.whole(run_id))
        return self._with_children([found])[0] if found is not None and family else found

    def run_by_key(self, ask_key: str) -> Run | None:
        holder = self._holder(run_rows.whole(ask_key))
        return None if holder is None else self.run(holder)

    def add_run(self, run: Run) -> None:
        kept = _kept(run)
        if self._get(kept.id) is not None or self._holder(kept.ask.key) is not None:
            raise Failed(f"run {run.id} or its key {run.ask.key} is already in the ledger")
        self.changed[kept.id] = kept

    def set_run(self, run: Run) -> None:
        kept = _kept(run)
        if self._get(kept.id) is None:
            raise NotFound(f"there is no run {run.id}")
        if self._holder(kept.ask.key) not in (None, kept.id):
            raise Failed(f"the key {run.ask.key} of run {run.id} is another run's")
        self.changed[kept.id] = kept

    def runs(  # noqa: PLR0913  (one filter each)
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
        begun: bool | None = None,
        due: datetime | None = None,
        family: bool = False,
        limit: int | None = None,
    ) -> list[Run]:
        found = [
            run
            for run in self._all()
            if (status is None or run.status in status)
            and (session is None or run.session_id == run_rows.whole(session))
            and (root is None or run.root == run_rows.whole(root))
            and (parent_run is None or run.ask.parent_run == run_rows.whole(parent_run))
            and not (top_only and run.ask.parent_run is not None)
            and (prefix is None or run.id.startswith(run_rows.whole(prefix)))
            and (reason is None or run.reason is reason)
            and (awaited is None or run.awaited is awaited)
            and (begun is None or (run.started_at is not None) is begun)
            and (due is None or (run.wake_at is not None and run.wake_at <= due))
        ]
        found.sort(key=_age, reverse=True)
        found = found if limit is None else found[: max(0, limit)]
        return self._with_children(found) if family else found

    def at_work_for(self, run_id: str, *, awaited: bool | None = None) -> bool:
        asked = (run for run in self._all() if run.ask.parent_run == run_id and run.status.live)
        return any(awaited is None or run.awaited is awaited for run in asked)

    def holds(self, run_id: str, session: str) -> bool:
        unheard = self.deliveries(session=session, state=[Delivered.PENDING])
        return bool(self.at_work_for(run_id) or unheard or self.approvals(run=run_id, state=[State.PENDING]))

    def owners(self, status: Sequence[Status]) -> set[str]:
        return {run.owner for run in self._all() if run.status in status}

    def count(
        self, status: Status | None = None, *, root: str | None = None, requester: str | None = None
    ) -> int:
        return sum(
            (status is None or run.status is status)
            and (root is None or run.root == root)
            and (requester is None or run.ask.requester == requester)
            for run in self._all()
        )

    def delivery(self, delivery_id: str) -> Delivery | None:
        return (self._deliveries | self.posted).get(delivery_id)

    def add_delivery(self, delivery: Delivery) -> None:
        if self.delivery(delivery.id) is not None or self.deliveries(run=delivery.run):
            raise Failed(f"the end of run {delivery.run} is in the outbox already")
        self.posted[delivery.id] = deliveries.read(deliveries.written(delivery))

    def set_delivery(self, delivery: Delivery) -> None:
        if self.delivery(delivery.id) is None:
            raise NotFound(f"there is no delivery {delivery.id}")
        self.posted[delivery.id] = deliveries.read(deliveries.written(delivery))

    def deliveries(
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
        found = [
            each
            for each in (self._deliveries | self.posted).values()
            if (run is None or each.run == run_rows.whole(run))
            and (by is None or each.by == run_rows.whole(by))
            and (session is None or each.session == run_rows.whole(session))
            and (state is None or each.state in state)
            and (answers is None or each.answers is answers)
            and (not uncleared or deliveries.uncleared(each))
        ]
        found.sort(key=lambda each: each.id)
        return found if limit is None else found[: max(0, limit)]

    def approval(self, approval_id: str) -> Approval | None:
        return (self._approvals | self.asked).get(approval_id)

    def add_approval(self, approval: Approval) -> None:
        if self.approval(approval.id) is not None:
            raise Failed(f"approval {approval.id} is already in the ledger")
        self.asked[approval.id] = approvals.read(approvals.written(approval))

    def set_approval(self, approval: Approval) -> None:
        if self.approval(approval.id) is None:
            raise NotFound(f"there is no approval {approval.id}")
        self.asked[approval.id] = approvals.read(approvals.written(approval))

    def approvals(
        self,
        *,
        run: str | None = None,
        call: str | None = None,
        state: Sequence[State] | None = None,
        prefix: str | None = None,
    ) -> list[Approval]:
        found = (
            each
            for each in (self._approvals | self.asked).values()
            if (run is None or each.run == run_rows.whole(run))
            and (call is None or each.call == run_rows.whole(call))
            and (state is None or each.state in state)
            and (prefix is None or each.id.startswith(run_rows.whole(prefix)))
        )
        return sorted(found, key=lambda each: each.id)

    def deed(self, call: str) -> Deed | None:
        return self.done.get(call) or self._deeds.get(call)

    def set_deed(self, deed: Deed) -> None:
        self.done[deed.call] = side_effects.read(side_effects.written(deed))

    def deeds(self, run: str) -> list[Deed]:
        found = [each for each in (self._deeds | self.done).values() if each.run == run]
        return sorted(found, key=lambda each: each.call)

    def set_watch(self, watch: Watch) -> None:
        self.watching.watches[watch.id] = watches.read_watch(watches.written(watch))

    def watches(
        self, *, session: str | None = None, watcher: str | None = None, on: bool | None = None
    ) -> list[Watch]:
        return [
            each
            for each in self.watching.all_watches()
            if (session is None or each.session == run_rows.whole(session))
            and (watcher is None or each.watcher == run_rows.whole(watcher))
            and (on is None or each.on is on)
        ]

    def set_interjection(self, said: Interjection) -> None:
        self.watching.said[said.id] = watches.read_interjection(watches.written(said))

    def interjections(
        self,
        *,
        session: str | None = None,
        call: str | None = None,
        run: str | None = None,
        open_: bool | None = None,
        prefix: str = "",
        limit: int | None = None,
    ) -> list[Interjection]:
        found = [
            each
            for each in self.watching.all_said()
            if (session is None or each.session == run_rows.whole(session))
            and (call is None or each.call == run_rows.whole(call))
            and (run is None or each.run == run_rows.whole(run))
            and (open_ is None or each.open is open_)
            and each.id.startswith(run_rows.whole(prefix))
        ]
        return found if limit is None else found[max(0, len(found) - max(0, limit)) :]

    def emit(self, event: Event) -> None:
        seq = len(self._events) + len(self.emitted) + 1
        self.emitted.append(run_rows.event_from(seq, run_rows.whole_row(run_rows.event_row(event))))

    def events(self, *, after: int = 0, session: str | None = None, limit: int = 1000) -> list[Event]:
        found = [
            event
            for event in (*self._events, *self.emitted)
            if event.seq > after and (session is None or event.session == run_rows.whole(session))
        ]
        return found[: max(0, limit)]

    def last_seq(self) -> int:
        return len(self._events) + len(self.emitted)

    def _get(self, run_id: str) -> Run | None:
        return self.changed.get(run_id) or self._runs.get(run_id)

    def _holder(self, ask_key: str) -> str | None:
        return next((run.id for run in self._all() if run.ask.key == ask_key), None)

    def _all(self) -> Iterable[Run]:
        return (self._runs | self.changed).values()

    def _with_children(self, found: Sequence[Run]) -> list[Run]:
        children: dict[str, list[str]] = {run.id: [] for run in found}
        asked = [run for run in self._all() if run.ask.parent_run in children]
        for run in sorted(asked, key=_age):
            children[run.ask.parent_run or ""].append(run.id)
        return [replace(run, children=tuple(children[run.id])) for run in found]


class LookingMemoryTx(MemoryTx):
    """The same view, for reading only."""

    def add_run(self, run: Run) -> None:
        raise TypeError(f"a look only reads: use do to add run {run.id}")

    def set_run(self, run: Run) -> None:
        raise TypeError(f"a look only reads: use do to change run {run.id}")

    def add_approval(self, approval: Approval) -> None:
        raise TypeError(f"a look only reads: use do to add approval {approval.id}")

    def set_approval(self, approval: Approval) -> None:
        raise TypeError(f"a look only reads: use do to change approval {approval.id}")

    def add_delivery(self, delivery: Delivery) -> None:
        raise TypeError(f"a look only reads: use do to add delivery {delivery.id}")

    def set_delivery(self, delivery: Delivery) -> None:
        raise TypeError(f"a look only reads: use do to change delivery {delivery.id}")

    def set_deed(self, deed: Deed) -> None:
        raise TypeError(f"a look only reads: use do to change the deed of {deed.call}")

    def set_watch(self, watch: Watch) -> None:
        raise TypeError(f"a look only reads: use do to change the watch {watch.id}")

    def set_interjection(self, said: Interjection) -> None:
        raise TypeError(f"a look only reads: use do to change the interjection {said.id}")

    def emit(self, event: Event) -> None:
        raise TypeError(f"a look only reads: use do to emit {event.kind}")


def _kept(run: Run) -> Run:
    """As the file would give it back."""
    return run_rows.run_from(run_rows.whole_row(run_rows.facts_row(run)))


def _age(run: Run) -> tuple[int, str]:
    return run_rows.micros(run.created_at), run.id
