"""A project's own agents: names that a trusted folder adds, and what a definition of a stranger's may not say."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinue.agents.sources import Layer, layer_of
from retinue.agents.trust import AGENTS, FOLDER, Seen, Standing, Trust, look
from retinue.agents.validators import Wrong
from retinue.domain.agent import NAME
from retinue.domain.permissions.scope import DEFAULT_WRITE
from retinue.domain.rules import unescaped
from retinue.errors import BadDefinition, Refused

PROJECT = "project"
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(slots=True, kw_only=True)
class Project:
    """The folder that somebody works in, looked at once and only when a name is found nowhere else."""

    place: str
    trust: Trust
    _seen: Seen | None = field(default=None)
    _standing: Standing | None = field(default=None)

    @property
    def seen(self) -> Seen:
        self._seen = self._seen or look(self.place)
        return self._seen

    @property
    def standing(self) -> Standing:
        self._standing = self._standing or self.trust.standing(self.seen)
        return self._standing

    def names(self) -> list[str]:
        """Agents that it defines, or tries to; none unless it is trusted."""
        return defined_in(self.seen) if self._is_there() and self.standing is Standing.TRUSTED else []

    def layer(self, name: str) -> Layer | None:
        """What a trusted project says about an agent. Of another one not a word is read: Refused says so."""
        files = [f"{name}.md", f"{name}.json"]
        if not any(os.path.lexists(Path(self.place, FOLDER, AGENTS, each)) for each in files):
            return None
        if self.standing is not Standing.TRUSTED:
            raise Refused(self.untrusted(f"defines an agent {name}"))
        return layer_in(self.seen, name)

    def untrusted(self, does: str) -> str:
        place = self.seen.place
        why = {
            Standing.CHANGED: f"its {FOLDER} folder changed since the project was trusted: look at it again",
            Standing.UNKNOWN: "the project is not trusted: look at it",
        }
        return f"{place} {does}, but {why[self.standing]}, then `retinue trust {shlex.quote(place)}`"

    def _is_there(self) -> bool:
        return os.path.lexists(os.path.join(self.place, FOLDER))  # noqa: PTH118  (at every list of agents)


def defined_in(seen: Seen) -> list[str]:
    """The agents that a project's files are called like."""
    stems = {Path(name).stem for name in seen.texts}
    return sorted(stem for stem in stems if NAME.fullmatch(stem))


def layer_in(seen: Seen, name: str) -> Layer | None:
    there = [each for each in (f"{name}.md", f"{name}.json") if each in seen.texts]
    if not there:
        return None
    where = f"{seen.place}/{FOLDER}/{AGENTS}{there[0]}"
    if len(there) > 1:
        raise BadDefinition(where, f"{there[1]} beside it defines the same agent; keep one of the two")
    text = seen.texts[there[0]]
    found = text if isinstance(text, BadDefinition) else layer_of(text, where)
    if isinstance(found, BadDefinition):
        raise found
    if "prompt_path" in found.partial:
        raise BadDefinition(where, "promptPath: a project's definition holds its prompt itself; put it there")
    return Layer(source=PROJECT, partial=found.partial, text=found.text, where=where)


def harmless(partial: Mapping[str, Any]) -> None:
    """Raises Wrong where a project's definition, with all that it extends, asks for more than any agent has that says
    nothing: the workspace, and a person's yes before anything is changed there."""
    if partial.get("driver_settings") or partial.get("external"):
        raise Wrong(
            (),
            "a project's definition may not say which server is asked, nor by which key; "
            "remove driver_settings and external",
        )
    if _part(partial, "workspace").get("path"):
        raise Wrong(("workspace", "path"), "a project's agents work where they are started; remove it")
    if any(_MODULE.fullmatch(tool) for tool in partial.get("tool_allow") or ()):
        raise Wrong(("tools",), "a project brings no tools of its own; name those there are")
    if _part(partial, "shell_commands").get("allow"):
        raise Wrong(("shell_commands", "allow"), f"a project does not say which commands {_YES}")
    paths = _part(partial, "paths")
    if any(each not in DEFAULT_WRITE for each in paths.get("write") or ()):
        raise Wrong(("paths", "write"), f"a project does not say which writes {_YES}")
    _inside(paths, ("paths",))
    _inside(_part(_part(partial, "ceiling"), "paths"), ("ceiling", "paths"))


def _part(partial: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return partial.get(key) or {}


_YES = "need no yes; leave it out, or put the definition among your own"


def _inside(paths: Mapping[str, Sequence[str] | None], where: tuple[str, ...]) -> None:
    for key in ("read", "write"):
        for at, pattern in enumerate(paths.get(key) or ()):
            upward = any(unescaped(part) == ".." for part in pattern.split("/"))
            if pattern not in DEFAULT_WRITE and (upward or pattern.startswith(("/", "**", "~"))):
                raise Wrong(
                    (*where, key, at),
                    f"'{pattern[:80]}' reaches beyond the workspace, and a project's definition may not; "
                    "begin it with ./",
                )
