"""Sandbox levels: how strongly commands are isolated on this machine."""

from enum import StrEnum

from msgspec import Struct


class SandboxLevel(StrEnum):
    """Sandbox levels, strictest first. Below strict, every command needs approval."""

    STRICT = "strict"
    """Own root file system, no network, a system call filter, nothing inherited."""
    LANDLOCK = "landlock"
    """The machine's root file system behind Landlock rules, and the same system call filter."""
    NONE = "none"
    """No isolation: the person who approves a command is the only protection."""

    def is_at_least(self, minimum: "SandboxLevel") -> bool:
        return _STRICTEST_FIRST.index(self) <= _STRICTEST_FIRST.index(minimum)


_STRICTEST_FIRST = (SandboxLevel.STRICT, SandboxLevel.LANDLOCK, SandboxLevel.NONE)


class MissingLevel(Struct, frozen=True, kw_only=True):
    """Why a sandbox level is unavailable on this machine, and what to do about it."""

    level: SandboxLevel
    reason: str
    remedy: str
    is_retried: bool = True
    """Whether the level is tried again later; False if the user has chosen a lower one."""
