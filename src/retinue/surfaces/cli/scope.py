"""Scope: what a session may touch, whose word that is, and the verdict on one thing."""

from typing import Literal, cast

import click

from retinue.app import App
from retinue.errors import Refused
from retinue.surfaces.cli.command import on_app
from retinue.surfaces.cli.options import Group
from retinue.surfaces.cli.terminal import Terminal


@click.group(cls=Group)
def scope() -> None:
    """What a session may touch: its own rights, within the ceilings of those above it and of the configuration.

    SESSION is an id, slug, name, path or unambiguous prefix. Looking changes nothing.
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
    ceilings = facts.pop("ceilings")
    closed = facts.pop("always_closed")
    for key in (
        "paths",
        "needs_no_yes",
        "tools",
        "capabilities",
        "agents",
        "operator_denies",
        "lifted",
        "sandbox",
    ):
        inner = facts.pop(key)
        facts |= {f"{key}.{name}": value for name, value in inner.items() if value is not None}
    terminal.facts(facts)
    for each in ceilings:
        said = {
            key: value for key, value in each.items() if value not in (None, (), [], True) and key != "by"
        }
        terminal.line(f"ceiling of {each['by']}: {said}")
    terminal.line(f"always closed: {len(closed)} patterns; --json lists them")


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
