"""The tools command: list every tool, and which are available to an agent."""

from collections.abc import Sequence
from typing import Any

import click

from retinue.app import App
from retinue.cli.command import with_app
from retinue.cli.options import Group
from retinue.cli.ui.terminal import Column, Terminal
from retinue.domain.rules import Verdict
from retinue.errors import UsageError
from retinue.interfaces import Tool

TOOL_COLUMNS: Sequence[Column] = (
    ("TOOL", lambda row: row["name"]),
    ("AVAILABLE", lambda row: "yes" if row["available"] else "no"),
    ("RULE", lambda row: row["rule"]),
    ("APPROVAL", lambda row: row["approval"]),
    ("EFFECT", lambda row: row["effect"]),
    ("DESCRIPTION", lambda row: " ".join(row["description"].split()).partition(". ")[0]),
)


@click.group(cls=Group)
def tools() -> None:
    """List the tools that agents can use."""


@tools.command("list")
@click.option("--agent", metavar="A", help="Show which tools this agent has (default: general).")
@click.option("--session", metavar="S", help="Show which tools this session has.")
@with_app()
async def list_tools(app: App, terminal: Terminal, agent: str | None, session: str | None) -> None:
    """List every tool, whether it is available, and the rule that decides.

    APPROVAL: whether a call requires approval: never, always, or unless the definition's paths.write or
    shell_commands grant it. EFFECT: whether a call can be repeated; a tool with the effect once is not
    repeated after a crash.
    """
    if agent is not None and session is not None:
        raise UsageError("--agent cannot be combined with --session: a session has its own agent")
    found = await app.permissions.tool_verdicts(agent=agent, session=session)
    rows = [tool_as_json(tool, verdict) for tool, verdict in found]
    terminal.print_table(
        rows, TOOL_COLUMNS, empty_note="No tools. See the setting `tools` in the configuration."
    )


def tool_as_json(tool: Tool, verdict: Verdict) -> dict[str, Any]:
    return {
        "name": tool.spec.name,
        "category": tool.category or None,
        "plugin": tool.plugin or None,
        "description": tool.spec.description,
        "available": verdict.ok,
        "rule": verdict.rule,
        "approval": str(tool.approval_requirement),
        "effect": str(tool.effect),
        "capabilities": list(tool.capabilities),
        "is_delegation": tool.is_delegation,
        "schema": dict(tool.spec.schema),
    }
