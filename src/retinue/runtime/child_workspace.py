"""Resolve the workspace of a new session from its definition's policy."""

from msgspec.structs import replace

from retinue.domain.agent import WorkspacePolicy
from retinue.domain.glob import matches
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.domain.workspace import Isolation, Workspace
from retinue.errors import Refused, RetinueError
from retinue.interfaces import RuntimeContext


def apply_workspace_override(
    policy: WorkspacePolicy,
    *,
    isolation: Isolation | None = None,
    folder: str | None = None,
    writable: bool | None = None,
) -> WorkspacePolicy:
    """Apply a session's overrides to the definition's workspace policy.

    If the definition makes the agent read-only or puts it in a worktree, an override cannot let it write
    elsewhere.
    """
    new_isolation = policy.isolation if isolation is None else isolation
    leaves_sandbox = policy.isolation is Isolation.SANDBOX and new_isolation is not Isolation.SANDBOX
    can_write = policy.writable if writable is None else writable
    if policy.writable is False or leaves_sandbox:
        can_write = False
    return WorkspacePolicy(
        isolation=new_isolation, path=policy.path if isolation is None else folder, writable=can_write
    )


def workspace_from_policy(policy: WorkspacePolicy, root: str) -> Workspace:
    """Build the workspace a policy describes.

    Shared and custom workspaces are writable by default; a sandbox is read-only by default.
    """
    writable = policy.isolation is not Isolation.SANDBOX if policy.writable is None else policy.writable
    path = policy.path or root
    folder = path if path.startswith("/") else f"{root.rstrip('/')}/{path}"
    return Workspace(
        root=folder, isolation=policy.isolation, writable=writable, label=folder.rsplit("/", 1)[-1]
    )


async def resolve_workspace(
    policy: WorkspacePolicy, root: str, context: RuntimeContext, *, parent_workspace: Workspace | None = None
) -> Workspace:
    """Resolve a policy to a workspace, creating a worktree where one is needed.

    A sandbox in a repository is a worktree of its own. Outside a repository it is read-only; a writable one
    is refused. `parent_workspace` is where the parent works.
    """
    parent_folder = root if parent_workspace is None else parent_workspace.intended_folder
    workspace = replace(
        workspace_from_policy(policy, root), project_folder="" if parent_folder == root else parent_folder
    )
    if workspace.isolation is Isolation.CUSTOM:
        return replace(
            _resolve_named_folder(workspace, parent_workspace, context), project_folder=parent_folder
        )
    if workspace.isolation is not Isolation.SANDBOX:
        return workspace
    worktree = await context.worktrees.create(workspace.root, context.clock.new_entry_id().lower())
    if worktree is not None:
        return replace(
            workspace,
            root=worktree.folder,
            source_repository=worktree.repository,
            git_dir=worktree.git_dir,
            project_folder=parent_folder,
        )
    if workspace.writable:
        raise Refused(
            f"{workspace.root} is not in a git repository, so the agent cannot get its own writable workspace. "
            "Run `git init` and commit, or set workspace.writable: false or isolation: shared in its definition."
        )
    return workspace


def _resolve_named_folder(
    workspace: Workspace, parent_workspace: Workspace | None, context: RuntimeContext
) -> Workspace:
    """Resolve a folder named by a definition: it must exist and not be protected."""
    real_path = context.sandbox.files_for(Scope(root=workspace.root)).real_path(workspace.root)
    in_parent_worktree = (
        parent_workspace is not None
        and bool(parent_workspace.source_repository)
        and matches(subtree_pattern(parent_workspace.root), real_path)
    )
    retinue_paths = () if in_parent_worktree else context.operator_policy().retinue_paths
    try:
        context.sandbox.files_for(
            Scope(root=real_path, read=(subtree_pattern(real_path),), retinue_paths=retinue_paths)
        ).list(real_path)
    except RetinueError as error:
        raise Refused(f"The definition's workspace {workspace.root} cannot be used: {error}") from error
    return replace(workspace, root=real_path)
