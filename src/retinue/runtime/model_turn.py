"""The model's side of a run: a turn is asked for, heard while it comes, and saved when it is whole."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from retinue.domain.change import replace
from retinue.domain.model_turn import Delta, Reply, Request, Stop, Wish
from retinue.domain.side_effect import Deed
from retinue.domain.system_prompt import abridged
from retinue.domain.tool import Effect
from retinue.domain.transcript import Called, Notice, Said
from retinue.errors import RetinueError
from retinue.interfaces import Conversation
from retinue.runtime import cli_agents
from retinue.runtime.provider_tool_calls import Acts
from retinue.runtime.run_context import Desk
from retinue.runtime.run_plan import Plan
from retinue.runtime.stream_buffer import Hearing
from retinue.runtime.turn_timer import Stopwatch

CANCELLED = "cancelled"
"""How an entry ends whose words were cut off."""
UNSPOKEN = "its arguments hold a secret, or what looks like one, and none is kept or passed on: leave it out"
INTERRUPTED = "interrupted"
"""The kind of notice that asks for a summary."""
SUM_UP = (
    "A person interrupts you: your run ends with your next reply, and no call in it is made. Sum up in a few sentences "
    "what you have done, what you have found, and what is still open."
)
SUMMARY_SECONDS = 30.0


class Speaking:
    """One run's replies: those on disk, and what was heard of one that is not finished."""

    def __init__(self, desk: Desk, watch: Stopwatch) -> None:
        self._desk = desk
        self._watch = watch
        self._hearing = Hearing(desk.ports.redact, desk.tell, desk.ports.listened)
        self._acts = Acts(desk)
        self._deed: Deed | None = None
        """Of a turn that acts by itself, until its reply is on disk."""

    async def turn(self, talk: Conversation, plan: Plan) -> Reply:
        return await self._watch.over(self._asked(talk, plan))

    async def _asked(self, talk: Conversation, plan: Plan) -> Reply:
        self._hearing.begin(self._desk.ports.chance.entry_id())
        self._desk.tell("run.state", phase="wait")
        request = Request(
            model=plan.model,
            agent=self._desk.run.agent,
            system=abridged(plan.system) if talk.abridged else plan.system,
            tools=plan.tools,
            entries=talk.entries,
            memo=talk.memo,
            session=talk.session.id,
            scope=plan.scope,
        )
        self._acts = Acts(self._desk)
        self._deed = await cli_agents.begun(self._desk, plan) if cli_agents.acts(plan) else None
        try:
            return await self._desk.ports.driver.turn(request, self._heard)
        except RetinueError as error:
            await self._over(error)
            raise

    async def _over(self, error: RetinueError | None = None) -> None:
        if self._deed is not None:
            await cli_agents.ended(self._deed, self._desk, error)
            self._deed = None

    def _heard(self, delta: Delta) -> None:
        self._watch.heard(delta)
        self._hearing.hear(delta if delta.act is None else replace(delta, act=self._acts.heard(delta.act)))

    async def saved(self, reply: Reply, talk: Conversation) -> tuple[Said, list[Called]]:
        """A reply and its calls are one write: either all of it was said, or nothing."""
        desk = self._desk
        at, text = desk.at(), desk.ports.redact(reply.text)
        said = Said(
            id=self._hearing.entry,
            by="agent",
            text=f"{text}\n[{reply.cut}]" if reply.cut else text,
            at=at,
            run=desk.run.id,
            model=desk.ports.redact(reply.model),
            usage=reply.usage,
            stop="" if reply.stop in (Stop.END, Stop.TOOLS) else str(reply.stop),
            calls=len(reply.wishes),
            thoughts=reply.thoughts,
        )
        calls = [self._called_for(wish, at) for wish in reply.wishes]
        acted = [entry for step in reply.steps for entry in self._acts.entries(step, at)]
        try:
            await talk.append(*acted, said, *calls, sync=not self._only_reads(reply))
        finally:
            # Also when the run is stopped meanwhile: what stands in the file was said, and is not said again.
            if any(entry.id == said.id for entry in reversed(talk.entries)):
                await self._acts.took(acted, talk)
                self._took(said, calls, text)
        await self._over()
        return said, calls

    def _only_reads(self, reply: Reply) -> bool:
        """A reply that does nothing but look at files is on disk with what it found there, before the next request.
        If the power fails in between it is asked for again, and nothing has happened."""
        if not reply.wishes or reply.thoughts or reply.steps or self._deed is not None:
            return False
        tools = self._desk.ports.tools
        return all(
            (tool := tools.get(wish.tool)) is not None and tool.touch == "read" and tool.effect is Effect.READ
            for wish in reply.wishes
        )

    def _called_for(self, wish: Wish, at: str) -> Called:
        """A secret is never stored, and what is not stored is not done: the call would do something else."""
        redact = self._desk.ports.redact
        args = redact(wish.args)
        return Called(
            id=self._desk.ports.chance.entry_id(),
            tool=redact(wish.tool),
            args=args,
            at=at,
            run=self._desk.run.id,
            broken=wish.broken or (UNSPOKEN if args != wish.args else ""),
        )

    def _took(self, said: Said, calls: Sequence[Called], text: str) -> None:
        self._hearing.finish()
        desk = self._desk
        model = _named(desk.run.model, said.model)
        desk.run = desk.run.turned(said.usage, calls=said.calls, text=text, model=model)
        desk.saved(said, *calls)

    async def kept(self, talk: Conversation) -> None:
        """Words already heard are kept, marked as cut off."""
        desk = self._desk
        if acted := self._acts.left(desk.at()):
            await talk.append(*acted)
            await self._acts.took(acted, talk)
        if partial := self._hearing.partial():
            said = Said(
                id=self._hearing.entry,
                by="agent",
                text=partial,
                at=desk.at(),
                run=desk.run.id,
                stop=CANCELLED,
            )
            await desk.add(talk, said)
            desk.run = replace(desk.run, text=partial)

    async def summed_up(self, talk: Conversation, plan: Plan) -> None:
        """The last word of a run that a person interrupted. Where none comes in time, it is the words so far. The tools
        stay in the request: what was called before would not be understood without them."""
        if not _asked_to_sum_up(talk, self._desk.run.id):
            await self._desk.add(talk, self._desk.notice(INTERRUPTED, SUM_UP))
        elif _has_summed_up(talk, self._desk.run.id):
            return
        with suppress(RetinueError, TimeoutError):
            async with asyncio.timeout(SUMMARY_SECONDS):
                reply = await self._asked(talk, plan)
            await self.saved(replace(reply, wishes=()), talk)
        await self.kept(talk)


def _asked_to_sum_up(talk: Conversation, run: str) -> bool:
    return any(
        isinstance(entry, Notice) and entry.run == run and entry.kind == INTERRUPTED for entry in talk.entries
    )


def _has_summed_up(talk: Conversation, run: str) -> bool:
    last = next((entry for entry in reversed(talk.entries) if entry.run == run), None)
    return isinstance(last, Said) and last.by == "agent"


def _named(wanted: str, used: str) -> str:
    """The model really used, with the driver that spoke to it."""
    driver, _, _ = wanted.partition(":")
    return f"{driver}:{used.removeprefix(f'{driver}:')}" if used else wanted
