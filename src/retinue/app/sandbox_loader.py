"""Load the sandbox, and probe its level, when the first command needs it."""

from collections.abc import AsyncIterable, Callable
from functools import cached_property

from retinue.config.load import Config
from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import MissingLevel, SandboxLevel
from retinue.domain.transcript import Entry, ToolCall, ToolResult
from retinue.errors import BadConfig
from retinue.interfaces import Shell
from retinue.tools.bash import bash, parse_sandbox_level

SANDBOX_LEVEL_VARIABLE = "RETINUE_SANDBOX"
"""Environment variable that lowers the sandbox level; it cannot raise it."""


class SandboxLoader:
    """Lazy access to the sandbox: nothing is loaded or probed for runs without commands."""

    def __init__(self, config: Config) -> None:
        level_name = config.env.get(SANDBOX_LEVEL_VARIABLE) or SandboxLevel.STRICT
        if level_name not in list(SandboxLevel):
            raise BadConfig(
                f"{SANDBOX_LEVEL_VARIABLE} is {level_name!r}; it must be one of {', '.join(SandboxLevel)}"
            )
        self._max_level = SandboxLevel(level_name)
        self._env = config.env
        self._records_dir = config.home / "cells"
        self._program_homes_dir = config.home / "programs"

    async def level(self) -> SandboxLevel:
        return await self._probe.level()

    async def missing_levels(self) -> tuple[MissingLevel, ...]:
        """Return why the sandbox does not reach a higher level on this machine."""
        return (await self._probe.result()).missing_levels

    def shell(self, scope: Scope) -> Shell:
        async def run_command(command: str, timeout_s: float) -> CommandResult:
            return await self._shell_factory(scope)(command, timeout_s)

        return run_command

    def clean_up_killed_commands(self) -> list[str]:
        """Clean up after commands of killed processes, and return a note for each repair."""
        if not self._records_dir.is_dir() or not any(self._records_dir.iterdir()):
            return []
        from retinue.sandbox.file_snapshot import clean_up_killed_commands

        return [note for _, notes in clean_up_killed_commands(str(self._records_dir)) for note in notes]

    @cached_property
    def cli_agent_runner(self):
        """The runner for agents that are CLI programs."""
        from retinue.sandbox.cli_agents.runner import CliAgentRunner

        return CliAgentRunner(
            self._probe,
            self._env,
            homes_folder=str(self._program_homes_dir),
            records_folder=str(self._records_dir),
        )

    @cached_property
    def _probe(self):
        from retinue.sandbox.probe import SandboxProbe

        return SandboxProbe(max_level=self._max_level)

    @cached_property
    def _shell_factory(self) -> Callable[[Scope], Shell]:
        from retinue.sandbox.shell import make_shell_factory

        return make_shell_factory(self._probe, self._env, str(self._records_dir))


async def lowest_command_level(run_id: str, chunks: AsyncIterable[list[Entry]]) -> SandboxLevel | None:
    """Return the lowest sandbox level in this run's command results, or None if it ran no command."""
    command_call_ids: set[str] = set()
    lowest: SandboxLevel | None = None
    async for chunk in chunks:
        for entry in chunk:
            if isinstance(entry, ToolCall) and entry.run == run_id and entry.tool == bash.spec.name:
                command_call_ids.add(entry.id)
            elif (
                isinstance(entry, ToolResult)
                and entry.call_id in command_call_ids
                and (level := parse_sandbox_level(entry.text))
            ):
                lowest = level if lowest is None or lowest.is_at_least(level) else lowest
    return lowest
