"""Permissions of a new child session, computed when it is created and stored with it."""

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
from retinue.domain.workspace import Workspace
from retinue.interfaces import RuntimeContext
from retinue.runtime.child_workspace import resolve_workspace
from retinue.runtime.session_scope import compute_scope, load_definition


class ParentPermissions(Struct, frozen=True, kw_only=True):
    """The parent's definition, and its scope in the requesting run."""

    agent: Agent
    scope: Scope


class ChildSpec(Struct, frozen=True, kw_only=True):
    """Options of a new child session, besides its task."""

    parent: Session
    description: str
    allowed_paths: Sequence[str] | None = None
    """None: the parent's read patterns. Empty: no restriction. Else exactly these patterns."""
    denied_paths: Sequence[str] | None = None
    """Denied besides the default paths."""
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
    parent_permissions: ParentPermissions | None = None
    """The parent's permissions in that run, if they were just computed."""


class ChildPermissions(Struct, frozen=True, kw_only=True):
    """Workspace and permissions of a new child session."""

    workspace: Workspace
    paths: PathPatterns
    ceilings: tuple[Ceiling, ...]
    user_grants: PathPatterns


async def compute_child_permissions(
    agent: Agent, child: ChildSpec, context: RuntimeContext
) -> ChildPermissions:
    """Compute a child's workspace and permissions, limited to what its parent can pass on.

    In a worktree, the parent's path rules also apply to the copies of the files.
    """
    parent_agent = (
        child.parent_permissions.agent
        if child.parent_permissions
        else await load_definition(child.parent, context)
    )
    parent_scope = child.parent_permissions.scope if child.parent_permissions else None
    ceilings = inherited_ceilings(
        parent_agent, child.parent, context, run=child.requesting_run, parent_scope=parent_scope
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
    return ChildPermissions(
        workspace=workspace,
        paths=paths,
        ceilings=ceilings,
        user_grants=_granted_paths(child, paths, workspace, worktree_patterns),
    )


def inherited_ceilings(
    parent_agent: Agent,
    parent: Session,
    context: RuntimeContext,
    *,
    run: Run | None = None,
    parent_scope: Scope | None = None,
) -> tuple[Ceiling, ...]:
    """Return the ceilings for a child: those of the parent session, then the parent's own permissions."""
    if parent_scope is None:
        parent_scope = compute_scope(parent_agent, parent, context, run=run)
    run_ceilings = () if run is None else run.request.ceilings
    return (
        *parent.ceilings,
        *run_ceilings,
        inherited_ceiling(parent_agent, parent_scope, set_by=parent.slug),
    )


def _deny_patterns(child: ChildSpec, agent: Agent) -> Globs:
    if child.use_definition_paths:
        return (agent.paths and agent.paths.deny) or ()
    has_defaults = agent.paths is None or agent.paths.default_deny is not False
    return (*(DEFAULT_DENIED_PATHS if has_defaults else ()), *(child.denied_paths or ()))


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
        replace(
            workspace,
            source_repository=parent_workspace.source_repository,
            git_dir=parent_workspace.git_dir if workspace.root == parent_workspace.root else "",
        )
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


def _granted_paths(
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
