"""Who else there is for an agent: the others that it may know of and hand work to."""

from collections.abc import Sequence

from retinue.domain.agent import Agent
from retinue.domain.glob import first_match
from retinue.domain.scope import Scope
from retinue.ports import Ports


def nameable(scope: Scope, at: str, ports: Ports) -> list[Agent]:
    """Everybody that the rights let be named, in a stable order, itself among them. `at` is the folder of the one who
    asks, whose project may add some."""
    return [each.agent for each in ports.agents.all(at) if scope.agent(each.agent.name).ok]


def peers(own: str, named: Sequence[Agent], ports: Ports, *, hidden: bool = False) -> list[Agent]:
    """The others of these, in their order; with `hidden` also those that no list shows."""
    allowed = ports.subagents.allow_agents
    return [
        each
        for each in named
        if each.name != own
        and (hidden or each.ui_visible)
        and (allowed is None or first_match(allowed, each.name) is not None)
    ]
