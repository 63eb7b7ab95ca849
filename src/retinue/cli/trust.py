"""Trust: which projects may add agents of their own, after a person has looked at them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from retinue.agents.trust import FOLDER, Seen, look
from retinue.app import App
from retinue.cli.command import on_app
from retinue.cli.options import Command, Group, remember
from retinue.cli.ui.terminal import Column, Terminal
from retinue.cli.user_prompts import Person
from retinue.domain.agent import Agent, Defined
from retinue.domain.skill import Skill
from retinue.errors import Cancelled, Usage

COLUMNS: Sequence[Column] = (
    ("PROJECT", lambda row: row["path"]),
    ("STANDING", lambda row: row["standing"]),
)

AGENT_COLUMNS: Sequence[Column] = (
    ("AGENT", lambda row: row["name"]),
    ("ADDED", lambda row: "yes" if row["added"] else "no"),
    ("TOOLS", lambda row: "all" if row["tools"] is None else " ".join(row["tools"])),
    ("WHAT", lambda row: row["problem"] or row["description"]),
)


SKILL_COLUMNS: Sequence[Column] = (
    ("SKILL", lambda row: row["name"]),
    ("ADDED", lambda row: "yes" if row["added"] else "no"),
    ("CLI", lambda row: row["cli"]),
    ("WHAT", lambda row: row["problem"] or row["description"]),
)

YES = click.option(
    "--yes",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=remember,
    help="Ask nobody: it was looked at already. Needed where nobody can be asked.",
)


class FolderOrWord(Group):
    """`list` and `remove` are words; anything else is the folder to trust."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        return "PATH", add_trust, args

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[--yes] PATH | list | remove PATH")


@click.group(cls=FolderOrWord)
@YES
def trust() -> None:
    """Let the project in the folder PATH add the agents of its .retinue/agents folder, and the skills of .retinue/skills.

    Before that nothing there counts as a definition, whoever asks for it. What the folder holds is shown first, and you
    are asked; where nobody can be asked, --yes must be said. Its
    agents get names that nobody has yet, the workspace, and a person's yes before they change anything; they change no
    agent of yours and name no server. Once anything in .retinue changes, the project is trusted no more until somebody
    has looked at it and trusts it again. Where commands are not held strictly, git is run only in trusted projects.

    A folder that is called list or remove is written ./list or ./remove.
    """


@click.command(cls=Command)
@click.argument("path")
@YES
@on_app()
async def add_trust(app: App, terminal: Terminal, path: str) -> None:
    """Trust a project as it is now."""
    if not Path(path).is_dir():
        raise Usage(f"{path} is not a folder: name the folder of the project")
    seen = look(path)
    rows, skills = _rows(app, seen), [_skill(name, found) for name, found in app.skills.offers(seen)]
    if not terminal.json:
        _show(terminal, seen, rows, skills)
    if not click.get_current_context().meta.get("retinue.yes"):
        await _agreed(terminal, seen.place)
    app.trust.add(seen, token=app.chance.uuid())
    if terminal.json:
        terminal.value({"path": seen.place, "standing": "trusted", "agents": rows, "skills": skills})
    else:
        terminal.line(f"{seen.place} is trusted as it is now")


async def _agreed(terminal: Terminal, place: str) -> None:
    """Silence is no agreement, and neither is a standard input that nobody types at."""
    ask = None if terminal.json else Person(terminal=terminal).answerer()
    if ask is None:
        raise Usage(f"nobody is here to agree to {place}: look at it, then say --yes")
    said = await ask(f"Trust {place} as it is now? (yes or no)", ())
    if said.strip().lower() not in ("y", "yes"):
        raise Cancelled(f"{place} was left as it was")


@trust.command("list")
@on_app()
async def list_trust(app: App, terminal: Terminal) -> None:
    """Projects that were trusted, and whether each still is as it was then."""
    rows = [{"path": place, "standing": str(standing)} for place, standing in app.trust.listed().items()]
    terminal.rows(rows, COLUMNS, empty="no project is trusted: `retinue trust PATH` shows one and trusts it")


@trust.command("remove")
@click.argument("path")
@on_app()
async def remove_trust(app: App, terminal: Terminal, path: str) -> None:
    """Trust a project no more."""
    gone = app.trust.remove(path, token=app.chance.uuid())
    terminal.facts({"path": gone, "standing": "not trusted"})


def _rows(app: App, seen: Seen) -> list[dict[str, Any]]:
    return [_row(name, found) for name, found in app.agents.offers(seen)]


def _row(name: str, found: Defined | str) -> dict[str, Any]:
    agent = found.agent if isinstance(found, Defined) else Agent(name=name)
    return {
        "name": name,
        "added": isinstance(found, Defined),
        "description": agent.description,
        "tools": None if agent.tool_allow is None else list(agent.tool_allow),
        "model": agent.model,
        "prompt": agent.prompt,
        "problem": None if isinstance(found, Defined) else found,
    }


def _skill(name: str, found: Skill | str) -> dict[str, Any]:
    added = isinstance(found, Skill)
    return {
        "name": name,
        "added": added,
        "description": found.description if added else "",
        "cli": found.cli if added else "",
        "problem": None if added else found,
    }


def _show(
    terminal: Terminal, seen: Seen, rows: Sequence[dict[str, Any]], skills: Sequence[dict[str, Any]]
) -> None:
    where = os.path.join(seen.place, FOLDER)  # noqa: PTH118  (text is enough)
    terminal.rows(rows, AGENT_COLUMNS, empty=f"{where} defines no agents")
    if skills:
        terminal.line("")
        terminal.rows(skills, SKILL_COLUMNS, empty="")
        terminal.line("\nA skill's command runs when an agent of yours runs it: read it before.")
    if rows:
        terminal.line(f"\nTheir words are in {where}: read them before an agent says them to a model.")
