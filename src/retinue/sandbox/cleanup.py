"""What a command left behind at names it may not write: they could not be closed before they were there."""

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress

from retinue.domain.permissions.scope import Scope
from retinue.domain.value import value
from retinue.sandbox.files.closed_path_scan import Kind, Sight, survey
from retinue.sandbox.files.messages import shown
from retinue.sandbox.reopen import mended, opened

MAX_NAMES = 1 << 62
"""All of them: to make a name takes longer than to look at it, and what is not looked at may be obeyed."""

TELL = "tell the person who you work for: "
"""Begins what could not be put right: somebody else has to."""

_TRIES = 8
_SAID = 8


@value
class Before:
    """What must be known to put things right after a command."""

    scope: Scope
    writable: tuple[str, ...]
    """The folders that it may change."""
    sight: dict[str, Kind]
    """What was closed in them before."""
    links: dict[str, str]
    """Closed names that were links, and where they led."""


def put_right(before: Before) -> tuple[str, ...]:
    """Renames whatever is newly there and closed, removes pipes, puts back links that were replaced. Nothing is lost:
    what was made stands beside its old place under a name that nothing obeys. What was closed before
    is left alone: the command could not reach it, so whoever changed it was somebody else."""
    notes: list[str] = []
    for path, kind in _seen(before).items():
        if path in before.sight:
            continue
        if kind is Kind.DARK:
            notes.append(_still_dark(path))
        else:
            notes.append(_taken(path, kind, before.writable))
    for path, target in before.links.items():
        if not _leads(path, target):
            notes.append(_put_back(path, target, before.writable))
    return some(notes)


def put_right_at(path: str, before: Before) -> str | None:
    """The same for one closed name that has just appeared; None when it is as it was before, or gone again."""
    if not os.path.lexists(path):
        return None
    if (target := before.links.get(path)) is not None:
        return None if _leads(path, target) else _put_back(path, target, before.writable)
    return None if path in before.sight else _taken(path, Kind.FILE, before.writable)


def _seen(before: Before) -> Sight:
    """All that is there now. A folder that cannot be listed can still be obeyed by those who know the names in it: it
    is made listable first, and then those in it."""
    now = dict(survey(before.scope, before.writable, limit=MAX_NAMES, calm=False))
    tried = set[str](before.sight)
    dark = _opened(now, tried, before.writable)
    while dark:
        more = survey(before.scope, dark, limit=MAX_NAMES, calm=False)
        now |= more
        dark = _opened(more, tried, before.writable)
    return now


def _opened(sight: Sight, tried: set[str], trees: tuple[str, ...]) -> list[str]:
    """The folders that were closed to us by their mode or that of one above, and are so no more. Each is tried once."""
    found: list[str] = []
    for path, kind in sight.items():
        if kind is Kind.DARK and path not in tried:
            tried.add(path)
            with suppress(OSError):
                listable(path, trees)
                found.append(path)
    return found


def listable(path: str, trees: tuple[str, ...]) -> None:
    """Opens a folder that its owner, who is us, cannot list. OSError when it is not its mode that closes it."""
    folder = opened(path, trees)
    try:
        if not mended(folder) and not os.access(f"/proc/self/fd/{folder}", os.R_OK | os.X_OK):
            raise OSError(errno.EACCES, "it is not its mode that closes it")
    finally:
        os.close(folder)


def _still_dark(path: str) -> str:
    if os.access(path, os.R_OK | os.X_OK):
        return f"{shown(path)} could not be looked into: its mode was changed"
    return f"{TELL}{shown(path)} cannot be looked into, and what is in it may be obeyed by other programs"


def _taken(path: str, kind: Kind, trees: tuple[str, ...]) -> str:
    new = f"taken-{secrets.token_hex(4)}"

    def take(folder: int, name: str) -> None:
        if kind is Kind.PIPE:
            os.unlink(name, dir_fd=folder)
        else:
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)

    try:
        also = _done_beside(path, trees, take)
    except FileNotFoundError:
        return f"{shown(path)} was closed and is gone again"
    except OSError as error:
        return f"{TELL}{shown(path)} is closed, and what a command made there could not be taken away: {error.strerror}"
    if kind is Kind.PIPE:
        return f"{shown(path)} was a pipe, which keeps other programs waiting: it was removed{also}"
    return (
        f"{shown(path)} is closed: what the command made there is now {shown(f'{_above(path)}/{new}')}{also}"
    )


def _put_back(path: str, target: str, trees: tuple[str, ...]) -> str:
    said = [_taken(path, Kind.LINK, trees)] if os.path.lexists(path) else []
    try:
        _done_beside(path, trees, lambda folder, name: os.symlink(target, name, dir_fd=folder))
    except OSError as error:
        return "; ".join((*said, f"{TELL}the link {shown(path)} could not be put back: {error.strerror}"))
    return "; ".join((*said, f"the link {shown(path)} was put back"))


def _done_beside(path: str, trees: tuple[str, ...], work: Callable[[int, str], None]) -> str:
    """Does the work in the folder that holds this name. One that the command closed against writing is ours to open;
    says so then. Another command may close it again meanwhile, so it is tried a few times."""
    also = ""
    folder = opened(_above(path), trees)
    try:
        for _ in range(_TRIES):
            try:
                work(folder, path.rpartition("/")[2])
            except PermissionError:
                if not mended(folder):
                    raise
                also = f"; {shown(_above(path))} can be written again: its mode was changed"
            else:
                return also
        raise PermissionError(errno.EACCES, "its folder is being closed again and again")
    finally:
        os.close(folder)


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _leads(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target  # noqa: PTH115
    except OSError:
        return False


def some(notes: list[str]) -> tuple[str, ...]:
    """As many as are worth reading, those that a person must know first."""
    notes = sorted(notes, key=lambda note: TELL not in note)
    more = len(notes) - _SAID
    return (*notes[:_SAID], f"and {more} more such places") if more > 0 else tuple(notes)
