"""Agents: who there is, what each is made of, and bringing definitions from elsewhere."""

import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from retinue.agents.definition_file import native
from retinue.agents.importing import importer
from retinue.app import App
from retinue.cli.command import on_app, plainly
from retinue.cli.options import Group
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.domain.agent import Agent, Defined
from retinue.domain.sanitize import hidden
from retinue.errors import NotFound

LOOKED_AT = 1_000_000
"""Bytes of a file that are searched for what hides in it."""

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
@click.option("--all", "every", is_flag=True, help="Also those that are hidden from people.")
@on_app()
async def list_agents(app: App, terminal: Terminal, every: bool) -> None:
    """Agents to choose from; definitions that are broken are named on standard error."""
    here = str(Path.cwd())
    terminal.rows(
        app.agents_json(here, hidden=every),
        COLUMNS,
        empty="no agents: write one to the agents folder of the configuration",
    )
    for bad in app.agents.broken(here):
        terminal.note(str(bad), colour="31")
    if (sentence := app.agents.untrusted(here)) is not None:
        terminal.note(sentence)


@agents.command("show")
@click.argument("name")
@on_app()
async def show_agent(app: App, terminal: Terminal, name: str) -> None:
    """Every field of an agent with where it came from, and the tools and skills it is offered."""
    here = str(Path.cwd())
    facts = await app.agent_json(name, here)
    if terminal.json:
        terminal.value(facts)
        return
    defined = app.agents.get(name, here)
    terminal.rows(_fields(defined), FIELD_COLUMNS, empty="")
    terminal.line(f"\noffered: {', '.join(facts['offered']) or 'no tools'}")
    for tool, rule in facts["withheld"].items():
        terminal.line(f"withheld: {tool} ({rule})")
    if facts["skills"]:
        terminal.line(f"skills: {', '.join(facts['skills'])}")
    for skill, rule in facts["skills_withheld"].items():
        terminal.line(f"withheld: the skill {skill} ({rule})")
    for sentence in defined.clipped:
        terminal.line(f"clipped: {sentence}")


@agents.command("delete")
@click.argument("name")
@on_app()
async def delete_agent(app: App, terminal: Terminal, name: str) -> None:
    """Delete an agent's definition file; its sessions stay."""
    app.agents.delete(name)
    terminal.facts({"name": name, "deleted": True})


@agents.command("check")
@click.argument("path")
@plainly
async def check_agents(terminal: Terminal, _home: str | None, path: str) -> int:
    """Say of each field of a definition, or of every one in a folder, what would become of it.

    Reads definitions of other programs too. Nothing is written; the exit code is 1 when one cannot be used, or none
    is found. Files of other kinds in a folder are named and passed over.
    """
    checked = importer.check(_there(path))
    if terminal.json:
        terminal.value([_checked(one) for one in checked])
    for one in checked:
        _tell(terminal, one)
    return _code(checked)


@agents.command("import")
@click.argument("path")
@on_app()
async def import_agents(app: App, terminal: Terminal, path: str) -> int:
    """Write a definition of ours for each one in a file or folder; nothing is ever overwritten."""
    imported = importer.import_(_there(path), app.config.agents_dir)
    if terminal.json:
        terminal.value(
            [
                _checked(one.checked)
                | {"agent": one.name or None, "target": str(one.target) if one.target else None}
                for one in imported
            ]
        )
    for one in imported:
        _tell(terminal, one.checked)
        terminal.line(f"→ {one.name}: {one.target}\n" if one.target else "→ not imported\n")
    return _code([one.checked for one in imported])


def _code(checked: Sequence[importer.Checked]) -> int:
    """A README among definitions is no failure; a folder with nothing but that is one."""
    tried = [one for one in checked if not one.passed_over]
    return 0 if tried and all(one.ok for one in tried) else 1


def _there(path: str) -> Path:
    if not os.path.lexists(path):
        raise NotFound(f"there is no file or folder {path}")
    return Path(path)


def _checked(one: importer.Checked) -> dict[str, Any]:
    return {
        "path": str(one.path),
        "ok": one.ok,
        "name": one.name,
        "dialect": one.dialect,
        "fields": [_field(field) for field in one.fields],
        "problems": list(one.problems),
        "passed_over": one.passed_over,
        "mended": list(one.mended),
        "stands": one.stands or None,
        "hidden": _hidden(one.path),
    }


def _hidden(path: Path) -> int:
    """How many characters of a definition's file are not for a reader."""
    try:
        return hidden(path.read_bytes()[:LOOKED_AT].decode("utf-8", "replace"))
    except OSError:
        return 0


def _field(field: importer.FieldVerdict) -> dict[str, str]:
    return {
        "field": field.field,
        "value": field.value_shown,
        "verdict": str(field.verdict),
        "note": field.note,
    }


def _tell(terminal: Terminal, one: importer.Checked) -> None:
    """One definition for people: what it is, what becomes of each field, and what is in the way."""
    if terminal.json:
        return
    terminal.line(f"{one.path}: {one.name or 'no agent'} ({one.dialect})")
    if one.fields:
        terminal.rows([_field(field) for field in one.fields], CHECK_COLUMNS, empty="")
    for problem in one.problems:
        terminal.line(f"{'passed over' if one.passed_over else 'problem'}: {problem}")
    if count := _hidden(one.path):
        terminal.line(f"hidden: {count} invisible characters, which a model reads and a person does not see")
    if one.stands and one.ok:
        terminal.line(
            f"does not load as it stands: {one.stands}; `retinue agents import` writes one that does"
        )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fields(defined: Defined) -> list[dict[str, str]]:
    facts = native(defined.agent, whole=True)
    return [
        {
            "field": field.name,
            "source": defined.sources.get(field.name, "default"),
            "value": "-" if facts[field.name] is None else one_line(_shown(facts[field.name]), 100),
        }
        for field in fields(Agent)
    ]
