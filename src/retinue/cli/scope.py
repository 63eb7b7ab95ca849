"""Scope: what a session may touch, whose word that is, and the verdict on one thing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import click

from retinue.app import App
from retinue.cli.command import on_app
from retinue.cli.options import Group
from retinue.cli.ui.terminal import Terminal
from retinue.errors import Refused


@click.group(cls=Group)
def scope() -> None:
    """What a session may touch: its own rights, within the ceilings of those above it and of the configuration.

    SESSION is an id, slug, name, path, a run of it or an unambiguous prefix. Looking changes nothing.
    """


@scope.command("show")
@click.argument("session")
@on_app()
async def show_scope(app: App, terminal: Terminal, session: str) -> None:
    """Everything that applies to SESSION, and whose word it is.

    needs_no_yes is what its definition grants; what else it writes or runs asks a person first. A ceiling is the most
    that someone above it leaves it; lifted is what a person gave it beyond the sessions above.
    """
    facts = await app.scope_json(session)
    if terminal.json:
        terminal.value(facts)
        return
    closed, guarded = facts.pop("always_closed"), facts.pop("guarded")
    ceilings = facts.pop("ceilings")
    terminal.facts(dict(_told(facts)))
    for each in ceilings:
        terminal.line(f"\nat most, by {each.pop('by')}:")
        terminal.facts({name: said for name, said in _told(each) if (name, said) != ("writable", True)})
    closing = f"{len(closed)} patterns are closed to every agent, {len(guarded)} are changed only after a yes to just that"
    terminal.line(f"\n{closing}: --json lists them")


_ALLOWS = frozenset(
    {"paths.read", "paths.write", "tools.allow", "capabilities.allow", "agents.allow"}
    | {"tools", "capabilities", "agents"}
)
"""Lists that allow nothing when they are empty; the others then have nothing to say."""


def _told(facts: Mapping[str, Any], over: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in facts.items():
        name = f"{over}{key}"
        if isinstance(value, Mapping):
            yield from _told(cast("Mapping[str, Any]", value), f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(cast("Sequence[str]", value)) or ("nothing" if name in _ALLOWS else "")
        else:
            yield name, value


@scope.command("test")
@click.argument("session")
@click.argument("kind", type=click.Choice(["read", "write", "run", "tool", "agent"]))
@click.argument("value")
@on_app()
async def test_scope(app: App, terminal: Terminal, session: str, kind: str, value: str) -> int:
    """The verdict on one thing: would SESSION be let to read, write or run VALUE, or to use that tool or agent?

    VALUE is a path, a command in one word (quote it), or a name. The rule that decides is named, and whether a person
    would be asked first. The exit code is 0 for yes and 3 for no.
    """
    wanted = cast("Literal['read', 'write', 'run', 'tool', 'agent']", kind)
    found = await app.scope_test(session, wanted, value)
    if terminal.json:
        terminal.value(found)
    else:
        word = "yes" if found["ok"] else "no"
        asks = ", after a person's yes" if found["asks"] else ""
        terminal.line(f"{word}{asks}: {found['rule']}")
    return 0 if found["ok"] else Refused.exit_code
