"""The catalogue: which agents there are, merged from all places that define them, and live when a file changes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from retinue.domain.agent import NAME, Defined, preset_hash
from retinue.errors import BadDefinition, NotFound, Refused
from retinue.store import ceilings, definitions
from retinue.store.fields import Partial, merged, slugged
from retinue.store.strict_yaml import Mistake
from retinue.store.textfile import Stamp, read_text, stamp_of
from retinue.store.values import Wrong, nearest

BUILT_IN = "built in"
INLINE = "inline"
GENERAL = "general"


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one place says about an agent."""

    source: str
    partial: Mapping[str, Any]
    text: str | None = None
    """The file itself, when it is Markdown and needs nothing beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A merged definition, and the files whose change makes it old."""

    defined: Defined
    watched: Mapping[Path, Stamp]


class DefinitionCatalogue:
    """Implements ports.Agents. A file is read again only when its inode, time or size changed."""

    def __init__(
        self,
        *,
        user_dir: Path,
        inline: Sequence[Inline] = (),
        project_dir: Path | None = None,
        ceiling: Mapping[str, Any] | None = None,
        builtin: Mapping[str, str] | None = None,
    ) -> None:
        """`project_dir` is given only for a trusted project; it adds names and never changes any."""
        self.user_dir = user_dir
        self.project_dir = project_dir
        self.ceiling = ceiling
        self._inline = {each.name: each for each in inline}
        self._builtin = builtin
        self._files: dict[Path, tuple[Stamp, Layer | BadDefinition]] = {}
        self._known: dict[str, _Known] = {}
        self.reads = 0
        """How many files were read so far."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The catalogue that the configuration asks for."""
        return cls(user_dir=settings.agents_dir, inline=settings.agents, ceiling=settings.ceiling)

    def get(self, name: str) -> Defined:
        known = self._known.get(name)
        if known is not None and all(stamp_of(path) == stamp for path, stamp in known.watched.items()):
            return known.defined
        self._known.pop(name, None)
        try:
            merging = _Merging(catalogue=self)
            defined = merging.defined(name)
        except BadDefinition as bad:
            raise NotFound(f"Agent '{name}' not found: {bad}") from bad
        self._known[name] = _Known(defined=defined, watched=merging.watched)
        return defined

    def names(self) -> list[str]:
        """Agents that can be started, by name."""
        return [each.agent.name for each in self.all()]

    def all(self) -> list[Defined]:
        found: list[Defined] = []
        for name in self._candidates():
            try:
                found.append(self.get(name))
            except NotFound:
                continue
        return found

    def broken(self) -> list[BadDefinition]:
        """What is wrong with the definitions that are not listed."""
        found = [_misnamed(path) for path in self._paths() if not NAME.fullmatch(path.stem)]
        for name in self._candidates():
            try:
                _Merging(catalogue=self).defined(name)
            except BadDefinition as bad:
                found.append(bad)
            except NotFound:
                continue
        return found

    def ensure_general(self) -> None:
        """Writes the general agent to the user's folder if there is none, so that a person can change it."""
        if all(stamp_of(self.user_dir / f"{GENERAL}{end}") is None for end in (".md", ".json")):
            self._write(GENERAL, self.builtin()[GENERAL], replace=False)

    def save(self, name: str, text: str) -> Defined:
        """Writes a user's definition after trying it; the next `get` sees it."""
        if not NAME.fullmatch(name):
            raise BadDefinition(name, "is not a name: use a-z, 0-9 and hyphens, at most 64")
        path = self.user_dir / f"{name}.md"
        agent = definitions.parse_preset(text, str(path), name=name)
        if agent.name != name:
            raise BadDefinition(str(path), f"names itself '{agent.name}'; a file is called like its agent")
        self._write(name, text, replace=True)
        self.invalidate(name)
        return self.get(name)

    def invalidate(self, name: str) -> None:
        """Forgets what was read, for a change that a stamp cannot show."""
        self._known.pop(name, None)
        for path in list(self._files):
            if path.stem == name:
                del self._files[path]

    def delete(self, name: str) -> None:
        if name == GENERAL:
            raise Refused("The agent 'general' cannot be deleted; edit its file instead")
        files = [path for path in self._paths() if path.stem == name and path.parent == self.user_dir]
        if not files and name in self._inline:
            raise Refused(f"The agent '{name}' is defined in the configuration file; remove it there")
        if not files and name in self.builtin():
            raise Refused(f"The agent '{name}' is built in and cannot be deleted")
        if not files:
            raise NotFound(self._missing(name))
        for path in files:
            path.unlink()
        self.invalidate(name)

    def builtin(self) -> Mapping[str, str]:
        """The texts of the built-in agents, by name."""
        if self._builtin is None:
            self._builtin = built_in_texts()
        return self._builtin

    def layers(self, name: str, watched: dict[Path, Stamp]) -> list[Layer]:
        """What each place says, lowest first. Markdown with a body is a definition in itself and starts anew;
        JSON, and Markdown that is only front matter, changes fields of what lies below."""
        found: list[Layer] = []
        if name in self.builtin():
            found.append(_markdown_layer(self.builtin()[name], BUILT_IN, name))
        user = self._file_layer(self.user_dir, name, watched)
        if user is not None:
            found = [user] if user.text is not None and user.partial.get("prompt") else [*found, user]
        if name in self._inline:
            partial = self._prompted(dict(self._inline[name].partial), self.user_dir.parent, watched)
            found.append(Layer(source=INLINE, partial=partial))
        if not found and self.project_dir is not None:
            project = self._file_layer(self.project_dir, name, watched)
            found = [_harmless(project)] if project is not None else []
        return found

    def missing(self, name: str) -> NotFound:
        return NotFound(self._missing(name))

    def _missing(self, name: str) -> str:
        close = nearest(name, self.names())
        return f"Agent '{name}' not found" + (f"; did you mean '{close}'?" if close else "")

    def _candidates(self) -> list[str]:
        files = (path.stem for path in self._paths())
        return sorted({*self.builtin(), *self._inline, *(stem for stem in files if NAME.fullmatch(stem))})

    def _paths(self) -> list[Path]:
        folders = [each for each in (self.user_dir, self.project_dir) if each is not None]
        found: list[Path] = []
        for folder in folders:
            if folder.is_dir():
                found += sorted(path for path in folder.iterdir() if path.suffix in (".md", ".json"))
        return [path for path in found if not path.name.startswith(".")]

    def _file_layer(self, folder: Path, name: str, watched: dict[Path, Stamp]) -> Layer | None:
        paths = [folder / f"{name}{end}" for end in (".md", ".json")]
        stamps = [stamp_of(path) for path in paths]
        watched.update(zip(paths, stamps, strict=True))
        there = [path for path, stamp in zip(paths, stamps, strict=True) if stamp is not None]
        if len(there) > 1:
            raise BadDefinition(
                str(there[0]), f"{there[1].name} beside it defines the same agent; keep one of the two"
            )
        if not there:
            return None
        layer = self._read(there[0], watched[there[0]])
        if "prompt_path" not in layer.partial:
            return layer
        partial = self._prompted(dict(layer.partial), folder, watched, str(there[0]))
        return Layer(source=layer.source, partial=partial)

    def _read(self, path: Path, stamp: Stamp) -> Layer:
        cached = self._files.get(path)
        if cached is None or cached[0] != stamp:
            self.reads += 1
            cached = (stamp, _layer_or_bad(path))
            self._files[path] = cached
        if isinstance(cached[1], BadDefinition):
            raise cached[1]
        return cached[1]

    def _prompted(
        self, partial: Partial, folder: Path, watched: dict[Path, Stamp], where: str = "the configuration"
    ) -> Partial:
        """The prompt of a definition that keeps it in a file beside it."""
        relative = partial.pop("prompt_path", None)
        if relative is None:
            return partial
        path = folder / relative
        if Path(relative).is_absolute() or ".." in Path(relative).parts:
            raise BadDefinition(where, f"promptPath: '{relative}' must be a file below {folder}")
        watched[path] = stamp_of(path)
        try:
            return partial | {"prompt": definitions.prompt_of(read_text(path))}
        except FileNotFoundError as error:
            raise BadDefinition(where, f"promptPath: there is no file {path}") from error

    def _write(self, name: str, text: str, *, replace: bool) -> None:
        self.user_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.user_dir / f"{name}.md"
        temporary = self.user_dir / f".{name}.{os.getpid()}.new"
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            if replace:
                temporary.replace(path)
            else:
                # Whoever was first keeps the file: linking never replaces one.
                os.link(temporary, path)
        except FileExistsError:
            return
        finally:
            temporary.unlink(missing_ok=True)


@dataclass(slots=True, kw_only=True)
class _Merging:
    """One definition in the making: its layers, and those of what it extends."""

    catalogue: DefinitionCatalogue
    watched: dict[Path, Stamp] = field(default_factory=dict[Path, Stamp])

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
            agent = definitions.build(partial, name)
        except Wrong as wrong:
            raise BadDefinition(_file_of(layers), str(wrong)) from wrong
        clipped_agent, clipped = ceilings.clip(agent, self.catalogue.ceiling)
        alone = len(layers) == 1 and not clipped
        verbatim = layers[0].text if alone else None
        preset = verbatim if verbatim is not None else definitions.render(clipped_agent)
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
            )
            for each in below
        ]
        return inherited + layers


_OWN = ("name", "extends")
"""What an agent never takes from the one it extends."""


def _file_of(layers: Sequence[Layer]) -> str:
    """The place to mend: the topmost."""
    return layers[-1].source


def _layer_or_bad(path: Path) -> Layer | BadDefinition:
    """What a file says, or why it says nothing; either is kept until the file changes."""
    try:
        text = read_text(path)
        if path.suffix == ".md":
            return _markdown_layer(text, str(path), path.stem)
        return _layer(definitions.json_text(text), str(path), path.stem, None)
    except FileNotFoundError:
        return BadDefinition(str(path), "was removed while it was read")
    except Mistake as mistake:
        return BadDefinition(f"{path}:{mistake.line}", mistake.problem)
    except BadDefinition as bad:
        return bad


def _markdown_layer(text: str, source: str, name: str) -> Layer:
    return _layer(definitions.markdown(text), source, name, text)


def _layer(written: definitions.Written, source: str, name: str, text: str | None) -> Layer:
    partial = definitions.partial_of(written)
    named = partial.get("name") or name
    if named != name:
        raise Mistake(
            written.lines.get(("name",), 1),
            f"the file is called '{name}' and the agent in it '{named}'; they must agree",
        )
    return Layer(source=source, partial=partial, text=text)


def _harmless(layer: Layer) -> Layer:
    """A project never says where a model is asked: the user's key would go there."""
    if layer.partial.get("driver_settings") or layer.partial.get("external"):
        raise BadDefinition(
            layer.source,
            "a project's definition may not say which server is asked; remove driver_settings and external",
        )
    return layer


def _misnamed(path: Path) -> BadDefinition:
    slug = slugged(path.stem)
    say = f"; '{slug}{path.suffix}' would do" if slug else ""
    return BadDefinition(str(path), f"is not called like an agent: use a-z, 0-9 and hyphens, at most 64{say}")


def built_in_texts() -> dict[str, str]:
    """Read beside this module: the general way to package data takes longer to import than all of them to read."""
    return {path.stem: path.read_text("utf-8") for path in sorted(_AGENTS.glob("*.md"))}


_AGENTS = Path(__file__).with_name("agents")
