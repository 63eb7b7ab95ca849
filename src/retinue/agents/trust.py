"""Trust: which projects a person lets speak, each by its real path and by what its `.retinue` folder held then."""

# Names are joined and compared as text here: a real path is the key, and what is below it is opened from descriptors.
# ruff: noqa: PTH118, PTH119, PTH208

import hashlib
import json
import os
import stat
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from retinue.domain.skill import FILE
from retinue.domain.value import value
from retinue.errors import BadDefinition, Failed, NotFound, Usage
from retinue.storage.file_io import no_room, read_file, replace_file
from retinue.storage.file_lock import alone
from retinue.storage.text_file import checked, decoded

FOLDER = ".retinue"
AGENTS = "agents/"
SKILLS = "skills/"
_MOST_FILES = 10_000
_MOST_BYTES = 64_000_000
_DEEPEST = 32
_SAFE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Standing(StrEnum):
    """What a person said about a project, and whether it still holds."""

    TRUSTED = "trusted"
    CHANGED = "changed"
    """It was trusted, and its `.retinue` folder is not what it was then."""
    UNKNOWN = "not trusted"


@value
class Seen:
    """A project's `.retinue` folder at one moment: what is used of it is what was hashed, byte for byte."""

    place: str
    """The project's real path."""
    hash: str
    """Empty when there was too much to look at, or something that could not be: that is never trusted."""
    texts: Mapping[str, str | BadDefinition]
    """The files that define agents, by name, each with its text or with why it is not read."""
    skills: Mapping[str, str | BadDefinition] = field(default_factory=dict[str, str | BadDefinition])
    """The texts of its skills, by the names of their folders."""


class Trust:
    """`<home>/trust.json`: real path → hash. What changed since a person looked at it is trusted no more."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def listed(self) -> dict[str, Standing]:
        """Every project that was trusted, and whether it still is as it was."""
        return {place: self.standing(look(place)) for place in sorted(self._read())}

    def trusts(self, place: str) -> bool:
        return os.path.realpath(place) in self._read() and self.standing(look(place)) is Standing.TRUSTED

    def standing(self, seen: Seen) -> Standing:
        before = self._read().get(seen.place)
        if before is None:
            return Standing.UNKNOWN
        return Standing.TRUSTED if seen.hash and seen.hash == before else Standing.CHANGED

    def add(self, seen: Seen, *, token: str) -> None:
        """Exactly what was seen is trusted from now on: what changed since then is not."""
        if not seen.hash:
            raise Usage(
                f"{seen.place}/{FOLDER} holds more than can be looked at, or what cannot be read: "
                "keep only agents and skills there"
            )
        with self._alone():
            self._write({**self._read(), seen.place: seen.hash}, token)

    def remove(self, place: str, *, token: str) -> str:
        real = os.path.realpath(place)
        if not {real, place} & set(self._read()):
            raise NotFound(f"{place} is not trusted: `retinue trust list` shows what is")
        with self._alone():
            known = self._read()
            gone = real if real in known else place
            self._write({key: value for key, value in known.items() if key != gone}, token)
        return gone

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Between reading and writing nobody else writes: what another person took back stays taken back."""
        lock = f"{self.path}.lock"
        with ExitStack() as stack:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(alone(lock))
            except OSError as error:
                raise no_room(lock, error) from error
            yield

    def _read(self) -> dict[str, str]:
        try:
            found: Any = json.loads(read_file(os.fspath(self.path)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise Failed(f"{self.path} cannot be read ({error}): mend or remove it") from error
        if not isinstance(found, dict):
            raise Failed(f"{self.path} is not what Retinue wrote: mend or remove it")
        pairs = cast("dict[Any, Any]", found).items()
        return {str(place): seen for place, seen in pairs if isinstance(seen, str) and seen}

    def _write(self, known: Mapping[str, str], token: str) -> None:
        text = json.dumps(dict(sorted(known.items())), indent=2) + "\n"
        replace_file(os.fspath(self.path), text.encode("utf-8", "surrogatepass"), token=token)


def look(place: str) -> Seen:
    """A project as it is now. Links are not followed, not even `.retinue` itself: only what they say counts."""
    real = os.path.realpath(place)
    looking = _Looking(place=real)
    try:
        looking.entry(os.path.join(real, FOLDER), None, "")
    except (_TooMuch, OSError):
        return Seen(place=real, hash="", texts={})
    return Seen(place=real, hash=looking.digest.hexdigest(), texts=looking.texts, skills=looking.skills)


class _TooMuch(Exception):
    """There is more than a person could have looked at."""


@dataclass(slots=True, kw_only=True)
class _Looking:
    """One walk through the folder, from descriptor to descriptor."""

    place: str
    digest: Any = field(default_factory=hashlib.sha256)
    files: int = 0
    size: int = 0
    texts: dict[str, str | BadDefinition] = field(default_factory=dict[str, str | BadDefinition])
    skills: dict[str, str | BadDefinition] = field(default_factory=dict[str, str | BadDefinition])

    def entry(self, name: str, above: int | None, inner: str) -> None:
        """One name below an open folder; `inner` is what it is called in the project, empty for `.retinue`."""
        try:
            mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            self._folder(name, above, f"{inner}/" if inner else "")
        elif stat.S_ISLNK(mode):
            self._add(inner, b"link:" + os.fsencode(os.readlink(name, dir_fd=above)))
            self._no_text(inner, "is a symbolic link, which is not followed; put the file itself there")
        elif stat.S_ISREG(mode):
            self._file(name, above, inner)
        else:
            self._add(inner, b"other")
            self._no_text(inner, "is not a file")

    def _folder(self, name: str, above: int | None, inner: str) -> None:
        if inner.count("/") > _DEEPEST:
            raise _TooMuch
        handle = os.open(name, _SAFE | os.O_DIRECTORY, dir_fd=above)
        try:
            for each in sorted(os.listdir(handle)):
                self.entry(each, handle, inner + each)
        finally:
            os.close(handle)

    def _file(self, name: str, above: int | None, inner: str) -> None:
        handle = os.open(name, _SAFE, dir_fd=above)
        try:
            found = os.fstat(handle)
            data = b"" if not stat.S_ISREG(found.st_mode) else _bytes(handle, _MOST_BYTES - self.size)
        finally:
            os.close(handle)
        self._add(inner, b"file:" + data)
        if _defines(inner) or _plugin(inner):
            where = Path(self.place, FOLDER, inner)
            try:
                checked(where, found)
                self._keep(inner, decoded(where, data))
            except BadDefinition as bad:
                self._keep(inner, bad)

    def _no_text(self, inner: str, problem: str) -> None:
        self._keep(inner, BadDefinition(f"{self.place}/{FOLDER}/{inner}", problem))

    def _keep(self, inner: str, text: str | BadDefinition) -> None:
        """Of all that is looked at, only the words of definitions are kept."""
        if _defines(inner):
            self.texts[os.path.basename(inner)] = text
        elif plugin := _plugin(inner):
            self.skills[plugin] = text

    def _add(self, inner: str, data: bytes) -> None:
        self.files += 1
        self.size += len(data)
        if self.files > _MOST_FILES or self.size > _MOST_BYTES:
            raise _TooMuch
        self.digest.update(f"{len(inner)}:{inner}:{len(data)}:".encode("utf-8", "surrogatepass") + data)


def _defines(inner: str) -> bool:
    name = inner.removeprefix(AGENTS)
    return (
        inner.startswith(AGENTS)
        and "/" not in name
        and not name.startswith(".")
        and name.endswith((".md", ".json"))
    )


def _plugin(inner: str) -> str:
    """The folder whose skill a file describes, or nothing."""
    plugin, slash, file = inner.removeprefix(SKILLS).partition("/")
    return plugin if inner.startswith(SKILLS) and slash and file == FILE else ""


def _bytes(handle: int, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(handle, 1 << 20):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise _TooMuch
    return b"".join(pieces)
