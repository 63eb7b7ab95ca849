"""Write a file in a CLI agent's home atomically, without following the program's links."""

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress

_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_home_file(home: str, name: str, text: str, *, mode: int = 0o600) -> None:
    """Write the whole file atomically. Anything of the wrong type in its way is renamed."""
    *folders, file_name = name.split("/")
    folder = os.open(home, _FOLDER_FLAGS)
    try:
        for part in folders:
            _move_aside(folder, part, stat.S_ISDIR)
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=folder)
            subfolder = os.open(part, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = subfolder
        _move_aside(folder, file_name, stat.S_ISREG)
        temp_name = f".{file_name}-{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(
            os.open(temp_name, flags, mode, dir_fd=folder), "w", encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
        os.rename(temp_name, file_name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _move_aside(folder: int, name: str, is_expected_type: Callable[[int], bool]) -> None:
    with suppress(FileNotFoundError):
        if not is_expected_type(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.rename(name, f"taken-{secrets.token_hex(4)}", src_dir_fd=folder, dst_dir_fd=folder)
