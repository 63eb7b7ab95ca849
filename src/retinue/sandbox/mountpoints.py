"""Prepare the real folder behind an agent's /tmp and the mount points inside it."""

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress

from retinue.domain.permissions.git_paths import ASIDE_PREFIX
from retinue.domain.tmp_paths import TMP
from retinue.errors import Failed
from retinue.sandbox.mounts import MountKind, MountPlan
from retinue.sandbox.reopen import open_folder

_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_KINDS = frozenset(
    {MountKind.MASKED_FOLDER, MountKind.EMPTY_FOLDER, MountKind.SCRATCH_FOLDER, MountKind.MOUNT_PARENT}
)


def prepare_mount_points(plan: MountPlan) -> None:
    """Create the mount points that a plan lacks: those below /tmp, and empty files in repositories.

    No step follows a link, because the agent can write to the folder. Anything in the way below /tmp is renamed.
    """
    for path in plan.missing_files:
        _create_empty_file(path, plan.writable_folders)
    if not plan.tmp_source:
        return
    try:
        _make_mount_points(plan)
    except OSError as error:  # without the real folder's name, which the agent must not see
        raise Failed(f"the folder behind {TMP} cannot be prepared: {error.strerror}") from error


def _create_empty_file(path: str, trees: tuple[str, ...]) -> None:
    """Create a file in a folder that another command may be replacing by a link."""
    parent, _, name = path.rpartition("/")
    folder = open_folder(parent, trees)
    try:
        with suppress(FileExistsError):
            flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=folder))
    finally:
        os.close(folder)


def _make_mount_points(plan: MountPlan) -> None:
    os.makedirs(plan.tmp_source, mode=0o700, exist_ok=True)  # noqa: PTH103
    mounted: list[str] = []
    for mount in plan.mounts:
        if not mount.target.startswith(f"{TMP}/") or any(
            mount.target.startswith(f"{target}/") for target in mounted
        ):
            continue
        is_folder = mount.kind in _FOLDER_KINDS or os.path.isdir(mount.source)  # noqa: PTH112
        is_private = mount.source.startswith(f"{plan.tmp_source}/")
        _make_mount_point(plan.tmp_source, mount.target[len(TMP) + 1 :].split("/"), is_folder or is_private)
        mounted += [] if is_private else [mount.target]


def _make_mount_point(top: str, parts: list[str], is_folder: bool) -> None:
    folder = os.open(top, _FOLDER_FLAGS)
    try:
        for part in parts[:-1] if not is_folder else parts:
            _move_aside(folder, part, stat.S_ISDIR)
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=folder)
            subfolder = os.open(part, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = subfolder
        if not is_folder:
            _move_aside(folder, parts[-1], stat.S_ISREG)
            with suppress(FileExistsError):
                flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(parts[-1], flags, 0o600, dir_fd=folder))
    finally:
        os.close(folder)


def _move_aside(folder: int, name: str, is_expected_type: Callable[[int], bool]) -> None:
    with suppress(FileNotFoundError):
        if not is_expected_type(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.rename(name, f"{ASIDE_PREFIX}{secrets.token_hex(4)}", src_dir_fd=folder, dst_dir_fd=folder)
