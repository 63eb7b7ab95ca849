"""Bringing back what was deleted, as long as it has not been swept away."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH104, PTH118, PTH119, PTH120, PTH208

import os
from collections.abc import Iterator

from retinue.domain.session import Session
from retinue.errors import Conflict, NotFound, Usage
from retinue.sessions import folder, session_tree
from retinue.storage import file_names
from retinue.storage.file_io import GONE, not_moved, sync_path


def found(root: str, ref: str) -> str:
    """The folder of the deleted session that is meant: of several of one name, the one deleted last."""
    if not ref.strip():
        raise Usage("Say which deleted session: its id, its slug, or its folder's name")
    for places in (_tops(root), _inner(root)):
        meant = [path for path in places if _means(path, ref)]
        if meant:
            return max(meant, key=_when)
    raise NotFound(
        f"There is no deleted session {ref!r}: what was deleted stays for 30 days, under its id, slug or folder's name"
    )


def put_aside(root: str, path: str) -> str | None:
    """Where a file below the root is now that stood in a folder which was deleted since, or in one within it; None: it is
    nowhere any more. Only the folders on the way to it are looked into."""
    if os.path.lexists(path):
        return path
    above, name = os.path.split(path)
    folder = put_aside(root, above) if above.startswith(f"{root}/") or above == root else None
    if folder is None:
        return None
    if os.path.lexists(os.path.join(folder, name)):
        return os.path.join(folder, name)
    aside = [each for each in _deleted_in(folder) if file_names.undeleted(os.path.basename(each)) == name]
    return max(aside, key=_when, default=None)


def sessions_in(path: str) -> list[Session]:
    """Those that come back with a folder."""
    return [folder.read(each).session for each in session_tree.within(path)]


def restored(path: str) -> str:
    """The folder has the name again that it had. Says where that is."""
    before = file_names.undeleted(path)
    if os.path.lexists(before):
        raise Conflict(f"{before} is there again: rename or delete that session first")
    try:
        os.rename(path, before)
        sync_path(os.path.dirname(before))
    except OSError as error:
        raise not_moved(path if error.errno in GONE else before, error) from error
    return before


def _means(path: str, ref: str) -> bool:
    name = os.path.basename(path)
    if ref in (name, path, file_names.undeleted(name)):
        return True
    return any(ref in (each.id, each.slug, *each.aliases) for each in sessions_in(path))


def _when(path: str) -> tuple[str, str]:
    return file_names.deleted_at(os.path.basename(path)) or "", path


def _tops(root: str) -> Iterator[str]:
    return _deleted_in(root)


def _inner(root: str) -> Iterator[str]:
    """Children that were deleted below sessions that live."""
    for path in session_tree.walk(root):
        yield from _deleted_in(os.path.join(path, file_names.AGENTS))


def _deleted_in(path: str) -> Iterator[str]:
    try:
        inside = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    yield from (os.path.join(path, name) for name in inside if file_names.deleted_at(name) is not None)
