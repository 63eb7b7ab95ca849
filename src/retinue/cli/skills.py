"""Commands for skills: list and show them, and which agents have them."""

from collections.abc import Sequence

import click

from retinue.app import App
from retinue.app.workspace_folder import current_folder
from retinue.cli.command import with_app
from retinue.cli.options import Group
from retinue.cli.ui.terminal import Column, Terminal
from retinue.domain.agent import ToolExposure
from retinue.errors import UsageError

SKILL_COLUMNS: Sequence[Column] = (
    ("SKILL", lambda row: row["name"]),
    ("SOURCE", lambda row: row["source"]),
    ("CLI", lambda row: row["cli"]),
    ("DESCRIPTION", lambda row: " ".join(row["description"].split())),
)

SKILL_ACCESS_COLUMNS: Sequence[Column] = (
    ("SKILL", lambda row: row["name"]),
    ("AVAILABLE", lambda row: "yes" if row["available"] else "no"),
    ("RULE", lambda row: row["rule"]),
    *SKILL_COLUMNS[1:],
)


@click.group(cls=Group)
def skills() -> None:
    """List and show skills: commands with instructions.

    Skills are used by agents whose tool_exposure is skills or mixed. They are folders in skills/ of your
    configuration, or in .retinue/skills of a trusted project.
    """


@skills.command("list")
@click.option("--agent", metavar="A", help="Show which skills this agent has.")
@click.option("--session", metavar="S", help="Show which skills this session has.")
@with_app()
async def list_skills(app: App, terminal: Terminal, agent: str | None, session: str | None) -> None:
    """List the skills; with --agent or --session, whether each is available, and the rule that decides.

    Invalid skill folders are reported on standard error.
    """
    if agent is not None and session is not None:
        raise UsageError("--agent cannot be combined with --session: a session has its own agent")
    cwd = current_folder()
    empty_note = f"No skills. Create one in {app.config.skills_dir}."
    if agent is None and session is None:
        terminal.print_table(
            [each.as_json() for each in app.skills.all(cwd)], SKILL_COLUMNS, empty_note=empty_note
        )
    else:
        skills_with_verdicts = await app.permissions.skill_verdicts(agent=agent, session=session)
        rows = [
            {**each.as_json(), "available": verdict.ok, "rule": verdict.rule}
            for each, verdict in skills_with_verdicts
        ]
        terminal.print_table(rows, SKILL_ACCESS_COLUMNS, empty_note=empty_note)
    for error in app.skills.find_broken(cwd):
        terminal.print_note(str(error), colour="31")
    if (warning := app.skills.untrusted_project_notice(cwd)) is not None:
        terminal.print_note(warning)


@skills.command("show")
@click.argument("name")
@with_app()
async def show_skill(app: App, terminal: Terminal, name: str) -> None:
    """Show one skill: its files, the tools it replaces, and which agents have it here."""
    cwd = current_folder()
    skill = app.skills.get(name, cwd)
    tools = [tool.spec.name for tool, _ in await app.permissions.tool_verdicts() if tool.plugin == skill.name]
    terminal.print_facts(
        {**skill.as_json(), "tools": tools, "agents": await _agents_with_skill(app, name, cwd)}
    )


async def _agents_with_skill(app: App, name: str, cwd: str) -> list[str]:
    agent_names: list[str] = []
    for defined in app.agents.registry.list_definitions(cwd):
        agent = defined.agent
        if agent.tool_exposure is not ToolExposure.TOOLS:
            skills_with_verdicts = await app.permissions.skill_verdicts(agent=agent.name)
            agent_names += [
                agent.name for each, verdict in skills_with_verdicts if each.name == name and verdict.ok
            ]
    return agent_names
