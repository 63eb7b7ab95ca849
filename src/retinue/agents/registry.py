"""The catalogue: which agents there are, merged from all places that define them, and live when a file changes."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from retinue.agents import ceilings, definition_file
from retinue.agents.fields import Partial, merged
from retinue.agents.project import Project, defined_in, harmless, layer_in
from retinue.agents.sources import (
    DefinitionFiles,
    Layer,
    Watched,
    built_in_texts,
    files_in,
    markdown_layer,
    misnamed,
    prompted,
    settled,
    unchanged,
    watch_folder,
    write,
)
from retinue.agents.trust import Seen, Standing, Trust
from retinue.agents.validators import Wrong, nearest
from retinue.domain.agent import NAME, Defined, preset_hash
from retinue.domain.value import value
from retinue.errors import BadDefinition, Failed, NotFound, Refused
from retinue.storage.text_file import Stamp, stamp_of

BUILT_IN = "built in"
INLINE = "inline"
GENERAL = "general"


@value
class Inline:
    """A definition that stands in the configuration file."""

    name: str
    partial: Mapping[str, Any]


class Settings(Protocol):
    """What of the configuration concerns definitions."""

    @property
    def agents_dir(self) -> Path: ...
    @property
    def agents(self) -> Sequence[Inline]: ...
    @property
    def ceiling(self) -> Mapping[str, Any] | None: ...


@value
class _Known:
    """A merged definition, and the files whose change makes it old."""

    defined: Defined
    watched: Mapping[str, Stamp]


class DefinitionCatalogue:
    """Implements ports.Agents. A file is read again only when its inode, time or size changed."""

    def __init__(
        self,
        *,
        user_dir: Path,
        inline: Sequence[Inline] = (),
        trust: Trust | None = None,
        ceiling: Mapping[str, Any] | None = None,
        builtin: Mapping[str, str] | None = None,
    ) -> None:
        """`trust` says which projects may add names of their own; without it none does."""
        self.user_dir = user_dir
        self._general = [os.fspath(user_dir / f"{GENERAL}{end}") for end in (".md", ".json")]
        self.trust = trust
        self.ceiling = ceiling
        self._inline = {each.name: each for each in inline}
        self._builtin = builtin
        self._files = DefinitionFiles()
        self._known: dict[str, _Known] = {}
        self._listed: tuple[Watched, list[Defined]] | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The catalogue that the configuration asks for."""
        return cls(user_dir=settings.agents_dir, inline=settings.agents, ceiling=settings.ceiling)

    def get(self, name: str, at: str | None = None) -> Defined:
        """`at` is the folder somebody works in: a trusted project there is asked for names that nobody else has."""
        known = self._known.get(name)
        if known is not None and unchanged(known.watched):
            return known.defined
        self._known.pop(name, None)
        try:
            merging = _Merging(catalogue=self, project=self.project(at))
            defined = merging.defined(name)
        except BadDefinition as bad:
            raise NotFound(f"Agent '{name}' not found: {bad}") from bad
        if settled(merging.watched) and not merging.foreign:
            self._known[name] = _Known(defined=defined, watched=merging.watched)
        return defined

    @property
    def reads(self) -> int:
        """How many files were read so far."""
        return self._files.reads

    def project(self, at: str | None) -> Project | None:
        return None if at is None or self.trust is None else Project(place=at, trust=self.trust)

    def names(self, at: str | None = None) -> list[str]:
        """Agents that can be started, by name."""
        return [each.agent.name for each in self.all(at)]

    def all(self, at: str | None = None) -> list[Defined]:
        found = self._own()
        project = self.project(at)
        if not (added := self._added(project)):
            return found
        for name in added:
            with suppress(BadDefinition, NotFound):
                found.append(_Merging(catalogue=self, project=project).defined(name))
        return sorted(found, key=lambda each: each.agent.name)

    def _own(self) -> list[Defined]:
        """The user's and those built in, by name: as they were listed, where nothing that this rests on has changed."""
        if self._listed is not None and unchanged(self._listed[0]):
            return self._listed[1].copy()
        found: list[Defined] = []
        watched: Watched = {}
        watch_folder(self.user_dir, watched)
        names = self._candidates()
        for name in names:
            with suppress(NotFound):
                found.append(self.get(name))
                if (known := self._known.get(name)) is not None:
                    watched |= known.watched
        whole = len(found) == len(names) and all(name in self._known for name in names)
        self._listed = (watched, found) if whole and settled(watched) else None
        return found.copy()

    def broken(self, at: str | None = None) -> list[BadDefinition]:
        """What is wrong with the definitions that are not listed."""
        found = [misnamed(path) for path in files_in(self.user_dir) if not NAME.fullmatch(path.stem)]
        project = self.project(at)
        for name in (*self._candidates(), *self._added(project)):
            try:
                _Merging(catalogue=self, project=project).defined(name)
            except BadDefinition as bad:
                found.append(bad)
            except NotFound:
                continue
        return found

    def offers(self, seen: Seen) -> list[tuple[str, Defined | str]]:
        """What a project would add if it were trusted: each name with its agent, or with why it is not added."""
        own = set(self._candidates())
        found: list[tuple[str, Defined | str]] = []
        for name in defined_in(seen):
            if name in own:
                found.append((name, "there is an agent of this name already, and a project changes none"))
                continue
            try:
                found.append((name, _Merging(catalogue=self, seen=seen).defined(name)))
            except (BadDefinition, NotFound) as error:
                found.append((name, str(error)))
        return found

    def untrusted(self, at: str) -> str | None:
        """A sentence about the project somebody works in, when it defines agents and may not."""
        project = self.project(at)
        if project is None or not (names := defined_in(project.seen)):
            return None
        if project.standing is Standing.TRUSTED:
            return None
        return project.untrusted(f"defines {', '.join(names[:8])}{' …' if len(names) > 8 else ''}")  # noqa: PLR2004

    def ensure_general(self) -> None:
        """Writes the general agent to the user's folder if there is none, so that a person can change it."""
        if all(stamp_of(path) is None for path in self._general):
            # Where the folder cannot be written, the built-in text serves as well.
            with suppress(OSError):
                write(self.user_dir / f"{GENERAL}.md", self.builtin()[GENERAL], replace=False)

    def save(self, name: str, text: str) -> Defined:
        """Writes a user's definition after trying it; the next `get` sees it."""
        if not NAME.fullmatch(name):
            raise BadDefinition(name, "is not a name: use a-z, 0-9 and hyphens, at most 64")
        path = self.user_dir / f"{name}.md"
        agent = definition_file.parse_preset(text, str(path), name=name)
        if agent.name != name:
            raise BadDefinition(str(path), f"names itself '{agent.name}'; a file is called like its agent")
        try:
            write(path, text, replace=True)
        except OSError as error:
            raise Failed(f"{path} cannot be written: {error.strerror}") from error
        self.invalidate(name)
        return self.get(name)

    def invalidate(self, name: str) -> None:
        """Forgets what was read, for a change that a stamp cannot show."""
        self._known.pop(name, None)
        self._listed = None
        self._files.forget(name)

    def delete(self, name: str) -> None:
        if name == GENERAL:
            raise Refused("The agent 'general' cannot be deleted; edit its file instead")
        files = [path for path in files_in(self.user_dir) if path.stem == name]
        if not files and name in self._inline:
            raise Refused(f"The agent '{name}' is defined in the configuration file; remove it there")
        if not files and name in self.builtin():
            raise Refused(f"The agent '{name}' is built in and cannot be deleted")
        if not files:
            raise NotFound(self._missing(name))
        for path in files:
            try:
                path.unlink()
            except OSError as error:
                raise Failed(f"{path} cannot be removed: {error.strerror}") from error
        self.invalidate(name)

    def builtin(self) -> Mapping[str, str]:
        """The texts of the built-in agents, by name."""
        if self._builtin is None:
            self._builtin = built_in_texts()
        return self._builtin

    def layers(self, name: str, watched: Watched) -> list[Layer]:
        """What each place says, lowest first. Markdown with a body is a definition in itself and starts anew;
        JSON, and Markdown that is only front matter, changes fields of what lies below."""
        found: list[Layer] = []
        if name in self.builtin():
            found.append(markdown_layer(self.builtin()[name], BUILT_IN, name))
        user = self._files.layer(self.user_dir, name, watched)
        if user is not None:
            found = [user] if user.text is not None and user.partial.get("prompt") else [*found, user]
        if name in self._inline:
            partial = prompted(self._inline[name].partial, self.user_dir.parent, watched)
            found.append(Layer(source=INLINE, partial=partial))
        return found

    def knows(self, name: str) -> bool:
        """Whether a name is the user's or built in, and so no project's."""
        return name in self._candidates()

    def missing(self, name: str) -> NotFound:
        return NotFound(self._missing(name))

    def _missing(self, name: str) -> str:
        close = nearest(name, self.names())
        return f"Agent '{name}' not found" + (f"; did you mean '{close}'?" if close else "")

    def _candidates(self) -> list[str]:
        files = (path.stem for path in files_in(self.user_dir))
        return sorted({*self.builtin(), *self._inline, *(stem for stem in files if NAME.fullmatch(stem))})

    def _added(self, project: Project | None) -> list[str]:
        if project is None or not (names := project.names()):
            return []
        own = set(self._candidates())
        return [name for name in names if name not in own]


@dataclass(slots=True, kw_only=True)
class _Merging:
    """One definition in the making: its layers, and those of what it extends."""

    catalogue: DefinitionCatalogue
    project: Project | None = None
    """Asked last, and only for a name that nobody else has."""
    seen: Seen | None = None
    """The same for one that is only looked at."""
    foreign: bool = False
    """The agent is the project's: it may extend others, and others may not extend the project's."""
    watched: Watched = field(default_factory=dict[str, Stamp])

    def defined(self, name: str) -> Defined:
        if not NAME.fullmatch(name):
            raise self.catalogue.missing(name)
        layers = self._chain(name, ())
        partial: Partial = {}
        sources: dict[str, str] = {}
        for layer in layers:
            partial = merged(partial, layer.partial)
            sources |= dict.fromkeys(layer.partial, layer.source)
        sources["name"] = layers[-1].source
        try:
            if self.foreign:
                harmless(partial)
            agent = definition_file.build(partial, name)
        except Wrong as wrong:
            raise BadDefinition(_file_of(layers), str(wrong)) from wrong
        clipped_agent, clipped = ceilings.clip(agent, self.catalogue.ceiling)
        alone = len(layers) == 1 and not clipped
        verbatim = layers[0].text if alone else None
        preset = verbatim if verbatim is not None else definition_file.render(clipped_agent)
        return Defined(
            agent=clipped_agent,
            sources={key: source for key, source in sources.items() if key != "prompt_path"},
            preset=preset,
            hash=preset_hash(preset),
            clipped=clipped,
        )

    def _chain(self, name: str, above: tuple[str, ...]) -> list[Layer]:
        """All layers of an agent, with those of what it extends below them."""
        layers = self.catalogue.layers(name, self.watched)
        if not layers and (self.foreign or not above):
            layers = self._projects(name)
        if not layers:
            if above:
                raise BadDefinition(above[-1], f"extends '{name}', and there is no such agent")
            raise self.catalogue.missing(name)
        extends = next(
            (each.partial["extends"] for each in reversed(layers) if "extends" in each.partial), None
        )
        if extends is None:
            return layers
        chain = (*above, name)
        if extends in chain:
            raise BadDefinition(_file_of(layers), f"extends itself: {' → '.join((*chain, extends))}")
        below = self._chain(extends, chain)
        inherited = [
            Layer(
                source=each.source,
                partial={key: said for key, said in each.partial.items() if key not in _OWN},
                where=each.where,
            )
            for each in below
        ]
        return inherited + layers

    def _projects(self, name: str) -> list[Layer]:
        found = None if self.project is None else self.project.layer(name)
        if self.seen is not None:
            found = layer_in(self.seen, name)
        self.foreign = self.foreign or found is not None
        return [] if found is None else [found]


_OWN = ("name", "extends")
"""What an agent never takes from the one it extends."""


def _file_of(layers: Sequence[Layer]) -> str:
    """The place to mend: the topmost."""
    return layers[-1].where or layers[-1].source
