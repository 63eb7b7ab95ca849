"""A provider that returns scripted replies from memory and records its requests."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from retinue.domain.model_turn import ModelReply, ModelRequest, ReplyDelta, StopReason, UnsavedToolCall
from retinue.domain.run import Usage
from retinue.domain.transcript import Entry, Message
from retinue.errors import ModelFailed

ScriptedStep = ModelReply | Exception | Callable[[ModelRequest], ModelReply]


def text_reply(text: str, *, stop: StopReason = StopReason.END) -> ModelReply:
    return ModelReply(text=text, stop_reason=stop, usage=Usage(input=10, output=5), model="played")


def tool_call_reply(*tool_calls: tuple[str, str], text: str = "") -> ModelReply:
    """Return a reply that calls tools, each given as name and JSON text of its arguments."""
    return ModelReply(
        text=text,
        tool_calls=tuple(UnsavedToolCall(tool=tool, arguments=arguments) for tool, arguments in tool_calls),
        stop_reason=StopReason.TOOLS,
        usage=Usage(input=10, output=5),
        model="played",
    )


class RecordedRequest(Struct, frozen=True, kw_only=True):
    """A request, with the entries it had at that moment."""

    request: ModelRequest
    entries: tuple[Entry, ...]


@dataclass(slots=True)
class FakeProvider:
    """A provider that plays a script.

    Steps are chosen by the conversation's first message, else by the agent's name; `*` serves any other. An
    exception among the steps is raised in its turn.
    """

    script: Mapping[str, Sequence[ScriptedStep]]
    requests: list[RecordedRequest] = field(default_factory=list[RecordedRequest])
    hold_until: asyncio.Event | None = None
    """If set, a turn waits for this event in the middle of its reply."""
    _next_step: dict[str, int] = field(default_factory=dict[str, int])

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        self.requests.append(RecordedRequest(request=request, entries=tuple(request.entries)))
        first_entry = request.entries[0] if request.entries else None
        first_text = first_entry.text if isinstance(first_entry, Message) else ""
        key = next((each for each in (first_text, request.agent_name) if each in self.script), "*")
        index = self._next_step.get(key, 0)
        if index >= len(self.script.get(key, ())):
            raise ModelFailed(
                f"the script for {request.agent_name} has only {index} replies",
                reason="config",
            )
        self._next_step[key] = index + 1
        step = self.script[key][index]
        if isinstance(step, Exception):
            raise step
        reply = step if isinstance(step, ModelReply) else step(request)
        middle = len(reply.text) // 2
        on_delta(ReplyDelta(text=reply.text[:middle]))
        if self.hold_until is not None:
            await self.hold_until.wait()
        on_delta(ReplyDelta(text=reply.text[middle:]))
        return reply

    async def close(self) -> None:
        return
