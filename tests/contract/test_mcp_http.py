"""MCP servers over HTTP: a real server on loopback that answers with JSON or an event stream."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from logging_proxy import open_proxy

from retinue.app.mcp_servers import McpServerService
from retinue.config.load import load_config
from retinue.domain.mcp import TrustState
from retinue.errors import RetinueError
from retinue.mcp.streamable_http import MAX_RESPONSE_BYTES, StreamableHttpTransport
from retinue.testing.mcp_server import FakeMcpServer, McpServerProcess, tool_definition
from retinue.worker.clock import system_clock

KEY = "a1b2c3d4e5f6a7b8c9d0"


@dataclass(slots=True, kw_only=True)
class HttpMcpServer:
    """An MCP server with sessions that records its requests."""

    fake: FakeMcpServer
    streams: bool = False
    status: int = 200
    body: bytes = b""
    answer_waiting_calls: asyncio.Event = field(default_factory=asyncio.Event)
    sessions: set[str] = field(default_factory=set[str])
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(
        default_factory=list[tuple[str, dict[str, Any], dict[str, str]]]
    )

    @property
    def methods(self) -> list[str]:
        """MCP methods of the received messages; a message without a method is a "response"."""
        return [message.get("method", "response") for verb, message, _ in self.requests if verb == "POST"]

    async def handle_request(self, request: web.Request) -> web.StreamResponse:
        message: dict[str, Any] = json.loads(await request.text() or "{}")
        self.requests.append((request.method, message, dict(request.headers)))
        if self.status != 200 or self.body:
            headers = {"Location": "https://example.org/"} if self.status == 307 else {}
            return web.Response(
                status=self.status, headers=headers, body=self.body, content_type="text/event-stream"
            )
        if (
            message.get("method") != "initialize"
            and request.headers.get("Mcp-Session-Id") not in self.sessions
        ):
            return web.Response(status=404)
        if "id" not in message or "method" not in message:
            return web.Response(status=202)
        session_id = request.headers.get("Mcp-Session-Id") or f"session-{len(self.sessions)}"
        self.sessions.add(session_id)
        if "wait" in json.dumps(message):
            await self.answer_waiting_calls.wait()
        response = {"jsonrpc": "2.0", "id": message["id"]}
        response |= McpServerProcess(self.fake.folder).answer_request(message["method"], message["params"])
        if not self.streams:
            return web.json_response(response, headers={"Mcp-Session-Id": session_id})
        earlier_messages: list[dict[str, Any]] = [
            {"method": "notifications/message", "params": {}},
            {"id": "s1", "method": "ping"},
        ]
        text = "".join(
            f"event: message\ndata: {json.dumps(each)}\n\n" for each in [*earlier_messages, response]
        )
        return web.Response(
            text=text, content_type="text/event-stream", headers={"Mcp-Session-Id": session_id}
        )


@asynccontextmanager
async def start_server(
    folder: Path, env: Mapping[str, str] | None = None, **behaviour: Any
) -> AsyncGenerator[tuple[HttpMcpServer, McpServerService]]:
    fake = FakeMcpServer(folder=folder)
    fake.set_behaviour(tool_definition("echo", word={"type": "string"}))
    server = HttpMcpServer(fake=fake, **behaviour)
    app = web.Application()
    app.router.add_route("*", "/mcp", server.handle_request)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    settings = {"url": f"http://127.0.0.1:{port}/mcp", "bearer_env": "FAR_KEY", "timeout_seconds": 2}
    (folder / "config.json").write_text(json.dumps({"mcp": {"far": settings}}))
    variables = {"RETINUE_CONFIG": str(folder), "FAR_KEY": KEY, **(env or {})}
    config = load_config(variables, home=str(folder / "home"))
    servers = McpServerService(config, {}, system_clock())
    try:
        yield server, servers
    finally:
        await servers.close()
        await runner.cleanup()


async def call(servers: McpServerService, **arguments: Any) -> str:
    tool = servers.tools()["far.echo"]
    return await tool.function(arguments, None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("streams", [False, True], ids=["json", "events"])
async def test_an_http_server_works_like_a_stdio_server(tmp_path: Path, streams: bool):
    async with start_server(tmp_path, streams=streams) as (server, servers):
        servers.trust("far", await servers.compare_tools("far"))
        assert json.loads(await call(servers, word="x")) == {"word": "x"}
        server.fake.set_behaviour(tool_definition("echo", "Other.", word={"type": "string"}))
        with pytest.raises(RetinueError, match="retinue mcp trust far"):
            await call(servers, word="x")
        assert [each.trust_state for each in await servers.compare_tools("far")] == [TrustState.CHANGED]
    assert server.methods.count("initialize") == 1
    assert server.methods.count("tools/call") == 1
    assert ("response" in server.methods) is streams
    assert all(headers["Mcp-Session-Id"] == "session-0" for _, _, headers in server.requests[1:])
    tool_headers = [
        headers for _, message, headers in server.requests if message.get("method", "").startswith("tools/")
    ]
    assert {each["MCP-Protocol-Version"] for each in tool_headers} == {"2025-06-18"}
    assert all(headers["Authorization"] == f"Bearer {KEY}" for _, _, headers in server.requests)
    assert server.requests[-1][0] == "DELETE"


async def test_a_server_is_reached_through_a_proxy_unless_it_is_an_exception(tmp_path: Path):
    async with open_proxy() as proxy:
        env = {"HTTP_PROXY": proxy.url}
        async with start_server(tmp_path, env) as (server, servers):
            servers.trust("far", await servers.compare_tools("far"))
            assert json.loads(await call(servers, word="x")) == {"word": "x"}
        assert {each.partition(" ")[0] for each in proxy.requests} == {"POST"}
        assert server.requests[-1][0] == "DELETE"
        count = len(proxy.heads)
        async with start_server(tmp_path, env | {"NO_PROXY": "127.0.0.1"}) as (_, servers):
            await servers.compare_tools("far")
        assert len(proxy.heads) == count


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", "requires a user name and a password"),
        (
            b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n",
            "status 403: .* The answer came through the proxy http",
        ),
        (
            b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n",
            "status 502: .* The answer came through the proxy http",
        ),
        (b"nonsense\r\n", "did not send an HTTP response"),
    ],
    ids=["407", "403", "502", "garbage"],
)
async def test_a_proxy_that_refuses_is_reported(tmp_path: Path, answer: bytes, error: str):
    async with (
        open_proxy(answer=answer) as proxy,
        start_server(tmp_path, {"HTTP_PROXY": proxy.url}) as (server, servers),
    ):
        with pytest.raises(RetinueError, match=error):
            await servers.compare_tools("far")
        assert (server.requests, len(proxy.heads)) == ([], 1)


async def test_a_lost_session_is_initialized_again(tmp_path: Path):
    async with start_server(tmp_path) as (server, servers):
        servers.trust("far", await servers.compare_tools("far"))
        server.sessions.clear()
        assert json.loads(await call(servers, word="x")) == {"word": "x"}
    assert server.methods.count("initialize") == 2
    assert server.methods.count("tools/call") == 1


async def test_a_timed_out_call_does_not_disturb_other_calls(tmp_path: Path):
    async with start_server(tmp_path) as (server, servers):
        servers.trust("far", await servers.compare_tools("far"))
        waiting_call = asyncio.ensure_future(call(servers, word="wait"))
        assert json.loads(await call(servers, word="x")) == {"word": "x"}
        with pytest.raises(RetinueError, match="echo, and the outcome is unknown"):
            await waiting_call
        assert json.loads(await call(servers, word="y")) == {"word": "y"}
        server.answer_waiting_calls.set()
    assert server.methods.count("initialize") == 1


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ({"status": 401}, "status 401: it requires a valid key"),
        ({"status": 307}, "redirects are not followed"),
        ({"status": 503}, "status 503"),
        ({"body": b"data: {}\n\n"}, "before it was complete"),
        ({"body": b"data: nonsense\n\n"}, "before it was complete"),
        ({"body": b"x" * (MAX_RESPONSE_BYTES + 1)}, "too large|more than"),
    ],
    ids=["key", "redirect", "server error", "cut", "no JSON", "endless"],
)
async def test_connection_errors_are_reported_and_the_server_is_usable_afterwards(
    tmp_path: Path, behaviour: dict[str, Any], error: str
):
    async with start_server(tmp_path, **behaviour) as (server, servers):
        with pytest.raises(RetinueError, match=error) as error_info:
            await servers.compare_tools("far")
        assert KEY not in str(error_info.value)
        server.status, server.body = 200, b""
        assert [each.trust_state for each in await servers.compare_tools("far")] == [TrustState.NEW]


async def test_an_unreachable_server_and_a_missing_key_are_reported(tmp_path: Path):
    async with start_server(tmp_path) as (_, servers):
        pass
    with pytest.raises(RetinueError, match="cannot be reached"):
        await servers.compare_tools("far")
    await servers.close()
    config = load_config({"RETINUE_CONFIG": str(tmp_path)}, home=str(tmp_path / "home"))
    with pytest.raises(RetinueError, match="Set FAR_KEY"):
        await McpServerService(config, {}, system_clock()).compare_tools("far")


async def test_a_message_is_not_sent_again_when_a_reused_connection_closes(tmp_path: Path):
    """A tool may have been called."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in (b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", b""):
            head = await reader.readuntil(b"\r\n\r\n")
            received.append(await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0])))
            writer.write(response)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = StreamableHttpTransport(f"http://127.0.0.1:{port}/mcp", {})
        async for _ in transport.post(b"first", protocol_version=""):
            pass
        with pytest.raises(RetinueError, match="closed the connection before it responded"):
            async for _ in transport.post(b"second", protocol_version=""):
                pass
        await transport.close()
    assert received == [b"first", b"second"]


async def test_a_configured_header_replaces_the_default_one(tmp_path: Path):
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = StreamableHttpTransport(f"http://127.0.0.1:{port}/mcp", {"user-agent": "mine"})
        async for _ in transport.post(b"{}", protocol_version="1"):
            pass
        await transport.close()
    assert b"user-agent: mine\r\n" in heads[0]
    assert b"User-Agent" not in heads[0]
    assert b"MCP-Protocol-Version: 1\r\n" in heads[0]


@pytest.mark.parametrize("encoding", ["xchunked", "gzip, chunked"])
async def test_a_response_with_another_transfer_encoding_is_refused(tmp_path: Path, encoding: str):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: {encoding}\r\n\r\n"
        writer.write(head.encode() + b"2\r\n{}\r\n0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (tmp_path / "config.json").write_text(
        json.dumps({"mcp": {"far": {"url": f"http://127.0.0.1:{port}/mcp"}}})
    )
    servers = McpServerService(
        load_config({"RETINUE_CONFIG": str(tmp_path)}, home=str(tmp_path / "home")), {}, system_clock()
    )
    with pytest.raises(RetinueError, match="invalid response: Transfer-Encoding"):
        await servers.compare_tools("far")
    await servers.close()
    server.close()
    await server.wait_closed()
