"""What was there before each running command, on disk: whoever comes after a kill puts right what the command left."""

import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec

from retinue.domain.value import value
from retinue.errors import Failed
from retinue.sandbox import cgroup
from retinue.sandbox.cleanup import TELL, Before, put_right
from retinue.sandbox.files.closed_path_scan import Kind
from retinue.sandbox.files.pattern_roots import is_readable

_WHOLE = ".json"
_TRIES = 16
_DYING = 0.1
"""Seconds. The kernel lets go of a dead process's files a moment before it ends what the process held."""
_MODES = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNSEEN = (Kind.FOLDER, Kind.DARK)
"""What stands there was not entered."""
_ANYWAY = (Kind.PIPE, Kind.DARK)
"""Watched whatever the scope says."""
_ONE_AT_A_TIME = threading.Lock()
"""Commands begin in several threads. msgspec learns what a class looks like when it first meets it, and a thread that
meets the class meanwhile crashes the whole process."""


@value
class Watch:
    """One command's record. It is locked as long as the process lives that has to put things right."""

    before: Before
    path: str = ""
    """Empty: it is kept nowhere, and a kill loses it."""
    descriptor: int = -1

    def over(self) -> tuple[str, ...]:
        """Nothing of the command lives: says what had to be put right. What fails is left for who comes next."""
        if not self.path:
            return put_right(self.before)
        try:
            notes = put_right(self.before)
            with suppress(FileNotFoundError):
                os.unlink(self.path)  # noqa: PTH108
        finally:
            os.close(self.descriptor)
        return notes


def begun(folder: str, before: Before) -> Watch:
    """Written before the command starts. What another command made meanwhile was not there before this one either."""
    if not folder:
        return Watch(before=before)
    first = _earliest(before, _others(folder))
    raw = json.dumps(msgspec.to_builtins(first)).encode()
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
    for _ in range(_TRIES):
        path = f"{folder}/{uuid.uuid4()}"
        descriptor = os.open(path, _MODES, 0o600)
        try:
            # A sweep may be faster, and take the unfinished file.
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _written(descriptor, raw)
                os.rename(path, path + _WHOLE)  # noqa: PTH104
                return Watch(before=first, path=path + _WHOLE, descriptor=descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise Failed(f"{folder}: no file here can be locked; choose a home on a file system that has flock")


def swept(folder: str) -> list[tuple[Before | None, tuple[str, ...]]]:
    """Puts right what commands left whose process was killed before it could, and says what that was. The records of
    another user are that user's to sweep."""
    found: list[tuple[Before | None, tuple[str, ...]]] = []
    for name in _names(folder):
        path = f"{folder}/{name}"
        with suppress(FileNotFoundError, BlockingIOError, PermissionError), _locked(path) as descriptor:
            if name.endswith(_WHOLE):
                if not found:
                    time.sleep(_DYING)
                found.append(_righted(path, descriptor))
            os.unlink(path)  # noqa: PTH108
    if found:
        cgroup.sweep()
    return found


def told(found: Iterable[tuple[Before | None, tuple[str, ...]]], writable: tuple[str, ...]) -> Iterator[str]:
    """What an agent may know of it: names only of folders that it works in itself."""
    for before, notes in found:
        if before is None or any(_within(tree, writable) for tree in before.writable):
            yield from (f"left by a command that was killed: {note}" for note in notes)


def _righted(path: str, descriptor: int) -> tuple[Before | None, tuple[str, ...]]:
    before = _read(descriptor)
    if before is None:
        return None, (f"{TELL}{path} cannot be read: what a command left when it was killed is not known",)
    try:
        return before, put_right(before)
    except (Failed, OSError) as error:
        return before, (f"{TELL}what a command left when it was killed could not be looked for: {error}",)


def _earliest(before: Before, others: Iterable[Before]) -> Before:
    """Less what another command, still at work or killed, did not find at its own beginning, and less what is gone
    again: one that ended a moment ago has put it right."""
    new = {path for path in before.sight if not os.path.lexists(path)}
    for other in others:
        new |= {path for path, kind in before.sight.items() if _is_made_since(path, kind, other)}
    return replace(
        before,
        sight={path: kind for path, kind in before.sight.items() if path not in new},
        links={path: target for path, target in before.links.items() if path not in new},
    )


def _is_made_since(path: str, kind: Kind, other: Before) -> bool:
    if not _within(path, other.writable) or path in other.sight:
        return False
    above = path
    while above := above.rpartition("/")[0]:
        if other.sight.get(above) in _UNSEEN:
            return False
    return kind in _ANYWAY or not is_readable(other.scope, path) or other.scope.guards(path)


def _others(folder: str) -> Iterator[Before]:
    for name in _names(folder):
        if name.endswith(_WHOLE):
            with suppress(FileNotFoundError, PermissionError), _opened(f"{folder}/{name}") as descriptor:
                if (other := _read(descriptor)) is not None:
                    yield other


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder)) if folder else []  # noqa: PTH208
    except FileNotFoundError:
        return []


def _read(descriptor: int) -> Before | None:
    """None for what no process of ours has finished writing: the machine lost its power."""
    try:
        with open(descriptor, "rb", closefd=False) as file:
            raw = json.loads(file.read())
        with _ONE_AT_A_TIME:
            return msgspec.convert(raw, Before)
    except (ValueError, msgspec.ValidationError):
        return None


def _written(descriptor: int, raw: bytes) -> None:
    with open(descriptor, "wb", closefd=False) as file:
        file.write(raw)


@contextmanager
def _locked(path: str) -> Generator[int]:
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(descriptor).st_nlink:
            raise FileNotFoundError(path)
        yield descriptor


@contextmanager
def _opened(path: str) -> Generator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
