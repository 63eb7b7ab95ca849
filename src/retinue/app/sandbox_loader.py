"""Commands as the application has them: the sandbox is loaded, and its level found out, when the first is asked for."""

from collections.abc import AsyncIterable, Callable
from functools import cached_property

from retinue.config.load import Config
from retinue.domain.io_results import Ran
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import Lack, Level
from retinue.domain.transcript import Called, Entry, Returned
from retinue.errors import BadConfig
from retinue.interfaces import Shell
from retinue.tools.bash import bash, level_in

LOWERED = "RETINUE_SANDBOX"
"""Asks for less than the machine could hold; nothing asks for more."""


class Commands:
    """A run without commands pays nothing for them."""

    def __init__(self, config: Config) -> None:
        said = config.env.get(LOWERED) or Level.STRICT
        if said not in list(Level):
            raise BadConfig(f"{LOWERED} is {said!r}; it can be {', '.join(Level)}")
        self._most = Level(said)
        self._env = config.env
        self._records = config.home / "cells"
        self._homes = config.home / "programs"

    async def level(self) -> Level:
        return await self._probe.level()

    async def lacks(self) -> tuple[Lack, ...]:
        """Why it is not a tighter level."""
        return (await self._probe.found()).lacks

    def shell(self, scope: Scope) -> Shell:
        async def run(command: str, seconds: float) -> Ran:
            return await self._bound(scope)(command, seconds)

        return run

    def sweep(self) -> list[str]:
        """Puts right what commands left whose process was killed, and says what that was."""
        if not self._records.is_dir() or not any(self._records.iterdir()):
            return []
        from retinue.sandbox.file_snapshot import swept

        return [note for _, notes in swept(str(self._records)) for note in notes]

    @cached_property
    def hosting(self):
        """For agents that are programs themselves."""
        from retinue.sandbox.cli_agents.runner import Hosting

        return Hosting(self._probe, self._env, homes=str(self._homes), records=str(self._records))

    @cached_property
    def _probe(self):
        from retinue.sandbox.probe import Probe

        return Probe(most=self._most)

    @cached_property
    def _bound(self) -> Callable[[Scope], Shell]:
        from retinue.sandbox.shell import bound

        return bound(self._probe, self._env, str(self._records))


async def loosest(run: str, portions: AsyncIterable[list[Entry]]) -> Level | None:
    """The loosest level at which a command of this run was held, as its results say; None: it ran none."""
    calls: set[str] = set()
    loosest: Level | None = None
    async for portion in portions:
        for entry in portion:
            if isinstance(entry, Called) and entry.run == run and entry.tool == bash.spec.name:
                calls.add(entry.id)
            elif isinstance(entry, Returned) and entry.of in calls and (level := level_in(entry.text)):
                loosest = level if loosest is None or loosest.reaches(level) else loosest
    return loosest
