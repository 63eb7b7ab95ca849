"""MCP servers: what each offers, what was trusted of it, and what has changed since."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from retinue.app import App
from retinue.app.mcp_servers import as_json
from retinue.cli.command import on_app
from retinue.cli.options import Group
from retinue.cli.trust import YES
from retinue.cli.ui.terminal import Column, Terminal
from retinue.cli.user_prompts import Person
from retinue.domain.glob import first_match
from retinue.domain.mcp_tool import Compared, Offer, Stand, full_name
from retinue.errors import Cancelled, NotFound, Usage

COLUMNS: Sequence[Column] = (
    ("SERVER", lambda row: row["name"]),
    ("TRUSTED", lambda row: str(len(row["trusted"]))),
    ("CHANGED", lambda row: ", ".join(row["changed"])),
    ("WHERE", lambda row: row["url"] or _program(row)),
)

MARGIN = "  │ "
"""Stands before every line of a server's own words: none of them can be taken for ours."""


@click.group(cls=Group)
def mcp() -> None:
    """Servers that bring tools: the MCP servers of your configuration.

    A server is named under mcp in config.toml. Its tools are called SERVER.TOOL, and are there once you have looked at
    what it says of them and trusted it. A tool whose description, schema or hints are not what you trusted any more is
    refused until you have looked again.
    """


@mcp.command("list")
@on_app()
async def list_servers(app: App, terminal: Terminal) -> None:
    """Every server, and how many of its tools are trusted. Starts none."""
    terminal.rows(app.mcp.rows(), COLUMNS, empty="the configuration names no MCP servers (mcp)")


@mcp.command("show")
@click.argument("server")
@click.argument("tool", required=False)
@on_app()
async def show_server(app: App, terminal: Terminal, server: str, tool: str | None) -> None:
    """Start a server and show what it says of its tools, or of one, in full, beside what was trusted."""
    found = [each for each in await app.mcp.look(server) if tool in (None, each.name)]
    if tool is not None and not found:
        raise NotFound(f"{server} offers no tool {tool!r}, and none of that name was trusted")
    if terminal.json:
        terminal.value([as_json(each) for each in found])
        return
    for each in found:
        _show(terminal, server, each)
    if not found:
        terminal.line(f"{server} offers no tools")


@mcp.command("trust")
@click.argument("server")
@click.option(
    "--only", metavar="GLOB", multiple=True, help="Trust only tools whose names match; may be said again."
)
@YES
@on_app()
async def trust_server(app: App, terminal: Terminal, server: str, only: tuple[str, ...]) -> None:
    """Show what is new or has changed in a server's tools, in full, and trust them as they are now.

    You are asked first; where nobody can be asked, --yes must be said. What is trusted is exactly what was shown, and
    nothing else of this server.
    """
    seen = [each for each in await app.mcp.look(server) if not only or first_match(only, each.name)]
    if not terminal.json:
        _news(terminal, server, seen)
    if not click.get_current_context().meta.get("retinue.yes"):
        await _agreed(terminal, server)
    trusted = app.mcp.trust(server, seen)
    if terminal.json:
        terminal.value({"server": server, "trusted": trusted, "tools": [as_json(each) for each in seen]})
    else:
        terminal.line(f"Trusted as they are now: {', '.join(full_name(server, each) for each in trusted)}")


@mcp.command("distrust")
@click.argument("server")
@on_app()
async def distrust_server(app: App, terminal: Terminal, server: str) -> None:
    """Trust nothing of a server any more: its tools are gone at once."""
    app.mcp.distrust(server)
    terminal.facts({"server": server, "trusted": []})


def _news(terminal: Terminal, server: str, seen: Sequence[Compared]) -> None:
    same = sum(each.stand is Stand.TRUSTED for each in seen)
    for each in seen:
        if each.stand is not Stand.TRUSTED:
            _show(terminal, server, each)
    if same:
        terminal.line(
            f"{same} more {'is' if same == 1 else 'are'} as you trusted {'it' if same == 1 else 'them'}"
        )


async def _agreed(terminal: Terminal, server: str) -> None:
    ask = None if terminal.json else Person(terminal=terminal).answerer()
    if ask is None:
        raise Usage(
            f"nobody is here to agree to {server}: look at it with `retinue mcp show {server}`, then say --yes"
        )
    said = await ask(f"Trust the tools of {server} as they are now? (yes or no)", ())
    if said.strip().lower() not in ("y", "yes"):
        raise Cancelled(f"{server} was left as it was")


def _show(terminal: Terminal, server: str, found: Compared) -> None:
    terminal.line(f"{full_name(server, found.name)}: {found.stand}")
    if found.problem:
        terminal.line(f"  it can be no tool here: {found.problem}")
    differs = found.now is None or found.pinned is None or found.now.hash != found.pinned.hash
    if found.pinned is not None and differs:
        terminal.line("  as you trusted it:")
        _words(terminal, found.pinned)
    if found.now is not None:
        terminal.line("  as it is now:")
        _words(terminal, found.now)
    terminal.line()


def _words(terminal: Terminal, offer: Offer) -> None:
    """All of it: what is not shown is not agreed to."""
    for line in (offer.description or "(no description)").split("\n"):
        terminal.line(f"{MARGIN}{line}")
    for line in json.dumps(offer.schema, indent=2, ensure_ascii=False).split("\n"):
        terminal.line(f"{MARGIN}{line}")
    if offer.hints:
        terminal.line(f"{MARGIN}it claims: {_claims(offer.hints)}")


def _program(row: Mapping[str, Any]) -> str:
    return " ".join(row["command"]) if row["found"] else f"{row['command'][0]} is missing"


def _claims(hints: Any) -> str:
    return ", ".join(f"{hint} {'yes' if claimed else 'no'}" for hint, claimed in sorted(hints.items()))
