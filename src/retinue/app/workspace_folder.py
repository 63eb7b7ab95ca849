"""Resolve the workspace folder of a request."""

from pathlib import Path

from retinue.errors import UsageError


def resolve_workspace(workspace: str | None) -> str:
    """Return the real path of a workspace; the default is the current folder, or the user's home if that is `/`.

    Raises:
        UsageError: The path is not absolute, or not a folder.
    """
    current_folder = Path.cwd()
    path = (
        (Path.home() if current_folder == Path("/") else current_folder)
        if workspace is None
        else Path(workspace)
    )
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
