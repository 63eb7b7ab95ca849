"""What a command left behind at names it may not write: they could not be closed before they were there."""

import errno
import os
import secrets
import stat
from contextlib import suppress

from retinue.domain.scope import Scope
from retinue.sandbox.mounts import Plan
from retinue.sandbox.openat2 import best_opener
from retinue.sandbox.survey import Kind, Sight, survey

MAX_NAMES = 1 << 62
"""All of them: to make a name takes longer than to look at it, and what is not looked at may be obeyed."""

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_SAID = 8


def put_right(scope: Scope, plan: Plan) -> tuple[str, ...]:
    """Renames whatever is newly there and closed, removes pipes, puts back links that were replaced. Nothing is lost:
    what was made stands beside its old place under a name that nothing obeys. What was closed before
    is left alone: the command could not reach it, so whoever changed it was somebody else."""
    notes: list[str] = []
    for path, kind in _seen(scope, plan).items():
        if path in plan.sight:
            continue
        if kind is Kind.DARK:
            notes.append(_still_dark(path))
        else:
            notes.append(_taken(path, kind, plan.writable))
    for path, target in plan.links.items():
        if not _leads(path, target):
            notes.append(_put_back(path, target, plan.writable))
    return _some(notes)


def _seen(scope: Scope, plan: Plan) -> Sight:
    """All that is there now. A folder that cannot be listed can still be obeyed by those who know the names in it: it
    is made listable first, and then those in it."""
    now = dict(survey(scope, plan.writable, limit=MAX_NAMES, calm=False))
    dark = _opened(now, plan)
    while dark:
        more = survey(scope, dark, limit=MAX_NAMES, calm=False)
        now |= more
        dark = _opened(more, plan)
    return now


def _opened(sight: Sight, plan: Plan) -> list[str]:
    """The folders that were closed to us by their own mode, and are so no more."""
    found: list[str] = []
    for path, kind in sight.items():
        if kind is Kind.DARK and path not in plan.sight:
            with suppress(OSError):
                _make_listable(path, plan.writable)
                found.append(path)
    return found


def _make_listable(path: str, trees: tuple[str, ...]) -> None:
    above, name = _beside(path, trees)
    try:
        folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    finally:
        os.close(above)
    try:
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        if mode & stat.S_IRWXU == stat.S_IRWXU:
            raise OSError(errno.EACCES, "it is not its mode that closes it")
        os.chmod(f"/proc/self/fd/{folder}", mode | stat.S_IRWXU)  # noqa: PTH101
    finally:
        os.close(folder)


def _still_dark(path: str) -> str:
    if os.access(path, os.R_OK | os.X_OK):
        return f"{path} could not be looked into: its mode was changed"
    return f"{path} cannot be looked into"


def _taken(path: str, kind: Kind, trees: tuple[str, ...]) -> str:
    new = f"taken-{secrets.token_hex(4)}"
    try:
        folder, name = _beside(path, trees)
        try:
            if kind is Kind.PIPE:
                os.unlink(name, dir_fd=folder)
                return f"{path} was a pipe, which keeps other programs waiting: it was removed"
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        return f"{path} was closed and is gone again"
    except OSError as error:
        return f"{path} is closed, and could not be taken away: {error.strerror}"
    return f"{path} is closed: what the command made there is now {os.path.dirname(path)}/{new}"  # noqa: PTH120


def _put_back(path: str, target: str, trees: tuple[str, ...]) -> str:
    said = [_taken(path, Kind.LINK, trees)] if os.path.lexists(path) else []
    try:
        folder, name = _beside(path, trees)
        try:
            os.symlink(target, name, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        return "; ".join((*said, f"the link {path} could not be put back: {error.strerror}"))
    return "; ".join((*said, f"the link {path} was put back"))


def _beside(path: str, trees: tuple[str, ...]) -> tuple[int, str]:
    """The open folder that holds it, reached through no link: others may be moving folders meanwhile."""
    tree = max((one for one in trees if path.startswith(f"{one}/")), key=len)
    inner, _, name = path[len(tree) + 1 :].rpartition("/")
    top = os.open(tree, _FOLDER | os.O_NOFOLLOW)
    try:
        return best_opener()(top, inner or ".", _FOLDER, False), name
    finally:
        os.close(top)


def _leads(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target  # noqa: PTH115
    except OSError:
        return False


def _some(notes: list[str]) -> tuple[str, ...]:
    more = len(notes) - _SAID
    return (*notes[:_SAID], f"and {more} more such places") if more > 0 else tuple(notes)
