"""Routes about agents: who there is, and what each is made of."""

from pathlib import Path
from typing import Any

from retinue.domain.api_permission import Right
from retinue.errors import Usage
from retinue.server.context import House
from retinue.server.request_schemas import AgentQuery, AgentsQuery
from retinue.server.response_schemas import AgentRow, AgentShown
from retinue.server.routing import Nothing, Route, Wish


async def listed(house: House, wish: Wish[AgentsQuery, Nothing]) -> list[dict[str, Any]]:
    return house.app.agents_json(_at(wish.query.workspace), hidden=wish.query.all)


async def shown(house: House, wish: Wish[AgentQuery, Nothing]) -> dict[str, Any]:
    return await house.app.agent_json(wish.ref, _at(wish.query.workspace))


def _at(workspace: str | None) -> str:
    """Where somebody would work: a project there may add agents."""
    if workspace is None:
        return str(Path.cwd())
    if not workspace.startswith("/"):
        raise Usage(f"the workspace {workspace} is no absolute path: say where it is from / on")
    return workspace


ROUTES = (
    Route(
        method="GET",
        path="/api/agents",
        right=Right.READ,
        does=listed,
        says="Agents to choose from, by name.",
        query=AgentsQuery,
        gives=list[AgentRow],
    ),
    Route(
        method="GET",
        path="/api/agents/{ref}",
        right=Right.READ,
        does=shown,
        says="Every field of one agent, where each was said, and the tools it is offered.",
        query=AgentQuery,
        gives=AgentShown,
    ),
)
