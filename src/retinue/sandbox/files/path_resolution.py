"""Resolve an agent's path below its workspace, a folder of its scope, or its private /tmp."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from retinue.domain.ceiling import FileAccess
from retinue.domain.permissions.scope import Scope
from retinue.domain.tmp_paths import TMP, is_under_tmp, without_private_tmp
from retinue.errors import Failed
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.files.openat2 import Opener
from retinue.sandbox.files.pattern_roots import lookup_root, path_components

MAX_PATH_CHARS = 4096

_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_DELETED_SUFFIX = " (deleted)"
_TMP_NAME = "tmp"


@dataclass(frozen=True, slots=True)
class LookupStart:
    """Folder in which a lookup starts, and the path below it.

    The kernel resolves that path and cannot leave the folder.
    """

    folder: str
    components: tuple[str, ...]
    is_private_tmp: bool = False
    """The folder is the one behind the agent's /tmp: its real name is never shown."""
    create_missing: bool = False
    """Create the folder, readable only by this user, if it does not exist."""


def lookup_starts(scope: Scope, parts: tuple[str, ...], access: FileAccess) -> Iterator[LookupStart]:
    """Yield the start folders in the order in which they are tried.

    A write to /tmp always goes to the agent's private folder. A read may also reach the machine's /tmp, where
    a pattern matches it without naming it.
    """
    if parts[:1] == (_TMP_NAME,) and scope.is_private_tmp("/" + "/".join(parts)):
        create_missing = access == "write" or without_private_tmp(scope.read) != scope.read
        yield LookupStart(scope.tmp_folder, parts[1:], is_private_tmp=True, create_missing=create_missing)
        if access == "write":
            return
        scope = replace(scope, tmp_folder="")
    anchor = lookup_root(scope, parts, access)
    if anchor is not None:
        yield LookupStart("/" + "/".join(anchor), parts[len(anchor) :])


def scope_for_name(scope: Scope, name: str, *, is_private_tmp: bool) -> Scope:
    """Return the scope to check a name with: patterns of /tmp do not apply to the machine's /tmp."""
    return (
        scope
        if is_private_tmp or not scope.tmp_folder or not is_under_tmp(name)
        else replace(scope, tmp_folder="")
    )


def open_path(start: LookupStart, opener: Opener, flags: int) -> tuple[int, str | None]:
    """Open a path; return its descriptor, and its name as used by the agent and in rules."""
    folder = open_start_folder(start)
    try:
        fd = open_below(opener, folder, start.components, flags)
        return fd, visible_name(start, folder, fd)
    finally:
        os.close(folder)


def open_start_folder(start: LookupStart) -> int:
    """Open the start folder itself."""
    try:
        return os.open(start.folder, _FOLDER_FLAGS | (os.O_NOFOLLOW if start.is_private_tmp else 0))
    except OSError as error:
        if start.is_private_tmp and error.errno == errno.ENOENT:
            return _create_private_tmp(start)
        name = TMP if start.is_private_tmp else start.folder
        raise Failed(f"the folder {printable_path(name)} cannot be opened: {error.strerror}") from error


def from_existing_folder(start: LookupStart) -> LookupStart:
    """Start from the deepest existing folder instead: missing folders become part of the path."""
    folder, rest = start.folder, start.components
    while not start.is_private_tmp and folder != "/" and not os.path.lexists(folder):
        parent, _, name = folder.rpartition("/")
        folder, rest = parent or "/", (name, *rest)
    return start if folder == start.folder else LookupStart(folder, rest)


def visible_name(start: LookupStart, folder: int, fd: int) -> str | None:
    """Return the name of an open file below a start folder; None if it has no name any more."""
    real = name_of_fd(fd)
    if real is None or not start.is_private_tmp:
        return real
    folder_name = name_of_fd(folder)
    if folder_name is None or (real != folder_name and not real.startswith(f"{folder_name}/")):
        return None
    return TMP + real[len(folder_name) :]


def open_below(opener: Opener, folder: int, rest: tuple[str, ...], flags: int) -> int:
    """Open a path below a folder.

    The kernel refuses an absolute link. If its target is inside the folder, the target is opened instead. The
    result of realpath is only a guess, which the kernel checks like any other path.
    """
    try:
        return opener(folder, "/".join(rest) or ".", flags, True)
    except OSError as error:
        anchor = name_of_fd(folder)
        if error.errno != errno.EXDEV or ".." in rest or anchor is None:
            raise
        guess = path_components(os.path.realpath("/".join((anchor, *rest))))
        anchor_parts = path_components(anchor)
        if guess[: len(anchor_parts)] != anchor_parts:
            raise
        return opener(folder, "/".join(guess[len(anchor_parts) :]) or ".", flags, True)


def name_of_fd(fd: int) -> str | None:
    """Return the kernel's own name of an open file; None if it has none any more."""
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  (called on every open: a Path costs more than the call)
    except OSError:
        return None
    return name if name.startswith("/") and not name.endswith(_DELETED_SUFFIX) else None


def parse_path(path: str, root: str) -> tuple[str, ...]:
    """Split a path into the components of its absolute form.

    A path is data: nothing in it is expanded. Raises Failed for what cannot be a file name.
    """
    if not path:
        raise Failed("the path is empty")
    if len(path) > MAX_PATH_CHARS:
        raise Failed(f"the path {printable_path(path)} is longer than {MAX_PATH_CHARS:,} characters")
    if "\0" in path:
        raise Failed(f"the path {printable_path(path)} contains a NUL character")
    if not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path):
        raise Failed(f"the path {printable_path(path)} is not valid Unicode")
    return path_components(path if path.startswith("/") else f"{root}/{path}")


def resolve_name(scope: Scope, parts: tuple[str, ...]) -> str:
    """Return the real name of a path, as the agent sees it, without checking the scope."""
    requested = "/" + "/".join(parts)
    if ".." in parts or not scope.is_private_tmp(requested):
        return os.path.realpath(requested)
    base = os.path.realpath(scope.tmp_folder)
    real = os.path.realpath("/".join((base, *parts[1:])))
    return TMP + real[len(base) :] if real == base or real.startswith(f"{base}/") else real


def _create_private_tmp(start: LookupStart) -> int:
    if not start.create_missing:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        with suppress(FileExistsError):
            os.makedirs(os.path.dirname(start.folder), 0o700, exist_ok=True)  # noqa: PTH103, PTH120
            os.mkdir(start.folder, 0o700)  # noqa: PTH102
        return os.open(start.folder, _FOLDER_FLAGS | os.O_NOFOLLOW)
    except OSError as error:
        raise Failed(f"the folder behind {TMP} cannot be created: {error.strerror}") from error
