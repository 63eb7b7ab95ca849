"""A tool: what an agent can do, as the model sees it and as the guard judges it."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """The face of a tool that the model sees."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of the arguments, an object."""


MAX_SPELLED = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def spelled(name: str) -> str:
    """A tool's name as model APIs take it: letters, digits, _ and -, at most 64. Only drivers write it so; everywhere
    else a tool has its own name. It takes any text: a call of a tool that never existed must not make every later
    request invalid."""
    plain = _UNSAFE.sub("_", name.replace(".", "__")) or "unknown"
    if len(plain) <= MAX_SPELLED:
        return plain
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: MAX_SPELLED - len(mark) - 1]}_{mark}"
