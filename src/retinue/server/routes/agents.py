"""Routes for agents: list and get."""

from pathlib import Path
from typing import Any

from retinue.domain.api_permission import ApiPermission
from retinue.errors import UsageError
from retinue.server.context import ServerContext
from retinue.server.request_schemas import AgentQuery, AgentsQuery
from retinue.server.response_schemas import AgentDetails, AgentRow
from retinue.server.routing import ApiRequest, NoFields, Route


async def list_agents(
    context: ServerContext, request: ApiRequest[AgentsQuery, NoFields]
) -> list[dict[str, Any]]:
    return context.app.agents_json(_workspace_folder(request.query.workspace), hidden=request.query.all)


async def get_agent(context: ServerContext, request: ApiRequest[AgentQuery, NoFields]) -> dict[str, Any]:
    return await context.app.agent_json(request.ref, _workspace_folder(request.query.workspace))


def _workspace_folder(workspace: str | None) -> str:
    """Return the folder an agent would work in: a trusted project there may add agents."""
    if workspace is None:
        return str(Path.cwd())
    if not workspace.startswith("/"):
        raise UsageError(f"Workspace must be an absolute path: {workspace}")
    return workspace


ROUTES = (
    Route(
        method="GET",
        path="/api/agents",
        right=ApiPermission.READ,
        handler=list_agents,
        summary="List the agents by name.",
        query=AgentsQuery,
        response=list[AgentRow],
    ),
    Route(
        method="GET",
        path="/api/agents/{ref}",
        right=ApiPermission.READ,
        handler=get_agent,
        summary="Get all fields of one agent with their sources, and the tools it has.",
        query=AgentQuery,
        response=AgentDetails,
    ),
)
