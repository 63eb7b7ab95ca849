"""The agents that an agent can see and delegate to."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from retinue.domain.agent import Agent, AgentDefinition
from retinue.domain.glob import first_match
from retinue.domain.permissions.scope import Scope
from retinue.domain.tool import ToolSpec
from retinue.interfaces import RuntimeContext, Tool


def startable_agents(
    scope: Scope, definitions: Iterable[AgentDefinition], context: RuntimeContext
) -> list[Agent]:
    """Return the supported agents that the scope and the configuration allow to be started, in the given order.

    The agent itself may be one of them.
    """
    allowed = context.subagent_settings.allow_agents
    return [
        each.agent
        for each in definitions
        if each.agent.is_supported
        and scope.check_agent(each.agent.name).ok
        and (allowed is None or first_match(allowed, each.agent.name) is not None)
    ]


def other_agents(own_name: str, agents: Sequence[Agent], *, include_hidden: bool = False) -> list[Agent]:
    """Return the agents except this one, in order; with `include_hidden` also those hidden from lists."""
    return [each for each in agents if each.name != own_name and (include_hidden or each.ui_visible)]


def with_agent_names(tool: Tool, agents: Sequence[Agent]) -> ToolSpec:
    """Return the tool's spec with the names of the agents it can start as an enum.

    Providers refuse an empty enum, so none is added for an empty list.
    """
    if not tool.agent_argument or not agents:
        return tool.spec
    properties = dict(tool.spec.schema["properties"])
    properties[tool.agent_argument] = {
        **properties[tool.agent_argument],
        "enum": [each.name for each in agents],
    }
    return replace(tool.spec, schema={**tool.spec.schema, "properties": properties})
