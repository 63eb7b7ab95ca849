"""Connections to MCP servers: opened on first use, closed with the application."""

from collections.abc import Callable, Mapping

from retinue import __version__
from retinue.config.load import Config
from retinue.domain.mcp import McpServerConfig, ToolComparison
from retinue.errors import Failed
from retinue.mcp.client import McpClient
from retinue.mcp.connection import McpConnection
from retinue.mcp.http_transport import HttpMcpClient
from retinue.mcp.stdio_transport import StdioMcpClient
from retinue.sandbox.line_process import build_environment, start_line_process
from retinue.search_path import find_executable

ToolChangeCallback = Callable[[str, ToolComparison], None]


class McpConnectionPool:
    """A pool with a single connection per server, shared by all callers."""

    def __init__(self, config: Config, on_tool_changed: ToolChangeCallback) -> None:
        self._config = config
        self._on_tool_changed = on_tool_changed
        self._connections: dict[str, McpConnection] = {}

    def connection(self, config: McpServerConfig) -> McpConnection:
        if config.name not in self._connections:
            self._connections[config.name] = McpConnection(
                config,
                self._open_client,
                version=__version__,
                on_tool_changed=lambda found: self._on_tool_changed(config.name, found),
            )
        return self._connections[config.name]

    def location(self, config: McpServerConfig) -> str | None:
        """Return the server's URL or the path of its program, or None if the program is not installed."""
        return config.url or find_executable(config.command, self._server_environment(config))

    async def close(self) -> None:
        for each in self._connections.values():
            await each.close()

    async def _open_client(self, config: McpServerConfig) -> McpClient:
        return self._http_client(config) if config.url else await self._start_stdio_client(config)

    def _http_client(self, config: McpServerConfig) -> McpClient:
        """Create a client for an HTTP server; the HTTP code is imported on first use."""
        from retinue.http.network import network_settings
        from retinue.mcp.streamable_http import StreamableHttpTransport

        headers = dict(config.headers)
        if config.bearer_env:
            if not (key := self._config.env.get(config.bearer_env, "").strip()):
                raise Failed(f"No key for the MCP server {config.name}. Set {config.bearer_env}.")
            headers["Authorization"] = f"Bearer {key}"
        network = network_settings(self._config.env)
        network.check_encryption(config.url)
        return HttpMcpClient(config.name, StreamableHttpTransport(config.url, headers, network))

    async def _start_stdio_client(self, config: McpServerConfig) -> McpClient:
        """Start a server program.

        By default it runs in a folder of its own, never in a workspace, whose files could affect it.
        """
        executable = self.location(config)
        if executable is None:
            raise Failed(
                f"The MCP server {config.name} cannot be started: program not found: {config.command}"
            )
        server_folder = self._config.home / "mcp" / config.name
        if config.cwd is None:
            for folder in (server_folder.parent.parent, server_folder.parent, server_folder):
                folder.mkdir(mode=0o700, exist_ok=True)
        client, env, cwd = (
            StdioMcpClient(config.name),
            self._server_environment(config),
            config.cwd or str(server_folder),
        )
        client.process = await start_line_process(
            (executable, *config.args),
            env=env,
            cwd=cwd,
            on_line=client.receive_line,
            on_exit=client.mark_lost,
        )
        return client

    def _server_environment(self, config: McpServerConfig) -> Mapping[str, str]:
        return build_environment(self._config.env, config.inherit, config.env)
