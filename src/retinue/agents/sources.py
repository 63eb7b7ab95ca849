"""What one place says about an agent: a built-in text or a user's file, read once until it changes."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retinue.agents import definition_file
from retinue.agents.fields import Partial
from retinue.agents.validators import slugged
from retinue.domain.value import value
from retinue.errors import BadDefinition
from retinue.storage.strict_yaml import Mistake
from retinue.storage.text_file import Stamp, read_text, stamp_of

SETTLED_NS = 50_000_000
"""A file changed more recently than this may change again within one tick of its clock, unseen by any stamp."""

Watched = dict[str, Stamp]
"""By name: they are looked at before every run, and a Path costs more than the look."""


@value
class Layer:
    """What one place says about an agent."""

    source: str
    partial: Mapping[str, Any]
    text: str | None = None
    """The file itself, when it is Markdown and needs nothing beside it."""
    where: str = ""
    """The file to mend, when the source is not its name."""


class DefinitionFiles:
    """Definition files, each read again only when its stamp changed."""

    def __init__(self) -> None:
        self._read_before: dict[Path, tuple[Stamp, Layer | BadDefinition]] = {}
        self.reads = 0
        """How many files were read so far."""

    def layer(self, folder: Path, name: str, watched: Watched) -> Layer | None:
        """What a folder's file says about an agent, if there is one; `watched` gets what its answer rests on."""
        paths = [folder / f"{name}{end}" for end in (".md", ".json")]
        stamps = {path: stamp_of(path) for path in paths}
        there = [path for path, stamp in stamps.items() if stamp is not None]
        watched.update({str(path): stamps[path] for path in there})
        if len(there) < len(paths):
            watch_folder(folder, watched)
        if len(there) > 1:
            raise BadDefinition(
                str(there[0]), f"{there[1].name} beside it defines the same agent; keep one of the two"
            )
        if not there:
            return None
        layer = self._read(there[0], stamps[there[0]])
        if "prompt_path" not in layer.partial:
            return layer
        return Layer(source=layer.source, partial=prompted(layer.partial, folder, watched, str(there[0])))

    def forget(self, name: str) -> None:
        for path in [each for each in self._read_before if each.stem == name]:
            del self._read_before[path]

    def _read(self, path: Path, stamp: Stamp) -> Layer:
        before = self._read_before.get(path)
        if before is None or before[0] != stamp or not settled({str(path): stamp}):
            self.reads += 1
            before = (stamp, _layer_or_bad(path))
            self._read_before[path] = before
        if isinstance(before[1], BadDefinition):
            raise before[1]
        return before[1]


def watch_folder(folder: Path, watched: Watched) -> None:
    """A file that is not there appears only with a change of its folder, wherever that is."""
    watched[str(folder)] = stamp_of(folder)
    if folder.is_symlink():
        real = os.path.realpath(folder)
        watched[real] = stamp_of(real)


def unchanged(watched: Mapping[str, Stamp]) -> bool:
    return all(stamp_of(path) == stamp for path, stamp in watched.items())


def settled(watched: Mapping[str, Stamp]) -> bool:
    """Whether all stamps are old enough to be trusted."""
    newest = max((stamp[1] for stamp in watched.values() if stamp is not None), default=0)
    return not 0 <= time.time_ns() - newest < SETTLED_NS


def files_in(folder: Path) -> list[Path]:
    """Files that define agents, or try to."""
    if not folder.is_dir():
        return []
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix in (".md", ".json"))
    except OSError as error:
        raise BadDefinition(str(folder), f"cannot be read: {error.strerror}") from error
    return [path for path in found if not path.name.startswith(".")]


def prompted(
    said: Mapping[str, Any], folder: Path, watched: Watched, where: str = "the configuration"
) -> Partial:
    """The same with the prompt of a definition that keeps it in a file beside it."""
    partial = dict(said)
    relative = partial.pop("prompt_path", None)
    if relative is None:
        return partial
    path = folder / relative
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise BadDefinition(where, f"promptPath: '{relative}' must be a file below {folder}")
    watched[str(path)] = stamp_of(path)
    try:
        return partial | {"prompt": definition_file.prompt_of(read_text(path))}
    except FileNotFoundError as error:
        raise BadDefinition(where, f"promptPath: there is no file {path}") from error


def write(path: Path, text: str, *, replace: bool) -> None:
    """The whole text or nothing. Without `replace`, whoever was first keeps the file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.new")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        if replace:
            temporary.replace(path)
        else:
            # Linking never replaces a file.
            os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        temporary.unlink(missing_ok=True)


def as_it_stands(path: Path) -> BadDefinition | None:
    """Why a file in the agents folder would not load; None when it would."""
    found = _layer_or_bad(path)
    return found if isinstance(found, BadDefinition) else None


def _layer_or_bad(path: Path) -> Layer | BadDefinition:
    """What a file says, or why it says nothing; either is kept until the file changes."""
    try:
        return layer_of(read_text(path), str(path))
    except FileNotFoundError:
        return BadDefinition(str(path), "was removed while it was read")
    except BadDefinition as bad:
        return bad


def layer_of(text: str, where: str) -> Layer | BadDefinition:
    """What the text of a file of this name says."""
    path = Path(where)
    try:
        if path.suffix == ".md":
            return markdown_layer(text, where, path.stem)
        return _layer(definition_file.json_text(text), where, path.stem, None)
    except Mistake as mistake:
        return BadDefinition(f"{where}:{mistake.line}", mistake.problem)


def markdown_layer(text: str, source: str, name: str) -> Layer:
    return _layer(definition_file.markdown(text), source, name, text)


def _layer(written: definition_file.Written, source: str, name: str, text: str | None) -> Layer:
    partial = definition_file.partial_of(written)
    named = partial.get("name") or name
    if named != name:
        raise Mistake(
            written.lines.get(("name",), 1),
            f"the file is called '{name}' and the agent in it '{named}'; they must agree",
        )
    return Layer(source=source, partial=partial, text=text)


def misnamed(path: Path) -> BadDefinition:
    slug = slugged(path.stem)
    say = f"; '{slug}{path.suffix}' would do" if slug else ""
    return BadDefinition(str(path), f"is not called like an agent: use a-z, 0-9 and hyphens, at most 64{say}")


def built_in_texts() -> dict[str, str]:
    """Read beside this module: the general way to package data takes longer to import than all of them to read."""
    return {path.stem: path.read_text("utf-8") for path in sorted(_AGENTS.glob("*.md"))}


_AGENTS = Path(__file__).with_name("builtin")
