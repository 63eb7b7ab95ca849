"""A fake model server on the loopback interface that plays a script, for all provider APIs."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec import Struct

from retinue.errors import RetinueError, UsageError
from retinue.testing.model_script_file import load_script_file
from retinue.testing.replies import FakeResponse, http_error
from retinue.testing.wire_formats import (
    anthropic_events,
    anthropic_message,
    error_body,
    openai_completion,
    openai_events,
    openai_response,
    response_events,
)

try:
    from aiohttp import web
except ModuleNotFoundError as _error:
    raise UsageError(
        "The fake model server needs aiohttp, which is not installed. Run: pip install 'retinue[testing]'"
    ) from _error


class CapturedRequest(Struct, frozen=True, kw_only=True):
    """A request as the server received it."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: dict[str, Any]
    raw_body: bytes
    received_at: float
    """The event loop's time when the whole request had arrived."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the conversation; for the Responses API, its items."""
        return self.body.get("messages") or self.body.get("input") or []

    @property
    def reply_count(self) -> int:
        """Number of the model's replies in the conversation."""
        if "input" not in self.body:
            return sum(1 for message in self.messages if message.get("role") == "assistant")
        is_own = [
            item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")
            for item in self.messages
        ]
        return sum(own and not before for own, before in zip(is_own, [False, *is_own], strict=False))


Script = Sequence[FakeResponse] | Callable[[CapturedRequest], FakeResponse | Awaitable[FakeResponse]]


class FakeModelServer:
    """A fake model server for all provider APIs.

    `async with FakeModelServer([text_reply("hi")]) as server:` answers at `server.url`, which is the base URL
    for each provider, and records `server.requests`.

    Args:
        script: Responses played in order for all clients, or a function that chooses one by the request.
        host: Address to listen on.
        port: Port to listen on; 0 takes any free one.
        models: What a request for the list of models is answered with; without it, the server has none.
    """

    def __init__(
        self,
        script: Script,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        models: Sequence[Mapping[str, Any]] | FakeResponse | None = None,
    ) -> None:
        self.requests: list[CapturedRequest] = []
        self.list_requests: list[CapturedRequest] = []
        """Requests for the list of models."""
        self.url = ""
        self.client_disconnected = asyncio.Event()
        """Set once a client disconnected before its response was complete."""
        self._client_addresses: set[object] = set()
        self._script = script
        self._next_index = 0
        self._models = models
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        for prefix in ("", "/v1"):
            app.router.add_post(f"{prefix}/chat/completions", self._serve_openai)
            app.router.add_post(f"{prefix}/responses", self._serve_responses)
            app.router.add_post(f"{prefix}/messages", self._serve_anthropic)
            if self._models is not None:
                app.router.add_get(f"{prefix}/models", self._serve_models)
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
    def connection_count(self) -> int:
        """Number of connections that requests came from so far."""
        return len(self._client_addresses)

    async def _serve_openai(self, request: web.Request) -> web.StreamResponse:
        scripted, captured = await self._choose_response(request)
        model = str(captured.body.get("model", ""))
        if not scripted.stream:
            return await self._send_response(
                request, scripted, [msgspec.json.encode(openai_completion(scripted, model))]
            )
        return await self._send_response(request, scripted, openai_events(scripted, model))

    async def _serve_responses(self, request: web.Request) -> web.StreamResponse:
        scripted, captured = await self._choose_response(request)
        model = str(captured.body.get("model", ""))
        if not scripted.stream:
            return await self._send_response(
                request, scripted, [msgspec.json.encode(openai_response(scripted, model))]
            )
        return await self._send_response(request, scripted, response_events(scripted, model))

    async def _serve_anthropic(self, request: web.Request) -> web.StreamResponse:
        scripted, captured = await self._choose_response(request)
        model = str(captured.body.get("model", ""))
        if not scripted.stream:
            return await self._send_response(
                request, scripted, [msgspec.json.encode(anthropic_message(scripted, model))]
            )
        return await self._send_response(request, scripted, anthropic_events(scripted, model))

    async def _serve_models(self, request: web.Request) -> web.StreamResponse:
        self.list_requests.append(
            CapturedRequest(
                path=request.path_qs,
                headers={name.lower(): value for name, value in request.headers.items()},
                body={},
                raw_body=b"",
                received_at=asyncio.get_running_loop().time(),
            )
        )
        if isinstance(self._models, FakeResponse):
            return await self._send_response(request, self._models, [])
        return web.json_response({"object": "list", "data": [*(self._models or ())]})

    async def _choose_response(self, request: web.Request) -> tuple[FakeResponse, CapturedRequest]:
        raw = await request.read()
        captured = CapturedRequest(
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=msgspec.json.decode(raw, type=dict[str, Any]),
            raw_body=raw,
            received_at=asyncio.get_running_loop().time(),
        )
        self.requests.append(captured)
        if request.transport is not None:
            self._client_addresses.add(request.transport.get_extra_info("peername"))
        if not callable(self._script):
            index, self._next_index = self._next_index, self._next_index + 1
            if index < len(self._script):
                return self._script[index], captured
            return http_error(
                400, f"the script has {len(self._script)} responses and all were used"
            ), captured
        scripted = self._script(captured)
        return (scripted if isinstance(scripted, FakeResponse) else await scripted), captured

    async def _send_response(
        self, request: web.Request, scripted: FakeResponse, events: Iterator[bytes] | Sequence[bytes]
    ) -> web.StreamResponse:
        await self._sleep_unless_closing(scripted.delay)
        if scripted.body is not None:
            events = [scripted.body]
        elif scripted.status != 200:  # noqa: PLR2004 — any other status has an error body
            events = [error_body(scripted)]
        content_type = (
            scripted.content_type if scripted.stream and scripted.status == 200 else "application/json"  # noqa: PLR2004 — see above
        )
        if scripted.body is not None:
            content_type = scripted.content_type
        response = web.StreamResponse(
            status=scripted.status, headers={**scripted.headers, "Content-Type": content_type}
        )
        try:
            await response.prepare(request)
            await self._write_body(request, response, scripted, events)
        except ConnectionError:
            self.client_disconnected.set()
        except asyncio.CancelledError:
            self.client_disconnected.set()
            raise
        return response

    async def _write_body(
        self,
        request: web.Request,
        response: web.StreamResponse,
        scripted: FakeResponse,
        events: Iterator[bytes] | Sequence[bytes],
    ) -> None:
        sent_bytes = 0
        cut_offs = [limit for limit in (scripted.drop_after, scripted.silent_after) if limit is not None]
        for piece in _split_into_chunks(events, scripted.chunk):
            if cut_offs and sent_bytes + len(piece) >= cut_offs[0]:
                await response.write(piece[: cut_offs[0] - sent_bytes])
                if scripted.silent_after is not None:
                    await self._closing.wait()
                # Let the written bytes be sent before the connection is closed.
                await asyncio.sleep(0)
                if request.transport is not None:
                    request.transport.close()
                return
            await response.write(piece)
            sent_bytes += len(piece)
            await self._sleep_unless_closing(scripted.pace)
        await response.write_eof()

    async def _sleep_unless_closing(self, seconds: float) -> None:
        if seconds > 0:
            try:
                await asyncio.wait_for(self._closing.wait(), seconds)
            except TimeoutError:
                return


def _split_into_chunks(events: Iterator[bytes] | Sequence[bytes], chunk_bytes: int) -> Iterator[bytes]:
    """Yield the events unchanged, or their bytes in chunks of one size regardless of event boundaries."""
    if chunk_bytes <= 0:
        yield from events
        return
    buffer = b""
    for event in events:
        buffer += event
        while len(buffer) >= chunk_bytes:
            yield buffer[:chunk_bytes]
            buffer = buffer[chunk_bytes:]
    if buffer:
        yield buffer


async def serve_script_file(script: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
    """Play a script file until a signal arrives. The first line on standard output is the URL."""
    choose_response = load_script_file(script)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stopped.set)
    async with FakeModelServer(
        lambda captured: choose_response(captured.raw_body, captured.reply_count), host=host, port=port
    ) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m retinue.testing.fake_model_server", description="A model server that plays a script."
    )
    parser.add_argument("--script", required=True, help="JSON file with the responses")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on; 0 (default) selects a free port"
    )
    options = parser.parse_args()
    try:
        asyncio.run(serve_script_file(options.script, host=options.host, port=options.port))
    except RetinueError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
