"""A server as Retinue has it: reached when something is first asked of it, and anew when it is gone since."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from retinue.domain.mcp_tool import Compared, Offer, Pin, Server, Stand, compared, full_name
from retinue.errors import Failed, Refused
from retinue.mcp.client import Client, Lost, quoted
from retinue.mcp.tool_result import told

GOODBYE = 1.0
"""Seconds that a server has to leave by itself when it is needed no more."""
UNKNOWN = "nobody knows whether it has happened"

Open = Callable[[Server], Awaitable[Client]]
"""Starts the program of a server, or finds the way to it; nothing has been said yet."""
Changed = Callable[[Compared], None]
"""Hears of a tool that is not what was agreed to any more."""


class Running:
    """One server of the configuration. All who call it share it: calls are told apart by their numbers."""

    def __init__(self, how: Server, open_one: Open, *, version: str, changed: Changed) -> None:
        self._how = how
        self._open = open_one
        self._version = version
        self._changed = changed
        self._held: Client | None = None
        """To be ended."""
        self._client: Client | None = None
        """The same, once it can be spoken with."""
        self._words = ""
        self._turn = asyncio.Lock()

    async def offers(self) -> list[Offer]:
        """What it offers now."""
        async with self._patiently():
            return (await self._listed())[1]

    async def call(self, pin: Pin, arguments: Mapping[str, Any]) -> str:
        """The tool's words. What it is now is compared before each call: Refused when it is not what was agreed to."""
        tool = pin.offer.name
        name = full_name(self._how.name, tool)
        async with self._patiently() as asked:
            client, listed = await self._listed()
            (found,) = compared([each for each in listed if each.name == tool], {tool: pin})
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

    async def _listed(self) -> tuple[Client, list[Offer]]:
        """One that turns out to be gone is reached anew, once: nothing was asked of it yet."""
        client = await self._at_hand()
        try:
            return client, await client.offers()
        except Lost:
            client = await self._at_hand()
            return client, await client.offers()

    async def _at_hand(self) -> Client:
        """The one that is there, or a new one. Who comes while it starts waits for the same start."""
        async with self._turn:
            if self._client is not None and self._client.gone is None:
                return self._client
            await self._leave(0)
            self._held = await self._open(self._how)
            try:
                await self._held.begin(version=self._version)
            except BaseException:
                await self._leave(0)
                raise
            self._client = self._held
            return self._client

    @asynccontextmanager
    async def _patiently(self) -> AsyncGenerator[list[str]]:
        """A server that does not answer in time is ended where it is ours, and the next call starts it anew; one that is
        somebody else's may be busy with others. What is added to the list stands behind the sentence that says so."""
        seconds, asked = self._how.timeout_seconds, list[str]()
        try:
            async with asyncio.timeout(seconds):
                yield asked
        except TimeoutError as error:
            why = f"it did not answer within {seconds:g} s"
            if self._client is None or self._client.farewell:
                why = await self._ended(why)
            said = f"the MCP server {self._how.name}: {why}{''.join(asked)}{quoted(self._words)}"
            raise Failed(said) from error

    async def _ended(self, why: str) -> str:
        """Those who wait for it too are told the same."""
        client = self._client
        why = f"{why}{'' if client is None else client.farewell}"
        if client is not None:
            client.lost(why)
        async with self._turn:
            if self._client is client:
                await self._leave(0)
        return why

    async def _leave(self, patience: float) -> None:
        """What is interrupted here is done by the next who comes."""
        self._client = None
        if self._held is not None:
            await self._held.end(patience=patience)
            self._words = self._held.last_words
            self._held = None


def refusal(server: str, found: Compared) -> str:
    """Why a tool is not called, and what a person can do about it."""
    name = full_name(server, found.name)
    if found.stand is Stand.GONE:
        return f"{name} is not called: its server does not offer it any more"
    why = found.problem or "it is not what was trusted any more: its server describes it otherwise now"
    return f"{name} is not called: {why}. A person can look at it and trust it: `retinue mcp trust {server}`"
