"""Routes for agents: list and get."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from retinue.app.workspace_folder import current_folder
from retinue.domain.api_permission import ApiPermission
from retinue.errors import UsageError
from retinue.server.context import ServerContext
from retinue.server.routing import ApiRequest, EmptyFields, route
from retinue.server.schemas import RequestModel, ResponseModel


class AgentsQuery(RequestModel):
    all: Annotated[bool, Meta(description="Include hidden agents.")] = False
    workspace: Annotated[
        str | None, Meta(description="An absolute folder. Agents of a trusted project there are included.")
    ] = None


class AgentQuery(RequestModel):
    workspace: Annotated[str | None, Meta(description="The absolute path of its workspace.")] = None


class Triggers(ResponseModel):
    slash: list[str]
    hotkeys: list[str]


class AgentRow(ResponseModel):
    name: str
    display_name: str | None
    description: str
    type: str
    roles: list[str]
    model: str | None
    triggers: Triggers
    ui_visible: bool
    visible: bool
    source: Annotated[
        str, Meta(description="Where the agent is defined: built in, inline, or a file's path.")
    ]


class AgentDetails(Struct, kw_only=True):
    """An agent definition, as in `agents show --json`; only some of its fields are declared."""

    name: str
    description: str
    prompt: str
    roles: list[str]
    ui_visible: bool
    sources: Annotated[dict[str, str], Meta(description="Field → where its value comes from.")]
    removed_by_ceiling: Annotated[
        list[str], Meta(description="Permissions removed by the configuration's ceiling.")
    ]
    available_tools: Annotated[list[str], Meta(description="Tools available to the agent.")]
    unavailable_tools: Annotated[dict[str, str], Meta(description="Tool → the rule that denies it.")]
    skills: Annotated[list[str], Meta(description="Skills available to the agent.")]
    unavailable_skills: Annotated[dict[str, str], Meta(description="Skill → the rule that denies it.")]


@route(
    "GET",
    "/api/agents",
    right=ApiPermission.READ,
    summary="List the agents by name.",
    query=AgentsQuery,
    response=list[AgentRow],
    response_example=[
        {
            "name": "general",
            "display_name": "General",
            "description": "Takes any task on this machine.",
            "type": "chat",
            "roles": ["primary", "subtask"],
            "model": None,
            "triggers": {"slash": [], "hotkeys": []},
            "ui_visible": True,
            "visible": True,
            "source": "built in",
        }
    ],
)
async def list_agents(
    context: ServerContext, request: ApiRequest[AgentsQuery, EmptyFields]
) -> list[dict[str, Any]]:
    return context.app.agents.list_json(_workspace_folder(request.query.workspace), hidden=request.query.all)


@route(
    "GET",
    "/api/agents/{ref}",
    right=ApiPermission.READ,
    summary="Get all fields of one agent with their sources, and the tools it has.",
    query=AgentQuery,
    response=AgentDetails,
    response_example={
        "name": "general",
        "description": "Takes any task on this machine.",
        "prompt": "You handle any task.",
        "roles": ["primary", "subtask"],
        "ui_visible": True,
        "sources": {"name": "built in"},
        "removed_by_ceiling": [],
        "available_tools": ["read", "write", "bash"],
        "unavailable_tools": {},
        "skills": [],
        "unavailable_skills": {},
    },
)
async def get_agent(context: ServerContext, request: ApiRequest[AgentQuery, EmptyFields]) -> dict[str, Any]:
    return await context.app.agents.to_json(request.ref, _workspace_folder(request.query.workspace))


def _workspace_folder(workspace: str | None) -> str:
    """Return the folder an agent would work in: a trusted project there may add agents."""
    if workspace is None:
        try:
            return current_folder()
        except UsageError:  # the folder is gone, so there is no project in it
            return "/"
    if not workspace.startswith("/"):
        raise UsageError(f"Workspace must be an absolute path: {workspace}")
    return workspace
