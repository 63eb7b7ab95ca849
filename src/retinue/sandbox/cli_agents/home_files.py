"""A file in a program's home, written by us: the program may have put anything in the way, and none of it is followed."""

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def written(home: str, name: str, text: str, *, mode: int = 0o600) -> None:
    """The whole file, in one step. What is in its way and is no folder, or no file, is renamed."""
    *folders, leaf = name.split("/")
    at = os.open(home, _FOLDER)
    try:
        for part in folders:
            _cleared(at, part, stat.S_ISDIR)
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=at)
            inner = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        _cleared(at, leaf, stat.S_ISREG)
        beside = f".{leaf}-{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(
            os.open(beside, flags, mode, dir_fd=at), "w", encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
        os.rename(beside, leaf, src_dir_fd=at, dst_dir_fd=at)
    finally:
        os.close(at)


def _cleared(folder: int, name: str, wanted: Callable[[int], bool]) -> None:
    with suppress(FileNotFoundError):
        if not wanted(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.rename(name, f"taken-{secrets.token_hex(4)}", src_dir_fd=folder, dst_dir_fd=folder)
