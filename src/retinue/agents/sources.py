"""Sources of agent definitions: what a built-in text or a user's file defines, cached until it changes."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from retinue.agents import definition_file
from retinue.agents.fields import PartialDefinition
from retinue.agents.validators import slugify
from retinue.errors import BadDefinition
from retinue.storage.strict_yaml import ParseError
from retinue.storage.text_file import LstatStamp, lstat_stamp, read_text_file

STAMP_SETTLE_NS = 50_000_000
"""Stamps younger than this are not trusted: a second change within one clock tick would not be visible."""

WatchedStamps = dict[str, LstatStamp]
"""Stamps by path. Keys are strings because they are compared before every run and Path is slower."""


class DefinitionLayer(Struct, frozen=True, kw_only=True):
    """The fields one source defines for an agent."""

    source: str
    partial: Mapping[str, Any]
    text: str | None = None
    """The whole file, if it is Markdown and needs no other file."""
    file_to_fix: str = ""
    """The file to fix, if `source` is not a file name."""


class DefinitionFileCache:
    """Definition files, each read again only when its stamp changed."""

    def __init__(self) -> None:
        self._cached: dict[Path, tuple[LstatStamp, DefinitionLayer | BadDefinition]] = {}
        self.files_read = 0
        """Number of files read so far."""

    def layer(self, folder: Path, name: str, watched: WatchedStamps) -> DefinitionLayer | None:
        """Return what a folder's file defines for an agent, or None; record its stamps in `watched`."""
        paths = [folder / f"{name}{end}" for end in (".md", ".json")]
        stamps = {path: lstat_stamp(path) for path in paths}
        existing = [path for path, stamp in stamps.items() if stamp is not None]
        watched.update({str(path): stamps[path] for path in existing})
        if len(existing) < len(paths):
            record_folder_stamp(folder, watched)
        if len(existing) > 1:
            raise BadDefinition(
                str(existing[0]),
                f"{existing[1].name} in the same folder defines the same agent; remove one of the two",
            )
        if not existing:
            return None
        layer = self._load_layer(existing[0], stamps[existing[0]])
        if "prompt_path" not in layer.partial:
            return layer
        return DefinitionLayer(
            source=layer.source,
            partial=with_prompt_from_file(layer.partial, folder, watched, str(existing[0])),
        )

    def forget(self, name: str) -> None:
        for path in [each for each in self._cached if each.stem == name]:
            del self._cached[path]

    def _load_layer(self, path: Path, stamp: LstatStamp) -> DefinitionLayer:
        cached = self._cached.get(path)
        if cached is None or cached[0] != stamp or not are_mtimes_stable({str(path): stamp}):
            self.files_read += 1
            cached = (stamp, _load_or_error(path))
            self._cached[path] = cached
        if isinstance(cached[1], BadDefinition):
            raise cached[1]
        return cached[1]


def record_folder_stamp(folder: Path, watched: WatchedStamps) -> None:
    """Record the stamp of a folder and of its link target.

    A missing file can only appear together with a change of its folder.
    """
    watched[str(folder)] = lstat_stamp(folder)
    if folder.is_symlink():
        real = os.path.realpath(folder)
        watched[real] = lstat_stamp(real)


def is_unchanged(watched: Mapping[str, LstatStamp]) -> bool:
    return all(lstat_stamp(path) == stamp for path, stamp in watched.items())


def are_mtimes_stable(watched: Mapping[str, LstatStamp]) -> bool:
    """Return True if all stamps are old enough to be trusted."""
    newest = max((max(stamp[1], stamp[3]) for stamp in watched.values() if stamp is not None), default=0)
    return not 0 <= time.time_ns() - newest < STAMP_SETTLE_NS


def agent_files(folder: Path) -> list[Path]:
    """Return the files of a folder that define agents, or try to."""
    if not folder.is_dir():
        return []
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix in (".md", ".json"))
    except OSError as error:
        raise BadDefinition(str(folder), f"cannot be read: {error.strerror}") from error
    return [path for path in found if not path.name.startswith(".")]


def with_prompt_from_file(
    definition: Mapping[str, Any], folder: Path, watched: WatchedStamps, location: str = "the configuration"
) -> PartialDefinition:
    """Return the definition with its prompt read from the file that `promptPath` names, if any."""
    partial = dict(definition)
    relative_path = partial.pop("prompt_path", None)
    if relative_path is None:
        return partial
    path = folder / relative_path
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise BadDefinition(location, f"promptPath: '{relative_path}' must be a file below {folder}")
    watched[str(path)] = lstat_stamp(path)
    try:
        return partial | {"prompt": definition_file.strip_prompt(read_text_file(path))}
    except FileNotFoundError as error:
        raise BadDefinition(location, f"promptPath: {path} does not exist") from error


def write_definition(path: Path, text: str, *, replace: bool) -> None:
    """Write a definition atomically. Without `replace`, an existing file is kept."""
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
            # A hard link never replaces an existing file.
            os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        temporary.unlink(missing_ok=True)


def load_problem(path: Path) -> BadDefinition | None:
    """Return the error with which a file in the agents folder would not load, or None."""
    result = _load_or_error(path)
    return result if isinstance(result, BadDefinition) else None


def _load_or_error(path: Path) -> DefinitionLayer | BadDefinition:
    """Load a layer or return its error; either is cached until the file changes."""
    try:
        return parse_layer(read_text_file(path), str(path))
    except FileNotFoundError:
        return BadDefinition(str(path), "was removed while it was being read")
    except BadDefinition as error:
        return error


def parse_layer(text: str, location: str) -> DefinitionLayer | BadDefinition:
    """Parse a layer from the text of a file with this name."""
    path = Path(location)
    try:
        if path.suffix == ".md":
            return parse_markdown_layer(text, location, path.stem)
        return _build_layer(definition_file.parse_json_definition(text), location, path.stem, None)
    except ParseError as error:
        return BadDefinition(f"{location}:{error.line}", error.problem)


def parse_markdown_layer(text: str, source: str, name: str) -> DefinitionLayer:
    return _build_layer(definition_file.parse_markdown_definition(text), source, name, text)


def _build_layer(
    parsed_source: definition_file.DefinitionSource, source: str, name: str, text: str | None
) -> DefinitionLayer:
    partial = definition_file.partial_definition(parsed_source)
    declared_name = partial.get("name") or name
    if declared_name != name:
        raise ParseError(
            parsed_source.lines.get(("name",), 1),
            f"the file name '{name}' and the agent's name '{declared_name}' must match",
        )
    return DefinitionLayer(source=source, partial=partial, text=text)


def invalid_name_error(path: Path) -> BadDefinition:
    slug = slugify(path.stem)
    suggestion = f", such as '{slug}{path.suffix}'" if slug else ""
    return BadDefinition(
        str(path), f"is not a valid agent name; use at most 64 of a-z, 0-9 and hyphens{suggestion}"
    )


def built_in_texts() -> dict[str, str]:
    """Return the built-in definitions by name.

    They are read from a folder next to this module, because importing importlib.resources takes longer than
    reading all of them.
    """
    return {path.stem: path.read_text("utf-8") for path in sorted(_BUILT_IN_FOLDER.glob("*.md"))}


_BUILT_IN_FOLDER = Path(__file__).with_name("builtin")
