"""Turn, tools, save, again: the loop of every run."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice
from types import TracebackType

from retinue.domain.change import replace
from retinue.domain.model_turn import Stop
from retinue.domain.run import Reason, Run, Status
from retinue.domain.session import Born, Session
from retinue.domain.transcript import Called, Entry, Returned, Said, dangling
from retinue.errors import Cancelled, Held, NotFound, RetinueError
from retinue.interfaces import Conversation, Ports
from retinue.runtime import cli_agents, side_effects
from retinue.runtime.approvals import Parked, ask_key
from retinue.runtime.deadlines import Deadline
from retinue.runtime.disk_full import Room
from retinue.runtime.exit_tools import Leaving, aside, bound, leave
from retinue.runtime.loop_detection import Patience
from retinue.runtime.loop_result import Outcome, failure
from retinue.runtime.model_turn import CANCELLED, Speaking
from retinue.runtime.recovery import at_rest, conclusion, recounted, unanswered
from retinue.runtime.run_context import Desk
from retinue.runtime.run_control import desert, left
from retinue.runtime.run_creation import WAKE
from retinue.runtime.run_end import end, heard, let_go, news, unasked
from retinue.runtime.run_plan import Plan, prepare
from retinue.runtime.suspension import keep_counts, parked
from retinue.runtime.tool_calls import Calling
from retinue.runtime.turn_timer import Interruptions, Stopwatch, Struck

RESUMED = "A task given above was interrupted, and other things were said since. Go on with it now: {task}"
TORN = "the end of the file was cut short by a crash; it was never acknowledged and is kept as {where}"
STOPPED = "the run was stopped before this call was answered"
INTERRUPTED_NOTE = "interrupted: it sums up what it has come to"
INTERRUPTED = "the run was interrupted before this call was answered"
COUNTS_SECONDS = 1.0
RECENT = 200
PATIENCE = 20
MOMENT_SECONDS = 0.05


async def work(run_id: str, ports: Ports, interruptions: Interruptions, *, born: Born | None = None) -> bool:
    """Works a claimed run to its end, or until nothing of it can go on without a person or a child: then True, and its
    slot is free. A process that dies in here leaves a file to go on from."""
    while (stands := await _worked(run_id, ports, interruptions, born)) is None:
        born = None
    return stands


async def _worked(run_id: str, ports: Ports, interruptions: Interruptions, born: Born | None) -> bool | None:
    """None: there is more to do, because something came in the moment it would have waited or ended."""
    run = born[0] if born else await ports.ledger.look(lambda tx: tx.run(run_id))
    if run is None:
        raise NotFound(f"there is no run {run_id}")
    this = _Work(run, ports, born[1] if born else None)
    try:
        with interruptions.reaching(run_id, this.interrupted):
            outcome = await this.done()
    except Parked as stands:
        try:
            return await parked(this.run, this.ports, stands.question) or None
        except Cancelled as error:
            await left(this.run, ports)
            outcome = failure(error)
    except asyncio.CancelledError:
        await keep_counts(this.run, ports)
        raise
    except RetinueError as error:
        outcome = failure(error)
    if outcome.waiting_for is not None:
        return await aside(this.run, outcome.waiting_for, this.ports) or None
    return await _ended(this.run, outcome, this.ports)


async def _ended(run: Run, outcome: Outcome, ports: Ports) -> bool | None:
    if run.exit and outcome.status is Status.DONE:
        await leave(run, ports)
        return False
    ended = await end(run, outcome.status, ports, reason=outcome.reason, error=outcome.error)
    if ended.status.live:
        return True if ended.status is Status.WAITING else None
    await desert(ended, ports)
    return False


async def broken(run_id: str, error: BaseException, ports: Ports) -> None:
    """The engine's last word on a run whose work did not end by itself."""
    run = await ports.ledger.look(lambda tx: tx.run(run_id))
    if run is not None:
        outcome = failure(error)
        await desert(await end(run, outcome.status, ports, reason=outcome.reason, error=outcome.error), ports)


class _Work:
    """One run being worked, from where its file stands."""

    def __init__(self, run: Run, ports: Ports, place: Session | None) -> None:
        self.place = place
        """Where a run was asked for that was born a moment ago; None: it may have been worked before."""
        self.room = Room(
            run,
            ports,
            stopped=lambda: self.deadline.stopped(),  # noqa: PLW0108  (it is not there yet)
            went_on=lambda waited: self.deadline.went_on(waited),  # noqa: PLW0108  (the same)
        )
        self.ports = self.room.ports
        self.desk = Desk(run, self.ports)
        self.deadline = Deadline(self.desk)
        self.watch = Stopwatch()
        self.patience = Patience(ports.limits)
        self.speaking = Speaking(self.desk, self.watch)
        self.calling = Calling(self.desk, self.patience)
        self.leaving: Leaving | None = None
        """The way out of an agent whose definition names exits; any other ends by its last word."""
        self.kept_at = ports.chance.now()
        self.expects = run.ask.source == WAKE
        """Whether announcements may come: somebody of this conversation has asked others."""
        if run.reason is Reason.INTERRUPTED:
            self.interrupted()

    @property
    def run(self) -> Run:
        return self.desk.run

    def interrupted(self) -> None:
        """A person wants to hear what it has come to, and no more. They may say so often."""
        if not self.watch.struck:
            self.watch.strike()
            self.desk.tell("run.state", phase="wait", note=INTERRUPTED_NOTE)

    async def done(self) -> Outcome:
        async with _Seat(self) as talk:
            if talk.torn:
                self.desk.tell("run.state", phase="wait", note=TORN.format(where=talk.torn), torn=talk.torn)
            try:
                with self.deadline:
                    return await self._conversed(talk)
            finally:
                if not self._dying() and not isinstance(sys.exception(), Parked):
                    with self.room.hurried():
                        await self._left(talk)

    def _dying(self) -> bool:
        """The process is ending and nobody stopped this run: it is left as it stands, to be taken up again."""
        stopping = isinstance(sys.exception(), asyncio.CancelledError)
        return stopping and not self.ports.engine.cancelled(self.run.id)

    async def _conversed(self, talk: Conversation) -> Outcome:
        plan = await self._planned(talk)
        anew = self.place is None
        cut_off = anew and (self.run.attempts > 1 or (not self.run.turns and _stands(self.run.id, talk)))
        begun = cut_off or self.run.turns > 0
        earlier = await talk.earlier(self.run.id) if begun else ()
        entries = _all(earlier, talk)
        run = recounted(self.run, entries) if begun else self.run
        made = (
            await side_effects.made(run.id, plan.agent.exits or (), entries, self.ports) if run.turns else 0
        )
        self.desk.run = replace(run, made=made, scope_hash=plan.scope_hash, model=plan.model.full)
        self.leaving = Leaving(self.desk, plan, earlier) if plan.agent.exits else None
        self.expects = self.expects or bool(talk.entries)
        await self._asked(talk)
        if begun:
            self.desk.added_last = False  # the task was there before, and nobody has looked at the file
            self.patience.recall(entries, run.id)
            await self._unasked(talk)
        await self._news(talk)
        if run.ask.source == WAKE and not any(entry.run == run.id for entry in talk.entries):
            return Outcome(status=Status.DONE)  # somebody else has heard it meanwhile
        if outcome := await self._again(talk, plan, earlier, cut_off=cut_off):
            return outcome
        if cli_agents.acts(plan):
            await cli_agents.doubts(talk, self.desk)
            plan = await cli_agents.engaged(plan, self.desk, talk.session)
            self.desk.added_last = False
        while True:
            # What was added a moment ago was added to the file as it stands: there is nothing to look for.
            if not self.desk.added_last and await talk.refresh():
                self.desk.tell("session.changed", what="file")
            self.desk.added_last = False
            await self._news(talk)
            if self.watch.struck:
                await self.speaking.summed_up(talk, plan)
                return Outcome(status=Status.CANCELLED, reason=Reason.INTERRUPTED, error="interrupted")
            try:
                reply = await self.speaking.turn(talk, plan)
            except Struck:
                await self.speaking.kept(talk)
                continue
            said, calls = await self.speaking.saved(reply, talk)
            if outcome := await self._over(said, calls, talk, plan) or await self._called(calls, talk, plan):
                return outcome

    async def _planned(self, talk: Conversation) -> Plan:
        """What the definition says of clocks and exits counts from here. A run that no agent asked for may talk as long
        as it likes: a person looks on."""
        plan = await prepare(self.run, talk.session, self.ports, talk.memo)
        own = plan.agent.limits
        if self.run.depth:
            self.watch.idle_seconds = own.get("idle_seconds", self.ports.limits.idle_seconds) or None
        await self.deadline.named(own.get("deadline_seconds"))
        return bound(plan, self.ports) if plan.agent.exits else plan

    async def _again(
        self, talk: Conversation, plan: Plan, earlier: Sequence[Entry], *, cut_off: bool
    ) -> Outcome | None:
        """What was begun and not finished: a last word that ended it, calls without a result, a task that others have
        talked over since."""
        struck = self.watch.struck
        if self.leaving is not None and (outcome := await self.leaving.again(talk, struck=struck)):
            return outcome
        said = conclusion(self.run, _all(earlier, talk)) if self.run.turns and not struck else None
        if said and (outcome := await self._over(said, _open(talk, self.run), talk, plan)):
            return outcome
        again, lost = unanswered(talk.entries, self.run)
        if struck:
            again, given_up = await self._worth_hearing(again)
            lost += given_up
        if lost:
            await self.desk.add(talk, *lost)
        if outcome := await self._called(again, talk, plan, begun=True):
            return outcome
        if cut_off and at_rest(talk.entries):
            await self.desk.add(talk, self.desk.notice("resumed", RESUMED.format(task=self.run.ask.task)))
        return None

    async def _worth_hearing(self, calls: Sequence[Called]) -> tuple[list[Called], list[Returned]]:
        """Of a run that is interrupted only those calls are made again that have started somebody: what they came to is
        heard. The others are given up."""
        keys = {call.id: ask_key(self.run.id, call.id) for call in calls}
        asked = await self.ports.ledger.look(
            lambda tx: {each for each, key in keys.items() if tx.run_by_key(key) is not None}
        )
        given_up = [call for call in calls if call.id not in asked]
        return (
            [call for call in calls if call.id in asked],
            [self.desk.returned(call, f"No result: {INTERRUPTED}.") for call in given_up],
        )

    async def _kept(self) -> None:
        """Whoever looks at a live run sees its counts, not much older than this."""
        now = self.ports.chance.now()
        if (now - self.kept_at).total_seconds() >= COUNTS_SECONDS:
            self.kept_at = now
            await keep_counts(self.run, self.ports)

    async def _news(self, talk: Conversation) -> None:
        """What was announced stands in the file before it counts as delivered: once, by its own id."""
        if not self.expects:
            return
        self.expects = False
        if found := await self.ports.ledger.look(lambda tx: news(self.run, tx)):
            notices = (self.desk.notice("announcement", each.text) for each in found)
            pairs = zip(notices, found, strict=True)
            try:
                await self.desk.add(talk, *(replace(notice, id=each.id) for notice, each in pairs))
            finally:
                # Also when the run is stopped meanwhile: what stands in the file was heard.
                if any(entry.id == found[-1].id for entry in reversed(talk.entries)):
                    await heard(found, self.ports)

    async def _unasked(self, talk: Conversation) -> None:
        """A person may have taken a call out of the file that others work for, and somebody else may have answered one
        while nobody worked the run: they are heard all the same."""
        run = self.run
        calls = [called.id for called in dangling(talk.entries) if called.run == run.id]
        own = {called.id for called in talk.entries if isinstance(called, Called) and called.run == run.id}
        lost = [
            each.of
            for each in talk.entries
            if isinstance(each, Returned) and each.of in own and each.run != run.id
        ]
        if lost or await self.ports.ledger.look(lambda tx: unasked(run, tx, still_open=calls)):
            await self.ports.ledger.do(lambda tx: let_go(run, tx, self.ports, still_open=calls, lost=lost))

    async def _asked(self, talk: Conversation) -> None:
        """The task stands in the file before any request: the request is built from the file."""
        run = self.run
        if run.ask.source == WAKE:
            return
        task = Said(
            id=run.id,
            by="user",
            text=run.ask.task or "",
            at=self.desk.at(),
            origin="" if run.ask.requester == "person" else run.ask.requester,
            run=run.id,
        )
        if run.ask.typed:
            if talk.typed().strip() and not run.turns:
                await talk.take_typed(task)
                self.desk.saved(talk.entries[-1])  # under the id of the line that it was typed below
        else:
            # The ledger has it too, on disk, and whoever resumes the run puts it there again.
            await self.desk.add(talk, task, sync=False)

    async def _over(
        self, said: Said, calls: Sequence[Called], talk: Conversation, plan: Plan
    ) -> Outcome | None:
        """Whether the run has ended, and how. A reply that calls tools never ends it."""
        if said.stop == Stop.REFUSED:
            return Outcome(status=Status.FAILED, reason=Reason.REFUSED, error="the model refused to answer")
        if self.leaving is not None:
            return await self.leaving.over(said, calls, talk)
        if plan.agent.max_turns is not None and self.run.turns >= plan.agent.max_turns and said.calls:
            await self.desk.add(talk, *self.desk.unmade(talk, "the agent's turn limit was reached"))
            error = f"{self.run.agent} may take {plan.agent.max_turns} turns, and they are taken"
            return Outcome(status=Status.FAILED, reason=Reason.TURN_LIMIT, error=error)
        if said.calls or said.stop == CANCELLED:
            return None
        if said.text.strip():
            return Outcome(status=Status.DONE)
        await self.desk.add(talk, self.desk.notice("nudge", self.patience.with_silence()))
        return None

    async def _called(
        self, calls: Sequence[Called], talk: Conversation, plan: Plan, *, begun: bool = False
    ) -> Outcome | None:
        """The calls of one reply; an outcome if one of them ended the run. Whoever was interrupted begins none."""
        if self.watch.struck and not begun:
            if unmade := self.desk.unmade(talk, INTERRUPTED):
                await self.desk.add(talk, *unmade)
        elif calls:
            self.expects = True
            await self._kept()
            if self.leaving is not None:
                return await self.leaving.called(calls, talk, self.calling)
            await self.calling.made(calls, talk, plan, begun=begun)
        return None

    async def _left(self, talk: Conversation) -> None:
        """Whatever ended the work: words already heard are kept, and the file is left ready for a person."""
        try:
            await self.speaking.kept(talk)
            if unmade := self.desk.unmade(talk, STOPPED):
                await self.desk.add(talk, *await side_effects.honest(unmade, self.ports))
            await talk.rest()
        except RetinueError:
            return  # a full disk, a file a person broke: how the run ended is known, and what is on disk stays as it is


class _Seat:
    """The conversation of a run, held for as long as the run is worked."""

    __slots__ = ("_opening", "_work")

    def __init__(self, work: _Work) -> None:
        self._work = work
        self._opening: AbstractAsyncContextManager[Conversation] | None = None

    async def __aenter__(self) -> Conversation:
        work = self._work
        if work.place is not None:
            try:
                return await self._opened(work.place)
            except NotFound:
                pass  # it was moved since somebody found it
        session = await _place(work.run, work.ports)
        work.desk.run = replace(work.run, path=f"{session.path}/session.md")
        return await self._opened(session)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._opening is None else await self._opening.__aexit__(kind, error, trace)

    async def _opened(self, session: Session) -> Conversation:
        """The ledger gave us the session, so whoever else holds its folder only looks into it: worth a moment."""
        tries = PATIENCE
        while True:
            opening = self._work.ports.store.open(session)
            try:
                talk = await opening.__aenter__()
            except Held:
                if not tries:
                    raise
                tries -= 1
                await asyncio.sleep(MOMENT_SECONDS)
                continue
            self._opening = opening
            return talk


async def _place(run: Run, ports: Ports) -> Session:
    """Where the run was asked for: a copy of a folder is its own conversation, though it has the same id.
    A folder that moved meanwhile is found by its id."""
    try:
        return await ports.store.find(run.path)
    except RetinueError:
        return await ports.store.find(run.session_id)


def _open(talk: Conversation, run: Run) -> list[Called]:
    """The run's calls without a result."""
    return [call for call in dangling(talk.entries) if call.run == run.id]


def _stands(entry_id: str, talk: Conversation) -> bool:
    """Whether a task was put into the file before: it is among the last entries, if it is there."""
    return any(entry.id == entry_id for entry in islice(reversed(talk.entries), RECENT))


def _all(earlier: Sequence[Entry], talk: Conversation) -> Sequence[Entry]:
    return [*earlier, *talk.entries] if earlier else talk.entries
