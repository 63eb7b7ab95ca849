"""Commands for project trust: trust, list and remove projects that add agents and skills."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from retinue.agents.trust import PROJECT_FOLDER, ProjectSnapshot, scan_project
from retinue.app import App
from retinue.cli.command import with_app
from retinue.cli.options import Command, Group, store_option
from retinue.cli.ui.terminal import Column, Terminal
from retinue.cli.user_prompts import UserPrompter
from retinue.domain.agent import Agent, AgentDefinition
from retinue.domain.skill import Skill
from retinue.errors import Cancelled, UsageError

PROJECT_COLUMNS: Sequence[Column] = (
    ("PROJECT", lambda row: row["path"]),
    ("STATE", lambda row: row["state"]),
)

AGENT_COLUMNS: Sequence[Column] = (
    ("AGENT", lambda row: row["name"]),
    ("ADDED", lambda row: "yes" if row["added"] else "no"),
    ("TOOLS", lambda row: "all" if row["tools"] is None else " ".join(row["tools"])),
    ("DESCRIPTION", lambda row: row["problem"] or row["description"]),
)


SKILL_COLUMNS: Sequence[Column] = (
    ("SKILL", lambda row: row["name"]),
    ("ADDED", lambda row: "yes" if row["added"] else "no"),
    ("CLI", lambda row: row["cli"]),
    ("DESCRIPTION", lambda row: row["problem"] or row["description"]),
)

YES_OPTION = click.option(
    "--yes",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=store_option,
    help="Do not ask. Required without a terminal.",
)


class PathOrSubcommandGroup(Group):
    """A group whose first argument is a subcommand (`list`, `remove`) or else the folder to trust."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        return "PATH", trust_project, args

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[--yes] PATH | list | remove PATH")


@click.group(cls=PathOrSubcommandGroup)
@YES_OPTION
def trust() -> None:
    """Let the project in the folder PATH add agents and skills.

    Agents are read from .retinue/agents and skills from .retinue/skills; without trust, both are ignored.
    The command shows the contents and asks you to confirm. Without a terminal, --yes is required.

    The project's agents can access only the workspace, need approval for every change, and can neither
    replace your agents nor define servers. When a file in .retinue changes, the trust ends until you review
    and trust the project again. If the sandbox level is not strict, git runs only in trusted projects.

    Write a folder named list or remove as ./list or ./remove.
    """


@click.command(cls=Command)
@click.argument("path")
@YES_OPTION
@with_app()
async def trust_project(app: App, terminal: Terminal, path: str) -> None:
    """Trust a project as it is now."""
    if not Path(path).is_dir():
        raise UsageError(f"Not a folder: {path}. Give the folder of the project.")
    snapshot = scan_project(path)
    agents, skills = (
        _agent_rows(app, snapshot),
        [_skill_row(name, skill) for name, skill in app.skills.preview_project(snapshot)],
    )
    if not terminal.json:
        _print_contents(terminal, snapshot, agents, skills)
    if not click.get_current_context().meta.get("retinue.yes"):
        await _confirm_trust(terminal, snapshot.path)
    app.trust.add(snapshot, unique_suffix=app.context.clock.new_uuid())
    if terminal.json:
        terminal.print_json({"path": snapshot.path, "state": "trusted", "agents": agents, "skills": skills})
    else:
        terminal.print_line(f"{snapshot.path} is trusted in its current version")


async def _confirm_trust(terminal: Terminal, project_path: str) -> None:
    """Ask the user to confirm.

    No answer is not consent, and neither is a standard input that is not a terminal.
    """
    ask = None if terminal.json else UserPrompter(terminal=terminal).ask_function()
    if ask is None:
        raise UsageError(
            f"Cannot ask you to trust {project_path} without a terminal or with --json. Review it, then add --yes."
        )
    answer = await ask(f"Trust the current version of {project_path}? (yes or no)", ())
    if answer.strip().lower() not in ("y", "yes"):
        raise Cancelled(f"You did not confirm. The trust of {project_path} is unchanged.")


@trust.command("list")
@with_app()
async def list_trusted_projects(app: App, terminal: Terminal) -> None:
    """List the trusted projects, and whether each has changed since you trusted it."""
    rows = [{"path": path, "state": str(state)} for path, state in app.trust.list_states().items()]
    terminal.print_table(
        rows,
        PROJECT_COLUMNS,
        empty_note="No trusted projects. Review and trust one with `retinue trust PATH`.",
    )


@trust.command("remove")
@click.argument("path")
@with_app()
async def untrust_project(app: App, terminal: Terminal, path: str) -> None:
    """Stop trusting a project."""
    removed_path = app.trust.remove(path, unique_suffix=app.context.clock.new_uuid())
    terminal.print_facts({"path": removed_path, "state": "not trusted"})


def _agent_rows(app: App, snapshot: ProjectSnapshot) -> list[dict[str, Any]]:
    return [
        _agent_row(name, definition) for name, definition in app.agents.registry.preview_project(snapshot)
    ]


def _agent_row(name: str, definition: AgentDefinition | str) -> dict[str, Any]:
    agent = definition.agent if isinstance(definition, AgentDefinition) else Agent(name=name)
    return {
        "name": name,
        "added": isinstance(definition, AgentDefinition),
        "description": agent.description,
        "tools": None if agent.tool_allow is None else list(agent.tool_allow),
        "model": agent.model,
        "fallback_models": agent.fallback_models,
        "prompt": agent.prompt,
        "problem": None if isinstance(definition, AgentDefinition) else definition,
    }


def _skill_row(name: str, skill: Skill | str) -> dict[str, Any]:
    added = isinstance(skill, Skill)
    return {
        "name": name,
        "added": added,
        "description": skill.description if added else "",
        "cli": skill.cli if added else "",
        "problem": None if added else skill,
    }


def _print_contents(
    terminal: Terminal,
    snapshot: ProjectSnapshot,
    agents: Sequence[dict[str, Any]],
    skills: Sequence[dict[str, Any]],
) -> None:
    folder = os.path.join(snapshot.path, PROJECT_FOLDER)  # noqa: PTH118  (text is enough)
    terminal.print_table(agents, AGENT_COLUMNS, empty_note=f"{folder} contains no agents")
    if skills:
        terminal.print_line("")
        terminal.print_table(skills, SKILL_COLUMNS, empty_note="")
        terminal.print_line("\nYour agents can run the command of a skill. Read it before you trust it.")
    if agents:
        terminal.print_line(f"\nThe agents' prompts are in {folder}. Read them before you trust them.")
