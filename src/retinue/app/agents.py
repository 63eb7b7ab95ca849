"""The cast: which agents there are, and what each is made of, as lists and programs are told it."""

from abc import ABC, abstractmethod
from typing import Any

from retinue.agents.definition_file import native
from retinue.agents.registry import DefinitionCatalogue
from retinue.domain.agent import NAME, Exposure, as_json
from retinue.domain.rules import Verdict
from retinue.domain.skill import Skill
from retinue.interfaces import Tool


class Cast(ABC):
    """The part of the application that knows who could do the work."""

    agents: DefinitionCatalogue

    @abstractmethod
    async def tools(
        self, *, agent: str | None = None, session: str | None = None, at: str | None = None
    ) -> list[tuple[Tool, Verdict]]:
        """Every known tool with the verdict of the one gate."""

    @abstractmethod
    async def skills_of(
        self, *, agent: str | None = None, session: str | None = None, at: str | None = None
    ) -> list[tuple[Skill, Verdict]]:
        """Every skill there is for an agent, with the word of its scope."""

    def agents_json(self, at: str | None = None, *, hidden: bool = False) -> list[dict[str, Any]]:
        """Those that can be chosen where somebody works; with `hidden` also those that people are not shown."""
        return [as_json(each) for each in self.agents.all(at) if hidden or each.agent.ui_visible]

    async def agent_json(self, name: str, at: str | None = None) -> dict[str, Any]:
        """Every field of one, where each came from, and the tools it is offered."""
        if not NAME.fullmatch(name):
            raise self.agents.missing(name)
        defined = self.agents.get(name, at)
        judged = {tool.spec.name: verdict for tool, verdict in await self.tools(agent=name, at=at)}
        exposed = defined.agent.tool_exposure is not Exposure.TOOLS
        skills = await self.skills_of(agent=name, at=at) if exposed else []
        return {
            **native(defined.agent, whole=True),
            "sources": dict(defined.sources),
            "clipped": list(defined.clipped),
            "offered": [tool for tool, verdict in judged.items() if verdict.ok],
            "withheld": {tool: verdict.rule for tool, verdict in judged.items() if not verdict.ok},
            "skills": [skill.plugin for skill, verdict in skills if verdict.ok],
            "skills_withheld": {skill.plugin: verdict.rule for skill, verdict in skills if not verdict.ok},
        }
