"""Check the files of a repository that a command may write, and restore what git must not find there."""

# Paths are joined and checked as text here, as in git.

import errno
import os
import re
import stat
from collections.abc import Iterable

from msgspec import Struct

from retinue.domain.permissions import git_paths
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.git.index_check import unsafe_index_reason
from retinue.sandbox.git.repository import read_first_line

_HEAD, _INDEX, _CONFIG, _COMMON_DIR = "HEAD", "index", "config", "commondir"
_HEAD_CONTENT = re.compile(r"ref: refs/[^\0\n]+\n?|[0-9a-f]{40}(?:[0-9a-f]{24})?\n?")
_SHA256_SETTING = re.compile(rb"(?im)^\s*objectformat\s*=\s*sha256\s*$")
_MAX_SMALL_FILE_BYTES = 65_536
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RepositoryState(Struct, frozen=True, kw_only=True):
    """The files of a git folder before a command, as far as it can damage them."""

    head: str = ""
    """Content of HEAD; empty if it was no regular file or nothing that git accepts."""
    index: tuple[int, ...] = ()
    """Stamp of the index; empty if there was none."""


def read_repository_states(repositories: Iterable[str]) -> dict[str, RepositoryState]:
    return {
        each: RepositoryState(head=_read_head(each), index=_file_stamp(f"{each}/{_INDEX}"))
        for each in repositories
    }


def find_unsafe_files(repository: str, before: RepositoryState) -> dict[str, str]:
    """Return the paths in a git folder that must not stay, with the reason for each."""
    unsafe: dict[str, str] = {}
    for name in git_paths.LIVE_FILES:
        path = f"{repository}/{name}"
        if (status := _stat_or_none(path)) is not None and not stat.S_ISREG(status.st_mode):
            unsafe[path] = "it is no regular file"
    head, index = f"{repository}/{_HEAD}", f"{repository}/{_INDEX}"
    if head not in unsafe and before.head and not _read_head(repository):
        unsafe[head] = "it names no branch and no commit"
    if index not in unsafe and (stamp := _file_stamp(index)) and stamp != before.index:
        reason = _check_index(repository, index)
        unsafe |= {index: reason} if reason else {}
    return unsafe


def restore_head(repository: str, before: RepositoryState) -> str:
    """Write HEAD as it was before the command, if it is missing; return a note."""
    path = f"{repository}/{_HEAD}"
    if not before.head or os.path.lexists(path):
        return ""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, before.head.encode())
    finally:
        os.close(fd)
    return f"{printable_path(path)} was restored"


def _check_index(repository: str, path: str) -> str:
    try:
        return unsafe_index_reason(_read_file(path), sha256=_uses_sha256(repository))
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _uses_sha256(repository: str) -> bool:
    """Return whether the objects have SHA-256 names; a worktree's folder refers to the one with the settings."""
    folder = os.path.join(repository, read_first_line(f"{repository}/{_COMMON_DIR}") or "")  # noqa: PTH118
    try:
        return _SHA256_SETTING.search(_read_file(f"{folder}/{_CONFIG}")) is not None
    except OSError:
        return False


def _read_head(repository: str) -> str:
    try:
        text = _read_file(f"{repository}/{_HEAD}", max_bytes=_MAX_SMALL_FILE_BYTES).decode("utf-8", "strict")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if _HEAD_CONTENT.fullmatch(text) else ""


def _file_stamp(path: str) -> tuple[int, ...]:
    if (status := _stat_or_none(path)) is None:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _stat_or_none(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _read_file(path: str, *, max_bytes: int | None = None) -> bytes:
    fd = os.open(path, _OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        with open(fd, "rb", closefd=False) as file:
            return file.read(-1 if max_bytes is None else max_bytes)
    finally:
        os.close(fd)
