"""A daemon in the test process and its HTTP client; every response is checked against the type of its route."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
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
    workspace: Path
    http: aiohttp.ClientSession
    server: FakeModelServer

    async def get(self, path: str, **query: Any) -> ApiResponse:
        return await self.request("GET", path, query=query)

    async def post(self, path: str, body: object = None, *, key: str = "") -> ApiResponse:
        return await self.request("POST", path, body=body, key=key)

    async def put(self, path: str, body: object) -> ApiResponse:
        return await self.request("PUT", path, body=body)

    async def patch(self, path: str, body: object) -> ApiResponse:
        return await self.request("PATCH", path, body=body)

    async def delete(self, path: str) -> ApiResponse:
        return await self.request("DELETE", path)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: dict[str, Any] | None = None,
        key: str = "",
    ) -> ApiResponse:
        params = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (query or {}).items()
        }
        headers = {"Idempotency-Key": key} if key else {}
        skipped_headers = ["content-type"] if body is None else []
        async with self.http.request(
            method, path, params=params, json=body, headers=headers, skip_auto_headers=skipped_headers
        ) as response:
            result = ApiResponse(status=response.status, raw=await response.read())
        check_response_type(method, path, result)
        return result

    async def create_session(self, agent: str = "general", **fields: Any) -> dict[str, Any]:
        response = await self.post(
            "/api/sessions", {"agent": agent, "workspace": str(self.workspace), **fields}
        )
        assert response.status == 201, response.raw
        return response.json

    async def send_message(self, session: str, content: str, *, key: str = "", **options: Any) -> ApiResponse:
        return await self.post(f"/api/sessions/{session}/messages", {"content": content, **options}, key=key)

    async def message_texts(self, session: str) -> list[str]:
        entries = (await self.get(f"/api/sessions/{session}/entries")).json
        return [entry["text"] for entry in entries if entry["kind"] == "message"]

    async def wait_until(self, path: str, condition: Callable[[Any], Any]) -> Any:
        """Poll a path until its JSON satisfies the condition, and return that JSON."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TIMEOUT_S
        while not condition(data := (await self.get(path)).json):
            assert loop.time() < deadline, f"{path} still returns {data}"
            await asyncio.sleep(0.02)
        return data

    async def wait_for_run(self, run: str) -> Any:
        return await self.wait_until(
            f"/api/runs/{run}", lambda run_data: run_data["status"] not in ("queued", "running", "waiting")
        )


def find_route(method: str, path: str) -> Route | None:
    for route in ROUTES:
        if route.method == method and re.fullmatch(
            route.path.replace("{ref}", "[^/]+").replace(".", r"\."), path
        ):
            return route
    return None


def check_response_type(method: str, path: str, response: ApiResponse) -> None:
    """Check that the response has exactly the type that the OpenAPI document declares."""
    route = find_route(method, path)
    if route is None or route.is_stream:
        return
    if response.status == route.success_status:
        msgspec.json.decode(response.raw, type=route.response)
    else:
        msgspec.json.decode(response.raw, type=ErrorResponse)


def write_definitions(folder: Path, agents: dict[str, str]) -> None:
    (folder / "agents").mkdir(parents=True, exist_ok=True)
    for name, text in agents.items():
        (folder / "agents" / f"{name}.md").write_text(text)


@asynccontextmanager
async def serve_app(app: App) -> AsyncGenerator[None]:
    """Run the daemon of this app during a test, and remove its signal handlers afterwards."""
    loop = asyncio.get_running_loop()
    server = asyncio.create_task(serve(app, report=lambda _: None, port=0))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while await daemon_client.ping_daemon(app.config.home) is None:
                assert not server.done(), server.exception()
                await asyncio.sleep(0.01)
        yield
    finally:
        if not server.done():
            await daemon_client.stop_daemon(app.config.home)
        with suppress(asyncio.CancelledError):
            await server
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(signum)


class OpenApi(Protocol):
    """`async with api(script) as client:` serves a fresh home. Without a script, the model always answers "ok"."""

    def __call__(
        self,
        script: Script | None = None,
        *,
        tools: Sequence[Tool] = (),
        agents: dict[str, str] | None = None,
        settings: str = "",
    ) -> AbstractAsyncContextManager[ApiClient]: ...
