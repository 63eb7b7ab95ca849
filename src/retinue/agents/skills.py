"""Skills: folders with a SKILL.md and a command, from the user and from trusted projects."""

# Paths are compared as plain strings: a scope knows a folder by its real path.
# ruff: noqa: PTH112, PTH113, PTH118, PTH208

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from retinue.agents import definition_file, validators
from retinue.agents.project import Project
from retinue.agents.trust import PROJECT_FOLDER, SKILLS_PREFIX, ProjectSnapshot, TrustState, TrustStore
from retinue.agents.validators import InvalidValue, nearest_name
from retinue.domain.agent import AGENT_NAME
from retinue.domain.skill import SKILL_FILE, Skill, SkillSource
from retinue.errors import BadDefinition, NotFound
from retinue.storage.strict_yaml import ParseError
from retinue.storage.text_file import check_regular_file, read_text_file

SkillsByFolder = dict[str, Skill | BadDefinition]
"""Skill or error by folder name."""

_SKILL_VALIDATOR = validators.map_with_keys(
    {"name": validators.line_value, "description": validators.text_value, "cli": validators.line_value}
    | dict.fromkeys(
        ("license", "compatibility", "metadata", "version", "author", "allowed-tools"), validators.json_value
    )
)
"""The keys of a SKILL.md. Keys of other programs are accepted and ignored."""


class SkillRegistry:
    """Skill registry that reads the folders on every request, so that an edit counts for the next run."""

    def __init__(self, *, user_dir: Path, trust: TrustStore | None = None) -> None:
        """Args:
        trust: Decides which projects may add skills; without it none may.
        """
        self.user_dir = user_dir
        self.trust = trust

    def all(self, folder: str | None = None, *, from_project_only: bool = False) -> tuple[Skill, ...]:
        """Return the skills available in a folder, by name.

        Args:
            from_project_only: Return only the project's own skills; for an agent that the project defines.
        """
        found = self._find_all(folder)
        skills = (found[name] for name in sorted(found))
        return tuple(
            each
            for each in skills
            if isinstance(each, Skill) and (each.source == "project" or not from_project_only)
        )

    def find_broken(self, folder: str | None = None) -> list[BadDefinition]:
        """Return the errors of folders that are not valid skills."""
        found = self._find_all(folder)
        return [each for _, each in sorted(found.items()) if isinstance(each, BadDefinition)]

    def get(self, name: str, folder: str | None = None) -> Skill:
        found = self._find_all(folder).get(name)
        if isinstance(found, Skill):
            return found
        if found is not None:
            raise NotFound(f"Skill '{name}' not found: {found}") from found
        nearest_match = nearest_name(name, [each.name for each in self.all(folder)])
        raise NotFound(
            f"Skill '{name}' not found" + (f"; did you mean '{nearest_match}'?" if nearest_match else "")
        )

    def preview_project(self, snapshot: ProjectSnapshot) -> list[tuple[str, Skill | str]]:
        """Return what a project would add if trusted: skills, or reasons against them, by name."""
        own_skills = self._user_skills()
        conflict = "a skill with this name exists, and a project cannot change existing skills"
        return [
            (name, conflict if name in own_skills else str(each) if isinstance(each, BadDefinition) else each)
            for name, each in sorted(_project_skills(snapshot).items())
        ]

    def untrusted_project_notice(self, folder: str) -> str | None:
        """Return a message if the project in this folder has skills but is not trusted."""
        project = self._project_with_skills(folder)
        if (
            project is None
            or project.trust_state is TrustState.TRUSTED
            or not (names := sorted(project.snapshot.skill_texts))
        ):
            return None
        return project.untrusted_message(
            f"defines the skills {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"  # noqa: PLR2004
        )

    def _find_all(self, folder: str | None) -> SkillsByFolder:
        project = self._project_with_skills(folder)
        project_skills = (
            {}
            if project is None or project.trust_state is not TrustState.TRUSTED
            else _project_skills(project.snapshot)
        )
        return project_skills | self._user_skills()

    def _project_with_skills(self, folder: str | None) -> Project | None:
        """Return the folder's project, or None, without reading the project, if it has no skills."""
        if (
            folder is None
            or self.trust is None
            or not os.path.lexists(os.path.join(folder, PROJECT_FOLDER, SKILLS_PREFIX))
        ):
            return None
        return Project(path=folder, trust=self.trust)

    def _user_skills(self) -> SkillsByFolder:
        base = os.path.realpath(self.user_dir)
        try:
            names = [each for each in sorted(os.listdir(base)) if not each.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            return {"": BadDefinition(base, f"cannot be read: {error.strerror}")}
        folders = {name: os.path.join(base, name) for name in names}
        return {name: _load_skill(folder, name) for name, folder in folders.items() if os.path.isdir(folder)}


def _project_skills(snapshot: ProjectSnapshot) -> SkillsByFolder:
    found: SkillsByFolder = {}
    for name, text in snapshot.skill_texts.items():
        folder = os.path.join(snapshot.path, PROJECT_FOLDER, SKILLS_PREFIX + name)
        found[name] = text if isinstance(text, BadDefinition) else _parse_skill(text, folder, name, "project")
    return found


def _load_skill(folder: str, name: str) -> Skill | BadDefinition:
    if os.path.islink(folder):  # noqa: PTH114
        return BadDefinition(
            folder, "is a symbolic link, which is not followed; replace it with the folder itself"
        )
    try:
        return _parse_skill(read_text_file(Path(folder, SKILL_FILE)), folder, name, "user")
    except FileNotFoundError:
        return BadDefinition(
            folder, f"has no {SKILL_FILE}; write one that describes what the skill is for and how to use it"
        )
    except BadDefinition as error:
        return error


def _parse_skill(text: str, folder: str, name: str, source: SkillSource) -> Skill | BadDefinition:
    file = os.path.join(folder, SKILL_FILE)
    try:
        fields = _parse_front_matter(text)
        if not AGENT_NAME.fullmatch(name):
            return BadDefinition(
                folder, "is not a valid name; use a-z, 0-9 and hyphens, at most 64 characters"
            )
        if (declared_name := fields.get("name") or name) != name:
            return BadDefinition(
                file, f"has the name '{declared_name}', which must match the folder name, '{name}'"
            )
        if not (description := (fields.get("description") or "").strip()):
            return BadDefinition(file, "has no description; describe what the skill is for")
        return Skill(
            name=name,
            description=description,
            folder=folder,
            cli=_resolve_command(folder, fields.get("cli") or name, file),
            source=source,
        )
    except ParseError as parse_error:
        return BadDefinition(f"{file}:{parse_error.line}", parse_error.problem)
    except BadDefinition as error:
        return error


@lru_cache(maxsize=256)
def _parse_front_matter(text: str) -> Mapping[str, Any]:
    source = definition_file.parse_markdown_definition(text)
    try:
        return _SKILL_VALIDATOR(dict(source.keys), ())
    except InvalidValue as error:
        raise ParseError(source.lines.get(error.path[:1], 1), str(error)) from error


def _resolve_command(folder: str, file_name: str, file: str) -> str:
    """Return the command's real path.

    The command must be in the skill's folder itself, so that access to the folder includes it.
    """
    path = os.path.join(folder, file_name)
    if os.path.normpath(path) != path or not path.startswith(f"{folder}/"):
        raise BadDefinition(file, f"cli: '{file_name}' must be a file in the skill's folder")
    if os.path.realpath(path) != path:
        raise BadDefinition(
            path, "is a symbolic link, which is not followed; replace it with the command itself"
        )
    if not os.path.isfile(path):
        raise BadDefinition(file, f"has no command; create {path}, or set cli to another file")
    check_regular_file(Path(path), os.lstat(path))
    if not os.access(path, os.X_OK):
        raise BadDefinition(path, "is not executable; run `chmod +x` on it")
    return path
