"""Read-only git diff of a workspace, computed in the sandbox."""

import shlex

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.git_paths import program_settings
from retinue.domain.permissions.scope import DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.rules import subtree_pattern
from retinue.domain.run import Run
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.sanitize import text_for_model
from retinue.domain.session import Session
from retinue.errors import Failed
from retinue.interfaces import RuntimeContext
from retinue.runtime.session_scope import compute_scope, load_definition
from retinue.runtime.tool_executor import truncate_tool_result

GIT_TIMEOUT_S = 60.0
MAX_DIFF_CHARS = 200_000
"""Characters of a diff that are shown, from its start and its end."""
MAX_OUTPUT_BYTES = 4_000_000
MAX_COMMAND_BYTES = 100_000
"""Hidden files are named in the command, and the kernel limits the length of an argument."""

NO_REPOSITORY_EXIT = 40
NO_BASE_EXIT = 41

_GIT_COMMAND = (
    "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0 "
    "GIT_PAGER=cat GIT_EDITOR=false GIT_ASKPASS=false GIT_SSH_COMMAND=false LC_ALL=C.UTF-8 "
    "git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c 'safe.directory=*' -c core.pager=cat "
    "-c submodule.recurse=false -c protocol.allow=never -c core.attributesFile=/dev/null -c diff.external= "
    "-c credential.helper= -c gpg.program=false"
)
"""Git command that runs no hooks or other programs of the repository, and writes nothing."""
_DIFF_COMMAND = f"{_GIT_COMMAND} diff --no-color --no-ext-diff --no-textconv --relative"
_TRUNCATION_MARK = "bytes left out \u2026]\n"


class WorkspaceDiff(Struct, frozen=True, kw_only=True):
    """The differences of a workspace from its base, without files that the caller may not read."""

    diff: str = ""
    new_files: tuple[str, ...] = ()
    """Untracked files."""
    hidden_count: int = 0
    """Number of changed files that the caller may not read."""
    empty_reason: str = ""

    @property
    def has_changes(self) -> bool:
        return bool(self.diff or self.new_files)


async def workspace_diff(
    base: str | None, session: Session, context: RuntimeContext, *, run: Run | None = None
) -> WorkspaceDiff:
    """Return the diff of a session's workspace.

    `run`: the run that asks; its limits apply too. The changed files are listed first, so that those the caller may not read are excluded by name. In a strict
    sandbox this read-only command needs no approval; in any other it would.
    """
    if base is not None and (not base.strip() or base.startswith("-")):
        raise Failed(f"{base!r} is not a commit or branch. Omit base to compare with the last commit.")
    scope = compute_scope(await load_definition(session, context), session, context, run=run)
    await _check_diff_allowed(scope, base, context)
    read_scope = _read_only_scope(scope, session)
    root = session.workspace.root
    result = await context.sandbox.shell_for(read_scope)(_list_files_script(base), GIT_TIMEOUT_S)
    if result.exit_code == NO_REPOSITORY_EXIT:
        return WorkspaceDiff(empty_reason=f"{root} is not in a git repository that is accessible here")
    output = _git_output(result, base, read_scope, context)
    if output.is_truncated:
        raise Failed("Too many files have changed. Commit some of them, or use a more recent base.")
    changed, new_files = _parse_file_lists(output.text)
    hidden = [name for name in changed if not scope.check_path(f"{root}/{name}", "read").ok]
    diff = ""
    if len(hidden) < len(changed):
        result = await context.sandbox.shell_for(read_scope)(_diff_script(base, hidden), GIT_TIMEOUT_S)
        diff = _git_output(result, base, read_scope, context).text
    return WorkspaceDiff(
        diff=truncate_tool_result(text_for_model(diff), MAX_DIFF_CHARS),
        new_files=tuple(name for name in new_files if scope.check_path(f"{root}/{name}", "read").ok),
        hidden_count=len(hidden),
        empty_reason=f"no file that you may read differs from {base or 'the last commit'}",
    )


async def _check_diff_allowed(scope: Scope, base: str | None, context: RuntimeContext) -> None:
    if not (verdict := scope.check_command(f"git diff {base or 'HEAD'}")).ok:
        raise Failed(f"The change cannot be read: git is denied ({verdict.rule}).")
    if (level := await context.sandbox.detect_level()) is not SandboxLevel.STRICT:
        raise Failed(
            f"The change cannot be read without approval: the sandbox level is {level}, so every command requires approval. "
            "Run `git diff HEAD` yourself and send its output to a reviewer with spawn_subagent."
        )


def _read_only_scope(scope: Scope, session: Session) -> Scope:
    """Return the caller's rights, for reading only.

    The git folder of a worktree created for the caller is outside the worktree. Only git reads it here, and no
    agent may change the worktree's file that points there.
    """
    workspace = session.workspace
    tmp_patterns = DEFAULT_WRITABLE_PATHS if scope.tmp_folder else ()
    if not workspace.source_repository:
        read = (*scope.read, *(each for each in tmp_patterns if each not in scope.read))
        return replace(scope, read=read, write=tmp_patterns, writable=False)
    return Scope(
        read=(
            subtree_pattern(workspace.root),
            subtree_pattern(f"{workspace.source_repository}/.git"),
            *tmp_patterns,
        ),
        write=tmp_patterns,
        deny=scope.deny,
        closed_paths=program_settings(f"{workspace.source_repository}/.git"),
        guarded_paths=(),
        root=workspace.root,
        tmp_folder=scope.tmp_folder,
        writable=False,
    )


def _list_files_script(base: str | None) -> str:
    """Return the script that lists changed and new files.

    It prints the changed names, an empty name and the new names, each ending with NUL.
    """
    return "\n".join(
        (
            f"{_GIT_COMMAND} rev-parse --is-inside-work-tree >/dev/null 2>&1 || exit {NO_REPOSITORY_EXIT}",
            _base_assignment(base),
            f'{_DIFF_COMMAND} --name-only -z --no-renames "$base" -- 2>/dev/null || exit {NO_BASE_EXIT}',
            "printf '\\0'",
            f"{_GIT_COMMAND} ls-files --others --exclude-standard -z 2>/dev/null",
        )
    )


def _diff_script(base: str | None, hidden: list[str]) -> str:
    if any("\ufffd" in name for name in hidden):
        raise Failed("A changed file that you may not read has an unusable name. Rename it.")
    excluded = " ".join(shlex.quote(f":(exclude,literal){name}") for name in hidden)
    script = f'{_base_assignment(base)}\n{_DIFF_COMMAND} "$base" -- . {excluded} 2>/dev/null || exit {NO_BASE_EXIT}'
    if len(script.encode(errors="replace")) > MAX_COMMAND_BYTES:
        raise Failed(f"You may not read {len(hidden):,} of the changed files: too many to exclude.")
    return script


def _base_assignment(base: str | None) -> str:
    """Return the shell assignment of the base: the empty tree in a repository without commits."""
    if base is not None:
        return f"base={shlex.quote(base)}"
    empty_tree = f"$({_GIT_COMMAND} hash-object -t tree /dev/null)"
    return f'base=HEAD; {_GIT_COMMAND} rev-parse --verify --quiet HEAD >/dev/null || base="{empty_tree}"'


def _parse_file_lists(text: str) -> tuple[list[str], list[str]]:
    changed, _, new_files = f"\0{text}".partition("\0\0")
    return [each for each in changed.split("\0") if each], [each for each in new_files.split("\0") if each]


class _GitOutput(Struct, frozen=True, kw_only=True):
    text: str
    is_truncated: bool = False


def _git_output(
    result: CommandResult, base: str | None, read_scope: Scope, context: RuntimeContext
) -> _GitOutput:
    """Return git's full output, even if the shell shows only a part."""
    if result.timed_out or result.exit_code is None:
        raise Failed(f"git diff timed out after {GIT_TIMEOUT_S:g} seconds.")
    if result.exit_code == NO_BASE_EXIT and base is not None:
        raise Failed(f"git has no commit or branch {base!r}.")
    if result.exit_code:
        raise Failed(f"git diff failed (exit {result.exit_code}).")
    if not result.full_output_path:
        return _GitOutput(text=result.output, is_truncated=_TRUNCATION_MARK in result.output)
    full_output = context.sandbox.files_for(read_scope).read(
        result.full_output_path, max_bytes=MAX_OUTPUT_BYTES
    )
    return _GitOutput(
        text=full_output.data.decode(errors="replace"), is_truncated=full_output.size > len(full_output.data)
    )
