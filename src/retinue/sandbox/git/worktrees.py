"""Worktrees: a workspace of its own for one session, made by git and held by the sandbox while git works."""

# Names are joined and compared as text here, as git and the scope's patterns have them.
# ruff: noqa: PTH102, PTH106, PTH112, PTH114, PTH116, PTH118, PTH119

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from retinue.domain.io_results import Ran
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import below
from retinue.domain.sandbox_level import Level
from retinue.errors import Failed, Refused, RetinueError
from retinue.interfaces import Shell
from retinue.sandbox.git.orphaned_worktrees import PATIENCE, Unclaimed
from retinue.sandbox.git.repository import Repository, repository

SECONDS = 300.0
BRANCHES = "retinue"
"""The first word of the branches: `retinue/<name>`."""

_ENVIRONMENT = (
    "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_LFS_SKIP_SMUDGE=1",
    "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C",
)  # fmt: skip
_GIT = (
    "git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*",
    "-c", "protocol.allow=never", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "submodule.recurse=false",
    "-c", "advice.detachedHead=false", "-c", "core.pager=cat", "-c", "core.ignoreStat=false",
    "-c", "core.untrackedCache=false",
)  # fmt: skip
"""Nothing of the repository's is run for its own sake: neither hooks nor monitors, and nothing is fetched. What its
filters are, git starts: in the sandbox, with the new folder and git's notes on it in reach, and nothing else."""

UNCLAIMED = "unclaimed"
"""The folder beside the worktrees in which those are noted that no session may name yet."""

_LOCK, _UNFINISHED = "locked", b"initializing"
"""Git's own mark on a worktree that it is still making."""

_INDEX, _LONG_AGO = "index", 1
"""Git's list of files; a second of 0 would mean to git that it does not know how old it is."""

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
        self.unclaimed = Unclaimed(folder=os.path.join(folder.parent, UNCLAIMED))
        self._held = held
        self._level = level
        self._trusted = trusted

    async def make(self, root: str, name: str) -> tuple[str, str] | None:
        """The new workspace and the repository it was made from; None when the folder is in no repository.
        It is there as a whole, or there is an error and nothing."""
        found = repository(root)
        if found is None:
            return None
        await self._may(found.top)
        target = os.path.join(os.path.realpath(self.folder), name)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.unclaimed.note(name, found.main)
            os.mkdir(target, 0o700)
        except OSError as error:
            raise _not_made(found, str(error)) from error
        try:
            return await self._made(found, os.path.realpath(root), target)
        except OSError as error:
            await self._undone(found, target)
            raise _not_made(found, str(error)) from error
        except BaseException:
            # Whoever is cancelled here must not leave a folder behind that no session knows.
            await asyncio.shield(self._undone(found, target))
            raise

    async def remove(self, root: str, source: str) -> bool:
        """False when it stays, because it holds work that nobody has taken over, or cannot be looked at."""
        target = self.around(root)
        if target is None or not os.path.isdir(target):
            return True
        try:
            found = repository(source)
            if found is None or not (notes := found.notes_on(target)):
                return False
            await self._may(found.top)
            if not await self._clean(found, target, notes):
                return False
            _gone(target)
            _gone(notes)
            await self._branch(found, "-d", target)
        except (OSError, RetinueError):
            return False
        self.unclaimed.drop(os.path.basename(target))
        return True

    async def sweep(self, inhabited: Callable[[], Awaitable[Collection[str]]]) -> list[str]:
        """Takes away what a crash left between a worktree and its session, and says what that was. Nobody is asked
        who works where unless there is something to take away; what holds work stays."""
        gone: list[str] = []
        if not (due := list(self.unclaimed.due())):
            return gone
        taken = {self.around(root) for root in await inhabited() if root}
        for name, source, age in due:
            target = os.path.join(os.path.realpath(self.folder), name)
            if target in taken or not os.path.lexists(target):
                self.unclaimed.drop(name)
            elif await self._swept(target, source, age):
                gone.append(target)
                self.unclaimed.drop(name)
            else:
                self.unclaimed.put_off(name)
        return gone

    def around(self, root: str) -> str | None:
        """The worktree that a folder is in, if it is one of ours."""
        above = os.path.realpath(self.folder)
        first = os.path.relpath(root, above).split("/")[0]
        return None if first in ("", ".", "..") else os.path.join(above, first)

    async def _swept(self, target: str, source: str, age: float) -> bool:
        """One that git never finished holds nobody's work. Until git's own time is up, somebody may be at it."""
        try:
            if (found := repository(source)) is None:
                os.rmdir(target)
                return True
            notes = found.notes_on(target)
            if notes is not None and not _is_unfinished(notes):
                old = time.time() - os.stat(notes).st_mtime > PATIENCE
                return old and await self.remove(target, source)
            if age < SECONDS + PATIENCE:
                return False
            await self._may(found.top)
            if notes is None:
                os.rmdir(target)
            await self._undone(found, target)
        except (OSError, RetinueError):
            return False
        return not os.path.lexists(target)

    async def _made(self, found: Repository, root: str, target: str) -> tuple[str, str]:
        found.make_room(BRANCHES)
        branch = f"{BRANCHES}/{os.path.basename(target)}"
        words = ("worktree", "add", "--quiet", "--no-track", "-b", branch, target, "HEAD")
        async with found.turn():
            ran = await self._git(found, target, *words)
        if ran.exit != 0 or found.notes_on(target) is None:
            raise _not_made(found, _reason(ran))
        place = target
        for part in os.path.relpath(root, found.top).split("/"):
            place = place if part == "." else os.path.join(place, part)
            if os.path.islink(place):
                raise _not_made(found, f"{place} is a link there: commit what is in {root} first")
            Path(place).mkdir(exist_ok=True)
        self.unclaimed.touch(os.path.basename(target))
        return place, found.main

    async def _undone(self, found: Repository, target: str) -> None:
        notes = found.notes_on(target)
        for place in (target, notes):
            if place and os.path.isdir(place):
                _gone(place)
        self.unclaimed.drop(os.path.basename(target))
        try:
            await self._branch(found, "-D", target)
        except (OSError, RetinueError):
            return

    async def _clean(self, found: Repository, target: str, notes: str) -> bool:
        """By git's notes on this folder, never by what the folder itself says of them; and by what the files hold, never
        by their size and time alone."""
        _doubted(notes)
        words = (
            "--work-tree",
            target,
            "status",
            "--porcelain",
            "--untracked-files=all",
            "--ignore-submodules=none",
        )
        ran = await self._git(found, target, *words, notes=notes)
        return ran.exit == 0 and not ran.timed_out and not ran.text.strip()

    async def _branch(self, found: Repository, how: str, target: str) -> None:
        """With -d it goes only if all that is in it is elsewhere too."""
        scope = Scope(
            read=(below(found.git),), write=(below(found.git),), closed=(), guarded=(), root=found.git
        )
        words = ("--git-dir", found.here, "branch", "--quiet", how, f"{BRANCHES}/{os.path.basename(target)}")
        async with found.turn():
            await self._held(scope)(_line(*words), SECONDS)

    async def _git(self, found: Repository, target: str, *words: str, notes: str = "") -> Ran:
        """In reach are git's own folder to read, and to write: the new folder, and the notes and branches of ours."""
        places = (target, *found.rooms(BRANCHES))
        scope = Scope(
            read=(below(found.git), below(target)),
            write=tuple(below(place) for place in places),
            closed=(),
            guarded=(),
            root=target,
        )
        quiet = " 2>/dev/null" if notes else ""
        return await self._held(scope)(_line("--git-dir", notes or found.here, *words) + quiet, SECONDS)

    async def _may(self, top: str) -> None:
        if await self._level() is not Level.STRICT and not self._trusted(top):
            raise Refused(
                f"git is not run in {top}: its settings can start programs, and the sandbox here is not strict. "
                f"`retinue trust {shlex.quote(top)}` if it is yours; `retinue doctor` says what the sandbox lacks"
            )


def _line(*words: str) -> str:
    return f"{' '.join(_ENVIRONMENT)} {shlex.join((*_GIT, *words))}"


def _is_unfinished(notes: str) -> bool:
    try:
        return Path(notes, _LOCK).read_bytes().strip() == _UNFINISHED
    except OSError:
        return False


def _doubted(notes: str) -> None:
    """Git takes a file for unchanged by its size and the second of its change, unless its index is no younger than that:
    then it looks into the file. An index as old as can be lets it look into each. A work of the same length in the
    second of the checkout would be overlooked else."""
    os.utime(os.path.join(notes, _INDEX), (_LONG_AGO, _LONG_AGO), follow_symlinks=False)


def _gone(place: str) -> None:
    """Links in it are removed, never followed."""
    if os.path.islink(place) or os.path.realpath(place) != place:
        raise OSError(f"{place} is not where it seems to be")
    shutil.rmtree(place)


def _not_made(found: Repository, reason: str) -> Failed:
    return Failed(
        f"no worktree of {found.top} could be made, and the agent is not to work outside of one: {reason}"
    )


def _reason(ran: Ran) -> str:
    if ran.timed_out:
        return f"git did not end within {SECONDS:g} seconds"
    lines = [line for line in ran.text.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
    if "HEAD" in said and ("invalid reference" in said or "not a valid object name" in said):
        return f"it has no commit to begin with ({said.strip()}): commit something first"
    return said.strip() or "git did not say why"
