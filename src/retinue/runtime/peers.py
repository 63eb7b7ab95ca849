"""Who else there is for an agent: the others that it may know of and hand work to."""

from collections.abc import Sequence
from contextlib import suppress

from retinue.domain.agent import Agent
from retinue.domain.glob import first_match
from retinue.domain.scope import Scope
from retinue.errors import NotFound
from retinue.ports import Ports


def nameable(scope: Scope, at: str, ports: Ports) -> list[str]:
    """Every name that the rights let be named, in a stable order, its own among them. `at` is the folder of the one who
    asks, whose project may add some."""
    return [name for name in ports.agents.names(at) if scope.agent(name).ok]


def peers(own: str, names: Sequence[str], at: str, ports: Ports, *, hidden: bool = False) -> list[Agent]:
    """The others of these names, in their order; with `hidden` also those that no list shows."""
    allowed = ports.subagents.allow_agents
    found: list[Agent] = []
    for name in names:
        if name == own or (allowed is not None and first_match(allowed, name) is None):
            continue
        with suppress(NotFound):  # its file went in this very moment
            found.append(ports.agents.get(name, at).agent)
    return [each for each in found if hidden or each.ui_visible]
