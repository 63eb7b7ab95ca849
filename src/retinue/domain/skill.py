"""A skill: what a plugin does as a command, in a folder with a text that says how to use it."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from retinue.domain.rules import Globs, below
from retinue.domain.value import value

FILE = "SKILL.md"
SHELL = "bash"
"""The tool that skills are used through: who has not got it has no skills."""

From = Literal["user", "project"]


@value
class Skill:
    plugin: str
    """Its name, and that of its folder: what `skill_allow` and `skill_deny` match."""
    description: str
    folder: str
    """The real path."""
    cli: str
    """The real path of the command, in the folder."""
    source: From = "user"

    @property
    def file(self) -> str:
        return f"{self.folder}/{FILE}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.plugin,
            "description": self.description,
            "file": self.file,
            "cli": self.cli,
            "source": self.source,
        }


@lru_cache(maxsize=256)
def folders(skills: Sequence[Skill]) -> Globs:
    """The patterns of their folders with all that is in them."""
    return tuple(below(each.folder) for each in skills)
