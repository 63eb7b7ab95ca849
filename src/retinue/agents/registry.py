"""The agent registry: definitions merged from all sources, reloaded when a file changes."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from msgspec import Struct

from retinue.agents import definition_file
from retinue.agents.fields import PartialDefinition, merge_definitions
from retinue.agents.operator_ceiling import apply_operator_ceiling
from retinue.agents.project import Project, agent_names_in, check_project_restrictions, layer_from_snapshot
from retinue.agents.sources import (
    DefinitionFileCache,
    DefinitionLayer,
    WatchedStamps,
    agent_files,
    are_mtimes_stable,
    built_in_texts,
    invalid_name_error,
    is_unchanged,
    parse_markdown_layer,
    record_folder_stamp,
    with_prompt_from_file,
    write_definition,
)
from retinue.agents.trust import ProjectSnapshot, TrustState, TrustStore
from retinue.agents.validators import InvalidValue, nearest_name
from retinue.domain.agent import AGENT_NAME, AgentDefinition, preset_hash
from retinue.errors import BadDefinition, Failed, NotFound, Refused, UnusableAgent
from retinue.storage.text_file import LstatStamp, lstat_stamp

BUILT_IN = "built in"
INLINE = "inline"
GENERAL = "general"
MAX_CACHED_DEFINITIONS = 1024
"""Limit on cached agents, above what a user has, so that the memory of a long-lived process stays bounded."""


class InlineDefinition(Struct, frozen=True, kw_only=True):
    """A definition in the configuration file."""

    name: str
    partial: Mapping[str, Any]


class DefinitionSettings(Protocol):
    """The part of the configuration about definitions."""

    @property
    def agents_dir(self) -> Path: ...
    @property
    def agents(self) -> Sequence[InlineDefinition]: ...
    @property
    def ceiling(self) -> Mapping[str, Any] | None: ...


class _CachedDefinition(Struct, frozen=True, kw_only=True):
    """A merged definition, and the stamps of the files it depends on."""

    definition: AgentDefinition
    watched: Mapping[str, LstatStamp]


class FileAgentRegistry:
    """Implements `interfaces.AgentRegistry` on definition files.

    A file is read again only when its stamp changed.
    """

    def __init__(
        self,
        *,
        user_dir: Path,
        inline: Sequence[InlineDefinition] = (),
        trust: TrustStore | None = None,
        ceiling: Mapping[str, Any] | None = None,
        built_in: Mapping[str, str] | None = None,
        live_settings: Callable[[], DefinitionSettings] | None = None,
    ) -> None:
        """Args:
        trust: Decides which projects may add agents; without it none may.
        live_settings: Returns the configuration as it is now, which replaces `inline` and `ceiling`.
        """
        self.user_dir = user_dir
        self._general_agent_paths = [os.fspath(user_dir / f"{GENERAL}{end}") for end in (".md", ".json")]
        self.trust = trust
        self.ceiling = ceiling
        self._inline = {each.name: each for each in inline}
        self._built_in = built_in
        self._files = DefinitionFileCache()
        self._live_settings = live_settings
        self._settings: DefinitionSettings | None = None
        self._cached: dict[tuple[str, str], _CachedDefinition] = {}
        """By name and project; the project is empty for the user's and built-in agents."""
        self._cached_list: tuple[WatchedStamps, list[AgentDefinition]] | None = None

    @classmethod
    def from_settings(cls, settings: DefinitionSettings) -> Self:
        """Create the registry that the configuration describes."""
        return cls(user_dir=settings.agents_dir, inline=settings.agents, ceiling=settings.ceiling)

    def get(self, name: str, folder: str | None = None) -> AgentDefinition:
        """Return an agent's definition.

        Args:
            folder: The working folder; a trusted project there may define additional names.
        """
        self._follow_settings()
        if (cached := self._find_cached(name, "")) is not None:
            return cached
        project = self.project_at(folder)
        real_path = "" if project is None else os.path.realpath(project.path)
        if real_path and (cached := self._find_cached(name, real_path)) is not None:
            return cached
        try:
            merging = _DefinitionMerge(registry=self, project=project)
            defined = merging.merge(name)
        except BadDefinition as error:
            raise UnusableAgent(f"Agent '{name}' not found: {error}") from error
        if are_mtimes_stable(merging.watched):
            key = (name, real_path if merging.is_from_project else "")
            if len(self._cached) >= MAX_CACHED_DEFINITIONS:
                self._cached.clear()
            self._cached[key] = _CachedDefinition(definition=defined, watched=merging.watched)
        return defined

    def _find_cached(self, name: str, project: str) -> AgentDefinition | None:
        """Return a cached definition, unless something that it depends on has changed."""
        cached = self._cached.get((name, project))
        if cached is None:
            return None
        if is_unchanged(cached.watched):
            return cached.definition
        del self._cached[name, project]
        return None

    def _follow_settings(self) -> None:
        """Take over the agents and the ceiling of a configuration that has changed."""
        if self._live_settings is None or (settings := self._live_settings()) is self._settings:
            return
        self._settings = settings
        self._inline = {each.name: each for each in settings.agents}
        self.ceiling = settings.ceiling
        self._cached.clear()
        self._cached_list = None

    @property
    def files_read(self) -> int:
        """Number of files read so far."""
        return self._files.files_read

    def project_at(self, folder: str | None) -> Project | None:
        return None if folder is None or self.trust is None else Project(path=folder, trust=self.trust)

    def agent_names(self, folder: str | None = None) -> list[str]:
        """Return the names of agents that can be started."""
        return [each.agent.name for each in self.list_definitions(folder)]

    def list_definitions(self, folder: str | None = None) -> list[AgentDefinition]:
        listed = self._list_own()
        project = self.project_at(folder)
        if not (project_names := self._project_names(project)):
            return listed
        for name in project_names:
            with suppress(BadDefinition, NotFound):
                listed.append(_DefinitionMerge(registry=self, project=project).merge(name))
        return sorted(listed, key=lambda each: each.agent.name)

    def _list_own(self) -> list[AgentDefinition]:
        """List the user's and built-in agents, from the cache while nothing they depend on has changed."""
        self._follow_settings()
        if self._cached_list is not None and is_unchanged(self._cached_list[0]):
            return self._cached_list[1].copy()
        result: list[AgentDefinition] = []
        watched: WatchedStamps = {}
        record_folder_stamp(self.user_dir, watched)
        agent_names = self._own_names()
        for name in agent_names:
            with suppress(NotFound):
                result.append(self.get(name))
                if (cached := self._cached.get((name, ""))) is not None:
                    watched |= cached.watched
        is_complete = len(result) == len(agent_names) and all(
            (name, "") in self._cached for name in agent_names
        )
        self._cached_list = (watched, result) if is_complete and are_mtimes_stable(watched) else None
        return result.copy()

    def display_names(self, folder: str | None = None) -> dict[str, str]:
        """Return the display names of the agents that have one, by name."""
        return {
            each.agent.name: each.agent.display_name
            for each in self.list_definitions(folder)
            if each.agent.display_name
        }

    def display_name_finder(self) -> "DisplayNameFinder":
        """Return a finder of display names, for the rows of one list."""
        return DisplayNameFinder(
            self, {each.agent.name: each.agent.display_name for each in self._list_own()}
        )

    def find_broken(self, folder: str | None = None) -> list[BadDefinition]:
        """Return the errors of definitions that cannot be listed."""
        result = [
            invalid_name_error(path)
            for path in agent_files(self.user_dir)
            if not AGENT_NAME.fullmatch(path.stem)
        ]
        project = self.project_at(folder)
        for name in (*self._own_names(), *self._project_names(project)):
            try:
                _DefinitionMerge(registry=self, project=project).merge(name)
            except BadDefinition as error:
                result.append(error)
            except NotFound:
                continue
        return result

    def preview_project(self, snapshot: ProjectSnapshot) -> list[tuple[str, AgentDefinition | str]]:
        """Return what a project would add if trusted: agents, or reasons against them, by name."""
        own_names = set(self._own_names())
        result: list[tuple[str, AgentDefinition | str]] = []
        for name in agent_names_in(snapshot):
            if name in own_names:
                result.append(
                    (name, "an agent with this name exists, and a project cannot change existing agents")
                )
                continue
            try:
                result.append((name, _DefinitionMerge(registry=self, snapshot=snapshot).merge(name)))
            except (BadDefinition, NotFound) as error:
                result.append((name, str(error)))
        return result

    def untrusted_project_notice(self, folder: str) -> str | None:
        """Return a message if the project in this folder defines agents but is not trusted."""
        project = self.project_at(folder)
        if project is None or not (names := agent_names_in(project.snapshot)):
            return None
        if project.trust_state is TrustState.TRUSTED:
            return None
        return project.untrusted_message(f"defines {', '.join(names[:8])}{' …' if len(names) > 8 else ''}")  # noqa: PLR2004

    def ensure_general_agent(self) -> None:
        """Write the general agent to the user's folder if it is missing, so that a person can edit it."""
        if all(lstat_stamp(path) is None for path in self._general_agent_paths):
            # If the folder is not writable, the built-in definition still works.
            with suppress(OSError):
                write_definition(
                    self.user_dir / f"{GENERAL}.md", self.built_in_definitions()[GENERAL], replace=False
                )

    def save(self, name: str, text: str) -> AgentDefinition:
        """Validate and write a user's definition; the next `get` returns it."""
        if not AGENT_NAME.fullmatch(name):
            raise BadDefinition(name, "is not a valid name; use a-z, 0-9 and hyphens, at most 64 characters")
        path = self.user_dir / f"{name}.md"
        agent = definition_file.parse_preset(text, str(path), name=name)
        if agent.name != name:
            raise BadDefinition(str(path), f"has the name '{agent.name}', which must match the file name")
        try:
            write_definition(path, text, replace=True)
        except OSError as error:
            raise Failed(f"{path} cannot be written: {error.strerror}.") from error
        self.invalidate(name)
        return self.get(name)

    def invalidate(self, name: str) -> None:
        """Drop cached data after a change that file stamps cannot show."""
        self._cached.pop((name, ""), None)
        self._cached_list = None
        self._files.forget(name)

    def delete(self, name: str) -> None:
        if name == GENERAL:
            raise Refused("The agent 'general' cannot be deleted. Edit its file instead.")
        files = [path for path in agent_files(self.user_dir) if path.stem == name]
        if not files and name in self._inline:
            raise Refused(f"The agent '{name}' is defined in the configuration file. Remove it there.")
        if not files and name in self.built_in_definitions():
            raise Refused(f"The agent '{name}' is built in and cannot be deleted.")
        if not files:
            raise NotFound(self._not_found_message(name))
        for path in files:
            try:
                path.unlink()
            except OSError as error:
                raise Failed(f"{path} cannot be removed: {error.strerror}.") from error
        self.invalidate(name)

    def built_in_definitions(self) -> Mapping[str, str]:
        """Return the texts of the built-in agents by name."""
        if self._built_in is None:
            self._built_in = built_in_texts()
        return self._built_in

    def definition_layers(self, name: str, watched: WatchedStamps) -> list[DefinitionLayer]:
        """Return each source's layer, lowest first.

        Markdown with a body is a complete definition and replaces lower layers. JSON, and Markdown with only
        front matter, changes fields of the lower layers.
        """
        result: list[DefinitionLayer] = []
        if name in self.built_in_definitions():
            result.append(parse_markdown_layer(self.built_in_definitions()[name], BUILT_IN, name))
        user = self._files.layer(self.user_dir, name, watched)
        if user is not None:
            result = [user] if user.text is not None and user.partial.get("prompt") else [*result, user]
        if name in self._inline:
            partial = with_prompt_from_file(self._inline[name].partial, self.user_dir.parent, watched)
            result.append(DefinitionLayer(source=INLINE, partial=partial))
        return result

    def has_own(self, name: str) -> bool:
        """Return True if the name is the user's or built in, and so never a project's."""
        return name in self._own_names()

    def not_found_error(self, name: str) -> NotFound:
        return NotFound(self._not_found_message(name))

    def _not_found_message(self, name: str) -> str:
        nearest_match = nearest_name(name, self.agent_names())
        return f"Agent '{name}' not found" + (f"; did you mean '{nearest_match}'?" if nearest_match else "")

    def _own_names(self) -> list[str]:
        self._follow_settings()
        files = (path.stem for path in agent_files(self.user_dir))
        return sorted(
            {
                *self.built_in_definitions(),
                *self._inline,
                *(stem for stem in files if AGENT_NAME.fullmatch(stem)),
            }
        )

    def _project_names(self, project: Project | None) -> list[str]:
        if project is None or not (names := project.agent_names()):
            return []
        own_names = set(self._own_names())
        return [name for name in names if name not in own_names]


class DisplayNameFinder:
    """Find the display names of agents for the rows of one list; each definition is read once."""

    def __init__(self, registry: FileAgentRegistry, own_names: Mapping[str, str | None]) -> None:
        self._registry = registry
        self._own_names = own_names
        self._project_names: dict[tuple[str, str], str | None] = {}

    def is_own(self, agent: str) -> bool:
        """Return True for the user's and built-in agents, False for one of a project or of none."""
        return agent in self._own_names

    def find(self, agent: str, folder: str) -> str | None:
        """Return an agent's display name, if it has one; a trusted project in the folder may define the agent."""
        if self.is_own(agent):
            return self._own_names[agent]
        if (agent, folder) not in self._project_names:
            self._project_names[agent, folder] = self._find_in_project(agent, folder)
        return self._project_names[agent, folder]

    def _find_in_project(self, agent: str, folder: str) -> str | None:
        if not folder or not AGENT_NAME.fullmatch(agent):
            return None
        try:
            return self._registry.get(agent, folder).agent.display_name
        except (BadDefinition, NotFound, OSError):
            return None


@dataclass(slots=True, kw_only=True)
class _DefinitionMerge:
    """The merge of one definition: its layers, and those of the agents it extends."""

    registry: FileAgentRegistry
    project: Project | None = None
    """Consulted last, and only for a name that no other source defines."""
    snapshot: ProjectSnapshot | None = None
    """A project snapshot to preview instead of `project`."""
    is_from_project: bool = False
    """True if the agent is the project's. It may extend others, but others may not extend it."""
    watched: WatchedStamps = field(default_factory=dict[str, LstatStamp])

    def merge(self, name: str) -> AgentDefinition:
        if not AGENT_NAME.fullmatch(name):
            raise self.registry.not_found_error(name)
        layers = self._layer_chain(name, ())
        partial: PartialDefinition = {}
        sources: dict[str, str] = {}
        for layer in layers:
            partial = merge_definitions(partial, layer.partial)
            sources |= dict.fromkeys(layer.partial, layer.source)
        sources["name"] = layers[-1].source
        try:
            if self.is_from_project:
                check_project_restrictions(partial)
            agent = definition_file.build_agent(partial, name)
        except InvalidValue as error:
            raise BadDefinition(_topmost_file(layers), str(error)) from error
        clipped_agent, clip_notes = apply_operator_ceiling(agent, self.registry.ceiling)
        is_single_source = len(layers) == 1 and not clip_notes
        verbatim = layers[0].text if is_single_source else None
        preset = verbatim if verbatim is not None else definition_file.render_definition(clipped_agent)
        return AgentDefinition(
            agent=clipped_agent,
            sources={key: source for key, source in sources.items() if key != "prompt_path"},
            preset=preset,
            hash=preset_hash(preset),
            removed_by_ceiling=clip_notes,
        )

    def _layer_chain(self, name: str, descendants: tuple[str, ...]) -> list[DefinitionLayer]:
        """Return an agent's layers on top of the layers of what it extends."""
        layers = self.registry.definition_layers(name, self.watched)
        if not layers and (self.is_from_project or not descendants):
            layers = self._project_layer(name)
        if not layers:
            if descendants:
                raise BadDefinition(descendants[-1], f"extends '{name}', but there is no such agent")
            raise self.registry.not_found_error(name)
        extends = next(
            (each.partial["extends"] for each in reversed(layers) if "extends" in each.partial), None
        )
        if extends is None:
            return layers
        chain = (*descendants, name)
        if extends in chain:
            raise BadDefinition(_topmost_file(layers), f"extends itself: {' → '.join((*chain, extends))}")
        base_layers = self._layer_chain(extends, chain)
        inherited = [
            DefinitionLayer(
                source=each.source,
                partial={
                    key: field_value for key, field_value in each.partial.items() if key not in _NOT_INHERITED
                },
                file_to_fix=each.file_to_fix,
            )
            for each in base_layers
        ]
        return inherited + layers

    def _project_layer(self, name: str) -> list[DefinitionLayer]:
        result = None if self.project is None else self.project.layer(name)
        if result is not None and self.project is not None:
            self.watched |= self.project.watched_stamps()
        if self.snapshot is not None:
            result = layer_from_snapshot(self.snapshot, name)
        self.is_from_project = self.is_from_project or result is not None
        return [] if result is None else [result]


_NOT_INHERITED = ("name", "extends")
"""Fields that an agent never inherits."""


def _topmost_file(layers: Sequence[DefinitionLayer]) -> str:
    """Return the file to fix: that of the topmost layer."""
    return layers[-1].file_to_fix or layers[-1].source
