"""Tool specifications for the model, and tool policies for permission checks."""

import hashlib
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from retinue.domain.approval import ToolAccess


class Effect(StrEnum):
    """Whether a call may be repeated."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class ApprovalRequirement(StrEnum):
    """Whether a call needs approval."""

    NEVER = "never"
    UNLESS_GRANTED = "unless granted"
    ALWAYS = "always"


class ToolSpec(Struct, frozen=True, kw_only=True):
    """The part of a tool that the model sees."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of the arguments, an object."""


class ToolPolicy(Struct, frozen=True, kw_only=True):
    """Everything about a tool except its function, for listing it, checking calls and crash recovery."""

    spec: ToolSpec
    parse_arguments: Callable[[bytes], Mapping[str, Any]]
    """Strict: unknown keys and wrong types raise ValueError with a sentence."""
    effect: Effect = Effect.ONCE
    capabilities: tuple[str, ...] = ()
    category: str = ""
    plugin: str = ""
    """The plugin it belongs to; empty for none. A plugin may be offered as a skill instead of tools."""
    approval_requirement: ApprovalRequirement = ApprovalRequirement.UNLESS_GRANTED
    access: ToolAccess = "tool"
    """Kind of access to the resource, so that a call can be checked beforehand."""
    resource_of: Callable[[Mapping[str, Any]], str] | None = None
    """Return the path or command in the arguments; None if no scope rule applies beyond the tool itself."""
    only_reads: bool = False
    """Changes nothing, although a call must not be repeated; may run concurrently with calls that read."""
    agent_argument: str = ""
    """The argument that takes an agent's name; the model is shown the names it can use."""
    recipient_argument: str = ""
    """The argument that names who gets a message; messages of one reply to one recipient keep their order."""
    is_delegation: bool = False
    """Starts other agents; below the top level only where a definition names it."""
    can_verify_completion: bool = False
    """When called again after a crash, it can tell from its recorded intent whether the effect has happened.
    """
    inspects_runs: bool = False
    """Inspects other agents and their runs, and starts none."""
    unavailable_reason: str = ""
    """Why it cannot be called now, whatever a scope allows; empty if the scope decides."""
    delegation_refused_text: str = ""
    """A delegation tool's own text for a refusal below the top level."""
    format_argument_error: Callable[[str], str] | None = None
    """A delegation tool's own text for invalid arguments, made from the standard one."""


MAX_API_NAME_CHARS = 64
_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")


def api_tool_name(name: str) -> str:
    """Return a tool's name as model APIs accept it: letters, digits, _ and -, at most 64 characters.

    Only providers use this form. Any text is accepted, because a call of a tool that never existed must not
    invalidate every later request.
    """
    if name.isidentifier() and name.isascii() and len(name) <= MAX_API_NAME_CHARS:
        return name
    safe_name = _UNSAFE_CHARACTER.sub("_", name.replace(".", "__")) or "unknown"
    if len(safe_name) <= MAX_API_NAME_CHARS:
        return safe_name
    hash_suffix = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe_name[: MAX_API_NAME_CHARS - len(hash_suffix) - 1]}_{hash_suffix}"
