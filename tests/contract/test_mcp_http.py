"""MCP servers at an address: a real one on loopback, which answers in both ways and has its moods."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from retinue.app.mcp_servers import McpServerService
from retinue.config.load import load_config
from retinue.domain.mcp_tool import TrustState
from retinue.errors import RetinueError
from retinue.providers.http.message_exchange import MAX_RESPONSE_BYTES
from retinue.testing.mcp_server import FakeMcpServer, McpServerProcess, tool_definition
from retinue.worker.clock import system_clock

KEY = "a1b2c3d4e5f6a7b8c9d0"


@dataclass(slots=True, kw_only=True)
class Elsewhere:
    """A server that remembers its visitors, and who came with what."""

    fake: FakeMcpServer
    streams: bool = False
    status: int = 200
    body: bytes = b""
    patience: asyncio.Event = field(default_factory=asyncio.Event)
    visits: set[str] = field(default_factory=set[str])
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(
        default_factory=list[tuple[str, dict[str, Any], dict[str, str]]]
    )

    @property
    def methods(self) -> list[str]:
        return [said.get("method", "an answer") for verb, said, _ in self.asked if verb == "POST"]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        said: dict[str, Any] = json.loads(await request.text() or "{}")
        self.asked.append((request.method, said, dict(request.headers)))
        if self.status != 200 or self.body:
            where = {"Location": "https://example.org/"} if self.status == 307 else {}
            return web.Response(
                status=self.status, headers=where, body=self.body, content_type="text/event-stream"
            )
        if said.get("method") != "initialize" and request.headers.get("Mcp-Session-Id") not in self.visits:
            return web.Response(status=404)
        if "id" not in said or "method" not in said:
            return web.Response(status=202)
        visit = request.headers.get("Mcp-Session-Id") or f"visit-{len(self.visits)}"
        self.visits.add(visit)
        if "wait" in json.dumps(said):
            await self.patience.wait()
        back = {"jsonrpc": "2.0", "id": said["id"]}
        back |= McpServerProcess(self.fake.folder).answer_request(said["method"], said["params"])
        if not self.streams:
            return web.json_response(back, headers={"Mcp-Session-Id": visit})
        before: list[dict[str, Any]] = [
            {"method": "notifications/message", "params": {}},
            {"id": "s1", "method": "ping"},
        ]
        text = "".join(f"event: message\ndata: {json.dumps(each)}\n\n" for each in [*before, back])
        return web.Response(text=text, content_type="text/event-stream", headers={"Mcp-Session-Id": visit})


@asynccontextmanager
async def elsewhere(folder: Path, **moods: Any) -> AsyncGenerator[tuple[Elsewhere, McpServerService]]:
    fake = FakeMcpServer(folder=folder)
    fake.set_behaviour(tool_definition("echo", word={"type": "string"}))
    there = Elsewhere(fake=fake, **moods)
    app = web.Application()
    app.router.add_route("*", "/mcp", there.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    far = {"url": f"http://127.0.0.1:{port}/mcp", "bearer_env": "FAR_KEY", "timeout_seconds": 2}
    (folder / "config.json").write_text(json.dumps({"mcp": {"far": far}}))
    config = load_config({"RETINUE_CONFIG": str(folder), "FAR_KEY": KEY}, home=str(folder / "home"))
    servers = McpServerService(config, {}, system_clock())
    try:
        yield there, servers
    finally:
        await servers.close()
        await runner.cleanup()


async def call(servers: McpServerService, **arguments: Any) -> str:
    found = servers.tools()["far.echo"]
    return await found.function(arguments, None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("streams", [False, True], ids=["json", "events"])
async def test_a_server_elsewhere_is_spoken_with_like_any_other(tmp_path: Path, streams: bool):
    async with elsewhere(tmp_path, streams=streams) as (there, servers):
        servers.trust("far", await servers.compare_tools("far"))
        assert json.loads(await call(servers, word="x")) == {"word": "x"}
        there.fake.set_behaviour(tool_definition("echo", "Other.", word={"type": "string"}))
        with pytest.raises(RetinueError, match="retinue mcp trust far"):
            await call(servers, word="x")
        assert [each.trust_state for each in await servers.compare_tools("far")] == [TrustState.CHANGED]
    assert there.methods.count("initialize") == 1
    assert there.methods.count("tools/call") == 1
    assert ("an answer" in there.methods) is streams
    assert all(headers["Mcp-Session-Id"] == "visit-0" for _, _, headers in there.asked[1:])
    later = [headers for _, said, headers in there.asked if said.get("method", "").startswith("tools/")]
    assert {each["MCP-Protocol-Version"] for each in later} == {"2025-06-18"}
    assert all(headers["Authorization"] == f"Bearer {KEY}" for _, _, headers in there.asked)
    assert there.asked[-1][0] == "DELETE"


async def test_a_server_that_has_forgotten_us_is_reached_anew(tmp_path: Path):
    async with elsewhere(tmp_path) as (there, servers):
        servers.trust("far", await servers.compare_tools("far"))
        there.visits.clear()
        assert json.loads(await call(servers, word="x")) == {"word": "x"}
    assert there.methods.count("initialize") == 2
    assert there.methods.count("tools/call") == 1


async def test_a_call_that_takes_too_long_is_given_up_and_the_others_go_on(tmp_path: Path):
    async with elsewhere(tmp_path) as (there, servers):
        servers.trust("far", await servers.compare_tools("far"))
        late = asyncio.ensure_future(call(servers, word="wait"))
        assert json.loads(await call(servers, word="x")) == {"word": "x"}
        with pytest.raises(RetinueError, match="echo: nobody knows whether it has happened"):
            await late
        assert json.loads(await call(servers, word="y")) == {"word": "y"}
        there.patience.set()
    assert there.methods.count("initialize") == 1


@pytest.mark.parametrize(
    ("mood", "told"),
    [
        ({"status": 401}, "status 401: it wants a key"),
        ({"status": 307}, "leads elsewhere"),
        ({"status": 503}, "status 503"),
        ({"body": b"data: {}\n\n"}, "before it was whole"),
        ({"body": b"data: nonsense\n\n"}, "before it was whole"),
        ({"body": b"x" * (MAX_RESPONSE_BYTES + 1)}, "no end|more than"),
    ],
    ids=["key", "elsewhere", "broken", "nothing", "nonsense", "endless"],
)
async def test_what_keeps_us_from_a_server_is_told_in_a_sentence(
    tmp_path: Path, mood: dict[str, Any], told: str
):
    async with elsewhere(tmp_path, **mood) as (there, servers):
        with pytest.raises(RetinueError, match=told) as caught:
            await servers.compare_tools("far")
        assert KEY not in str(caught.value)
        there.status, there.body = 200, b""
        assert [each.trust_state for each in await servers.compare_tools("far")] == [TrustState.NEW]


async def test_a_server_that_is_not_there_or_needs_a_key_says_so(tmp_path: Path):
    async with elsewhere(tmp_path) as (_, servers):
        pass
    with pytest.raises(RetinueError, match="cannot be reached"):
        await servers.compare_tools("far")
    await servers.close()
    config = load_config({"RETINUE_CONFIG": str(tmp_path)}, home=str(tmp_path / "home"))
    with pytest.raises(RetinueError, match="Set FAR_KEY"):
        await McpServerService(config, {}, system_clock()).compare_tools("far")
