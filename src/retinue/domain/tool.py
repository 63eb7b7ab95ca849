"""A tool: what an agent can do, as the model sees it and as the guard judges it."""

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
