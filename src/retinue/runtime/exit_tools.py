"""How an agent with exits ends its run: by calling one of them, and not by falling silent. The counts stand in the
transcript, so that a run taken up again goes on with them."""

from collections.abc import Sequence

from retinue.domain import exit_tools
from retinue.domain.agent import Agent
from retinue.domain.change import replace
from retinue.domain.run import Run, Status, Waiting
from retinue.domain.transcript import Called, Entry, Returned, Said
from retinue.errors import Refused, Usage
from retinue.interfaces import Conversation, Ports, Tx
from retinue.runtime.loop_result import Outcome
from retinue.runtime.model_turn import CANCELLED
from retinue.runtime.run_context import Desk
from retinue.runtime.run_creation import LIVE, wake
from retinue.runtime.run_end import Stirred, closed, news
from retinue.runtime.run_events import told
from retinue.runtime.run_plan import Plan
from retinue.runtime.suspension import counted
from retinue.runtime.tool_calls import Calling
from retinue.runtime.tool_executor import verdict

FOR_A_PERSON = Outcome(status=Status.WAITING, waiting_for=Waiting.PERSON)
FOR_OTHERS = Outcome(status=Status.WAITING, waiting_for=Waiting.CHILD)
NOT_RUN = "This call did not run: {exit} before it ended the run."
TURN_LIMIT = "the agent's turn limit was reached"
TOO_MANY = "Changes were asked for {n} times in this conversation: a person decides how to go on."
LEFT_OPEN = "The run ends here with your question. The answer comes as the next message."


def known(agent: Agent, ports: Ports) -> None:
    """Every exit that a definition names must be a tool that there is."""
    for name in agent.exits or ():
        if name not in ports.tools:
            there_are = ", ".join(sorted((*exit_tools.EXITS, exit_tools.QUESTION)))
            raise Usage(
                f"{agent.name} names the exit {name!r}, and there is no such tool: name {there_are}, or a tool of yours"
            )


def bound(plan: Plan, ports: Ports) -> Plan:
    """The plan of an agent with exits: they are there, and the prompt names them."""
    known(plan.agent, ports)
    named = plan.agent.exits or ()
    denied = {
        name: judged.rule for name in named if not (judged := verdict(ports.tools[name], plan.scope)).ok
    }
    if len(denied) == len(named):
        why = ", ".join(f"{name}: {rule}" for name, rule in denied.items())
        raise Refused(f"{plan.agent.name} could never end its run: none of its exits is allowed ({why})")
    left = [name for name in named if name not in denied]
    return replace(plan, system=f"{plan.system}\n\n{exit_tools.section(left)}".strip())


class Leaving:
    """One run's way out."""

    def __init__(self, desk: Desk, plan: Plan, earlier: Sequence[Entry]) -> None:
        self._desk = desk
        self._plan = plan
        self._exits = plan.agent.exits or ()
        self._earlier = earlier
        """The run's entries that stand before those held."""

    async def again(self, talk: Conversation, *, struck: bool) -> Outcome | None:
        """What a run that is taken up again had come to: it has left already, or waits for a person, unless that person
        has interrupted it, or typed into the file how to go on."""
        entries = self._all(talk)
        if exit_tools.parked(self._desk.run.id, entries) and not struck:
            if not (typed := talk.typed()).strip():
                return FOR_A_PERSON
            await talk.take_typed(self._desk.heard(typed))
            self._desk.saved(talk.entries[-1])
            return None
        if (left := exit_tools.left_by(self._desk.run.id, self._exits, entries)) is None:
            return None
        await self._desk.add(talk, *self._desk.unmade(talk, f"{left[0].tool} had ended the run"))
        return self._left(*left)

    async def over(self, said: Said, calls: Sequence[Called], talk: Conversation) -> Outcome | None:
        """Words do not end it: it is sent back to work a few times, and then a person must say how to go on."""
        run, most = self._desk.run, self._plan.agent.max_turns
        spent = most is not None and run.turns >= most and exit_tools.turns(run.id, self._all(talk)) >= most
        if spent and not any(call.tool in self._exits for call in calls):
            unmade = self._desk.unmade(talk, TURN_LIMIT)
            return await self._parked(talk, f"it has taken its {most} turns without an exit", unmade)
        if said.calls or said.stop == CANCELLED:
            return None
        if await self._desk.ports.ledger.look(lambda tx: _others(run, tx)):
            return FOR_OTHERS
        if (sent := exit_tools.nudges(run.id, self._all(talk))) >= exit_tools.MAX_NUDGES:
            return await self._parked(talk, f"it was sent back to work {sent} times and called no exit")
        text = exit_tools.SENT_BACK.format(exits=", ".join(self._exits))
        await self._desk.add(talk, self._desk.notice(exit_tools.NUDGE, text))
        return None

    async def called(self, calls: Sequence[Called], talk: Conversation, calling: Calling) -> Outcome | None:
        """What stands before an exit is done first; what stands after it is not done at all."""
        rest = list(calls)
        while rest:
            at = next((at for at, call in enumerate(rest) if call.tool in self._exits), len(rest))
            if rest[:at]:
                await calling.made(rest[:at], talk, self._plan)
            if at == len(rest):
                break
            leaving, rest = rest[at], rest[at + 1 :]
            if outcome := await self._tried(leaving, rest, talk, calling):
                return outcome
        return None

    async def _tried(
        self, leaving: Called, rest: Sequence[Called], talk: Conversation, calling: Calling
    ) -> Outcome | None:
        """None: the call was refused, and the run goes on."""
        desk = self._desk
        unmade = [desk.returned(call, NOT_RUN.format(exit=leaving.tool)) for call in rest]
        if (
            leaving.tool == exit_tools.CHANGES
            and (asked := exit_tools.changes(talk.entries)) >= exit_tools.MAX_CHANGES
        ):
            refused = desk.returned(leaving, TOO_MANY.format(n=asked))
            return await self._parked(talk, f"changes were asked for {asked} times", [refused, *unmade])
        ports = replace(desk.ports, ask=_left_open)
        returned = await calling.alone(leaving, talk, self._plan, ports=ports, then=unmade)
        return self._left(leaving, returned) if returned.ok else None

    def _left(self, leaving: Called, returned: Returned) -> Outcome:
        run = self._desk.run
        text = exit_tools.words(leaving, returned) or run.text
        self._desk.run = replace(run, exit=leaving.tool, text=text)
        return Outcome(status=Status.DONE)

    async def _parked(self, talk: Conversation, why: str, before: Sequence[Entry] = ()) -> Outcome:
        stands = self._desk.notice(exit_tools.PARKED, exit_tools.STANDS.format(why=why))
        await self._desk.add(talk, *before, stands)
        return FOR_A_PERSON

    def _all(self, talk: Conversation) -> Sequence[Entry]:
        return [*self._earlier, *talk.entries] if self._earlier else talk.entries


async def _left_open(_question: str, _options: Sequence[str]) -> str:
    return LEFT_OPEN


def _others(run: Run, tx: Tx) -> bool:
    """Whether somebody is at work for it, or has left it something to hear."""
    return tx.at_work_for(run.id) or bool(news(run, tx, limit=1))


async def aside(run: Run, waiting_for: Waiting, ports: Ports) -> bool:
    """Whether it stands aside. Not if something came meanwhile, or those it would wait for have gone."""

    def step(tx: Tx) -> bool:
        now = tx.run(run.id)
        if now is None or now.status is not Status.RUNNING:
            return True
        row = counted(now, run)
        if news(row, tx, limit=1):
            return False
        others = waiting_for is Waiting.CHILD
        if others and not tx.at_work_for(run.id):
            return False
        waiting = row.waits(waiting_for, aside=True, until=row.deadline_at if others else None)
        tx.set_run(waiting)
        tx.emit(told("run.state", waiting, ports, phase=str(waiting_for)))
        return True

    return await ports.ledger.do(step)


async def leave(run: Run, ports: Ports) -> Run:
    """The end by an exit, at once: those it asked go on. What they say then, and what it has not heard, wakes its
    conversation."""
    stirred = Stirred()

    def step(tx: Tx) -> Run:
        stirred.runs.clear()
        now = tx.run(run.id)
        if now is None or now.status.final:
            return now or run
        row = replace(counted(now, run), exit=run.exit, text=ports.redact(run.text))
        ended = closed(row, Status.DONE, tx, ports, stirred)
        unheard = news(ended, tx, limit=1)
        if unheard and not tx.runs(session=ended.session_id, status=LIVE, limit=1):
            stirred.runs.append(wake(ended, unheard[0].id, tx, ports))
        return ended

    return await ports.ledger.do(step, lambda _: stirred.submit(ports))
