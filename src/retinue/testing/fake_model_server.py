"""A model server on loopback that plays a script: both providers' shapes, good answers and bad ones."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
from aiohttp import web

from retinue.domain.value import value
from retinue.errors import RetinueError
from retinue.testing.model_script_file import script_file
from retinue.testing.replies import Answer, status
from retinue.testing.wire_formats import (
    anthropic_events,
    anthropic_whole,
    error_body,
    openai_events,
    openai_whole,
)


@value
class Captured:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: dict[str, Any]
    raw: bytes
    at: float
    """The loop's time at which all of it was there."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body.get("messages", [])

    @property
    def turns(self) -> int:
        """How many replies of the model the conversation holds."""
        return sum(1 for message in self.messages if message.get("role") == "assistant")


Script = Sequence[Answer] | Callable[[Captured], Answer | Awaitable[Answer]]


class ModelServer:
    """`async with ModelServer([reply("hi")]) as server:` answers at `server.url` and keeps `server.requests`.

    A list is played in order, whoever asks; a function chooses by the request. Give `server.url` as the base
    URL to either driver."""

    def __init__(self, script: Script, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[Captured] = []
        self.url = ""
        self.hung_up = asyncio.Event()
        """Set once a client went away before its answer was whole."""
        self._peers: set[object] = set()
        self._script = script
        self._played = 0
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        for prefix in ("", "/v1"):
            app.router.add_post(f"{prefix}/chat/completions", self._openai)
            app.router.add_post(f"{prefix}/messages", self._anthropic)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def connections(self) -> int:
        """How many connections brought the requests so far."""
        return len(self._peers)

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        answer, captured = await self._chosen(request)
        model = str(captured.body.get("model", ""))
        if not answer.stream:
            return await self._sent(request, answer, [msgspec.json.encode(openai_whole(answer, model))])
        return await self._sent(request, answer, openai_events(answer, model))

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        answer, captured = await self._chosen(request)
        model = str(captured.body.get("model", ""))
        if not answer.stream:
            return await self._sent(request, answer, [msgspec.json.encode(anthropic_whole(answer, model))])
        return await self._sent(request, answer, anthropic_events(answer, model))

    async def _chosen(self, request: web.Request) -> tuple[Answer, Captured]:
        raw = await request.read()
        captured = Captured(
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=msgspec.json.decode(raw, type=dict[str, Any]),
            raw=raw,
            at=asyncio.get_running_loop().time(),
        )
        self.requests.append(captured)
        if request.transport is not None:
            self._peers.add(request.transport.get_extra_info("peername"))
        if not callable(self._script):
            at, self._played = self._played, self._played + 1
            if at < len(self._script):
                return self._script[at], captured
            return status(400, f"the script holds {len(self._script)} answers, and all are used"), captured
        answer = self._script(captured)
        return (answer if isinstance(answer, Answer) else await answer), captured

    async def _sent(
        self, request: web.Request, answer: Answer, events: Iterator[bytes] | Sequence[bytes]
    ) -> web.StreamResponse:
        await self._pause(answer.delay)
        if answer.body is not None:
            events = [answer.body]
        elif answer.status != 200:  # noqa: PLR2004 — any other status has an error's body
            events = [error_body(answer)]
        kind = answer.content_type if answer.stream and answer.status == 200 else "application/json"  # noqa: PLR2004 — see above
        if answer.body is not None:
            kind = answer.content_type
        response = web.StreamResponse(status=answer.status, headers={**answer.headers, "Content-Type": kind})
        try:
            await response.prepare(request)
            await self._written(request, response, answer, events)
        except (ConnectionError, asyncio.CancelledError):
            self.hung_up.set()
            raise
        return response

    async def _written(
        self,
        request: web.Request,
        response: web.StreamResponse,
        answer: Answer,
        events: Iterator[bytes] | Sequence[bytes],
    ) -> None:
        sent = 0
        limits = [limit for limit in (answer.drop_after, answer.silent_after) if limit is not None]
        for piece in _cut(events, answer.chunk):
            if limits and sent + len(piece) >= limits[0]:
                await response.write(piece[: limits[0] - sent])
                if answer.silent_after is not None:
                    await self._closing.wait()
                # The bytes written so far are let go before the line is cut.
                await asyncio.sleep(0)
                if request.transport is not None:
                    request.transport.close()
                return
            await response.write(piece)
            sent += len(piece)
            await self._pause(answer.pace)
        await response.write_eof()

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            try:
                await asyncio.wait_for(self._closing.wait(), seconds)
            except TimeoutError:
                return


def _cut(events: Iterator[bytes] | Sequence[bytes], size: int) -> Iterator[bytes]:
    """The events as they are, or their bytes in pieces of one size, wherever the cuts fall."""
    if size <= 0:
        yield from events
        return
    rest = b""
    for event in events:
        rest += event
        while len(rest) >= size:
            yield rest[:size]
            rest = rest[size:]
    if rest:
        yield rest


async def serve(script: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
    """Plays a script file until a signal ends it. The first line on standard output is the URL."""
    chosen = script_file(script)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    async with ModelServer(lambda asked: chosen(asked.raw, asked.turns), host=host, port=port) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m retinue.testing.fake_model_server", description="A model server that plays a script."
    )
    parser.add_argument("--script", required=True, help="JSON file with the answers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes any free one")
    given = parser.parse_args()
    try:
        asyncio.run(serve(given.script, host=given.host, port=given.port))
    except RetinueError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
