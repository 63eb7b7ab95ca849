"""An agent: a definition of who it is, what it may use, and how it is started."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from retinue.domain.value import value
from retinue.domain.workspace import Isolation

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
"""What an agent may be called: it becomes part of folder names and tool arguments."""


class Role(StrEnum):
    """How an agent may be started."""

    PRIMARY = "primary"
    SUBTASK = "subtask"
    WATCHER = "watcher"
    ORCHESTRATOR = "orchestrator"


class Kind(StrEnum):
    CHAT = "chat"
    EXTERNAL = "external"


class Thinking(StrEnum):
    OFF = "off"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Exposure(StrEnum):
    TOOLS = "tools"
    SKILLS = "skills"
    MIXED = "mixed"


@value
class Paths:
    """Path globs. None: this list says nothing. Empty: nothing matches it."""

    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None


@value
class ShellCommands:
    """Which commands need not ask. The sandbox is the boundary, not these globs."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None


@value
class WorkspacePolicy:
    isolation: Isolation = Isolation.SHARED
    path: str | None = None
    writable: bool | None = None
    """None: shared and custom are writable, a sandbox is not."""


@value
class Triggers:
    slash: tuple[str, ...] = ()
    hotkeys: tuple[str, ...] = ()


@value
class Agent:
    """One definition type for every format. None and absent mean the same: no word on this."""

    name: str
    display_name: str | None = None
    description: str = ""
    prompt: str = ""
    model: str | None = None
    driver: str | None = None
    """openai, openai-compatible, anthropic, local, scripted, claude-cli, codex-cli, pi-cli."""
    driver_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    temperature: float | None = None
    max_tokens: int | None = None
    thinking: Thinking | None = None
    max_turns: int | None = None
    type: Kind = Kind.CHAT
    roles: tuple[Role, ...] = (Role.PRIMARY, Role.SUBTASK)
    triggers: Triggers = Triggers()
    tool_allow: tuple[str, ...] | None = None
    tool_deny: tuple[str, ...] | None = None
    tool_exposure: Exposure = Exposure.TOOLS
    skill_allow: tuple[str, ...] | None = None
    skill_deny: tuple[str, ...] | None = None
    capability_allow: tuple[str, ...] | None = None
    capability_deny: tuple[str, ...] | None = None
    agent_allow: tuple[str, ...] | None = None
    agent_deny: tuple[str, ...] | None = None
    ui_visible: bool = True
    api_exposed: bool | None = None
    """Accepted, without effect."""
    paths: Paths | None = None
    shell_commands: ShellCommands | None = None
    workspace: WorkspacePolicy = WorkspacePolicy()
    exits: tuple[str, ...] | None = None
    interrupts: bool = False
    """As a watcher it may end the turn that it watches."""
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    ceiling: Mapping[str, Any] | None = None
    extends: str | None = None
    external: Mapping[str, Any] | None = None
    """inputUrl and callbackBaseUrl of an external agent."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that mean something elsewhere (colour, icon) and are kept for show."""

    @property
    def title(self) -> str:
        return self.display_name or self.name


@value
class Defined:
    """A definition with where each of its fields came from, and the text a session's preset.md starts as."""

    agent: Agent
    sources: Mapping[str, str]
    """field → `built in`, `inline`, or the path of the file that had the last word."""
    preset: str
    """preset.md for a new session: the file itself when one Markdown file says it all, else rendered."""
    hash: str
    """Of the preset text."""
    clipped: tuple[str, ...] = ()
    """What the definition asked for and the operator's ceiling took away."""


def as_json(defined: Defined) -> dict[str, Any]:
    """The shape of a row of `agents list`."""
    agent = defined.agent
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
        "source": defined.sources.get("name", ""),
    }


def preset_hash(text: str) -> str:
    """How a preset's text is recognised: whoever records it and whoever compares uses this."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
