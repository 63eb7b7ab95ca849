"""A project's own agents: names added by a trusted folder, and limits on their definitions."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinue.agents.sources import DefinitionLayer, WatchedStamps, parse_layer
from retinue.agents.trust import (
    AGENTS_PREFIX,
    PROJECT_FOLDER,
    ProjectSnapshot,
    TrustState,
    TrustStore,
    scan_project,
)
from retinue.agents.validators import InvalidValue
from retinue.domain.agent import AGENT_NAME
from retinue.domain.permissions.scope import DEFAULT_WRITABLE_PATHS
from retinue.domain.rules import unescape_component
from retinue.errors import BadDefinition, Refused
from retinue.storage.text_file import lstat_stamp

PROJECT_SOURCE = "project"
_PYTHON_TOOL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(slots=True, kw_only=True)
class Project:
    """The project of a folder, scanned once and only when a name is found nowhere else."""

    path: str
    trust: TrustStore
    _snapshot: ProjectSnapshot | None = field(default=None)
    _trust_state: TrustState | None = field(default=None)

    @property
    def snapshot(self) -> ProjectSnapshot:
        self._snapshot = self._snapshot or scan_project(self.path)
        return self._snapshot

    @property
    def trust_state(self) -> TrustState:
        self._trust_state = self._trust_state or self.trust.state(self.snapshot)
        return self._trust_state

    def watched_stamps(self) -> WatchedStamps:
        """Return the stamps of everything that the project's definitions and its trust depend on."""
        trust_file = os.fspath(self.trust.path)
        return {**self.snapshot.stamps, trust_file: lstat_stamp(trust_file)}

    def agent_names(self) -> list[str]:
        """Return the names of agents it defines, or tries to; none unless it is trusted."""
        return (
            agent_names_in(self.snapshot)
            if self._has_project_folder() and self.trust_state is TrustState.TRUSTED
            else []
        )

    def layer(self, name: str) -> DefinitionLayer | None:
        """Return what a trusted project defines for an agent.

        Raises Refused for an untrusted project, without reading it.
        """
        files = [f"{name}.md", f"{name}.json"]
        if not any(os.path.lexists(Path(self.path, PROJECT_FOLDER, AGENTS_PREFIX, each)) for each in files):
            return None
        if self.trust_state is not TrustState.TRUSTED:
            raise Refused(self.untrusted_message(f"defines an agent {name}"))
        return layer_from_snapshot(self.snapshot, name)

    def untrusted_message(self, action: str) -> str:
        path = self.snapshot.path
        reasons = {
            TrustState.CHANGED: f"its {PROJECT_FOLDER} folder has changed since you trusted it",
            TrustState.UNKNOWN: "you have not trusted it",
        }
        return (
            f"The project {path} {action}, but {reasons[self.trust_state]}. "
            f"Review it, then run `retinue trust {shlex.quote(path)}`."
        )

    def _has_project_folder(self) -> bool:
        return os.path.lexists(os.path.join(self.path, PROJECT_FOLDER))  # noqa: PTH118  (at every list of agents)


def agent_names_in(snapshot: ProjectSnapshot) -> list[str]:
    """Return the agent names of a project's files."""
    stems = {Path(name).stem for name in snapshot.agent_texts}
    return sorted(stem for stem in stems if AGENT_NAME.fullmatch(stem))


def layer_from_snapshot(snapshot: ProjectSnapshot, name: str) -> DefinitionLayer | None:
    existing = [each for each in (f"{name}.md", f"{name}.json") if each in snapshot.agent_texts]
    if not existing:
        return None
    location = f"{snapshot.path}/{PROJECT_FOLDER}/{AGENTS_PREFIX}{existing[0]}"
    if len(existing) > 1:
        raise BadDefinition(
            location, f"{existing[1]} in the same folder defines the same agent; remove one of the two"
        )
    text = snapshot.agent_texts[existing[0]]
    layer = text if isinstance(text, BadDefinition) else parse_layer(text, location)
    if isinstance(layer, BadDefinition):
        raise layer
    if "prompt_path" in layer.partial:
        raise BadDefinition(
            location, "promptPath: is not allowed in a project's definition; put the prompt into it"
        )
    return DefinitionLayer(
        source=PROJECT_SOURCE, partial=layer.partial, text=layer.text, file_to_fix=location
    )


def check_project_restrictions(partial: Mapping[str, Any]) -> None:
    """Raise InvalidValue if a project's merged definition asks for more than default permissions.

    Default permissions are the workspace, and a person's approval before anything in it is changed.
    """
    if partial.get("driver_settings") or partial.get("external"):
        raise InvalidValue(
            (),
            "a project's definition cannot set a server or its key; remove driver_settings and external",
        )
    if _section(partial, "workspace").get("path"):
        raise InvalidValue(
            ("workspace", "path"), "a project's agents work in the folder they are started in; remove it"
        )
    if any(_PYTHON_TOOL.fullmatch(tool) for tool in partial.get("tool_allow") or ()):
        raise InvalidValue(("tools",), "a project cannot add tools; use existing tools")
    if _section(partial, "shell_commands").get("allow"):
        raise InvalidValue(
            ("shell_commands", "allow"), f"a project cannot decide which commands {_NEED_NO_APPROVAL}"
        )
    paths = _section(partial, "paths")
    if paths.get("default_deny") is False:
        raise InvalidValue(
            ("paths", "default_deny"),
            "a project cannot allow the paths that are denied by default; remove it",
        )
    if any(each not in DEFAULT_WRITABLE_PATHS for each in paths.get("write") or ()):
        raise InvalidValue(("paths", "write"), f"a project cannot decide which writes {_NEED_NO_APPROVAL}")
    _check_inside_workspace(paths, ("paths",))
    _check_inside_workspace(_section(_section(partial, "ceiling"), "paths"), ("ceiling", "paths"))


def _section(partial: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return partial.get(key) or {}


_NEED_NO_APPROVAL = "need no approval; remove it, or move the definition to your own agents"


def _check_inside_workspace(paths: Mapping[str, Sequence[str] | None], key_path: tuple[str, ...]) -> None:
    for key in ("read", "write"):
        for index, pattern in enumerate(paths.get(key) or ()):
            goes_up = any(unescape_component(part) == ".." for part in pattern.split("/"))
            if pattern not in DEFAULT_WRITABLE_PATHS and (goes_up or pattern.startswith(("/", "**", "~"))):
                raise InvalidValue(
                    (*key_path, key, index),
                    f"'{pattern[:80]}' is outside the workspace, which a project's definition cannot allow; "
                    "start it with ./",
                )
