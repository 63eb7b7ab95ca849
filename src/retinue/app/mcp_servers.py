"""Configured MCP servers: their tools, and which of them a person trusts.

No server is started before it is needed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from retinue.agents.validators import known_names_hint
from retinue.config.load import Config
from retinue.domain.clock import Clock
from retinue.domain.mcp import (
    McpServerConfig,
    McpTool,
    PinnedTool,
    ToolComparison,
    TrustState,
    compare_with_pins,
)
from retinue.domain.tool import api_tool_name
from retinue.errors import NotFound, UsageError
from retinue.interfaces import Tool
from retinue.mcp.pins import McpPinStore
from retinue.storage.file_io import FileStamp
from retinue.tools.mcp_tool import CallMcpTool, make_mcp_tool


class McpServerService:
    """MCP servers of the configuration; lists and runs use the trusted tools recorded on disk."""

    def __init__(self, config: Config, local_tools: Mapping[str, Tool], clock: Clock) -> None:
        self._config = config
        self._local_tools = local_tools
        # As with models, trust also applies in a temporary home.
        self._pins = McpPinStore(config.models_dir / "mcp.json", unique_suffix=clock.new_uuid)
        self._servers = {each.name: each for each in config.mcp}
        self._stamp: FileStamp | None = None
        self._tool_table: dict[str, Tool] | None = None

    def tools(self) -> Mapping[str, Tool]:
        """Return all tools, including those of MCP servers; a live view, so that trust takes effect at once."""
        return _LiveToolTable(self._current_tools) if self._servers else self._local_tools

    def server_rows(self) -> list[dict[str, Any]]:
        """Return a JSON row for each configured server, without starting any."""
        return [
            {
                "name": config.name,
                "command": [config.command, *config.args] if config.command else None,
                "url": config.url or None,
                "command_found": self._connections.location(config) is not None,
                "trusted": sorted(name for name, pin in pins.items() if not pin.changed_hash),
                "changed": sorted(name for name, pin in pins.items() if pin.changed_hash),
                "unavailable": sorted(
                    f"{config.name}.{name}" for name in pins if f"{config.name}.{name}" not in table
                ),
                "believe_hints": config.believe_hints,
            }
            for table in (self._current_tools(),)
            for config in self._servers.values()
            for pins in (self._pins.for_server(config.name),)
        ]

    async def compare_tools(self, server: str) -> list[ToolComparison]:
        """Start the server and compare the tools it offers now with the trusted ones.

        Raises:
            NotFound: There is no such server.
        """
        config = self._server_config(server)
        return compare_with_pins(
            await self._connections.connection(config).list_tools(), self._pins.for_server(server)
        )

    def trust(self, server: str, compared_tools: Sequence[ToolComparison]) -> list[str]:
        """Trust exactly these tools of a server, and no others; return their names.

        Raises:
            UsageError: None of them can be trusted.
        """
        chosen = [each.current for each in compared_tools if each.current is not None and not each.problem]
        if not chosen:
            raise UsageError(f"The MCP server {server} has no tools that can be trusted.")
        self._pins.trust(server, chosen)
        return [each.name for each in chosen]

    def distrust(self, server: str) -> None:
        """Stop trusting a server's tools, even if it is no longer configured."""
        self._pins.distrust(server)

    async def close(self) -> None:
        if "_connections" in self.__dict__:
            await self._connections.close()

    def _current_tools(self) -> dict[str, Tool]:
        stamp = self._pins.stamp()
        if self._tool_table is None or stamp != self._stamp:
            self._stamp, self._tool_table = stamp, self._build_tool_table()
        return self._tool_table

    def _build_tool_table(self) -> dict[str, Tool]:
        """Build the tool table.

        A server's tool never takes an existing name, nor one that a model could confuse with it.
        """
        table = dict(self._local_tools)
        taken_names = {api_tool_name(name) for name in table}
        for config in self._servers.values():
            for pin in self._pins.for_server(config.name).values():
                tool = make_mcp_tool(
                    config.name, pin, self._tool_caller(config), believe_hints=config.believe_hints
                )
                name = tool.spec.name
                if api_tool_name(name) not in taken_names and not pin.tool.problem():
                    table[name] = tool
                    taken_names.add(api_tool_name(name))
        return table

    def _tool_caller(self, config: McpServerConfig) -> CallMcpTool:
        async def call_tool(pin: PinnedTool, arguments: Mapping[str, Any]) -> str:
            return await self._connections.connection(config).call_tool(pin, arguments)

        return call_tool

    def _mark_changed(self, server: str, found: ToolComparison) -> None:
        """Record that a trusted tool changed; one that is only missing may come back unchanged."""
        if found.pinned is not None and found.trust_state is not TrustState.GONE:
            new_hash = "unfit" if found.current is None or found.problem else found.current.hash
            self._pins.mark_changed(server, PinnedTool(tool=found.pinned), new_hash)

    @cached_property
    def _connections(self):
        from retinue.app.mcp_connections import McpConnectionPool

        return McpConnectionPool(self._config, self._mark_changed)

    def _server_config(self, server: str) -> McpServerConfig:
        if server not in self._servers:
            suggestion = (
                known_names_hint(server, self._servers)
                if self._servers
                else "; none is configured under `mcp`"
            )
            raise NotFound(f"Unknown MCP server {server!r}{suggestion}")
        return self._servers[server]


class _LiveToolTable(Mapping[str, Tool]):
    """A mapping that reads the current tool table at every access."""

    def __init__(self, current_tools: Callable[[], Mapping[str, Tool]]) -> None:
        self._current_tools = current_tools

    def __getitem__(self, name: str) -> Tool:
        return self._current_tools()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current_tools())

    def __len__(self) -> int:
        return len(self._current_tools())


def tool_comparison_json(found: ToolComparison) -> dict[str, Any]:
    """Return one tool as JSON: as it is now, and as it was trusted."""
    return {
        "name": found.name,
        "state": str(found.trust_state),
        "problem": found.problem or None,
        "current": _tool_json(found.current),
        "trusted": _tool_json(found.pinned),
    }


def _tool_json(tool: McpTool | None) -> dict[str, Any] | None:
    if tool is None:
        return None
    return {"description": tool.description, "schema": tool.schema, "hints": dict(tool.hints)}
