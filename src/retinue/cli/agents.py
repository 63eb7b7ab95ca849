"""Commands for agent definitions: list, show, check, import and delete."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import fields

from retinue.agents.definition_file import definition_fields
from retinue.agents.importing import importer
from retinue.app import App
from retinue.app.workspace_folder import current_folder
from retinue.cli.command import with_app, without_app
from retinue.cli.options import Group
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.domain.agent import Agent, AgentDefinition
from retinue.domain.number_format import format_count
from retinue.domain.sanitize import count_hidden
from retinue.errors import NotFound

MAX_SCANNED_BYTES = 1_000_000
"""Number of leading bytes of a definition file that are searched for invisible characters."""

AGENT_COLUMNS: Sequence[Column] = (
    ("AGENT", lambda row: row["name"]),
    ("NAME", lambda row: row["display_name"] or "-"),
    ("ROLES", lambda row: " ".join(row["roles"])),
    ("MODEL", lambda row: row["model"] or "-"),
    ("SOURCE", lambda row: row["source"]),
    ("DESCRIPTION", lambda row: row["description"]),
)

FIELD_COLUMNS: Sequence[Column] = (
    ("FIELD", lambda row: row["field"]),
    ("SOURCE", lambda row: row["source"]),
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
    """List, show, check, import and delete agent definitions.

    A definition says which tools, permissions and model an agent has.
    """


@agents.command("list")
@click.option("--all", "include_hidden", is_flag=True, help="Include hidden agents.")
@with_app()
async def list_agents(app: App, terminal: Terminal, include_hidden: bool) -> None:
    """List the agents you can choose from.

    Invalid definitions are reported on standard error.
    """
    cwd = current_folder()
    terminal.print_table(
        app.agents.list_json(cwd, hidden=include_hidden),
        AGENT_COLUMNS,
        empty_note="No agents. Add an agent file to the agents folder of your configuration.",
    )
    for name in app.agents.unsupported_names(cwd):
        terminal.print_note(f"{name} is an external agent (type: external), which is not supported yet")
    for error in app.agents.registry.find_broken(cwd):
        terminal.print_note(str(error), colour="31")
    if (warning := app.agents.registry.untrusted_project_notice(cwd)) is not None:
        terminal.print_note(warning)


@agents.command("show")
@click.argument("name")
@with_app()
async def show_agent(app: App, terminal: Terminal, name: str) -> None:
    """Show every field of an agent with its source, and the available tools and skills."""
    cwd = current_folder()
    facts = await app.agents.to_json(name, cwd)
    if terminal.json:
        terminal.print_json(facts)
        return
    defined = app.agents.registry.get(name, cwd)
    terminal.print_table(_field_rows(defined), FIELD_COLUMNS, empty_note="")
    terminal.print_line(f"\navailable tools: {', '.join(facts['available_tools']) or 'no tools'}")
    for tool, rule in facts["unavailable_tools"].items():
        terminal.print_line(f"not available: {tool} ({rule})")
    if facts["skills"]:
        terminal.print_line(f"skills: {', '.join(facts['skills'])}")
    for skill, rule in facts["unavailable_skills"].items():
        terminal.print_line(f"not available: the skill {skill} ({rule})")
    for reason in defined.removed_by_ceiling:
        terminal.print_line(f"removed by a ceiling: {reason}")


@agents.command("delete")
@click.argument("name")
@with_app()
async def delete_agent(app: App, terminal: Terminal, name: str) -> None:
    """Delete an agent's definition file; its sessions are kept."""
    app.agents.registry.delete(name)
    terminal.print_facts({"name": name, "deleted": True})


@agents.command("check")
@click.argument("path")
@without_app
async def check_agents(terminal: Terminal, _home: str | None, path: str) -> int:
    """Check a definition, or every definition in a folder, without writing anything.

    Reports whether each field is honoured, mapped, kept without effect, or refused. Also reads the definition formats of other
    programs. Other files in a folder are listed and skipped.

    The exit code is 1 if a definition is not usable, or if none was found.
    """
    results = importer.check_definitions(_existing_path(path))
    if terminal.json:
        terminal.print_json([_check_as_json(result) for result in results])
    for result in results:
        _print_check(terminal, result)
    _print_skipped_kinds(terminal, results)
    return _check_exit_code(results)


@agents.command("import")
@click.argument("path")
@with_app()
async def import_agents(app: App, terminal: Terminal, path: str) -> int:
    """Import the definitions in a file or folder as Retinue agents.

    Existing files are never overwritten.
    """
    imported = importer.import_definitions(_existing_path(path), app.config.agents_dir)
    if terminal.json:
        terminal.print_json(
            [
                _check_as_json(result.check)
                | {"agent": result.name or None, "target": str(result.target) if result.target else None}
                for result in imported
            ]
        )
    for result in imported:
        _print_check(terminal, result.check)
        if not result.check.kind:
            terminal.print_line(
                f"→ {result.name}: {result.target}\n" if result.target else "→ not imported\n"
            )
    _print_skipped_kinds(terminal, [result.check for result in imported])
    return _check_exit_code([result.check for result in imported])


def _print_skipped_kinds(terminal: Terminal, results: Sequence[importer.DefinitionCheck]) -> None:
    """Print how many skills, commands, rules and plugins were skipped."""
    counts = Counter(kind for kind, _ in {(each.kind, each.owner) for each in results if each.kind})
    if counts:
        parts = [format_count(count, kind) for kind, count in sorted(counts.items())]
        terminal.print_note(f"skipped, because they are not agents: {', '.join(parts)}")


def _check_exit_code(results: Sequence[importer.DefinitionCheck]) -> int:
    """Return 0 if at least one definition was found and all of them are usable.

    Files that are not definitions (a README) do not count as failures.
    """
    definitions = [result for result in results if not result.is_skipped]
    return 0 if definitions and all(result.ok for result in definitions) else 1


def _existing_path(path: str) -> Path:
    if not os.path.lexists(path):
        raise NotFound(f"File or folder not found: {path}")
    return Path(path)


def _check_as_json(result: importer.DefinitionCheck) -> dict[str, Any]:
    return {
        "path": str(result.path),
        "ok": result.ok,
        "name": result.name,
        "dialect": result.dialect,
        "fields": [_field_verdict_json(field) for field in result.fields],
        "problems": list(result.problems),
        "skipped": result.is_skipped,
        "kind": result.kind or None,
        "repaired_keys": list(result.repaired_keys),
        "load_error": result.load_problem or None,
        "invisible_characters": _hidden_character_count(result.path),
    }


def _hidden_character_count(path: Path) -> int:
    """Count the characters of a definition file that a reader cannot see."""
    try:
        return count_hidden(path.read_bytes()[:MAX_SCANNED_BYTES].decode("utf-8", "replace"))
    except OSError:
        return 0


def _field_verdict_json(field: importer.FieldVerdict) -> dict[str, str]:
    return {
        "field": field.field,
        "value": field.shown_value,
        "verdict": str(field.verdict),
        "note": field.note,
    }


def _print_check(terminal: Terminal, result: importer.DefinitionCheck) -> None:
    """Print a checked definition: name, dialect, verdict on each field, and problems."""
    if terminal.json or result.kind:
        return
    terminal.print_line(f"{result.path}: {result.name or 'no agent'} ({result.dialect})")
    if result.fields:
        terminal.print_table(
            [_field_verdict_json(field) for field in result.fields], CHECK_COLUMNS, empty_note=""
        )
    for problem in result.problems:
        terminal.print_line(f"{'skipped' if result.is_skipped else 'problem'}: {problem}")
    if count := _hidden_character_count(result.path):
        terminal.print_line(f"hidden: {count} invisible characters, which a model reads but you cannot see")
    if result.load_problem and result.ok:
        terminal.print_line(
            f"cannot be loaded: {result.load_problem}; `retinue agents import` writes a version that can"
        )


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _field_rows(defined: AgentDefinition) -> list[dict[str, str]]:
    facts = definition_fields(defined.agent, include_defaults=True)
    return [
        {
            "field": field.name,
            "source": defined.sources.get(field.name, "default"),
            "value": "-" if facts[field.name] is None else one_line(_format_value(facts[field.name]), 100),
        }
        for field in fields(Agent)
    ]
