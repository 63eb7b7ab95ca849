"""Commands for MCP servers: list, show, trust and distrust their tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from retinue.app import App
from retinue.app.mcp_servers import tool_comparison_json
from retinue.cli.command import with_app
from retinue.cli.options import Group
from retinue.cli.trust import YES_OPTION
from retinue.cli.ui.terminal import Column, Terminal
from retinue.cli.user_prompts import UserPrompter
from retinue.domain.glob import first_match
from retinue.domain.mcp import McpTool, ToolComparison, TrustState, qualified_tool_name
from retinue.errors import Cancelled, NotFound, UsageError

SERVER_COLUMNS: Sequence[Column] = (
    ("SERVER", lambda row: row["name"]),
    ("TRUSTED", lambda row: str(len(row["trusted"]))),
    ("CHANGED", lambda row: ", ".join(row["changed"])),
    ("LOCATION", lambda row: row["url"] or _program_text(row)),
)

QUOTE_PREFIX = "  │ "
"""Prefix of every line of a server's own text, so that none can be mistaken for ours."""


@click.group(cls=Group)
def mcp() -> None:
    """Manage the MCP servers of your configuration.

    Servers are configured under mcp in config.toml. Their tools are named SERVER.TOOL and become available
    once you have reviewed and trusted them. A tool whose description, schema or hints change is refused until
    you trust it again.
    """


@mcp.command("list")
@with_app()
async def list_servers(app: App, terminal: Terminal) -> None:
    """List the servers and how many of their tools are trusted. Starts no server."""
    terminal.print_table(
        app.mcp.server_rows(),
        SERVER_COLUMNS,
        empty_note="No MCP servers. Add one under mcp in the configuration.",
    )


@mcp.command("show")
@click.argument("server")
@click.argument("tool", required=False)
@with_app()
async def show_server(app: App, terminal: Terminal, server: str, tool: str | None) -> None:
    """Start a server and show its tools, or one of them: the current and the trusted version."""
    tools = [
        tool_state for tool_state in await app.mcp.compare_tools(server) if tool in (None, tool_state.name)
    ]
    if tool is not None and not tools:
        raise NotFound(f"{server} has no tool {tool!r}, current or trusted")
    if terminal.json:
        terminal.print_json([tool_comparison_json(tool_state) for tool_state in tools])
        return
    for tool_state in tools:
        _print_tool(terminal, server, tool_state)
    if not tools:
        terminal.print_line(f"{server} has no tools")


@mcp.command("trust")
@click.argument("server")
@click.option("--only", metavar="GLOB", multiple=True, help="Trust only tools whose names match. Repeatable.")
@YES_OPTION
@with_app()
async def trust_server(app: App, terminal: Terminal, server: str, only: tuple[str, ...]) -> None:
    """Show the new and changed tools of a server in full, and trust them as they are now.

    The command asks you to confirm; without a terminal, --yes is required. Exactly the versions shown are
    trusted, and no other tools of this server.
    """
    tools = [
        tool_state
        for tool_state in await app.mcp.compare_tools(server)
        if not only or first_match(only, tool_state.name)
    ]
    if not terminal.json:
        _print_changes(terminal, server, tools)
    if not click.get_current_context().meta.get("retinue.yes"):
        await _confirm_trust(terminal, server)
    trusted = app.mcp.trust(server, tools)
    if terminal.json:
        terminal.print_json(
            {
                "server": server,
                "trusted": trusted,
                "tools": [tool_comparison_json(tool_state) for tool_state in tools],
            }
        )
    else:
        terminal.print_line(
            f"Trusted in their current version: {', '.join(qualified_tool_name(server, name) for name in trusted)}"
        )


@mcp.command("distrust")
@click.argument("server")
@with_app()
async def distrust_server(app: App, terminal: Terminal, server: str) -> None:
    """Withdraw trust from a server: its tools become unavailable immediately."""
    app.mcp.distrust(server)
    terminal.print_facts({"server": server, "trusted": []})


def _print_changes(terminal: Terminal, server: str, tools: Sequence[ToolComparison]) -> None:
    unchanged_count = sum(tool_state.trust_state is TrustState.TRUSTED for tool_state in tools)
    for tool_state in tools:
        if tool_state.trust_state is not TrustState.TRUSTED:
            _print_tool(terminal, server, tool_state)
    if unchanged_count:
        terminal.print_line(
            f"{unchanged_count} more {'is' if unchanged_count == 1 else 'are'} unchanged and trusted"
        )


async def _confirm_trust(terminal: Terminal, server: str) -> None:
    ask = None if terminal.json else UserPrompter(terminal=terminal).ask_function()
    if ask is None:
        raise UsageError(
            f"Cannot ask you to trust {server} without a terminal or with --json. Review it with `retinue mcp show {server}`, then add --yes."
        )
    answer = await ask(f"Trust the current tools of {server}? (yes or no)", ())
    if answer.strip().lower() not in ("y", "yes"):
        raise Cancelled(f"You did not confirm. The trust of {server} is unchanged.")


def _print_tool(terminal: Terminal, server: str, tool: ToolComparison) -> None:
    terminal.print_line(f"{qualified_tool_name(server, tool.name)}: {tool.trust_state}")
    if tool.problem:
        terminal.print_line(f"  cannot be used: {tool.problem}")
    differs = tool.current is None or tool.pinned is None or tool.current.hash != tool.pinned.hash
    if tool.pinned is not None and differs:
        terminal.print_line("  trusted version:")
        _print_definition(terminal, tool.pinned)
    if tool.current is not None:
        terminal.print_line("  current version:")
        _print_definition(terminal, tool.current)
    terminal.print_line()


def _print_definition(terminal: Terminal, tool: McpTool) -> None:
    """Print the complete definition of a tool: the user agrees only to what was shown."""
    for line in (tool.description or "(no description)").split("\n"):
        terminal.print_line(f"{QUOTE_PREFIX}{line}")
    for line in json.dumps(tool.schema, indent=2, ensure_ascii=False).split("\n"):
        terminal.print_line(f"{QUOTE_PREFIX}{line}")
    if tool.hints:
        terminal.print_line(f"{QUOTE_PREFIX}hints: {_hints_text(tool.hints)}")


def _program_text(row: Mapping[str, Any]) -> str:
    return " ".join(row["command"]) if row["command_found"] else f"{row['command'][0]} is missing"


def _hints_text(hints: Any) -> str:
    return ", ".join(f"{hint} {'yes' if value else 'no'}" for hint, value in sorted(hints.items()))
