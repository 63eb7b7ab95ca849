"""The calls of one reply: made side by side, each result on disk before the next request."""

import asyncio
from collections.abc import Sequence

from retinue.domain.change import replace
from retinue.domain.transcript import Called, Entry, Returned
from retinue.interfaces import Conversation, Ports
from retinue.runtime import side_effects, tool_executor
from retinue.runtime.approvals import Caller, Parked
from retinue.runtime.loop_detection import Patience
from retinue.runtime.run_context import Desk
from retinue.runtime.run_plan import Plan


class Calling:
    """Makes a run's calls, with the patience that a model deserves."""

    def __init__(self, desk: Desk, patience: Patience) -> None:
        self._desk = desk
        self._patience = patience
        self.parked = False
        """A call waits for a person or for a child: it stands open, and is made again."""
        self._question = ""
        self._begun = False

    async def made(
        self, calls: Sequence[Called], talk: Conversation, plan: Plan, *, begun: bool = False
    ) -> None:
        """Parked: not all of them are answered, and they will be made again: `begun` then, and nobody is told twice."""
        self._begun = begun
        desk = self._desk
        self._patience.with_calls()
        desk.tell("run.state", phase="tool", calls=len(calls), total=desk.run.tool_calls)
        most = desk.ports.limits.max_calls_per_turn
        if len(calls) == 1:
            await self._one(calls[0], talk, plan)
        else:
            await self._abreast(calls[:most], talk, plan)
        if rest := calls[most:]:
            note = f"This call did not run: {most} calls in one turn is the limit."
            await desk.add(talk, *(desk.returned(called, note) for called in rest))
        if self.parked:
            raise Parked(self._question)
        self._patience.spent()

    async def alone(
        self, called: Called, talk: Conversation, plan: Plan, *, ports: Ports, then: Sequence[Entry]
    ) -> Returned:
        """One call that nothing else is done beside. With a good answer `then` is written in the same stroke."""
        self._patience.with_calls()
        self._desk.tell("run.state", phase="tool", calls=1, total=self._desk.run.tool_calls)
        returned = await self._one(called, talk, plan, ports=ports, then=then)
        if returned is None:
            raise Parked(self._question)
        self._patience.spent()
        return returned

    async def _abreast(self, calls: Sequence[Called], talk: Conversation, plan: Plan) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for called in calls:
                    group.create_task(self._one(called, talk, plan))
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _one(
        self,
        called: Called,
        talk: Conversation,
        plan: Plan,
        *,
        ports: Ports | None = None,
        then: Sequence[Entry] = (),
    ) -> Returned | None:
        """None: it stands open."""
        desk = self._desk
        ports = ports or desk.ports
        if not self._begun:
            desk.tell("tool.started", tool=called.tool, call=called.id, args=called.args)
        if told_off := self._patience.with_call(called):
            returned = desk.returned(called, told_off)
        else:
            caller = Caller(run=desk.run, session=talk.session, scope=plan.scope)
            try:
                returned = await tool_executor.call(called, caller, ports)
            except Parked as stands:
                self.parked = True
                self._question = self._question or stands.question
                return None
        if called.tool not in (plan.agent.exits or ()):
            acted = 1 if returned.ok else await side_effects.acted([returned], ports)
            desk.run = replace(desk.run, made=desk.run.made + acted)
        if not returned.ok and not _runnable(called, ports):
            self._patience.with_impossible()
        await desk.add(talk, returned, *(then if returned.ok else ()))
        await talk.log_tool(called, returned)
        desk.tell("tool.ended", tool=called.tool, call=called.id, ok=returned.ok, ms=returned.ms)
        return returned


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
