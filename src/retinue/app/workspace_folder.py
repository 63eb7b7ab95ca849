"""Resolve the workspace folder of a request."""

import os
import pwd
from pathlib import Path

from retinue.domain.agent import WorkspacePolicy
from retinue.domain.workspace import Isolation
from retinue.errors import Refused, UsageError

HOME_REFUSED = (
    "The workspace would be {folder}, which {relation} your home folder, with all your files in it. Name another "
    "folder as the workspace (--workspace DIR), or allow this one with --allow-home (in the API: `allow_home`)."
)


def current_folder() -> str:
    """Return the folder in which this process was started.

    Raises:
        UsageError: It has been removed since.
    """
    try:
        return str(Path.cwd())
    except FileNotFoundError as error:
        raise UsageError(
            "The folder in which this process was started no longer exists. Name a workspace, or start it again elsewhere."
        ) from error


def resolve_workspace(workspace: str | None) -> str:
    """Return the real path of a workspace; the default is the current folder, or the user's home if that is `/`.

    Raises:
        UsageError: The path is not absolute, or not a folder.
    """
    if workspace is not None:
        path = Path(workspace)
    else:
        path = Path.home() if (folder := current_folder()) == "/" else Path(folder)
    if not path.is_absolute():
        raise UsageError(f"Workspace must be an absolute path: {workspace}")
    try:
        resolved = path.resolve()
        is_folder = resolved.is_dir()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"The workspace {workspace} cannot be read: {error}") from error
    if not is_folder:
        raise UsageError(f"Workspace is not a folder: {workspace}")
    return str(resolved)


def check_home_allowed(folder: str, policy: WorkspacePolicy, *, is_named: bool, allow_home: bool) -> None:
    """Refuse a home folder, or a folder that contains one, as the workspace of a new session.

    A definition that names another folder itself decides where its agent works, unless a person names one.

    Raises:
        Refused: The folder is a home folder, and `allow_home` is not set.
    """
    if allow_home or (policy.isolation is Isolation.CUSTOM and not is_named):
        return
    real_home = _real_path(_home_in_user_database())
    if folder in (real_home, _real_path(os.environ.get("HOME", ""))):
        raise Refused(HOME_REFUSED.format(folder=folder, relation="is"))
    if real_home.startswith(f"{folder.rstrip('/')}/"):
        raise Refused(HOME_REFUSED.format(folder=folder, relation="contains"))


def _home_in_user_database() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user without an entry
        return ""


def _real_path(folder: str) -> str:
    return os.path.realpath(folder) if folder.startswith("/") and Path(folder).is_dir() else ""
