"""Agents: who there is, what each is made of, and bringing definitions from elsewhere."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from retinue.app import App
from retinue.domain.agent import Agent, Defined
from retinue.errors import NotFound
from retinue.store import foreign
from retinue.surfaces.cli.command import on_app, plainly
from retinue.surfaces.cli.options import Group
from retinue.surfaces.cli.terminal import Column, Terminal, one_line

COLUMNS: Sequence[Column] = (
    ("AGENT", lambda row: row["name"]),
    ("ROLES", lambda row: " ".join(row["roles"])),
    ("MODEL", lambda row: row["model"] or "-"),
    ("FROM", lambda row: row["source"]),
    ("WHAT", lambda row: row["description"]),
)

FIELD_COLUMNS: Sequence[Column] = (
    ("FIELD", lambda row: row["field"]),
    ("FROM", lambda row: row["source"]),
    ("VALUE", lambda row: row["value"]),
)

CHECK_COLUMNS: Sequence[Column] = (
    ("FIELD", lambda row: row["field"]),
    ("VERDICT", lambda row: row["verdict"]),
    ("VALUE", lambda row: row["value"]),
    ("NOTE", lambda row: row["note"]),
)


@click.group(cls=Group)
def agents() -> None:
    """Agents: definitions of who does the work, with what tools, rights and model."""


@agents.command("list")
@on_app()
async def list_agents(app: App, terminal: Terminal) -> None:
    """All agents that can be started; definitions that are broken are named on standard error."""
    rows = [_row(defined) for defined in app.agents.all()]
    terminal.rows(rows, COLUMNS, empty="no agents: write one to the agents folder of the configuration")
    for bad in app.agents.broken():
        terminal.note(str(bad), colour="31")


@agents.command("show")
@click.argument("name")
@on_app()
async def show_agent(app: App, terminal: Terminal, name: str) -> None:
    """Every field of an agent with where it came from, and the tools it is offered."""
    defined = app.agents.get(name)
    judged = {tool.spec.name: verdict for tool, verdict in await app.tools(agent=name)}
    offered = [tool for tool, verdict in judged.items() if verdict.ok]
    withheld = {tool: verdict.rule for tool, verdict in judged.items() if not verdict.ok}
    if terminal.json:
        facts = {"sources": dict(defined.sources), "clipped": list(defined.clipped)}
        terminal.value({**asdict(defined.agent), **facts, "offered": offered, "withheld": withheld})
        return
    terminal.rows(_fields(defined), FIELD_COLUMNS, empty="")
    terminal.line(f"\noffered: {', '.join(offered) or 'no tools'}")
    for tool, rule in withheld.items():
        terminal.line(f"withheld: {tool} ({rule})")
    for sentence in defined.clipped:
        terminal.line(f"clipped: {sentence}")


@agents.command("delete")
@click.argument("name")
@on_app()
async def delete_agent(app: App, terminal: Terminal, name: str) -> None:
    """Delete an agent's definition file; its sessions stay."""
    app.agents.delete(name)
    terminal.facts({"name": name, "deleted": True})


def _row(defined: Defined) -> dict[str, Any]:
    agent = defined.agent
    return {
        "name": agent.name,
        "display_name": agent.display_name,
        "description": agent.description,
        "type": str(agent.type),
        "roles": [str(role) for role in agent.roles],
        "model": agent.model,
        "ui_visible": agent.ui_visible,
        "source": defined.sources.get("name", ""),
    }


def _fields(defined: Defined) -> list[dict[str, str]]:
    facts = asdict(defined.agent)
    return [
        {
            "field": field.name,
            "source": defined.sources.get(field.name, "default"),
            "value": "-" if facts[field.name] is None else one_line(str(facts[field.name]), 100),
        }
        for field in fields(Agent)
    ]
