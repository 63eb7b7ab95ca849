"""A server as Retinue has it: started when something is first asked of it, and again when it has died since."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from retinue.domain.offer import Compared, Offer, Pin, Server, Stand, compared, full_name
from retinue.errors import Failed, Refused
from retinue.mcp.client import Client, Line, Lost, quoted
from retinue.mcp.result import told

GOODBYE = 1.0
"""Seconds that a server has to leave by itself when it is needed no more."""
UNKNOWN = "nobody knows whether it has happened"

Open = Callable[[Server, Callable[[bytes], None], Callable[[str], None]], Awaitable[Line]]
"""Starts the program of a server: it is told who hears its lines, and who hears why there are no more."""
Changed = Callable[[Compared], None]
"""Hears of a tool that is not what was agreed to any more."""


class Running:
    """One server of the configuration. All who call it share one process: calls are told apart by their numbers."""

    def __init__(self, how: Server, open_line: Open, *, version: str, changed: Changed) -> None:
        self._how = how
        self._open = open_line
        self._version = version
        self._changed = changed
        self._client: Client | None = None
        self._line: Line | None = None
        self._words = ""
        self._turn = asyncio.Lock()

    async def offers(self) -> list[Offer]:
        """What it offers now."""
        async with self._patiently():
            return await (await self._at_hand()).offers()

    async def call(self, pin: Pin, arguments: Mapping[str, Any]) -> str:
        """The tool's words. What it is now is compared before each call: Refused when it is not what was agreed to."""
        tool = pin.offer.name
        name = full_name(self._how.name, tool)
        async with self._patiently() as asked:
            client = await self._at_hand()
            now = [each for each in await client.offers() if each.name == tool]
            (found,) = compared(now, {tool: pin})
            if found.stand is not Stand.TRUSTED:
                self._changed(found)
                raise Refused(refusal(self._how.name, found))
            asked.append(f"; it was at work on {name}: {UNKNOWN}")
            try:
                result = await client.call(tool, arguments)
            except Lost as lost:
                raise Failed(f"{lost.sentence}{asked[0]}{lost.last_words}") from lost
        return told(result)

    async def close(self) -> None:
        async with self._turn:
            await self._leave(GOODBYE)

    async def _at_hand(self) -> Client:
        """The one that runs, or a new one. Who comes while it starts waits for the same start."""
        async with self._turn:
            if self._client is not None and self._client.gone is None:
                return self._client
            await self._leave(0)
            client = Client(self._how.name)
            self._line = await self._open(self._how, client.heard, client.lost)
            try:
                await client.begin(self._line, version=self._version)
            except BaseException:
                await self._leave(0)
                raise
            self._client = client
            return client

    @asynccontextmanager
    async def _patiently(self) -> AsyncGenerator[list[str]]:
        """A server that does not answer in time is ended with all that it started; the next call starts it anew. What
        is added to the list stands behind the sentence that says so."""
        seconds, asked = self._how.timeout_seconds, list[str]()
        try:
            async with asyncio.timeout(seconds):
                yield asked
        except TimeoutError as error:
            client = self._client
            why = f"it did not answer within {seconds:g} s, and was ended with all that it had started"
            if client is not None:
                client.lost(why)
            async with self._turn:
                if self._client is client:
                    await self._leave(0)
            said = f"the MCP server {self._how.name}: {why}{''.join(asked)}{quoted(self._words)}"
            raise Failed(said) from error

    async def _leave(self, patience: float) -> None:
        """What is interrupted here is done by the next who comes."""
        self._client = None
        if self._line is not None:
            await self._line.end(patience=patience)
            self._words = self._line.last_words
            self._line = None


def refusal(server: str, found: Compared) -> str:
    """Why a tool is not called, and what a person can do about it."""
    name = full_name(server, found.name)
    if found.stand is Stand.GONE:
        return f"{name} is not called: its server does not offer it any more"
    why = found.problem or "it is not what was trusted any more: its server describes it otherwise now"
    return f"{name} is not called: {why}. A person can look at it and trust it: `retinue mcp trust {server}`"
