"""Resolve the workspace folder of a request."""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from retinue.domain.agent import WorkspacePolicy
from retinue.domain.workspace import Isolation
from retinue.errors import Refused, UsageError

HOME_REFUSED = (
    "The workspace would be {folder}, which {relation} {owner} home folder, with all files in it. Name another "
    "folder as the workspace (--workspace DIR), or allow this one with --allow-home (in the API: `allow_home`)."
)

FIRST_PERSON_UID, NOBODY_UID = 1000, 65534
"""The ids of people; below and above are those of the system and its services."""


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
    if _is_same_folder(folder, _real_path(os.environ.get("HOME", ""))):
        raise Refused(HOME_REFUSED.format(folder=folder, relation="is", owner="your"))
    for home, owner in _home_folders():
        if _is_same_folder(folder, home):
            raise Refused(HOME_REFUSED.format(folder=folder, relation="is", owner=owner))
        if home.startswith(f"{folder.rstrip('/')}/"):
            raise Refused(HOME_REFUSED.format(folder=folder, relation="contains", owner=owner))


def _home_folders() -> Iterator[tuple[str, str]]:
    """Yield the home folders of the user database with their owners: this user's, and for root those of all people."""
    try:
        of_user = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user without an entry
        of_user = ""
    homes = [(of_user, "your")]
    if os.getuid() == 0:
        homes += [(each.pw_dir, f"{each.pw_name}'s") for each in pwd.getpwall() if _is_person(each)]
    for home, owner in homes:
        if real := _real_path(home):
            yield real, owner


def _is_person(entry: pwd.struct_passwd) -> bool:
    return FIRST_PERSON_UID <= entry.pw_uid < NOBODY_UID and entry.pw_dir != "/"


def _is_same_folder(one: str, other: str) -> bool:
    """Return True if both are one folder, also through a bind mount."""
    try:
        return bool(other) and Path(one).samefile(other)
    except OSError:
        return False


def _real_path(folder: str) -> str:
    return os.path.realpath(folder) if folder.startswith("/") and Path(folder).is_dir() else ""
