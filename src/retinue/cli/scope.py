"""Commands for permissions: show a session's scope, or test one action against it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import click

from retinue.app import App
from retinue.cli.command import with_app
from retinue.cli.options import Group
from retinue.cli.ui.terminal import Terminal
from retinue.errors import Refused


@click.group(cls=Group)
def scope() -> None:
    """Show and test the permissions of a session.

    A session has the permissions of its definition, limited by the ceilings of its parent sessions and of the
    configuration.

    SESSION is an id, slug, alias, path, one of its runs, or an unambiguous prefix.
    """


@scope.command("show")
@click.argument("session")
@with_app()
async def show_scope(app: App, terminal: Terminal, session: str) -> None:
    """Show all permissions of SESSION and where each comes from.

    preapproved: allowed without approval; any other write or command requires approval. ceiling: the limit set
    by a parent session or by the configuration. granted_by_user: permissions that you granted beyond those of
    the parent sessions.
    """
    facts = await app.permissions.scope_json(session)
    if terminal.json:
        terminal.print_json(facts)
        return
    protected, guarded = facts.pop("protected_paths"), facts.pop("guarded_paths")
    ceilings = facts.pop("ceilings")
    terminal.print_facts(dict(_flatten(facts)))
    for each in ceilings:
        terminal.print_line(f"\nceiling of {each.pop('by')}:")
        terminal.print_facts(
            {name: text for name, text in _flatten(each) if (name, text) != ("writable", True)}
        )
    protected_note = f"{len(protected)} path patterns are closed to every agent; changes to {len(guarded)} others always require approval"
    terminal.print_line(f"\n{protected_note} (list them with --json)")


_ALLOW_LISTS = frozenset(
    {"paths.read", "paths.write", "tools.allow", "capabilities.allow", "agents.allow"}
    | {"tools", "capabilities", "agents"}
)
"""Lists that allow nothing when they are empty; any other empty list has no effect."""


def _flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(cast("Mapping[str, Any]", value), f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(cast("Sequence[str]", value)) or ("nothing" if name in _ALLOW_LISTS else "")
        else:
            yield name, value


@scope.command("test")
@click.argument("session")
@click.argument("kind", type=click.Choice(["read", "write", "run", "tool", "agent"]))
@click.argument("value")
@with_app()
async def test_scope(app: App, terminal: Terminal, session: str, kind: str, value: str) -> int:
    """Test whether SESSION may read or write the path VALUE, run the command VALUE, or use the tool or agent VALUE.

    Give a command as one argument (quote it). Prints the rule that decides, and
    whether approval is required. The exit code is 0 for allowed and 3 for denied.
    """
    action = cast("Literal['read', 'write', 'run', 'tool', 'agent']", kind)
    verdict = await app.permissions.check(session, action, value)
    if terminal.json:
        terminal.print_json(verdict)
    else:
        outcome = "allowed" if verdict["ok"] else "denied"
        approval_note = ", requires approval" if verdict["requires_approval"] else ""
        terminal.print_line(f"{outcome}{approval_note}: {verdict['rule']}")
    return 0 if verdict["ok"] else Refused.exit_code
