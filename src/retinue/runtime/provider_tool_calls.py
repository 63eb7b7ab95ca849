"""Calls that whoever answers made by itself: told as they happen, and written down beside its words."""

from collections.abc import Sequence

from retinue.domain.change import replace
from retinue.domain.model_turn import Act, Step
from retinue.domain.sanitize import for_model
from retinue.domain.transcript import Called, Entry, Returned, Said
from retinue.interfaces import Conversation
from retinue.runtime.run_context import Desk
from retinue.runtime.tool_executor import capped

NOT_OVER = "No result: it was stopped before this was over, and may have happened."


class Acts:
    """Of one turn. Nothing here calls anything: it has happened elsewhere, under the rights of the turn."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._ids: dict[str, str] = {}
        self._open: dict[str, Act] = {}
        """Heard, and not yet written down."""

    def heard(self, act: Act) -> Act:
        """The same, by the id that its entry will have."""
        self._open[act.id] = act
        return replace(act, id=self._id(act.id))

    def entries(self, step: Step, at: str) -> list[Entry]:
        """Words, the calls that followed, and what came of them."""
        desk, redact = self._desk, self._desk.ports.redact
        said = Said(
            id=desk.ports.chance.entry_id(),
            by="agent",
            text=redact(step.text),
            at=at,
            run=desk.run.id,
            calls=len(step.acts),
        )
        return [
            said,
            *(self._called(act, at) for act in step.acts),
            *(self._returned(act, at) for act in step.acts),
        ]

    def left(self, at: str) -> list[Entry]:
        """What was heard of a turn that never came to an end."""
        acts = tuple(act if act.over else replace(act, text=NOT_OVER) for act in self._open.values())
        return self.entries(Step(text="", acts=acts), at) if acts else []

    async def took(self, entries: Sequence[Entry], talk: Conversation) -> None:
        """They are on disk: counted, told and logged like calls of ours."""
        self._open.clear()
        if not entries:
            return
        desk = self._desk
        results = {each.of: each for each in entries if isinstance(each, Returned)}
        for entry in entries:
            if isinstance(entry, Said):
                desk.run = desk.run.turned(entry.usage, calls=entry.calls, text=entry.text, model="")
            elif isinstance(entry, Called):
                await talk.log_tool(entry, results[entry.id])
        made = sum(each.ok for each in results.values())
        desk.run = replace(desk.run, made=desk.run.made + made)
        desk.saved(*entries)

    def _called(self, act: Act, at: str) -> Called:
        redact = self._desk.ports.redact
        called = self._id(act.id)
        return Called(id=called, tool=redact(act.tool), args=redact(act.args), at=at, run=self._desk.run.id)

    def _returned(self, act: Act, at: str) -> Returned:
        text = capped(self._desk.ports.redact(for_model(act.text)))
        return Returned(of=self._id(act.id), text=text, ok=act.ok, ms=act.ms, at=at, run=self._desk.run.id)

    def _id(self, name: str) -> str:
        if name not in self._ids:
            self._ids[name] = self._desk.ports.chance.entry_id()
        return self._ids[name]
