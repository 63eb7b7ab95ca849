"""Worktrees: a workspace of its own for one session, made by git and held by the sandbox while git works."""

# Names are joined and compared as text here, as git and the scope's patterns have them.
# ruff: noqa: PTH103, PTH112, PTH118, PTH120

import os
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path

from retinue.domain.level import Level
from retinue.domain.rule import below
from retinue.domain.scope import Scope
from retinue.errors import Failed, Refused
from retinue.ports import Ran, Shell

SECONDS = 300.0
_GIT = (
    "git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*",
    "-c", "protocol.allow=never", "-c", "gc.auto=0", "-c", "submodule.recurse=false", "-c", "advice.detachedHead=false",
)  # fmt: skip
"""Nothing of the repository's is run for its own sake: neither hooks nor monitors, and nothing is fetched."""

Trusted = Callable[[str], bool]


class Worktrees:
    """Makes them below one folder of Retinue's own, and takes away only what is clean and nobody uses."""

    def __init__(
        self,
        folder: Path,
        *,
        held: Callable[[Scope], Shell],
        level: Callable[[], Awaitable[Level]],
        trusted: Trusted,
    ) -> None:
        """`held` runs git as every command is run: under a scope."""
        self.folder = folder
        self._held = held
        self._level = level
        self._trusted = trusted

    async def make(self, root: str, name: str) -> tuple[str, str] | None:
        """The new workspace and the repository it was made from; None when the folder is in no repository.
        It is there as a whole, or there is an error and nothing."""
        top = repository(root)
        if top is None:
            return None
        await self._may(top)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = os.path.join(os.path.realpath(self.folder), name)
        ran = await self._git(top, "worktree", "add", "--quiet", "-b", f"retinue/{name}", target, "HEAD")
        if ran.exit != 0 or not Path(target, ".git").exists():
            raise Failed(
                f"no worktree of {top} could be made, and the agent is not to work outside of one: "
                f"{_last_line(ran) or 'git did not say why'}"
            )
        inner = os.path.relpath(os.path.realpath(root), top)
        place = os.path.normpath(os.path.join(target, inner))
        os.makedirs(place, exist_ok=True)
        return place, top

    async def remove(self, root: str, source: str) -> bool:
        """False when it stays, because it holds work that nobody has taken over."""
        target = self._of(root)
        if target is None or not os.path.isdir(target):
            return True
        await self._may(source)
        ran = await self._git(source, "worktree", "remove", target, at=target)
        return ran.exit == 0

    def _of(self, root: str) -> str | None:
        above = os.path.realpath(self.folder)
        inner = os.path.relpath(root, above)
        first = inner.split("/")[0]
        return None if first in ("", ".", "..") else os.path.join(above, first)

    async def _may(self, top: str) -> None:
        if await self._level() is not Level.STRICT and not self._trusted(top):
            raise Refused(
                f"git is not run in {top}: its settings can start programs, and the sandbox here is not strict. "
                f"`retinue trust {shlex.quote(top)}` if it is yours; `retinue doctor` says what the sandbox lacks"
            )

    async def _git(self, top: str, *words: str, at: str = "") -> Ran:
        git_folder = os.path.join(top, ".git")
        scope = Scope(
            read=(below(top), below(os.path.realpath(self.folder))),
            write=(below(git_folder), below(os.path.realpath(self.folder))),
            closed=(),
            root=top,
        )
        place = () if not at else ("-C", top)
        return await self._held(scope)(shlex.join((*_GIT, *place, *words)), SECONDS)


def repository(root: str) -> str | None:
    """The folder around `root` whose `.git` is a folder: a worktree of a worktree would be its sibling."""
    place = os.path.realpath(root)
    while True:
        if os.path.isdir(os.path.join(place, ".git")):
            return place
        above = os.path.dirname(place)
        if above == place:
            return None
        place = above


def _last_line(ran: Ran) -> str:
    lines = [line for line in ran.text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
