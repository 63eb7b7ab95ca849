"""Turn, tools, save, again: the loop of every run."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from retinue.domain.prompt import abridged
from retinue.domain.run import Reason, Run, Status, iso_seconds
from retinue.domain.session import Session
from retinue.domain.transcript import Called, Entry, Notice, Returned, Said
from retinue.domain.turn import Reply, Request, Stop, Wish
from retinue.errors import Held, NotFound, RetinueError, TimedOut
from retinue.ports import Conversation, Ports
from retinue.runtime import guard
from retinue.runtime.announce import end, heard, news
from retinue.runtime.approve import Caller, Parked
from retinue.runtime.control import desert
from retinue.runtime.hearing import Hearing
from retinue.runtime.outcome import Outcome, failure
from retinue.runtime.patience import Patience
from retinue.runtime.prepare import Plan, prepare
from retinue.runtime.recover import at_rest, conclusion, recounted, unanswered
from retinue.runtime.send import WAKE
from retinue.runtime.standing import keep_counts, parked
from retinue.runtime.telling import told

CANCELLED = "cancelled"
"""How an entry ends whose words were cut off."""
RESUMED = "A task given above was interrupted, and other things were said since. Go on with it now: {task}"
UNSPOKEN = "its arguments hold a secret, or what looks like one, and none is kept or passed on: leave it out"
TORN = "the end of the file was cut short by a crash; it was never acknowledged and is kept as {where}"
COUNTS_SECONDS = 1.0
PATIENCE = 20
MOMENT_SECONDS = 0.05


async def work(run_id: str, ports: Ports) -> bool:
    """Works a claimed run to its end, or until nothing of it can go on without a person or a child: then True, and its
    slot is free. A process that dies in here leaves a file to go on from."""
    while (stands := await _worked(run_id, ports)) is None:
        pass
    return stands


async def _worked(run_id: str, ports: Ports) -> bool | None:
    """None: there is more to do, because something came in the moment it would have waited or ended."""
    run = await ports.ledger.look(lambda tx: tx.run(run_id))
    if run is None:
        raise NotFound(f"there is no run {run_id}")
    this = _Work(run, ports)
    try:
        outcome = await this.done()
    except Parked:
        return await parked(this.run, ports) or None
    except asyncio.CancelledError:
        await keep_counts(this.run, ports)
        raise
    except RetinueError as error:
        outcome = failure(error)
    ended = await end(this.run, outcome.status, ports, reason=outcome.reason, error=outcome.error)
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
    """One run being worked: its counts, and what was heard of a reply that is not finished."""

    def __init__(self, run: Run, ports: Ports) -> None:
        self.run = run
        self.ports = ports
        self.hearing = Hearing(ports.redact, self._tell)
        self.patience = Patience(ports.limits)
        self.kept_at = ports.chance.now()
        self.parked = False
        self.expects = run.ask.source == WAKE
        """Whether announcements may come: somebody of this conversation has asked others."""

    async def done(self) -> Outcome:
        session = await _place(self.run, self.ports)
        async with AsyncExitStack() as stack:
            talk = await self._opened(session, stack)
            if talk.torn:
                self._tell("run.state", phase="wait", note=TORN.format(where=talk.torn), torn=talk.torn)
            clock = asyncio.timeout(self._seconds_left())
            try:
                async with clock:
                    return await self._conversed(talk)
            except TimeoutError as error:
                if not clock.expired():
                    raise
                raise TimedOut(f"the deadline passed: {self._deadline()}") from error
            finally:
                if not self._dying() and not self.parked:
                    await self._left(talk)

    async def _opened(self, session: Session, stack: AsyncExitStack) -> Conversation:
        """The ledger gave us the session, so whoever else holds its folder only looks into it: worth a moment."""
        for _ in range(PATIENCE):
            with suppress(Held):
                return await stack.enter_async_context(self.ports.store.open(session))
            await asyncio.sleep(MOMENT_SECONDS)
        return await stack.enter_async_context(self.ports.store.open(session))

    def _dying(self) -> bool:
        """The process is ending and nobody stopped this run: it is left as it stands, to be taken up again."""
        stopping = isinstance(sys.exception(), asyncio.CancelledError)
        return stopping and not self.ports.engine.cancelled(self.run.id)

    async def _conversed(self, talk: Conversation) -> Outcome:
        plan = await prepare(self.run, talk.session, self.ports)
        earlier = await talk.earlier(self.run.id) if self.run.attempts > 1 or self.run.turns else ()
        run = recounted(self.run, _all(earlier, talk))
        self.run = replace(run, scope_hash=plan.scope.hash, model=plan.model.full)
        self.expects = self.expects or bool(talk.entries)
        await self._asked(talk)
        await self._news(talk)
        if run.ask.source == WAKE and not any(entry.run == run.id for entry in talk.entries):
            return Outcome(status=Status.DONE)  # somebody else has heard it meanwhile
        said = conclusion(self.run, _all(earlier, talk))
        if said and (outcome := await self._over(said, talk, plan)):
            return outcome
        again, lost = unanswered(talk.entries, self.run)
        if lost:
            await talk.append(*lost)
        await self._called(again, talk, plan)
        if self.run.attempts > 1 and at_rest(talk.entries):
            await talk.append(self._notice("resumed", RESUMED.format(task=self.run.ask.task)))
        while True:
            await talk.refresh()
            await self._news(talk)
            reply = await self._turn(talk, plan)
            said, calls = await self._saved(reply, talk)
            await self._kept()
            if outcome := await self._over(said, talk, plan):
                return outcome
            await self._called(calls, talk, plan)

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
            notices = (self._notice("announcement", each.text) for each in found)
            pairs = zip(notices, found, strict=True)
            await talk.append(*(replace(notice, id=each.id) for notice, each in pairs))
            await heard(found, self.ports)

    async def _asked(self, talk: Conversation) -> None:
        """The task stands in the file before any request: the request is built from the file."""
        run = self.run
        if run.ask.source == WAKE:
            return
        task = Said(
            id=run.id,
            by="user",
            text=run.ask.task or "",
            at=self._at(),
            origin="" if run.ask.requester == "person" else run.ask.requester,
            run=run.id,
        )
        if run.ask.typed:
            if talk.typed().strip() and not run.turns:
                await talk.take_typed(task)
        else:
            await talk.append(task)
        self._tell("entry.saved", entry=run.id, of="user")

    async def _turn(self, talk: Conversation, plan: Plan) -> Reply:
        self.hearing.forget()
        self._tell("run.state", phase="wait")
        request = Request(
            model=plan.model,
            agent=self.run.agent,
            system=abridged(plan.system) if talk.abridged else plan.system,
            tools=plan.tools,
            entries=talk.entries,
            memo=talk.memo,
        )
        return await self.ports.driver.turn(request, self.hearing.hear)

    async def _saved(self, reply: Reply, talk: Conversation) -> tuple[Said, list[Called]]:
        """A reply and its calls are one write: either all of it was said, or nothing."""
        chance, run, at = self.ports.chance, self.run, self._at()
        text = self.ports.redact(reply.text)
        said = Said(
            id=chance.entry_id(),
            by="agent",
            text=f"{text}\n[{reply.cut}]" if reply.cut else text,
            at=at,
            run=run.id,
            model=self.ports.redact(reply.model),
            usage=reply.usage,
            stop="" if reply.stop in (Stop.END, Stop.TOOLS) else str(reply.stop),
            calls=len(reply.wishes),
            thoughts=reply.thoughts,
        )
        calls = [self._called_for(wish, at) for wish in reply.wishes]
        try:
            await talk.append(said, *calls)
        finally:
            # Also when the run is stopped meanwhile: what stands in the file was said, and is not said again.
            if any(entry.id == said.id for entry in reversed(talk.entries)):
                self._took(said, text)
        return said, calls

    def _called_for(self, wish: Wish, at: str) -> Called:
        """A secret is never stored, and what is not stored is not done: the call would do something else."""
        args = self.ports.redact(wish.args)
        return Called(
            id=self.ports.chance.entry_id(),
            tool=self.ports.redact(wish.tool),
            args=args,
            at=at,
            run=self.run.id,
            broken=wish.broken or (UNSPOKEN if args != wish.args else ""),
        )

    def _took(self, said: Said, text: str) -> None:
        self.hearing.finish()
        model = _named(self.run.model, said.model)
        self.run = self.run.turned(said.usage, calls=said.calls, text=text, model=model)
        self._tell("entry.saved", entry=said.id, of="agent")

    async def _over(self, said: Said, talk: Conversation, plan: Plan) -> Outcome | None:
        """Whether the run has ended, and how. A reply that calls tools never ends it."""
        if said.stop == Stop.REFUSED:
            return Outcome(status=Status.FAILED, reason=Reason.REFUSED, error="the model refused to answer")
        if plan.agent.max_turns is not None and self.run.turns >= plan.agent.max_turns and said.calls:
            await talk.append(*self._unmade(talk, "the agent's turn limit was reached"))
            error = f"{self.run.agent} may take {plan.agent.max_turns} turns, and they are taken"
            return Outcome(status=Status.FAILED, reason=Reason.TURN_LIMIT, error=error)
        if said.calls or said.stop == CANCELLED:
            return None
        if said.text.strip():
            return Outcome(status=Status.DONE)
        await talk.append(self._notice("nudge", self.patience.with_silence()))
        return None

    async def _called(self, calls: Sequence[Called], talk: Conversation, plan: Plan) -> None:
        """Calls of one turn run side by side; each result is on disk before the next request."""
        if not calls:
            return
        self.expects = True
        self.patience.with_calls()
        self._tell("run.state", phase="tool", calls=len(calls), total=self.run.tool_calls)
        most = self.ports.limits.max_calls_per_turn
        if len(calls) == 1:
            await self._one(calls[0], talk, plan)
        else:
            await self._abreast(calls[:most], talk, plan)
        if rest := calls[most:]:
            note = f"This call did not run: {most} calls in one turn is the limit."
            await talk.append(*(self._returned(called, note) for called in rest))
        if self.parked:
            raise Parked
        self.patience.spent()

    async def _abreast(self, calls: Sequence[Called], talk: Conversation, plan: Plan) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for called in calls:
                    group.create_task(self._one(called, talk, plan))
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _one(self, called: Called, talk: Conversation, plan: Plan) -> None:
        self._tell("tool.started", tool=called.tool, call=called.id, args=called.args)
        if told_off := self.patience.with_call(called):
            returned = self._returned(called, told_off)
        else:
            caller = Caller(run=self.run, session=talk.session, scope=plan.scope)
            try:
                returned = await guard.call(called, caller, self.ports)
            except Parked:
                self.parked = True
                return
        if not returned.ok and not _runnable(called, self.ports):
            self.patience.with_impossible()
        await talk.append(returned)
        self._tell("entry.saved", entry=called.id, of="result")
        await talk.log_tool(called, returned)
        self._tell("tool.ended", tool=called.tool, call=called.id, ok=returned.ok, ms=returned.ms)

    async def _left(self, talk: Conversation) -> None:
        """Whatever ended the work: words already heard are kept, and the file is left ready for a person."""
        try:
            if partial := self.hearing.partial():
                await talk.append(
                    Said(
                        id=self.ports.chance.entry_id(),
                        by="agent",
                        text=partial,
                        at=self._at(),
                        run=self.run.id,
                        stop=CANCELLED,
                    )
                )
                self.run = replace(self.run, text=partial)
            unmade = self._unmade(talk, "the run was stopped before this call was answered")
            if unmade:
                await talk.append(*unmade)
            await talk.rest()
        except RetinueError:
            return  # a full disk, a file a person broke: how the run ended is known, and what is on disk stays as it is

    def _unmade(self, talk: Conversation, why: str) -> list[Returned]:
        _, lost = unanswered(talk.entries, replace(self.run, id=""))
        return [replace(result, text=f"No result: {why}.", run=self.run.id, at=self._at()) for result in lost]

    def _returned(self, called: Called, text: str) -> Returned:
        return Returned(of=called.id, text=text, ok=False, at=self._at(), run=self.run.id)

    def _notice(self, kind: str, text: str) -> Notice:
        return Notice(id=self.ports.chance.entry_id(), kind=kind, text=text, at=self._at(), run=self.run.id)

    def _tell(self, kind: str, **data: object) -> None:
        self.ports.emit(told(kind, self.run, self.ports, **data))

    def _at(self) -> str:
        return iso_seconds(self.ports.chance.now())

    def _seconds_left(self) -> float | None:
        if self.run.deadline_at is None:
            return None
        return max(0.0, (self.run.deadline_at - self.ports.chance.now()).total_seconds())

    def _deadline(self) -> str:
        seconds = self.ports.limits.deadline(self.run.ask.deadline_seconds)
        return f"{seconds:g} s from the start, set by --timeout or limits.deadline_seconds"


async def _place(run: Run, ports: Ports) -> Session:
    """Where the run was asked for: a copy of a folder is its own conversation, though it has the same id.
    A folder that moved meanwhile is found by its id."""
    try:
        return await ports.store.find(run.path)
    except RetinueError:
        return await ports.store.find(run.session_id)


def _all(earlier: Sequence[Entry], talk: Conversation) -> Sequence[Entry]:
    return [*earlier, *talk.entries] if earlier else talk.entries


def _runnable(called: Called, ports: Ports) -> bool:
    """Whether the call could be made at all: a known tool with arguments it understands."""
    tool = ports.tools.get(called.tool)
    if tool is None or called.broken:
        return False
    try:
        tool.parse(called.args.encode("utf-8", "replace") or b"{}")
    except ValueError:
        return False
    return True


def _named(wanted: str, used: str) -> str:
    """The model really used, with the driver that spoke to it."""
    driver, _, _ = wanted.partition(":")
    return f"{driver}:{used.removeprefix(f'{driver}:')}" if used else wanted
