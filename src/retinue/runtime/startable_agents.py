"""Who else there is for an agent: the others that it may know of and hand work to."""

from collections.abc import Iterable, Sequence

from retinue.domain.agent import Agent, Defined
from retinue.domain.change import replace
from retinue.domain.glob import first_match
from retinue.domain.permissions.scope import Scope
from retinue.domain.tool import ToolSpec
from retinue.interfaces import Ports, Tool


def nameable(scope: Scope, everybody: Iterable[Defined], ports: Ports) -> list[Agent]:
    """Those of everybody that the rights let be named and the configuration lets be started, in their order, itself
    among them."""
    allowed = ports.subagents.allow_agents
    return [
        each.agent
        for each in everybody
        if scope.agent(each.agent.name).ok
        and (allowed is None or first_match(allowed, each.agent.name) is not None)
    ]


def peers(own: str, named: Sequence[Agent], *, hidden: bool = False) -> list[Agent]:
    """The others of these, in their order; with `hidden` also those that no list shows."""
    return [each for each in named if each.name != own and (hidden or each.ui_visible)]


def naming(tool: Tool, named: Sequence[Agent]) -> ToolSpec:
    """A tool that takes an agent's name shows which names there are for this agent. A list without any would be refused
    by servers, so that none is shown."""
    if not tool.names_agent or not named:
        return tool.spec
    known = dict(tool.spec.schema["properties"])
    known[tool.names_agent] = {**known[tool.names_agent], "enum": [each.name for each in named]}
    return replace(tool.spec, schema={**tool.spec.schema, "properties": known})
