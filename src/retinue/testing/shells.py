"""Shells for tests that run no real command: one that refuses, and one with a fixed result."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Refused
from retinue.interfaces import Shell


async def no_sandbox_level() -> SandboxLevel:
    return SandboxLevel.NONE


def refusing_shell_for(_scope: Scope) -> Shell:
    async def refuse_command(_command: str, _seconds: float) -> CommandResult:
        raise Refused("commands cannot be run here")

    return refuse_command


@dataclass(slots=True, kw_only=True)
class FakeShell:
    """A shell that returns the same result for every command and records commands and scopes."""

    output: str = ""
    exit_code: int | None = 0
    level: SandboxLevel = SandboxLevel.STRICT
    commands: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    scopes: list[Scope] = field(default_factory=list[Scope])

    def __call__(self, scope: Scope) -> Shell:
        async def run_command(command: str, seconds: float) -> CommandResult:
            self.commands.append((command, seconds))
            self.scopes.append(scope)
            return CommandResult(
                exit_code=self.exit_code, output=self.output, sandbox_level=self.level, duration_ms=1
            )

        return run_command

    def level_detector(self) -> Callable[[], Awaitable[SandboxLevel]]:
        async def detect_level() -> SandboxLevel:
            return self.level

        return detect_level
