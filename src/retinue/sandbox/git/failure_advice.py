"""Advice for an agent whose git command failed because the sandbox protects the repository."""

import re

from retinue.domain.permissions.scope import Scope

_PROTECTED_FILE_ERROR = re.compile(
    r"^(?:fatal|error): .*(?:\.git|\bref|\blogs/|config file|packed-refs|worktrees/).*"
    r"(?:Read-only file system|Device or resource busy|Invalid cross-device link|unable to create directory for .*)$"
    r"|^Cannot save the current status$"
    r"|^fatal: cannot prune in a precious-objects repo$",
    re.MULTILINE,
)
_ALLOWED = (
    "In the sandbox, git can add, commit, check out, merge and rebase, and create branches. It cannot tag, stash, delete or "
    "rename branches, collect garbage, or change settings and other worktrees. Commit to a branch instead of stashing"
)


def git_failure_advice(output: str, scope: Scope) -> str | None:
    """Return what to do instead, if the output shows that git could not change a protected file; else None."""
    if _PROTECTED_FILE_ERROR.search(output) is None:
        return None
    if scope.git_dir:
        return f"{_ALLOWED}; ask the user to do the rest in {scope.common_git_dir}"
    return (
        f"{_ALLOWED}, or ask the user to add '.git/**' to paths.write in this agent's definition, which allows all but settings "
        "and hooks"
    )
