"""Where a name that an agent gives lies on this machine: below the workspace or a folder that a pattern names, or in its own /tmp."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from retinue.domain.ceiling import Wish
from retinue.domain.change import replace
from retinue.domain.permissions.scope import Scope
from retinue.domain.tmp_paths import TMP, elsewhere, inside
from retinue.errors import Failed
from retinue.sandbox.files.messages import shown
from retinue.sandbox.files.openat2 import Opener
from retinue.sandbox.files.pattern_roots import anchor_of, components

MAX_PATH = 4096

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_DELETED = " (deleted)"
_TMP_PART = "tmp"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that a lookup starts from, and the way below it. The kernel goes that way and cannot leave the folder."""

    folder: str
    rest: tuple[str, ...]
    own: bool = False
    """The folder is the one behind the agent's /tmp: its real name is nobody's business."""
    make: bool = False
    """It is made when it is not there: for nobody else to see."""


def places(scope: Scope, parts: tuple[str, ...], wish: Wish) -> Iterator[Place]:
    """In the order they are tried. What is written to /tmp is always the agent's own; what is read there may also be
    the machine's, where a pattern reaches it without naming it."""
    if parts[:1] == (_TMP_PART,) and scope.private("/" + "/".join(parts)):
        make = wish == "write" or elsewhere(scope.read) != scope.read
        yield Place(scope.tmp, parts[1:], own=True, make=make)
        if wish == "write":
            return
        scope = replace(scope, tmp="")
    anchor = anchor_of(scope, parts, wish)
    if anchor is not None:
        yield Place("/" + "/".join(anchor), parts[len(anchor) :])


def view(scope: Scope, name: str, *, own: bool) -> Scope:
    """The scope by which a name is judged: patterns of /tmp do not speak for the machine's /tmp."""
    return scope if own or not scope.tmp or not inside(name) else replace(scope, tmp="")


def opened(place: Place, opener: Opener, flags: int) -> tuple[int, str | None]:
    """What the place stands for, open, and its name as the agent and its rules know it."""
    folder = begin(place)
    try:
        fd = lookup(opener, folder, place.rest, flags)
        return fd, named(place, folder, fd)
    finally:
        os.close(folder)


def begin(place: Place) -> int:
    """The folder itself, open."""
    try:
        return os.open(place.folder, _FOLDER | (os.O_NOFOLLOW if place.own else 0))
    except OSError as error:
        if place.own and error.errno == errno.ENOENT:
            return _own(place)
        name = TMP if place.own else place.folder
        raise Failed(f"the folder {shown(name)} cannot be opened: {error.strerror}") from error


def climbed(place: Place) -> Place:
    """The same place from the deepest folder that is there: what is not there yet is part of the way."""
    folder, rest = place.folder, place.rest
    while not place.own and folder != "/" and not os.path.lexists(folder):
        above, _, last = folder.rpartition("/")
        folder, rest = above or "/", (last, *rest)
    return place if folder == place.folder else Place(folder, rest)


def named(place: Place, folder: int, fd: int) -> str | None:
    """What is open below a place's folder; None when it has no name any more."""
    real = kernel_name(fd)
    if real is None or not place.own:
        return real
    base = kernel_name(folder)
    if base is None or (real != base and not real.startswith(f"{base}/")):
        return None
    return TMP + real[len(base) :]


def lookup(opener: Opener, folder: int, rest: tuple[str, ...], flags: int) -> int:
    """An absolute link is no way the kernel goes below a folder. If its target is inside, that is opened instead:
    the answer of realpath is only a guess, and the kernel judges it like any other path."""
    try:
        return opener(folder, "/".join(rest) or ".", flags, True)
    except OSError as error:
        anchor = kernel_name(folder)
        if error.errno != errno.EXDEV or ".." in rest or anchor is None:
            raise
        guess = components(os.path.realpath("/".join((anchor, *rest))))
        inner = components(anchor)
        if guess[: len(inner)] != inner:
            raise
        return opener(folder, "/".join(guess[len(inner) :]) or ".", flags, True)


def kernel_name(fd: int) -> str | None:
    """The kernel's own name of what is open; None when it has none any more."""
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  (on every open: a Path costs more than the call)
    except OSError:
        return None
    return name if name.startswith("/") and not name.endswith(_DELETED) else None


def components_of(path: str, root: str) -> tuple[str, ...]:
    """The absolute path's components. A path is data: nothing in it is expanded, and what no file can be called is refused."""
    if not path:
        raise Failed("a path is needed, and this one is empty")
    if len(path) > MAX_PATH:
        raise Failed(f"the path {shown(path)} is longer than {MAX_PATH:,} characters")
    if "\0" in path:
        raise Failed(f"the path {shown(path)} holds a NUL character, which no file name can")
    if not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path):
        raise Failed(f"the path {shown(path)} is not valid Unicode")
    return components(path if path.startswith("/") else f"{root}/{path}")


def name_of(scope: Scope, parts: tuple[str, ...]) -> str:
    """The real name that a path stands for now, unjudged, in the agent's own words."""
    asked = "/" + "/".join(parts)
    if ".." in parts or not scope.private(asked):
        return os.path.realpath(asked)
    base = os.path.realpath(scope.tmp)
    real = os.path.realpath("/".join((base, *parts[1:])))
    return TMP + real[len(base) :] if real == base or real.startswith(f"{base}/") else real


def _own(place: Place) -> int:
    if not place.make:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        with suppress(FileExistsError):
            os.makedirs(os.path.dirname(place.folder), 0o700, exist_ok=True)  # noqa: PTH103, PTH120
            os.mkdir(place.folder, 0o700)  # noqa: PTH102
        return os.open(place.folder, _FOLDER | os.O_NOFOLLOW)
    except OSError as error:
        raise Failed(f"the folder behind {TMP} cannot be made: {error.strerror}") from error
