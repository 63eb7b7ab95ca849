"""List agents and describe their definitions."""

from abc import ABC, abstractmethod
from typing import Any

from retinue.agents.definition_file import definition_fields
from retinue.agents.registry import FileAgentRegistry
from retinue.domain.agent import AGENT_NAME, ToolExposure, agent_as_json
from retinue.domain.rules import Verdict
from retinue.domain.skill import Skill
from retinue.interfaces import Tool


class AgentService(ABC):
    """Agent definitions as JSON."""

    agents: FileAgentRegistry

    @abstractmethod
    async def tool_verdicts(
        self, *, agent: str | None = None, session: str | None = None, folder: str | None = None
    ) -> list[tuple[Tool, Verdict]]:
        """Return every known tool with its permission verdict."""

    @abstractmethod
    async def skill_verdicts(
        self, *, agent: str | None = None, session: str | None = None, folder: str | None = None
    ) -> list[tuple[Skill, Verdict]]:
        """Return every skill available to an agent with its permission verdict."""

    def agents_json(self, folder: str | None = None, *, hidden: bool = False) -> list[dict[str, Any]]:
        """Return the agents available in a folder; with `hidden`, also those with `ui_visible: false`."""
        return [
            agent_as_json(each)
            for each in self.agents.list_definitions(folder)
            if hidden or each.agent.ui_visible
        ]

    async def agent_json(self, name: str, folder: str | None = None) -> dict[str, Any]:
        """Return all fields of one agent, the source of each, and its tools and skills.

        Raises:
            NotFound: There is no such agent.
        """
        if not AGENT_NAME.fullmatch(name):
            raise self.agents.not_found_error(name)
        defined = self.agents.get(name, folder)
        verdicts = {
            tool.spec.name: verdict for tool, verdict in await self.tool_verdicts(agent=name, folder=folder)
        }
        shows_skills = defined.agent.tool_exposure is not ToolExposure.TOOLS
        skills = await self.skill_verdicts(agent=name, folder=folder) if shows_skills else []
        return {
            **definition_fields(defined.agent, include_defaults=True),
            "sources": dict(defined.sources),
            "clipped": list(defined.removed_by_ceiling),
            "offered": [tool for tool, verdict in verdicts.items() if verdict.ok],
            "withheld": {tool: verdict.rule for tool, verdict in verdicts.items() if not verdict.ok},
            "skills": [skill.name for skill, verdict in skills if verdict.ok],
            "skills_withheld": {skill.name: verdict.rule for skill, verdict in skills if not verdict.ok},
        }
