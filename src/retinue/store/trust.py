"""Trust: which projects a person lets speak, each by its real path and by what its `.retinue` folder held then."""

# Names are joined and compared as text here: a real path is the key.
# ruff: noqa: PTH112, PTH114, PTH115, PTH118, PTH208

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from retinue.errors import Failed, NotFound, Usage
from retinue.store.disk import read_file, replace_file

FOLDER = ".retinue"
_MOST_FILES = 10_000
_MOST_BYTES = 64_000_000


class Trust:
    """`<home>/trust.json`: real path → hash. What changed since a person looked at it is trusted no more."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def listed(self) -> dict[str, bool]:
        """Every project that was trusted, and whether it still is as it was."""
        return {place: _hash(place) == seen for place, seen in sorted(self._read().items())}

    def trusts(self, place: str) -> bool:
        seen = self._read().get(os.path.realpath(place))
        return seen is not None and seen == _hash(os.path.realpath(place))

    def add(self, place: str, *, token: str) -> str:
        """The real path that is trusted from now on, as its folder is now."""
        real = os.path.realpath(place)
        if not os.path.isdir(real):
            raise Usage(f"{place} is not a folder: name the folder of the project")
        self._write({**self._read(), real: _hash(real)}, token)
        return real

    def remove(self, place: str, *, token: str) -> str:
        real, known = os.path.realpath(place), self._read()
        gone = real if real in known else place
        if gone not in known:
            raise NotFound(f"{place} is not trusted: `retinue trust list` shows what is")
        self._write({key: value for key, value in known.items() if key != gone}, token)
        return gone

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
        return {str(place): seen for place, seen in pairs if isinstance(seen, str)}

    def _write(self, known: Mapping[str, str], token: str) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps(dict(sorted(known.items())), indent=2) + "\n"
        replace_file(os.fspath(self.path), text.encode("utf-8", "surrogatepass"), token=token)


def _hash(place: str) -> str:
    """Of names, kinds and contents; links are not followed, only what they say counts."""
    digest = hashlib.sha256()
    budget = _MOST_BYTES
    for count, (name, path) in enumerate(_files(os.path.join(place, FOLDER), "")):
        if count >= _MOST_FILES or budget < 0:
            return "too much to look at"
        data = _content(path)
        budget -= len(data)
        digest.update(f"{len(name)}:{name}:{len(data)}:".encode("utf-8", "surrogatepass") + data)
    return digest.hexdigest()


def _files(folder: str, inner: str) -> Iterator[tuple[str, str]]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            yield from _files(path, f"{inner}{name}/")
        else:
            yield inner + name, path


def _content(path: str) -> bytes:
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return b"link:" + os.fsencode(os.readlink(path))
        return b"file:" + read_file(path) if stat.S_ISREG(mode) else b"other"
    except OSError as error:
        return f"unreadable:{error.errno}".encode()
