"""Record the closed paths before each command, so that a killed command can be cleaned up."""

import fcntl
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.errors import Failed
from retinue.sandbox import cgroup
from retinue.sandbox.cleanup import NEEDS_USER, FileSnapshot, restore_closed_paths
from retinue.sandbox.files.closed_path_scan import PathKind
from retinue.sandbox.files.pattern_roots import is_readable

_COMPLETE_SUFFIX = ".json"
_MAX_TRIES = 16
PROCESS_EXIT_GRACE_S = 0.1
"""Seconds. The kernel releases a dead process's files shortly before it ends its children."""
_LAUNCHER_OPTION = b"\0--json-status-fd\0"
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNSCANNED_KINDS = (PathKind.FOLDER, PathKind.UNREADABLE)
"""Kinds of folders that the scan did not enter."""
_ALWAYS_CLOSED_KINDS = (PathKind.PIPE, PathKind.UNREADABLE)
"""Kinds that are closed regardless of the scope."""
_MSGSPEC_LOCK = threading.Lock()
"""Serialises the first use of msgspec for a class.

Commands start in several threads. msgspec inspects a class on first use; a concurrent first use in another
thread crashes the process.
"""


class CommandRecord(Struct, frozen=True, kw_only=True):
    """Record of one command, locked while the process responsible for cleanup is alive."""

    snapshot: FileSnapshot
    path: str = ""
    """Empty: not on disk, so a kill loses the record."""
    lock_fd: int = -1

    @property
    def token(self) -> str:
        """Text in the arguments of the processes that build the command's sandbox."""
        return record_token(self.path) if self.path else ""

    def clean_up(self) -> tuple[str, ...]:
        """Clean up when no process of the command is alive; return notes.

        On failure the record stays for the next process.
        """
        if not self.path:
            return restore_closed_paths(self.snapshot)
        try:
            notes = restore_closed_paths(self.snapshot)
            with suppress(FileNotFoundError):
                os.unlink(self.path)  # noqa: PTH108
        finally:
            os.close(self.lock_fd)
        return notes


def record_token(path: str) -> str:
    return f"record-{path.rpartition('/')[2].removesuffix(_COMPLETE_SUFFIX)}"


def start_record(folder: str, snapshot: FileSnapshot) -> CommandRecord:
    """Write a record before the command starts.

    Paths that another running command created do not count as existing before this one.
    """
    if not folder:
        return CommandRecord(snapshot=snapshot)
    adjusted = _without_newer_paths(snapshot, _other_snapshots(folder))
    raw = json.dumps(msgspec.to_builtins(adjusted)).encode()
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
    for _ in range(_MAX_TRIES):
        path = f"{folder}/{uuid.uuid4()}"
        fd = os.open(path, _CREATE_FLAGS, 0o600)
        try:
            # A concurrent cleanup may take the incomplete file first.
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write_record(fd, raw)
                os.rename(path, path + _COMPLETE_SUFFIX)  # noqa: PTH104
                return CommandRecord(snapshot=adjusted, path=path + _COMPLETE_SUFFIX, lock_fd=fd)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise Failed(f"{folder}: files here cannot be locked. Choose a home on a file system that supports flock")


def clean_up_killed_commands(folder: str) -> list[tuple[FileSnapshot | None, tuple[str, ...]]]:
    """Clean up after commands whose process was killed; return their snapshots and notes.

    The records of another user are left to that user.
    """
    results: list[tuple[FileSnapshot | None, tuple[str, ...]]] = []
    for name in _record_names(folder):
        path = f"{folder}/{name}"
        with suppress(FileNotFoundError, BlockingIOError, PermissionError), _lock_record(path) as fd:
            if name.endswith(_COMPLETE_SUFFIX):
                _kill_leftovers(path)
                if not results:
                    time.sleep(PROCESS_EXIT_GRACE_S)
                results.append(_clean_up_record(path, fd))
            os.unlink(path)  # noqa: PTH108
    if results:
        cgroup.remove_stale_groups()
    return results


def visible_notes(
    results: Iterable[tuple[FileSnapshot | None, tuple[str, ...]]], writable: tuple[str, ...]
) -> Iterator[str]:
    """Yield the notes that an agent may see: only those about folders it works in itself."""
    for snapshot, notes in results:
        if snapshot is None or any(_is_within(folder, writable) for folder in snapshot.writable):
            yield from (f"left by a killed command: {note}" for note in notes)


def _kill_leftovers(path: str) -> None:
    """Kill processes that were building the sandbox of a command when the process that started it was killed.

    Bubblewrap's second process waits for its first one, which may have died just then, and would wait forever.
    """
    token = record_token(path).encode()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:  # noqa: PTH123
                arguments = file.read()
                if token in arguments and _LAUNCHER_OPTION in arguments:
                    os.kill(int(name), signal.SIGKILL)


def _clean_up_record(path: str, fd: int) -> tuple[FileSnapshot | None, tuple[str, ...]]:
    snapshot = _read_snapshot(fd)
    if snapshot is None:
        return None, (
            f"{NEEDS_USER}{path} cannot be read: it is the record of a killed command, and closed paths that the command created are unknown",
        )
    try:
        return snapshot, restore_closed_paths(snapshot)
    except (Failed, OSError) as error:
        return snapshot, (f"{NEEDS_USER}cleaning up after a killed command failed: {error}",)


def _without_newer_paths(snapshot: FileSnapshot, others: Iterable[FileSnapshot]) -> FileSnapshot:
    """Remove newer paths from a snapshot.

    Newer paths are those that did not exist when another command, still running or killed, started; and those
    that are gone again because a command that has just ended cleaned them up.
    """
    newer = {path for path in snapshot.closed_paths if not os.path.lexists(path)}
    for other in others:
        newer |= {
            path for path, kind in snapshot.closed_paths.items() if _was_created_since(path, kind, other)
        }
    return replace(
        snapshot,
        closed_paths={path: kind for path, kind in snapshot.closed_paths.items() if path not in newer},
        links={path: target for path, target in snapshot.links.items() if path not in newer},
    )


def _was_created_since(path: str, kind: PathKind, other: FileSnapshot) -> bool:
    if not _is_within(path, other.writable) or path in other.closed_paths:
        return False
    parent = path
    while parent := parent.rpartition("/")[0]:
        if other.closed_paths.get(parent) in _UNSCANNED_KINDS:
            return False
    return kind in _ALWAYS_CLOSED_KINDS or not is_readable(other.scope, path) or other.scope.is_guarded(path)


def _other_snapshots(folder: str) -> Iterator[FileSnapshot]:
    for name in _record_names(folder):
        if name.endswith(_COMPLETE_SUFFIX):
            with suppress(FileNotFoundError, PermissionError), _open_record(f"{folder}/{name}") as fd:
                if (other := _read_snapshot(fd)) is not None:
                    yield other


def _record_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder)) if folder else []  # noqa: PTH208
    except FileNotFoundError:
        return []


def _read_snapshot(fd: int) -> FileSnapshot | None:
    """Read a snapshot; None for an incomplete file, as after a power failure."""
    try:
        with open(fd, "rb", closefd=False) as file:
            raw = json.loads(file.read())
        with _MSGSPEC_LOCK:
            return msgspec.convert(raw, FileSnapshot)
    except (ValueError, msgspec.ValidationError):
        return None


def _write_record(fd: int, raw: bytes) -> None:
    with open(fd, "wb", closefd=False) as file:
        file.write(raw)


@contextmanager
def _lock_record(path: str) -> Generator[int]:
    with _open_record(path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(fd).st_nlink:
            raise FileNotFoundError(path)
        yield fd


@contextmanager
def _open_record(path: str) -> Generator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
