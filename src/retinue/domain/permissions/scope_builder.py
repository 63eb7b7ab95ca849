"""Build the scope of a session from its definition, its own facts and the operator's policy."""

from collections import deque

from msgspec import Struct, field
from msgspec.structs import replace

from retinue.domain.agent import Agent, PathPatterns, Role
from retinue.domain.ceiling import Ceiling, OperatorPolicy, parse_ceiling
from retinue.domain.limits import MAX_CONFIGURABLE_DEPTH
from retinue.domain.permissions.git_paths import common_git_dir, program_settings
from retinue.domain.permissions.guarded_paths import GUARDED_PATHS
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED_PATHS
from retinue.domain.permissions.scope import DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.rules import Globs, Rule, absolute_patterns, subtree_pattern

NOT_FOR_WORKERS: Globs = ("ask_user", "agents_list")
"""Tools withheld from a session that cannot start agents: no person answers it, and it needs no list of agents."""


class ScopeInputs(Struct, frozen=True, kw_only=True):
    """Facts of a session, other than its definition, that its scope depends on."""

    root: str
    workspace_label: str = ""
    is_worktree: bool = False
    git_dir: str = ""
    configured_git_paths: Globs = ()
    """What the repository's configuration makes git execute or include."""
    writable: bool = True
    tmp_folder: str = ""
    is_child: bool = False
    depth: int = 0
    max_depth: int = MAX_CONFIGURABLE_DEPTH
    """Maximum depth of any session."""
    is_leaf: bool = False
    """The session cannot start others."""
    is_watcher: bool = False
    ceilings: tuple[Ceiling, ...] = ()
    """Ceilings of the parents, outermost first."""
    user_grants: PathPatterns = field(default_factory=PathPatterns)


_MAX_CACHED_SCOPES = 8
_cached_scopes: deque[tuple[Agent, ScopeInputs, OperatorPolicy, Scope]] = deque(maxlen=_MAX_CACHED_SCOPES)
"""The most recent scopes: a parent's is requested for each of its children."""


def build_scope(agent: Agent, inputs: ScopeInputs, policy: OperatorPolicy = OperatorPolicy()) -> Scope:  # noqa: B008  (a frozen value)
    """Return the scope, from the cache if none of the inputs has changed."""
    for cached in tuple(_cached_scopes):
        if cached[0] is agent and cached[2] is policy and cached[1] == inputs:
            return cached[3]
    scope = _compute_scope(agent, inputs, policy)
    _cached_scopes.appendleft((agent, inputs, policy, scope))
    return scope


def _compute_scope(agent: Agent, inputs: ScopeInputs, policy: OperatorPolicy) -> Scope:
    """Compute the scope.

    A definition without paths gives access to the workspace, but gives a child no access: a child's paths were
    written into its preset, and removing them there must not add rights.
    """
    root, paths, ceiling = (
        inputs.root,
        agent.paths or PathPatterns(),
        _resolve_ceiling_paths(policy.ceiling, inputs.root),
    )
    preapproved = _preapproved_writes(paths, inputs)
    defaults_to_workspace = paths.write is None and (agent.paths is not None or not inputs.is_child)
    is_granted_workspace = not inputs.is_child and subtree_pattern(root) in (inputs.user_grants.write or ())
    write = (
        (subtree_pattern(root), *preapproved)
        if defaults_to_workspace or is_granted_workspace
        else preapproved
    )
    read = (subtree_pattern(root),) if paths.read is None else absolute_patterns(paths.read, root)
    return Scope(
        tools=Rule(
            allow=agent.tool_allow,
            deny=(*(agent.tool_deny or ()), *(NOT_FOR_WORKERS if inputs.is_leaf else ())),
        ),
        capabilities=Rule(allow=agent.capability_allow, deny=agent.capability_deny or ()),
        agents=Rule(allow=agent.agent_allow, deny=(agent.agent_deny or ()) + policy.deny_agents),
        skills=Rule(allow=agent.skill_allow, deny=agent.skill_deny or ()),
        tool_exposure=agent.tool_exposure,
        operator_tools=Rule(deny=policy.deny_tools),
        exit_tools=() if inputs.is_leaf else agent.exits or (),
        read=read + tuple(each for each in DEFAULT_WRITABLE_PATHS if each in write),
        write=write,
        preapproved_writes=preapproved,
        deny=absolute_patterns((*(paths.deny or ()), *policy.deny_paths), root),
        closed_paths=_closed_paths(inputs),
        guarded_paths=GUARDED_PATHS + inputs.configured_git_paths
        if inputs.configured_git_paths
        else GUARDED_PATHS,
        retinue_paths=policy.retinue_paths,
        root=root,
        is_worktree=inputs.is_worktree,
        git_dir=inputs.git_dir,
        workspace_label=inputs.workspace_label,
        tmp_folder=inputs.tmp_folder,
        writable=inputs.writable and agent.workspace.writable is not False,
        depth=inputs.depth,
        max_depth=inputs.max_depth,
        is_leaf=inputs.is_leaf,
        is_watcher=inputs.is_watcher,
        is_orchestrator=Role.ORCHESTRATOR in agent.roles,
        has_paths=not inputs.is_child or agent.paths is not None,
        shell_commands=agent.shell_commands,
        ceilings=(ceiling, *inputs.ceilings),
        user_grants=inputs.user_grants,
    )


def _closed_paths(inputs: ScopeInputs) -> Globs:
    """Return what is always closed.

    A worktree's single file `.git` points to its repository: changing it would choose which hooks git runs.
    """
    if not inputs.is_worktree:
        return ALWAYS_CLOSED_PATHS
    common_dir = common_git_dir(inputs.git_dir)
    settings = program_settings(common_dir) if common_dir else ()
    return (*ALWAYS_CLOSED_PATHS, subtree_pattern(f"{inputs.root}/.git"), *settings)


def _preapproved_writes(paths: PathPatterns, inputs: ScopeInputs) -> Globs:
    patterns = (
        absolute_patterns(paths.write, inputs.root) if paths.write is not None else DEFAULT_WRITABLE_PATHS
    )
    if not inputs.tmp_folder:
        patterns = tuple(each for each in patterns if each not in DEFAULT_WRITABLE_PATHS)
    if inputs.is_worktree and paths.write is None:
        patterns = (
            *patterns,
            subtree_pattern(inputs.root),
        )  # created for this session alone, so writes there affect no one else
    return patterns


def _resolve_ceiling_paths(ceiling: Ceiling, root: str) -> Ceiling:
    return replace(
        ceiling,
        read=None if ceiling.read is None else absolute_patterns(ceiling.read, root),
        write=None if ceiling.write is None else absolute_patterns(ceiling.write, root),
        deny=absolute_patterns(ceiling.deny, root),
    )


def inherited_ceiling(agent: Agent, scope: Scope, *, set_by: str) -> Ceiling:
    """Return the maximum rights a session passes on to the sessions it starts.

    These are its definition's ceiling, else its own paths, or no paths if its preset lost them. Its tool list
    is not passed on: an agent with few tools may delegate to one with more.
    """
    own_ceiling = parse_ceiling(agent.ceiling, set_by=set_by, root=scope.root)
    sets_writable = agent.ceiling is not None and agent.ceiling.get("writable") is not None
    return replace(
        own_ceiling,
        read=_configured_patterns(scope, scope.read) if own_ceiling.read is None else own_ceiling.read,
        write=_configured_patterns(scope, scope.write) if own_ceiling.write is None else own_ceiling.write,
        deny=(*scope.deny, *(each for each in own_ceiling.deny if each not in scope.deny)),
        writable=own_ceiling.writable if sets_writable else scope.writable,
    )


def _configured_patterns(scope: Scope, patterns: Globs) -> Globs:
    return patterns if scope.has_paths else ()
