"""Workspace and path rights of a new session, computed when it is created and stored with it."""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import Agent, PathPatterns, WorkspacePolicy
from retinue.domain.ceiling import Ceiling
from retinue.domain.glob import matches
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.permissions.scope_builder import inherited_ceiling
from retinue.domain.rules import Globs, absolute_patterns, escape_glob, subtree_pattern
from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.domain.tmp_paths import without_private_tmp
from retinue.domain.workspace import Isolation, Workspace
from retinue.errors import Refused, RetinueError
from retinue.interfaces import RuntimeContext
from retinue.runtime.run_plan import compute_scope, load_definition


class ParentRights(Struct, frozen=True, kw_only=True):
    """The parent's definition, and its scope in the requesting run."""

    agent: Agent
    rights: Scope


class ChildSpec(Struct, frozen=True, kw_only=True):
    """Options of a new child session, besides its task."""

    parent: Session
    description: str
    allowed_paths: Sequence[str] | None = None
    """None: the parent's read patterns. Empty: no restriction. Else exactly these patterns."""
    denied_paths: Sequence[str] | None = None
    requested_by_person: bool = False
    """A person requested these paths, so they may exceed what the parent could pass on."""
    use_definition_paths: bool = False
    """Use the definition's paths, else the workspace, and ignore allowed and denied paths."""
    workspace: WorkspacePolicy | None = None
    """Overrides the definition's policy."""
    build_prompt: Callable[[Agent], str] | None = None
    """Build its system prompt from its definition; replaces the definition's own prompt."""
    alias: str = ""
    """Additional name, besides its folder's name."""
    is_leaf: bool = False
    """The child may start no agents, whatever its definition says."""
    requesting_run: Run | None = None
    """The requesting run: its limits bind the child too."""
    parent_rights: ParentRights | None = None
    """The parent's rights in that run, if they were just computed."""


class ChildRights(Struct, frozen=True, kw_only=True):
    """Workspace and rights of a new child session."""

    workspace: Workspace
    paths: PathPatterns
    ceilings: tuple[Ceiling, ...]
    user_grants: PathPatterns


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
            workspace, root=worktree[0], source_repository=worktree[1], project_folder=parent_folder
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
    closed_paths = () if in_parent_worktree else context.operator_policy().closed_paths
    try:
        context.sandbox.files_for(
            Scope(root=real_path, read=(subtree_pattern(real_path),), retinue_paths=closed_paths)
        ).list(real_path)
    except RetinueError as error:
        raise Refused(f"The definition's workspace {workspace.root} cannot be used: {error}") from error
    return replace(workspace, root=real_path)


async def compute_child_rights(agent: Agent, child: ChildSpec, context: RuntimeContext) -> ChildRights:
    """Compute a child's workspace and rights, limited to what its parent can pass on.

    In a worktree, the parent's path rules also apply to the copies of the files.
    """
    parent_agent = (
        child.parent_rights.agent if child.parent_rights else await load_definition(child.parent, context)
    )
    rights = child.parent_rights.rights if child.parent_rights else None
    ceilings = ceilings_for_child(
        parent_agent, child.parent, context, run=child.requesting_run, rights=rights
    )
    parent_workspace = child.parent.workspace
    workspace = await resolve_workspace(
        child.workspace or agent.workspace, parent_workspace.root, context, parent_workspace=parent_workspace
    )
    if not all(each.writable for each in ceilings):
        workspace = replace(workspace, writable=False)
    deny = _deny_patterns(child, agent)
    if workspace.source_repository:
        ceilings = tuple(_remap_ceiling(each, parent_workspace.root, workspace.root) for each in ceilings)
        deny = (*deny, *(pattern for each in ceilings for pattern in each.deny if pattern not in deny))
        worktree_patterns = (subtree_pattern(workspace.root),)
    else:
        workspace, worktree_patterns = _with_parent_worktree(workspace, parent_workspace), ()
    if child.use_definition_paths:
        paths = _definition_paths(agent.paths or PathPatterns(), workspace, worktree_patterns)
    else:
        paths = PathPatterns(
            read=_read_patterns(child, parent_agent, worktree_patterns),
            write=(*DEFAULT_WRITABLE_PATHS, *worktree_patterns)
            if workspace.writable
            else DEFAULT_WRITABLE_PATHS,
        )
    paths = replace(paths, deny=tuple(dict.fromkeys(deny)))
    return ChildRights(
        workspace=workspace,
        paths=paths,
        ceilings=ceilings,
        user_grants=_paths_beyond_ceilings(child, paths, workspace, worktree_patterns),
    )


def ceilings_for_child(
    parent_agent: Agent,
    parent: Session,
    context: RuntimeContext,
    *,
    run: Run | None = None,
    rights: Scope | None = None,
) -> tuple[Ceiling, ...]:
    """Return the ceilings for a child: those of the parent session, then the parent's own rights."""
    if rights is None:
        rights = compute_scope(parent_agent, parent, context, run=run)
    run_ceilings = () if run is None else run.request.ceilings
    return (*parent.ceilings, *run_ceilings, inherited_ceiling(parent_agent, rights, set_by=parent.slug))


def _deny_patterns(child: ChildSpec, agent: Agent) -> Globs:
    if child.use_definition_paths:
        return (agent.paths and agent.paths.deny) or ()
    return DEFAULT_DENIED_PATHS if child.denied_paths is None else tuple(child.denied_paths)


def _definition_paths(defined: PathPatterns, workspace: Workspace, worktree_patterns: Globs) -> PathPatterns:
    """Return the definition's paths, with the workspace for lists it does not have.

    The workspace is readable, and writable after approval.
    """
    read = (subtree_pattern(workspace.root),) if defined.read is None else defined.read
    write = None if defined.write is None and workspace.writable else defined.write or DEFAULT_WRITABLE_PATHS
    if worktree_patterns:
        write = (*(write or DEFAULT_WRITABLE_PATHS), *worktree_patterns) if workspace.writable else write
    return PathPatterns(read=(*read, *(each for each in worktree_patterns if each not in read)), write=write)


def _with_parent_worktree(workspace: Workspace, parent_workspace: Workspace) -> Workspace:
    """Mark a workspace inside the parent's worktree as a worktree."""
    return (
        replace(workspace, source_repository=parent_workspace.source_repository)
        if matches(subtree_pattern(parent_workspace.root), workspace.root)
        else workspace
    )


def _remap_ceiling(ceiling: Ceiling, old_root: str, new_root: str) -> Ceiling:
    return replace(
        ceiling,
        read=None if ceiling.read is None else _remap_patterns(ceiling.read, old_root, new_root),
        deny=_remap_patterns(ceiling.deny, old_root, new_root),
    )


def _remap_patterns(patterns: Globs, old_root: str, new_root: str) -> Globs:
    """Return the patterns, plus their equivalents in the copied folder.

    A pattern below /tmp has no equivalent.
    """
    remapped: list[str] = []
    for each in without_private_tmp(patterns):
        if each.startswith(f"{escape_glob(old_root)}/"):
            remapped.append(escape_glob(new_root) + each.removeprefix(escape_glob(old_root)))
        elif each.endswith("/**") and matches(each, old_root):
            remapped.append(subtree_pattern(new_root))
    return (*patterns, *(each for each in remapped if each not in patterns))


def _read_patterns(child: ChildSpec, parent_agent: Agent, worktree_patterns: Globs) -> Globs:
    if child.allowed_paths is None:
        inherited = parent_agent.paths.read if parent_agent.paths is not None else None
        if worktree_patterns:
            return worktree_patterns
        return inherited if inherited is not None else (subtree_pattern(child.parent.workspace.root),)
    return tuple(child.allowed_paths) or ("/**",)


def _paths_beyond_ceilings(
    child: ChildSpec, paths: PathPatterns, workspace: Workspace, worktree_patterns: Globs
) -> PathPatterns:
    """Return the paths that go beyond the ceilings.

    A child's worktree is writable wherever it is. A person may grant any path.
    """
    person_patterns = (
        absolute_patterns(paths.read or (), workspace.root)
        if child.requested_by_person and child.allowed_paths is not None
        else ()
    )
    return PathPatterns(read=person_patterns or None, write=worktree_patterns or None)
