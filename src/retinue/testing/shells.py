"""Shells for tests that run no real command: one that refuses, and one that plays what it is told to."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from retinue.domain.io_results import Ran
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import Level
from retinue.errors import Refused
from retinue.interfaces import Shell


async def no_level() -> Level:
    return Level.NONE


def no_shell(_scope: Scope) -> Shell:
    async def run(_command: str, _seconds: float) -> Ran:
        raise Refused("commands cannot be run here")

    return run


@dataclass(slots=True, kw_only=True)
class PlayedShell:
    """Answers every command with the same words, and remembers who ran what under which scope."""

    text: str = ""
    exit: int | None = 0
    level: Level = Level.STRICT
    ran: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    scopes: list[Scope] = field(default_factory=list[Scope])

    def __call__(self, scope: Scope) -> Shell:
        async def run(command: str, seconds: float) -> Ran:
            self.ran.append((command, seconds))
            self.scopes.append(scope)
            return Ran(exit=self.exit, text=self.text, level=self.level, ms=1)

        return run

    def at(self) -> Callable[[], Awaitable[Level]]:
        async def level() -> Level:
            return self.level

        return level
