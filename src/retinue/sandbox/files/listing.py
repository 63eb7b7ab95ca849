"""List folders as one scope sees them.

Refused names are left out, links are not followed, and the work is bounded.
"""

import os
from collections.abc import Iterator
from itertools import islice

from retinue.domain.io_results import FileEntry
from retinue.domain.permissions.scope import Scope
from retinue.sandbox.files.openat2 import Opener
from retinue.sandbox.files.pattern_roots import can_contain_readable, is_readable

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC


def list_folder(scope: Scope, fd: int, real: str, *, limit: int) -> list[FileEntry]:
    found, seen = _visible_entries(scope, fd, real, "", limit)
    return [*found, _cut_marker(real)] if seen > limit else found


def walk_folder(scope: Scope, fd: int, real: str, *, limit: int, opener: Opener) -> Iterator[FileEntry]:
    """Yield files and links in order, folder by folder.

    Only one descriptor is open at a time, however deep the walk goes.
    """
    found, seen = _visible_entries(scope, fd, real, "", limit)
    pending = found[::-1]
    while pending:
        one = pending.pop()
        if one.kind != "dir":
            yield one
        elif seen <= limit:
            children, count = _list_subfolder(scope, fd, real, one.path, limit - seen, opener)
            pending += children[::-1]
            seen += count
    if seen > limit:
        yield _cut_marker(real)


def _list_subfolder(
    scope: Scope, base: int, real: str, relative: str, max_names: int, opener: Opener
) -> tuple[list[FileEntry], int]:
    """List a subfolder; empty if it vanished, became a link or may not be read by this user."""
    try:
        fd = opener(base, relative, _FOLDER_FLAGS, False)
    except OSError:
        return [], 0
    try:
        return _visible_entries(scope, fd, real, f"{relative}/", max_names)
    except OSError:
        return [], 0
    finally:
        os.close(fd)


def _visible_entries(
    scope: Scope, fd: int, real: str, relative: str, max_names: int
) -> tuple[list[FileEntry], int]:
    """Return the visible entries in order, and the number of names seen.

    That is `max_names` + 1 if there are too many.
    """
    found: list[FileEntry] = []
    seen = 0
    prefix = f"{real.rstrip('/')}/{relative}"
    with os.scandir(fd) as entries:
        for entry in islice(entries, max_names + 1):
            seen += 1
            kind = _entry_kind(entry)
            name = prefix + entry.name
            is_visible = is_readable(scope, name) or (kind == "dir" and can_contain_readable(scope, name))
            if is_visible and seen <= max_names:
                found.append(
                    FileEntry(
                        path=relative + entry.name, real_path=name, kind=kind, size=_entry_size(entry, kind)
                    )
                )
    found.sort(key=_entry_path)
    return found, seen


def _entry_path(found: FileEntry) -> str:
    return found.path


def _entry_kind(entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "dir"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _entry_size(entry: "os.DirEntry[str]", kind: str) -> int:
    if kind != "file":
        return 0
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _cut_marker(real: str) -> FileEntry:
    """Marker that ends a listing which had more names than allowed."""
    return FileEntry(path="", real_path=real, kind="cut")
