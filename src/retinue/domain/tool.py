"""A tool: what an agent can do, as the model sees it and as the guard judges it."""

import hashlib
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from retinue.domain.approval import Touch
from retinue.domain.value import value


class Effect(StrEnum):
    """What a second execution would do to the world."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class Asks(StrEnum):
    """Whether a person is asked before a call."""

    NEVER = "never"
    UNLESS_GRANTED = "unless granted"
    ALWAYS = "always"


@value
class ToolSpec:
    """The face of a tool that the model sees."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of the arguments, an object."""


@value
class ToolFacts:
    """All of a tool but what it does: by this it is offered, judged, and taken up again after a crash."""

    spec: ToolSpec
    parse: Callable[[bytes], Mapping[str, Any]]
    """Strict: unknown keys and wrong types raise ValueError with a sentence."""
    effect: Effect = Effect.ONCE
    capabilities: tuple[str, ...] = ()
    category: str = ""
    plugin: str = ""
    """Whose operation it is: it may be offered as a skill instead. Empty: it is nobody's."""
    asks: Asks = Asks.UNLESS_GRANTED
    touch: Touch = "tool"
    """What a call does with its resource, so that the gate can judge it before it happens."""
    resource: Callable[[Mapping[str, Any]], str] | None = None
    """The path or command in the arguments; None: nothing that the scope has rules for beyond the tool itself."""
    names_agent: str = ""
    """The argument that takes an agent's name: the model is shown whom it can name."""
    door: bool = False
    """Starts other agents: below the top it counts only where a definition names it."""
    decides: bool = False
    """Called again after a crash, it finds out by what it recorded whether it has happened."""
    looks: bool = False
    """Looks at other agents and their runs, and starts none."""
    withheld: str = ""
    """Why nobody may call it now, whatever a scope says; empty: its scope decides."""
    forbidden: str = ""
    """A door's own words where it does not count."""
    misread: Callable[[str], str] | None = None
    """A door's own words for arguments it does not understand, made of ours."""


MAX_SPELLED = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def spelled(name: str) -> str:
    """A tool's name as model APIs take it: letters, digits, _ and -, at most 64. Only drivers write it so; everywhere
    else a tool has its own name. It takes any text: a call of a tool that never existed must not make every later
    request invalid."""
    if name.isidentifier() and name.isascii() and len(name) <= MAX_SPELLED:
        return name
    plain = _UNSAFE.sub("_", name.replace(".", "__")) or "unknown"
    if len(plain) <= MAX_SPELLED:
        return plain
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: MAX_SPELLED - len(mark) - 1]}_{mark}"
