"""A client of a daemon in this process; each response is checked against the type its route declares."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec

from retinue import daemon_client
from retinue.app import App
from retinue.interfaces import Tool
from retinue.server.daemon import serve
from retinue.server.route_table import ROUTES
from retinue.server.routing import Route
from retinue.server.schemas import ErrorResponse
from retinue.testing.fake_model_server import FakeModelServer, Script

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    status: int
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]

    @property
    def message(self) -> str:
        return self.json["error"]["message"]


@dataclass(slots=True, kw_only=True)
class ApiClient:
    """An HTTP client of the daemon over its local socket."""

    app: App
    home: Path
    work: Path
    client: aiohttp.ClientSession
    server: FakeModelServer
    made: list[str] = field(default_factory=list[str])

    async def get(self, path: str, **query: Any) -> ApiResponse:
        return await self.request("GET", path, query=query)

    async def post(self, path: str, body: Any = None, *, key: str = "") -> ApiResponse:
        return await self.request("POST", path, body=body, key=key)

    async def put(self, path: str, body: Any) -> ApiResponse:
        return await self.request("PUT", path, body=body)

    async def patch(self, path: str, body: Any) -> ApiResponse:
        return await self.request("PATCH", path, body=body)

    async def delete(self, path: str) -> ApiResponse:
        return await self.request("DELETE", path)

    async def request(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None, key: str = ""
    ) -> ApiResponse:
        said = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (query or {}).items()
        }
        headers = {"Idempotency-Key": key} if key else {}
        plain = ["content-type"] if body is None else []
        async with self.client.request(
            method, path, params=said, json=body, headers=headers, skip_auto_headers=plain
        ) as response:
            found = ApiResponse(status=response.status, raw=await response.read())
        check_response_type(method, path, found)
        return found

    # what most tests begin with

    async def create_session(self, agent: str = "general", **facts: Any) -> dict[str, Any]:
        made = await self.post("/api/sessions", {"agent": agent, "workspace": str(self.work), **facts})
        assert made.status == 201, made.raw
        return made.json

    async def send_message(self, session: str, content: str, *, key: str = "", **how: Any) -> ApiResponse:
        return await self.post(f"/api/sessions/{session}/messages", {"content": content, **how}, key=key)

    async def message_texts(self, session: str) -> list[str]:
        found = (await self.get(f"/api/sessions/{session}/entries")).json
        return [each["text"] for each in found if each["kind"] == "message"]

    async def wait_until(self, path: str, true: Callable[[Any], Any]) -> Any:
        """What is answered as soon as it is as it should be."""
        loop = asyncio.get_running_loop()
        until = loop.time() + TIMEOUT_S
        while not true(now := (await self.get(path)).json):
            assert loop.time() < until, f"{path} stays {now}"
            await asyncio.sleep(0.02)
        return now

    async def wait_for_run(self, run: str) -> Any:
        return await self.wait_until(
            f"/api/runs/{run}", lambda now: now["status"] not in ("queued", "running", "waiting")
        )


def find_route(method: str, path: str) -> Route | None:
    for each in ROUTES:
        if each.method == method and re.fullmatch(
            each.path.replace("{ref}", "[^/]+").replace(".", r"\."), path
        ):
            return each
    return None


def check_response_type(method: str, path: str, found: ApiResponse) -> None:
    """The types in the document are true: an answer is what they say, to the letter."""
    route = find_route(method, path)
    if route is None or route.is_stream:
        return
    if found.status == route.success_status:
        msgspec.json.decode(found.raw, type=route.response)
    else:
        msgspec.json.decode(found.raw, type=ErrorResponse)


def write_definitions(folder: Path, agents: dict[str, str]) -> None:
    (folder / "agents").mkdir(parents=True, exist_ok=True)
    for name, text in agents.items():
        (folder / "agents" / f"{name}.md").write_text(text)


@asynccontextmanager
async def serve_app(app: App) -> AsyncGenerator[None]:
    """`retinue serve` around a test; its signals are the test's again afterwards."""
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(serve(app, tell=lambda _: None, port=0))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while await daemon_client.ping_daemon(app.config.home) is None:
                assert not work.done(), work.exception()
                await asyncio.sleep(0.01)
        yield
    finally:
        if not work.done():
            await daemon_client.stop_daemon(app.config.home)
        with suppress(asyncio.CancelledError):
            await work
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(each)


class OpenApi(Protocol):
    """`async with api(script) as it:` opens a daemon before a model server, which says ok when no script is given."""

    def __call__(
        self,
        script: Script | None = None,
        *,
        tools: Sequence[Tool] = (),
        agents: dict[str, str] | None = None,
        settings: str = "",
    ) -> AbstractAsyncContextManager[ApiClient]: ...
