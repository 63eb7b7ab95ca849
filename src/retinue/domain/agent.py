"""Agent definitions: identity, rights and how an agent is started."""

import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from retinue.domain.workspace import Isolation

AGENT_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
"""Pattern of an agent's name, which becomes part of folder names and tool arguments."""


class Role(StrEnum):
    """How an agent may be started."""

    PRIMARY = "primary"
    SUBTASK = "subtask"
    WATCHER = "watcher"
    ORCHESTRATOR = "orchestrator"


class AgentType(StrEnum):
    CHAT = "chat"
    EXTERNAL = "external"


class Thinking(StrEnum):
    OFF = "off"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    MAX = "max"


class ToolExposure(StrEnum):
    TOOLS = "tools"
    SKILLS = "skills"
    MIXED = "mixed"


class PathPatterns(Struct, frozen=True, kw_only=True):
    """Path globs. None: not set. Empty: no path matches."""

    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None
    default_deny: bool | None = None
    """False: an agent started with PersistentAgent is not denied the default paths."""


class ShellCommands(Struct, frozen=True, kw_only=True):
    """Commands that need no approval. The sandbox enforces the boundary, not these globs."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None


class WorkspacePolicy(Struct, frozen=True, kw_only=True):
    isolation: Isolation = Isolation.SHARED
    path: str | None = None
    writable: bool | None = None
    """None: shared and custom workspaces are writable, a sandbox is not."""


class Triggers(Struct, frozen=True, kw_only=True):
    slash: tuple[str, ...] = ()
    hotkeys: tuple[str, ...] = ()


class Agent(Struct, frozen=True, kw_only=True):
    """An agent definition, whatever its file format. None means not set."""

    name: str
    display_name: str | None = None
    description: str = ""
    prompt: str = ""
    model: str | None = None
    fallback_models: tuple[str, ...] | None = None
    """Models to ask, in this order, if the first one fails. None: those of the configuration."""
    driver: str | None = None
    """The name or an alias of a provider: openai, anthropic, claude-cli, …"""
    driver_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    temperature: float | None = None
    max_tokens: int | None = None
    thinking: Thinking | None = None
    max_turns: int | None = None
    type: AgentType = AgentType.CHAT
    roles: tuple[Role, ...] = (Role.PRIMARY, Role.SUBTASK)
    triggers: Triggers = Triggers()
    tool_allow: tuple[str, ...] | None = None
    tool_deny: tuple[str, ...] | None = None
    tool_exposure: ToolExposure = ToolExposure.TOOLS
    skill_allow: tuple[str, ...] | None = None
    skill_deny: tuple[str, ...] | None = None
    capability_allow: tuple[str, ...] | None = None
    capability_deny: tuple[str, ...] | None = None
    agent_allow: tuple[str, ...] | None = None
    agent_deny: tuple[str, ...] | None = None
    ui_visible: bool = True
    api_exposed: bool | None = None
    """Accepted, without effect."""
    paths: PathPatterns | None = None
    shell_commands: ShellCommands | None = None
    workspace: WorkspacePolicy = WorkspacePolicy()
    exits: tuple[str, ...] | None = None
    output_schema: Mapping[str, Any] | None = None
    """JSON Schema of the agent's final answers."""
    interrupts: bool = False
    """Allow the agent, as a watcher, to end the turn that it watches."""
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    ceiling: Mapping[str, Any] | None = None
    extends: str | None = None
    external: Mapping[str, Any] | None = None
    """inputUrl and callbackBaseUrl of an external agent."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of other tools' formats (colour, icon), used only for display."""

    @property
    def is_supported(self) -> bool:
        """Return False for an external agent, which cannot be run yet."""
        return self.type is not AgentType.EXTERNAL

    @property
    def title(self) -> str:
        return self.display_name or self.name


class AgentDefinition(Struct, frozen=True, kw_only=True):
    """An agent, the origin of each of its fields, and the preset.md text of a new session."""

    agent: Agent
    sources: Mapping[str, str]
    """Maps each field to `built in`, `inline`, or the path of the file that set it last."""
    preset: str
    """preset.md for a new session: the file itself if one Markdown file defines the agent, else rendered."""
    hash: str
    """Hash of the preset text."""
    removed_by_ceiling: tuple[str, ...] = ()
    """Rights in the definition that the operator's ceiling removed."""


def agent_as_json(definition: AgentDefinition) -> dict[str, Any]:
    """Return a row of `agents list`."""
    agent = definition.agent
    return {
        "name": agent.name,
        "display_name": agent.display_name,
        "description": agent.description,
        "type": str(agent.type),
        "roles": [str(role) for role in agent.roles],
        "model": agent.model,
        "triggers": {"slash": list(agent.triggers.slash), "hotkeys": list(agent.triggers.hotkeys)},
        "ui_visible": agent.ui_visible,
        "visible": agent.ui_visible,
        "source": definition.sources.get("name", ""),
    }


def preset_hash(text: str) -> str:
    """Return the hash that identifies a preset's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
