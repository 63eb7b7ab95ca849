"""A driver that plays given replies from memory, and keeps what it was asked."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from retinue.domain.model_turn import Delta, Reply, Request, Stop, Wish
from retinue.domain.run import Usage
from retinue.domain.transcript import Entry, Said
from retinue.domain.value import value
from retinue.errors import ModelFailed

Step = Reply | Exception | Callable[[Request], Reply]


def says(text: str, *, stop: Stop = Stop.END) -> Reply:
    return Reply(text=text, stop=stop, usage=Usage(input=10, output=5), model="played")


def calls(*wishes: tuple[str, str], text: str = "") -> Reply:
    """A reply that calls tools: names and the arguments' JSON texts."""
    return Reply(
        text=text,
        wishes=tuple(Wish(tool=tool, args=args) for tool, args in wishes),
        stop=Stop.TOOLS,
        usage=Usage(input=10, output=5),
        model="played",
    )


@value
class Asked:
    """One request as it was made: the entries are those of that moment."""

    request: Request
    entries: tuple[Entry, ...]


@dataclass(slots=True)
class PlayedDriver:
    """Steps by a conversation's first words, else by agent name; `*` serves any other. An exception in the list is
    raised in its turn."""

    steps: Mapping[str, Sequence[Step]]
    asked: list[Asked] = field(default_factory=list[Asked])
    hold: asyncio.Event | None = None
    """While set and not yet released, a turn waits in the middle of its reply."""
    _played: dict[str, int] = field(default_factory=dict[str, int])

    async def turn(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        self.asked.append(Asked(request=request, entries=tuple(request.entries)))
        first = request.entries[0] if request.entries else None
        spoken = first.text if isinstance(first, Said) else ""
        key = next((each for each in (spoken, request.agent) if each in self.steps), "*")
        at = self._played.get(key, 0)
        if at >= len(self.steps.get(key, ())):
            raise ModelFailed(
                f"the script for {request.agent} has {at} replies and was asked for one more", reason="config"
            )
        self._played[key] = at + 1
        step = self.steps[key][at]
        if isinstance(step, Exception):
            raise step
        reply = step if isinstance(step, Reply) else step(request)
        middle = len(reply.text) // 2
        heard(Delta(text=reply.text[:middle]))
        if self.hold is not None:
            await self.hold.wait()
        heard(Delta(text=reply.text[middle:]))
        return reply

    async def close(self) -> None:
        return
