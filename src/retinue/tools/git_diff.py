"""The change in a workspace: what git says differs from a commit, looked at in the sandbox and changing nothing."""

import shlex
from dataclasses import replace

from retinue.domain.io_results import Ran
from retinue.domain.permissions.scope import DEFAULT_WRITE, Scope
from retinue.domain.rules import below
from retinue.domain.sandbox_level import Level
from retinue.domain.sanitize import for_model
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.interfaces import Call, Ports
from retinue.runtime.run_plan import definition, scope_of
from retinue.runtime.tool_executor import capped

SECONDS = 60.0
MAX_DIFF = 200_000
"""Characters of a change that are shown: its head and its tail."""
MAX_READ = 4_000_000
MAX_COMMAND = 100_000
"""Bytes: what is left out is named in the command, and the kernel takes no longer word."""

NO_REPOSITORY = 40
NO_BASE = 41

_GIT = (
    "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0 LC_ALL=C.UTF-8 "
    "git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c 'safe.directory=*' -c core.pager=cat "
    "-c submodule.recurse=false -c protocol.allow=never"
)
"""Nothing of the repository's is run for its own sake, and nothing is written."""
_DIFF = f"{_GIT} diff --no-color --no-ext-diff --no-textconv --relative"
_CUT = "bytes left out \u2026]\n"


@value
class Change:
    """What a workspace holds that its base does not, as far as the caller may read it."""

    diff: str = ""
    new: tuple[str, ...] = ()
    """Files that git does not know yet."""
    hidden: int = 0
    """Changed files that the caller may not read."""
    why_none: str = ""

    @property
    def files(self) -> bool:
        return bool(self.diff or self.new)


async def change_in(base: str | None, call: Call, ports: Ports) -> Change:
    """Which files differ is asked first: what the caller may not read is left out of the change by name. A command that
    can write nothing and is held strictly asks nobody; any other would have to."""
    if base is not None and (not base.strip() or base.startswith("-")):
        raise Failed(f"{base!r} is no commit or branch: leave base out to compare with the last commit")
    scope = scope_of(await definition(call.session, ports), call.session, ports, run=call.run)
    scope = scope.under(ports.bounds())
    await _may(scope, base, ports)
    view = _view(scope, call)
    root = call.session.workspace.root
    ran = await ports.shell(view)(_names(base), SECONDS)
    if ran.exit == NO_REPOSITORY:
        return Change(why_none=f"{root} is in no git repository that can be reached from here")
    said = _said(ran, base, view, ports)
    if said.cut:
        raise Failed(
            "more files have changed than can be looked at: commit some of them, or name a nearer base"
        )
    changed, new = _listed(said.text)
    closed = [name for name in changed if not scope.path(f"{root}/{name}", "read").ok]
    diff = ""
    if len(closed) < len(changed):
        ran = await ports.shell(view)(_shown(base, closed), SECONDS)
        diff = _said(ran, base, view, ports).text
    return Change(
        diff=capped(for_model(diff), MAX_DIFF),
        new=tuple(name for name in new if scope.path(f"{root}/{name}", "read").ok),
        hidden=len(closed),
        why_none=f"no file that you may read differs from {base or 'the last commit'}",
    )


async def _may(scope: Scope, base: str | None, ports: Ports) -> None:
    if not (verdict := scope.command(f"git diff {base or 'HEAD'}")).ok:
        raise Failed(f"the change cannot be looked at: git is denied ({verdict.rule})")
    if (level := await ports.level()) is not Level.STRICT:
        raise Failed(
            f"the change cannot be looked at unasked: the sandbox here is {level}, so each command asks a person. "
            "Run `git diff HEAD` yourself and hand what it says to a reviewer with spawn_subagent"
        )


def _view(scope: Scope, call: Call) -> Scope:
    """The caller's own rights, to read only. Of a worktree that was made for it, git's own folder lies elsewhere: only
    git reads it here, and the worktree's file that leads there is no agent's to change."""
    place = call.session.workspace
    tmp = DEFAULT_WRITE if scope.tmp else ()
    if not place.source:
        read = (*scope.read, *(each for each in tmp if each not in scope.read))
        return replace(scope, read=read, write=tmp, writable=False)
    return Scope(
        read=(below(place.root), below(f"{place.source}/.git"), *tmp),
        write=tmp,
        deny=scope.deny,
        closed=(),
        guarded=(),
        root=place.root,
        tmp=scope.tmp,
        writable=False,
    )


def _names(base: str | None) -> str:
    """Changed names, an empty one, new names; each ends with NUL."""
    return "\n".join(
        (
            f"{_GIT} rev-parse --is-inside-work-tree >/dev/null 2>&1 || exit {NO_REPOSITORY}",
            _base(base),
            f'{_DIFF} --name-only -z --no-renames "$base" -- 2>/dev/null || exit {NO_BASE}',
            "printf '\\0'",
            f"{_GIT} ls-files --others --exclude-standard -z 2>/dev/null",
        )
    )


def _shown(base: str | None, without: list[str]) -> str:
    if any("\ufffd" in name for name in without):
        raise Failed("a changed file that may not be read here has a name that cannot be written: rename it")
    excluded = " ".join(shlex.quote(f":(exclude,literal){name}") for name in without)
    text = f'{_base(base)}\n{_DIFF} "$base" -- . {excluded} 2>/dev/null || exit {NO_BASE}'
    if len(text.encode(errors="replace")) > MAX_COMMAND:
        raise Failed(
            f"{len(without):,} changed files may not be read here: that is more than can be left out"
        )
    return text


def _base(base: str | None) -> str:
    """A repository without a commit is compared with nothing."""
    if base is not None:
        return f"base={shlex.quote(base)}"
    none = f"$({_GIT} hash-object -t tree /dev/null)"
    return f'base=HEAD; {_GIT} rev-parse --verify --quiet HEAD >/dev/null || base="{none}"'


def _listed(text: str) -> tuple[list[str], list[str]]:
    changed, _, new = f"\0{text}".partition("\0\0")
    return [each for each in changed.split("\0") if each], [each for each in new.split("\0") if each]


@value
class _Said:
    text: str
    cut: bool = False


def _said(ran: Ran, base: str | None, view: Scope, ports: Ports) -> _Said:
    """What git wrote, also where the shell shows only a part of it."""
    if ran.timed_out or ran.exit is None:
        raise Failed(f"git did not say within {SECONDS:g} seconds what has changed")
    if ran.exit == NO_BASE and base is not None:
        raise Failed(f"git knows nothing to compare with by the name {base!r}")
    if ran.exit:
        raise Failed(f"git could not say what has changed (exit {ran.exit})")
    if not ran.kept:
        return _Said(text=ran.text, cut=_CUT in ran.text)
    kept = ports.files(view).read(ran.kept, max_bytes=MAX_READ)
    return _Said(text=kept.data.decode(errors="replace"), cut=kept.size > len(kept.data))
