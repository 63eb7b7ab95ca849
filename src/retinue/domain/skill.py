"""Skills: a plugin's command in a folder with instructions for its use."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct

from retinue.domain.rules import Globs, subtree_pattern

SKILL_FILE = "SKILL.md"
SHELL_TOOL = "bash"
"""The tool through which skills are used; an agent without it has no skills."""

SkillSource = Literal["user", "project"]


_STORED_NAMES = {"name": "plugin"}
"""Field → its name in stored JSON, where the two differ."""


class Skill(Struct, frozen=True, kw_only=True, rename=_STORED_NAMES):
    name: str
    """Name of the skill and its folder, matched by `skill_allow` and `skill_deny`."""
    description: str
    folder: str
    """The real path."""
    cli: str
    """The real path of the command in the folder."""
    source: SkillSource = "user"

    @property
    def file(self) -> str:
        return f"{self.folder}/{SKILL_FILE}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "file": self.file,
            "cli": self.cli,
            "source": self.source,
        }


@lru_cache(maxsize=256)
def skill_folder_patterns(skills: Sequence[Skill]) -> Globs:
    """Return patterns for the skills' folders and everything in them."""
    return tuple(subtree_pattern(each.folder) for each in skills)
