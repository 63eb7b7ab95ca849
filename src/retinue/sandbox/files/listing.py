"""What a folder holds, as one scope sees it: refused names are left out, links are not followed, and every look is bounded."""

import os
from collections.abc import Iterator
from itertools import islice

from retinue.domain.io_results import Found
from retinue.domain.permissions.scope import Scope
from retinue.sandbox.files.openat2 import Opener
from retinue.sandbox.files.pattern_roots import is_readable, may_hold

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC


def listed(scope: Scope, fd: int, real: str, *, limit: int) -> list[Found]:
    found, seen = _entries(scope, fd, real, "", limit)
    return [*found, _cut(real)] if seen > limit else found


def walked(scope: Scope, fd: int, real: str, *, limit: int, opener: Opener) -> Iterator[Found]:
    """Files and links in order, folder by folder. One descriptor is open at a time, however deep it goes."""
    found, seen = _entries(scope, fd, real, "", limit)
    pending = found[::-1]
    while pending:
        one = pending.pop()
        if one.kind != "dir":
            yield one
        elif seen <= limit:
            inside, more = _below(scope, fd, real, one.path, limit - seen, opener)
            pending += inside[::-1]
            seen += more
    if seen > limit:
        yield _cut(real)


def _below(
    scope: Scope, base: int, real: str, inner: str, room: int, opener: Opener
) -> tuple[list[Found], int]:
    """A folder that vanished, became a link since it was listed or may not be read by this user holds nothing."""
    try:
        fd = opener(base, inner, _FOLDER, False)
    except OSError:
        return [], 0
    try:
        return _entries(scope, fd, real, f"{inner}/", room)
    except OSError:
        return [], 0
    finally:
        os.close(fd)


def _entries(scope: Scope, fd: int, real: str, inner: str, room: int) -> tuple[list[Found], int]:
    """The visible entries in order, and how many there were to look at: one more than `room` if too many."""
    found: list[Found] = []
    seen = 0
    prefix = f"{real.rstrip('/')}/{inner}"
    with os.scandir(fd) as entries:
        for entry in islice(entries, room + 1):
            seen += 1
            kind = _kind(entry)
            name = prefix + entry.name
            visible = is_readable(scope, name) or (kind == "dir" and may_hold(scope, name))
            if visible and seen <= room:
                found.append(Found(path=inner + entry.name, real=name, kind=kind, size=_size(entry, kind)))
    found.sort(key=_path)
    return found, seen


def _path(found: Found) -> str:
    return found.path


def _kind(entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "dir"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _size(entry: "os.DirEntry[str]", kind: str) -> int:
    if kind != "file":
        return 0
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _cut(real: str) -> Found:
    """The last one found when there was more to look at than allowed."""
    return Found(path="", real=real, kind="cut")
