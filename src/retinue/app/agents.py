"""List agents and describe their definitions."""

from typing import Any

from retinue.agents.definition_file import definition_fields
from retinue.agents.registry import FileAgentRegistry
from retinue.app.permissions import PermissionService
from retinue.domain.agent import AGENT_NAME, ToolExposure, agent_as_json


class AgentService:
    """Agent definitions as JSON; `registry` reads and writes their files."""

    def __init__(self, registry: FileAgentRegistry, permissions: PermissionService) -> None:
        self.registry = registry
        self._permissions = permissions

    def list_json(self, folder: str | None = None, *, hidden: bool = False) -> list[dict[str, Any]]:
        """Return the agents you can choose from in a folder.

        With `hidden`, also those with `ui_visible: false` and external agents, which are not supported yet.
        """
        return [
            agent_as_json(each)
            for each in self.registry.list_definitions(folder)
            if hidden or (each.agent.ui_visible and each.agent.is_supported)
        ]

    def unsupported_names(self, folder: str | None = None) -> list[str]:
        """Return the names of the external agents in a folder: they are not supported yet."""
        return [
            each.agent.name for each in self.registry.list_definitions(folder) if not each.agent.is_supported
        ]

    async def to_json(self, name: str, folder: str | None = None) -> dict[str, Any]:
        """Return all fields of one agent, the source of each, and its tools and skills.

        Raises:
            NotFound: There is no such agent.
        """
        if not AGENT_NAME.fullmatch(name):
            raise self.registry.not_found_error(name)
        defined = self.registry.get(name, folder)
        verdicts = {
            tool.spec.name: verdict
            for tool, verdict in await self._permissions.tool_verdicts(agent=name, folder=folder)
        }
        shows_skills = defined.agent.tool_exposure is not ToolExposure.TOOLS
        skills = await self._permissions.skill_verdicts(agent=name, folder=folder) if shows_skills else []
        return {
            **definition_fields(defined.agent, include_defaults=True),
            "sources": dict(defined.sources),
            "removed_by_ceiling": list(defined.removed_by_ceiling),
            "available_tools": [tool for tool, verdict in verdicts.items() if verdict.ok],
            "unavailable_tools": {tool: verdict.rule for tool, verdict in verdicts.items() if not verdict.ok},
            "skills": [skill.name for skill, verdict in skills if verdict.ok],
            "unavailable_skills": {skill.name: verdict.rule for skill, verdict in skills if not verdict.ok},
        }
