"""Skills: which there are, what each is, and the rule by which an agent has it or not."""

from collections.abc import Sequence
from pathlib import Path

import click

from retinue.app import App
from retinue.cli.command import on_app
from retinue.cli.options import Group
from retinue.cli.ui.terminal import Column, Terminal
from retinue.domain.agent import Exposure
from retinue.errors import Usage

COLUMNS: Sequence[Column] = (
    ("SKILL", lambda row: row["name"]),
    ("FROM", lambda row: row["source"]),
    ("CLI", lambda row: row["cli"]),
    ("WHAT", lambda row: " ".join(row["description"].split())),
)

JUDGED: Sequence[Column] = (
    ("SKILL", lambda row: row["name"]),
    ("HAS IT", lambda row: "yes" if row["has"] else "no"),
    ("RULE", lambda row: row["rule"]),
    *COLUMNS[1:],
)


@click.group(cls=Group)
def skills() -> None:
    """Commands with a text that says how to use them, for agents whose tool_exposure is skills or mixed.

    Yours are folders below skills/ of the configuration; a trusted project adds those of its .retinue/skills folder.
    """


@skills.command("list")
@click.option("--agent", metavar="A", help="As this agent has them.")
@click.option("--session", metavar="S", help="As this session has them.")
@on_app()
async def list_skills(app: App, terminal: Terminal, agent: str | None, session: str | None) -> None:
    """Skills there are here; with an agent or a session, whether it has each, and the rule that decides.

    Folders that are no skills are named on standard error, with what to do about it.
    """
    if agent is not None and session is not None:
        raise Usage("--agent and --session exclude each other: a session has its own agent")
    here = str(Path.cwd())
    where = f"no skills: make one in {app.config.skills_dir}"
    if agent is None and session is None:
        terminal.rows([each.as_json() for each in app.skills.all(here)], COLUMNS, empty=where)
    else:
        found = await app.skills_of(agent=agent, session=session)
        rows = [{**each.as_json(), "has": judged.ok, "rule": judged.rule} for each, judged in found]
        terminal.rows(rows, JUDGED, empty=where)
    for bad in app.skills.broken(here):
        terminal.note(str(bad), colour="31")
    if (sentence := app.skills.untrusted(here)) is not None:
        terminal.note(sentence)


@skills.command("show")
@click.argument("name")
@on_app()
async def show_skill(app: App, terminal: Terminal, name: str) -> None:
    """One skill: its files, the tools it stands for, and which agents have it here."""
    here = str(Path.cwd())
    skill = app.skills.get(name, here)
    tools = [tool.spec.name for tool, _ in await app.tools() if tool.plugin == skill.plugin]
    terminal.facts({**skill.as_json(), "tools": tools, "agents": await _having(app, name, here)})


async def _having(app: App, name: str, here: str) -> list[str]:
    found: list[str] = []
    for defined in app.agents.all(here):
        agent = defined.agent
        if agent.tool_exposure is not Exposure.TOOLS:
            judged = await app.skills_of(agent=agent.name)
            found += [agent.name for each, verdict in judged if each.plugin == name and verdict.ok]
    return found
