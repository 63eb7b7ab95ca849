"""A server at an address: each message is posted, and what comes back to it is read until the answer is there."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from retinue.errors import NotFound
from retinue.mcp.client import Client, Lost, Message, read, written


class Box(Protocol):
    """Where messages are posted."""

    def post(self, message: bytes, *, spoken: str) -> AsyncGenerator[bytes]:
        """The messages that come back, as they come. `spoken` is the version of the protocol that was agreed on.
        NotFound: the server has forgotten us."""
        ...

    async def close(self) -> None: ...


class Posted(Client):
    """Nothing is heard but what comes back to a message of ours."""

    def __init__(self, name: str, box: Box) -> None:
        super().__init__(name)
        self._box = box
        self._count = 0

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if self.gone is not None:
            raise self.gone
        self._count += 1
        number = self._count
        try:
            answer = await self._answer(written({"id": number, "method": method, "params": params}), number)
        except NotFound as forgotten:
            raise self._is_gone(str(forgotten)) from forgotten
        if answer is None:
            raise self._is_gone("it ended its answer before it was whole")
        return self.result(answer)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self._post(written({"method": method, "params": params}))

    def lost(self, why: str) -> None:
        self._is_gone(why)

    async def end(self, *, patience: float = 0.0) -> None:  # noqa: ARG002  (it is somebody else's: nothing is waited for)
        await self._box.close()

    def _is_gone(self, why: str) -> Lost:
        self.gone = self.gone or Lost(f"the MCP server {self._name} is gone: {why}")
        return self.gone

    async def _answer(self, message: bytes, number: int) -> Message | None:
        """The answer to one request; what the server asks meanwhile is answered too. None: it did not come."""
        async with aclosing(self._box.post(message, spoken=self.spoken)) as back:
            async for raw in back:
                found = read(raw)
                if found is not None and (reply := found.reply()) is not None:
                    await self._post(written(reply))
                elif found is not None and found.method is None and found.id == number:
                    return found
        return None

    async def _post(self, message: bytes) -> None:
        async with aclosing(self._box.post(message, spoken=self.spoken)) as back:
            async for _ in back:
                pass
