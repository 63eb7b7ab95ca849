"""A driver for the small model of this machine: it chooses a tool or none, fills in its arguments, or speaks."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path

from retinue.domain.model_turn import Delta, Reply, Request, Stop, Wish
from retinue.domain.run import Reason, Usage
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import name_of
from retinue.errors import ModelFailed
from retinue.providers.local.model_process import ModelProcess
from retinue.providers.local.prompt import Speech, shown, speeches
from retinue.providers.local.tool_arguments import TOKENS, calls, form
from retinue.providers.local.tool_choice import TOP, Usual, chosen, menu
from retinue.providers.request_encoding import not_an_object

LOADING = "loading the demonstration model"
SPEECH = 100
"""Tokens of a spoken answer, or of each part of it, where the definition says nothing."""
PART = "\n\n"
ROOM = 3
"""So many turns are taken at once: more would only slow each other."""
SIGN_SECONDS = 20.0
"""So often whoever waits for its turn says that it is not lost."""


class Local:
    """Takes a turn as any model does: what it says, it says itself, and what it calls goes through the same gate."""

    def __init__(self, name: str, process: ModelProcess, *, log: str = "") -> None:
        self._full = f"local:{name}"
        self._process = process
        self._usual = Usual()
        self._room = asyncio.Semaphore(ROOM)
        self._log = log
        """A file that gets a line for each turn that is asked, before it is."""

    async def turn(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        await self._admitted(heard)
        try:
            return await self._taken(request, heard)
        finally:
            self._room.release()

    async def _admitted(self, heard: Callable[[Delta], None]) -> None:
        """Waiting for one's turn is no silence of the model's."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SIGN_SECONDS):
                    await self._room.acquire()
                    return
            heard(Delta(calling="…"))

    async def _taken(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        if self._log:
            _logged(self._log, request)
        turn = _Turn(self._process, heard)
        now = shown(request.entries)
        tool = await chosen(menu(request.tools), now.request, now.results, turn.likely, self._usual)
        if tool:
            spec = next(each for each in request.tools if each.name == tool)
            wishes = await turn.called(spec, now.request, now.heard)
            # What it was told already it would ask for again and again.
            if new := tuple(wish for wish in wishes if (wish.tool, wish.args) not in now.called):
                return Reply(text="", wishes=new, model=self._full, usage=turn.usage, stop=Stop.TOOLS)
        return await self._answered(turn, request)

    async def _answered(self, turn: "_Turn", request: Request) -> Reply:
        said, stop, left_out = list[str](), Stop.END, 0
        most = request.model.max_tokens or SPEECH
        for parts in speeches(request.system, request.entries):
            for part in parts:
                text, stop = await turn.spoken(part, most, request.model.temperature, after=bool(said))
                said += [text] if text else []
            left_out = sum(part.left_out for part in parts)
            if said:
                break
        text = PART.join(said)
        cut = f"the demonstration model was not shown {left_out:,} characters of this" if left_out else ""
        return Reply(text=text, model=self._full, usage=turn.usage, stop=stop, cut=cut)

    async def close(self) -> None:
        await self._process.close()


def _logged(log: str, request: Request) -> None:
    """Which process asks whose turn, and after which entry: what was asked twice can be counted from outside."""
    after = name_of(request.entries[-1]) if request.entries else ""
    line = json.dumps({"pid": os.getpid(), "agent": request.agent, "after": after})
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


class _Turn:
    """One turn's questions to the model, and what they cost."""

    def __init__(self, process: ModelProcess, heard: Callable[[Delta], None]) -> None:
        self._process = process
        self._heard = heard
        self._told = -1
        self.usage = Usage()

    async def likely(self, shared: str, prompt: str) -> Mapping[str, float]:
        found = await self._process.likely(prompt, TOP, shared, self._loading)
        self._used(found.input, found.output)
        self._heard(Delta(calling="?"))
        return found.pieces

    async def called(self, tool: ToolSpec, request: str, heard: str) -> tuple[Wish, ...]:
        wanted = form(tool, request, heard)
        pieces: list[str] = []
        wish = {"prompt": wanted.prompt, "most": TOKENS, "grammar": wanted.grammar}
        async with aclosing(self._process.spoken(wish, wanted.examples, self._loading)) as answer:
            async for piece in answer:
                pieces.append(piece.text)
                self._used(piece.input, piece.output)
                self._heard(Delta(calling=piece.text))
        text = "".join(pieces)
        if found := calls(text):
            return tuple(Wish(tool=tool.name, args=args, broken=not_an_object(args)) for args in found)
        return (Wish(tool=tool.name, args=text.strip(), broken="its arguments were cut"),)

    async def spoken(
        self, speech: Speech, most: int, temperature: float | None, *, after: bool
    ) -> tuple[str, Stop]:
        """`after`: something was said before, and this is set off from it."""
        pieces: list[str] = []
        why: str | None = None
        wish = {
            "prompt": speech.prompt,
            "most": most,
            "temperature": temperature or 0,
            "repeat_penalty": speech.repeating,
            "stops": speech.stops,
        }
        async with aclosing(self._process.spoken(wish, speech.shared, self._loading)) as answer:
            async for piece in answer:
                why = piece.end
                self._used(piece.input, piece.output)
                if text := piece.text if pieces else piece.text.lstrip():
                    self._heard(Delta(text=PART + text if after and not pieces else text))
                    pieces.append(text)
        text = "".join(pieces).strip()
        if not why:
            raise ModelFailed("the local model stopped without a reason", reason=Reason.INCOMPLETE)
        return text, Stop.LENGTH if why == "length" else Stop.END

    def _used(self, given: int, said: int) -> None:
        self.usage = Usage(input=self.usage.input + given, output=self.usage.output + said)

    def _loading(self, part: float) -> None:
        """A bar of ten steps, told once for each."""
        tenths = int(part * 10)
        if tenths != self._told:
            self._told = tenths
            self._heard(Delta(waiting=f"{LOADING} {'█' * tenths}{'░' * (10 - tenths)} {tenths * 10} %"))
