"""Skills: folders with a text that says how and a command that does it, the user's own and those of a trusted project."""

# Names are joined and compared as text here: a scope knows a folder by its real path.
# ruff: noqa: PTH112, PTH113, PTH118, PTH208

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from retinue.agents import definition_file, validators
from retinue.agents.project import Project
from retinue.agents.trust import FOLDER, SKILLS, Seen, Standing, Trust
from retinue.agents.validators import Wrong, nearest
from retinue.domain.agent import NAME
from retinue.domain.skill import FILE, From, Skill
from retinue.errors import BadDefinition, NotFound
from retinue.storage.strict_yaml import Mistake
from retinue.storage.text_file import checked, read_text

Found = dict[str, Skill | BadDefinition]
"""By the names of their folders: each a skill, or why it is none."""

_READ = validators.table(
    {"name": validators.word, "description": validators.text, "cli": validators.word}
    | dict.fromkeys(
        ("license", "compatibility", "metadata", "version", "author", "allowed-tools"), validators.anything
    )
)
"""The keys of a SKILL.md. Those that only others obey are accepted and give nothing."""


class SkillFolders:
    """Read anew whenever they are asked for: an edit counts with the next run."""

    def __init__(self, *, user_dir: Path, trust: Trust | None = None) -> None:
        """`trust` says which projects may add skills of their own; without it none does."""
        self.user_dir = user_dir
        self.trust = trust

    def all(self, at: str | None = None, *, foreign: bool = False) -> tuple[Skill, ...]:
        """Those that there are where somebody works, by name. A `foreign` agent, which a project brought, gets only
        what that project brought too."""
        found = self._found(at)
        skills = (found[name] for name in sorted(found))
        return tuple(
            each for each in skills if isinstance(each, Skill) and (each.source == "project" or not foreign)
        )

    def broken(self, at: str | None = None) -> list[BadDefinition]:
        """What is wrong with the folders that are no skills."""
        found = self._found(at)
        return [each for _, each in sorted(found.items()) if isinstance(each, BadDefinition)]

    def get(self, name: str, at: str | None = None) -> Skill:
        found = self._found(at).get(name)
        if isinstance(found, Skill):
            return found
        if found is not None:
            raise NotFound(f"Skill '{name}' not found: {found}") from found
        close = nearest(name, [each.plugin for each in self.all(at)])
        raise NotFound(f"Skill '{name}' not found" + (f"; did you mean '{close}'?" if close else ""))

    def offers(self, seen: Seen) -> list[tuple[str, Skill | str]]:
        """What a project would add if it were trusted: each name with its skill, or with why it is not added."""
        own = self._own()
        taken = "there is a skill of this name already, and a project changes none"
        return [
            (name, taken if name in own else str(each) if isinstance(each, BadDefinition) else each)
            for name, each in sorted(_projects(seen).items())
        ]

    def untrusted(self, at: str) -> str | None:
        """A sentence about the project somebody works in, when it has skills and may not."""
        project = self._project(at)
        if (
            project is None
            or project.standing is Standing.TRUSTED
            or not (names := sorted(project.seen.skills))
        ):
            return None
        return project.untrusted(f"brings the skills {', '.join(names[:8])}{' …' if len(names) > 8 else ''}")  # noqa: PLR2004

    def _found(self, at: str | None) -> Found:
        project = self._project(at)
        theirs = (
            {} if project is None or project.standing is not Standing.TRUSTED else _projects(project.seen)
        )
        return theirs | self._own()

    def _project(self, at: str | None) -> Project | None:
        """None where a folder has no skills: then nothing of it is looked at."""
        if at is None or self.trust is None or not os.path.lexists(os.path.join(at, FOLDER, SKILLS)):
            return None
        return Project(place=at, trust=self.trust)

    def _own(self) -> Found:
        base = os.path.realpath(self.user_dir)
        try:
            names = [each for each in sorted(os.listdir(base)) if not each.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            return {"": BadDefinition(base, f"cannot be read: {error.strerror}")}
        folders = {name: os.path.join(base, name) for name in names}
        return {name: _looked(folder, name) for name, folder in folders.items() if os.path.isdir(folder)}


def _projects(seen: Seen) -> Found:
    found: Found = {}
    for name, text in seen.skills.items():
        folder = os.path.join(seen.place, FOLDER, SKILLS + name)
        found[name] = text if isinstance(text, BadDefinition) else _judged(text, folder, name, "project")
    return found


def _looked(folder: str, name: str) -> Skill | BadDefinition:
    if os.path.islink(folder):  # noqa: PTH114
        return BadDefinition(folder, "is a symbolic link, which is not followed; put the folder itself there")
    try:
        return _judged(read_text(Path(folder, FILE)), folder, name, "user")
    except FileNotFoundError:
        return BadDefinition(
            folder, f"has no {FILE}; write one that says what the skill is for and how it is used"
        )
    except BadDefinition as bad:
        return bad


def _judged(text: str, folder: str, name: str, source: From) -> Skill | BadDefinition:
    file = os.path.join(folder, FILE)
    try:
        said = _said(text)
        if not NAME.fullmatch(name):
            return BadDefinition(folder, "is not called like a plugin: use a-z, 0-9 and hyphens, at most 64")
        if (named := said.get("name") or name) != name:
            return BadDefinition(file, f"names itself '{named}'; a skill is called like its folder, '{name}'")
        if not (description := (said.get("description") or "").strip()):
            return BadDefinition(file, "has no description; say in one what the skill is for")
        return Skill(
            plugin=name,
            description=description,
            folder=folder,
            cli=_command(folder, said.get("cli") or name, file),
            source=source,
        )
    except Mistake as mistake:
        return BadDefinition(f"{file}:{mistake.line}", mistake.problem)
    except BadDefinition as bad:
        return bad


@lru_cache(maxsize=256)
def _said(text: str) -> Mapping[str, Any]:
    source = definition_file.markdown(text)
    try:
        return _READ(dict(source.keys), ())
    except Wrong as wrong:
        raise Mistake(source.lines.get(wrong.path[:1], 1), str(wrong)) from wrong


def _command(folder: str, named: str, file: str) -> str:
    """The command's real path; it stands in the folder itself, so that whoever has the folder has it."""
    path = os.path.join(folder, named)
    if os.path.normpath(path) != path or not path.startswith(f"{folder}/"):
        raise BadDefinition(file, f"cli: '{named}' must be a file in the skill's folder")
    if os.path.realpath(path) != path:
        raise BadDefinition(path, "is a symbolic link, which is not followed; put the command itself there")
    if not os.path.isfile(path):
        raise BadDefinition(file, f"has no command: put it at {path}, or name another file with cli")
    checked(Path(path), os.lstat(path))
    if not os.access(path, os.X_OK):
        raise BadDefinition(path, "cannot be run: make it executable (chmod +x)")
    return path
