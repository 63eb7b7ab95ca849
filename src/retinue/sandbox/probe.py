"""Detect the strictest sandbox level of this machine by running a command at each level."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import MissingLevel, SandboxLevel
from retinue.errors import Failed
from retinue.sandbox import process, seccomp
from retinue.sandbox.bubblewrap import (
    BWRAP_PATHS,
    INSTALL_HINT,
    bubblewrap_command,
    forget_bwrap_features,
    has_bind_fd,
)
from retinue.sandbox.command import SandboxedCommand
from retinue.sandbox.landlock import abi_version, landlock_command

RETRY_S = 60.0
"""Time after which a level that did not work is tried again: the failure may have been transient."""
_TRIAL_TIMEOUT_S = 10
_EMPTY_SCOPE = Scope(root="/usr")
_SYSCTLS = (
    (
        "kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor does not let programs create user namespaces",
        "install the system's own bubblewrap, or set kernel.apparmor_restrict_unprivileged_userns=0 with sysctl",
    ),
    (
        "kernel/unprivileged_userns_clone", "0", "the kernel lets only root create user namespaces",
        "set kernel.unprivileged_userns_clone=1 with sysctl",
    ),
    (
        "user/max_user_namespaces", "0", "the kernel does not allow user namespaces",
        "set user.max_user_namespaces=10000 with sysctl",
    ),
)  # fmt: skip
_NAMESPACE_REMEDY = (
    "allow user namespaces on this machine (in a container: start it with a seccomp profile that allows them)"
)
_LANDLOCK_REMEDY = "use Linux 5.13 or newer with landlock in the kernel's list of security modules (lsm=)"
_UNKNOWN_MACHINE = "the seccomp filter does not support this type of machine"


class ProbeResult(Struct, frozen=True, kw_only=True):
    """The strictest working level, and why stricter ones do not work."""

    level: SandboxLevel
    missing_levels: tuple[MissingLevel, ...] = ()
    bwrap_path: str = ""
    seccomp_filter: bytes = b""
    """The seccomp filter for level landlock; empty at level none."""


class SandboxProbe:
    """Detect the level on first use: a process that runs no command pays nothing.

    A level that works is kept. If a stricter one should be possible, it is tried again before the first command after
    RETRY_S: one failure, such as a full process table, must not lower the level for the life of a daemon.
    """

    def __init__(
        self,
        *,
        max_level: SandboxLevel = SandboxLevel.STRICT,
        bwrap_paths: Sequence[str] = BWRAP_PATHS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_level = max_level
        self._bwrap_paths = bwrap_paths
        self._monotonic = monotonic
        self._result_task: asyncio.Task[ProbeResult] | None = None
        self._retry_at = 0.0

    async def level(self) -> SandboxLevel:
        return (await self.result()).level

    async def result(self) -> ProbeResult:
        if self._result_task is None or self._should_retry(self._result_task):
            forget_bwrap_features()
            self._result_task = asyncio.ensure_future(self._try_levels())
            self._retry_at = self._monotonic() + RETRY_S
        return await asyncio.shield(self._result_task)

    def _should_retry(self, task: asyncio.Task[ProbeResult]) -> bool:
        if not task.done():
            return False
        if task.cancelled() or task.exception() is not None:
            return True
        return task.result().level is not self._max_level and self._monotonic() >= self._retry_at

    async def _try_levels(self) -> ProbeResult:
        missing_levels: list[MissingLevel] = []
        seccomp_filter = seccomp.build_filter(block_ipc=True)
        bwrap_path = next((path for path in self._bwrap_paths if is_trusted_program(path)), "")
        for level in (SandboxLevel.STRICT, SandboxLevel.LANDLOCK):
            if not self._max_level.is_at_least(level):
                missing_levels.append(
                    MissingLevel(
                        level=level,
                        reason=f"RETINUE_SANDBOX={self._max_level} limits the level",
                        remedy="unset RETINUE_SANDBOX",
                        is_retried=False,
                    )
                )
            elif (missing := await _find_missing(level, bwrap_path, seccomp_filter)) is None:
                return ProbeResult(
                    level=level,
                    missing_levels=tuple(missing_levels),
                    bwrap_path=bwrap_path,
                    seccomp_filter=seccomp_filter or b"",
                )
            else:
                missing_levels.append(missing)
        return ProbeResult(level=SandboxLevel.NONE, missing_levels=tuple(missing_levels))


async def _find_missing(
    level: SandboxLevel, bwrap_path: str, seccomp_filter: bytes | None
) -> MissingLevel | None:
    """Return what is missing for a level; None if a command ran at it."""
    if seccomp_filter is None:
        return MissingLevel(level=level, reason=_UNKNOWN_MACHINE, remedy="use an x86_64 or aarch64 machine")
    if level is SandboxLevel.LANDLOCK:
        if not abi_version():
            return MissingLevel(level=level, reason="this kernel has no Landlock", remedy=_LANDLOCK_REMEDY)
        error = await _trial_error(
            lambda: landlock_command(_EMPTY_SCOPE, "true", seccomp_filter=seccomp_filter)
        )
        return None if error is None else MissingLevel(level=level, reason=error, remedy=_LANDLOCK_REMEDY)
    if not bwrap_path:
        return MissingLevel(
            level=level, reason="bubblewrap is not installed", remedy="apt-get install bubblewrap"
        )
    if not await asyncio.to_thread(has_bind_fd, bwrap_path):
        return MissingLevel(
            level=level,
            reason=f"{bwrap_path} has no --bind-fd, so it cannot mount folders safely",
            remedy=INSTALL_HINT,
        )
    error = await _trial_error(lambda: bubblewrap_command(_EMPTY_SCOPE, "true", bwrap=bwrap_path))
    return None if error is None else _namespace_error(error)


async def _trial_error(build: Callable[[], SandboxedCommand]) -> str | None:
    """Return why a command that does nothing could not run; None if it ran."""
    try:
        result = await process.run_command(await asyncio.to_thread(build), _TRIAL_TIMEOUT_S)
    except (Failed, OSError) as error:
        return str(error)
    if result.exit_code == 0:
        return None
    return " ".join(result.output.text().split()) or "it did not start and printed no error"


def _namespace_error(error: str) -> MissingLevel:
    """Explain bubblewrap's error by the kernel setting behind it, where there is one."""
    for name, bad_value, meaning, remedy in _SYSCTLS:
        try:
            setting = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if setting == bad_value:
            return MissingLevel(level=SandboxLevel.STRICT, reason=f"{meaning} ({error})", remedy=remedy)
    return MissingLevel(level=SandboxLevel.STRICT, reason=error, remedy=_NAMESPACE_REMEDY)


def is_trusted_program(path: str) -> bool:
    """Return whether only root, or this user, could have installed this program."""
    try:
        status = Path(path).stat()
    except OSError:
        return False
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022 and os.access(path, os.X_OK)
