"""Makes ready the real folder behind an agent's /tmp, and in it the places where other folders will be laid."""

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress

from retinue.domain.tmp_paths import TMP
from retinue.errors import Failed
from retinue.sandbox.mounts import How, Plan

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDERS = frozenset({How.SEALED_FOLDER, How.BLANK_FOLDER, How.FRAME})


def made_ready(plan: Plan) -> None:
    """Only there is anything made: every other place of a plan is there already. Each step goes through no link, for
    the folder is the agent's, and what it put in the way is renamed."""
    if not plan.tmp:
        return
    try:
        _made(plan)
    except OSError as error:  # it names the real folder, which is nobody's business
        raise Failed(f"the folder behind {TMP} cannot be made ready: {error.strerror}") from error


def _made(plan: Plan) -> None:
    os.makedirs(plan.tmp, mode=0o700, exist_ok=True)  # noqa: PTH103
    laid: list[str] = []
    for mount in plan.mounts:
        if not mount.at.startswith(f"{TMP}/") or any(mount.at.startswith(f"{one}/") for one in laid):
            continue
        is_folder = mount.how in _FOLDERS or os.path.isdir(mount.source)  # noqa: PTH112
        own = mount.source.startswith(f"{plan.tmp}/")
        _place(plan.tmp, mount.at[len(TMP) + 1 :].split("/"), is_folder or own)
        laid += [] if own else [mount.at]


def _place(top: str, parts: list[str], is_folder: bool) -> None:
    folder = os.open(top, _FOLDER)
    try:
        for part in parts[:-1] if not is_folder else parts:
            _cleared(folder, part, stat.S_ISDIR)
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=folder)
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        if not is_folder:
            _cleared(folder, parts[-1], stat.S_ISREG)
            with suppress(FileExistsError):
                flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(parts[-1], flags, 0o600, dir_fd=folder))
    finally:
        os.close(folder)


def _cleared(folder: int, name: str, wanted: Callable[[int], bool]) -> None:
    with suppress(FileNotFoundError):
        if not wanted(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.rename(name, f"taken-{secrets.token_hex(4)}", src_dir_fd=folder, dst_dir_fd=folder)
