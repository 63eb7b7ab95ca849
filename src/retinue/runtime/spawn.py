"""Create sessions, and child sessions with their first run."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from retinue.domain.agent import Agent, AgentDefinition, WorkspacePolicy, preset_hash
from retinue.domain.ceiling import Ceiling
from retinue.domain.glob import first_match
from retinue.domain.limits import MAX_CONFIGURABLE_DEPTH
from retinue.domain.run import Run, RunRequest
from retinue.domain.sanitize import safe_name, safe_text
from retinue.domain.session import NewSession, Session
from retinue.domain.workspace import Workspace
from retinue.errors import Refused
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.child_permissions import ChildSpec, ParentPermissions, compute_child_permissions
from retinue.runtime.child_workspace import resolve_workspace
from retinue.runtime.run_creation import create_run
from retinue.runtime.session_scope import LEAF_ATTRIBUTE, compute_scope, load_definition


async def create_session(
    agent: str,
    root: str,
    context: RuntimeContext,
    *,
    name: str | None = None,
    policy: WorkspacePolicy | None = None,
) -> Session:
    """Create an idle top-level session.

    `policy`: workspace policy that replaces the definition's.
    """
    agent_definition = context.agents.get(agent, root)
    workspace = await resolve_workspace(policy or agent_definition.agent.workspace, root, context)
    new_session = NewSession(
        agent=agent,
        preset_text=agent_definition.preset,
        preset_hash=preset_hash(agent_definition.preset),
        workspace=workspace,
        name=name,
    )
    return await _create_or_clean_up(new_session, context)


async def spawn_child(request: RunRequest, child_spec: ChildSpec, context: RuntimeContext) -> Run:
    """Create a child session and its first run.

    Its preset.md is a copy of the definition, with its paths written into it. If the ledger refuses the run
    the session is deleted again.
    """
    existing, ancestors = await context.ledger.read(lambda tx: _find_existing_run(request, tx))
    if existing is not None:
        return existing
    request, child_spec, agent_definition = await check_child_request(request, child_spec, context, ancestors)
    session = await _find_orphaned_session(request, child_spec, context) or await _create_requested_child(
        request, child_spec, agent_definition, context
    )
    try:
        return await create_run(request, session, context)
    except Refused:
        await context.store.delete(session)
        raise


async def check_child_request(
    request: RunRequest,
    child_spec: ChildSpec,
    context: RuntimeContext,
    ancestors: Sequence[Run] | None = None,
) -> tuple[RunRequest, ChildSpec, AgentDefinition]:
    """Check everything about a child that can be refused before anything is created.

    Returns:
        The request and the child with what was looked up for them, and the child's definition.

    Raises:
        NotFound: There is no such agent.
        Refused: The child may not be started; the message says why.
    """
    if ancestors is None:
        ancestors = await context.ledger.read(lambda tx: ancestor_runs(request.parent_run, tx))
    agent_definition = context.agents.get(request.agent, child_spec.parent.workspace.intended_folder)
    _check_role(agent_definition.agent, request)
    if request.parent_run is not None and request.model is None and agent_definition.agent.model is None:
        request = replace(request, model=context.subagent_settings.model)
    context.select_model(
        agent_definition.agent, request.model
    )  # report an unusable model before anything is created
    if request.parent_run is not None:
        parent_permissions = await _compute_parent_permissions(
            child_spec.parent, context, ancestors[-1] if ancestors else None
        )
        requesting_run = await check_spawn_allowed(
            request, child_spec.parent, context, ancestors=ancestors, parent_permissions=parent_permissions
        )
        child_spec = replace(child_spec, requesting_run=requesting_run, parent_permissions=parent_permissions)
    max_depth = min(context.limits.max_depth, MAX_CONFIGURABLE_DEPTH)
    if child_spec.parent.depth >= max_depth:
        raise Refused(
            f"{child_spec.parent.slug} at depth {child_spec.parent.depth} cannot have a child: the maximum depth is {max_depth}."
        )
    for pattern in (*(child_spec.allowed_paths or ()), *(child_spec.denied_paths or ())):
        if safe_name(pattern) != pattern:
            raise Refused(f"The path {safe_name(pattern)!r} contains invisible characters. Remove them.")
    return request, child_spec, agent_definition


async def _find_orphaned_session(
    request: RunRequest, child_spec: ChildSpec, context: RuntimeContext
) -> Session | None:
    """Find the session that a crashed attempt created for this request before its run was recorded."""
    if child_spec.requesting_run is None or child_spec.requesting_run.attempts < 2:  # noqa: PLR2004  (a resumed run)
        return None
    found = await context.store.sessions(agent=request.agent)
    siblings = (each for each in found if each.parent_id == child_spec.parent.id)
    return next((each for each in siblings if each.attributes.get("ask") == request.key), None)


async def _create_requested_child(
    request: RunRequest, child_spec: ChildSpec, agent_definition: AgentDefinition, context: RuntimeContext
) -> Session:
    attributes = {"role": request.role, "trigger": request.trigger, "ask": request.key}
    return await create_child_session(agent_definition, child_spec, context, attributes=attributes)


async def create_child_session(
    agent_definition: AgentDefinition,
    child_spec: ChildSpec,
    context: RuntimeContext,
    *,
    attributes: Mapping[str, Any],
    extra_ceilings: tuple[Ceiling, ...] = (),
) -> Session:
    """Create an idle child session.

    `extra_ceilings`: ceilings in addition to those that its parents pass on.
    """
    child_rights = await compute_child_permissions(agent_definition.agent, child_spec, context)
    try:
        preset = context.presets.replace_paths(agent_definition.preset, child_rights.paths)
        if child_spec.build_prompt is not None:
            preset = context.presets.replace_prompt(
                preset, safe_text(context.redact(child_spec.build_prompt(agent_definition.agent)))
            )
        new_session = NewSession(
            agent=agent_definition.agent.name,
            preset_text=preset,
            preset_hash=preset_hash(preset),
            workspace=child_rights.workspace,
            parent=child_spec.parent,
            description=context.redact(child_spec.description),
            aliases=(child_spec.alias,) if child_spec.alias else (),
            ceilings=(*child_rights.ceilings, *extra_ceilings),
            user_grants=child_rights.user_grants,
            attributes={**attributes} | ({LEAF_ATTRIBUTE: True} if child_spec.is_leaf else {}),
        )
    except BaseException:
        await _drop_unused_worktree(child_rights.workspace, context)
        raise
    return await _create_or_clean_up(new_session, context)


async def _create_or_clean_up(new_session: NewSession, context: RuntimeContext) -> Session:
    try:
        return await context.store.create(new_session)
    except BaseException:
        await _drop_unused_worktree(new_session.workspace, context)
        raise


def _check_role(agent: Agent, request: RunRequest) -> None:
    """Refuse a role that the agent does not have."""
    if request.role not in agent.roles:
        raise Refused(f'Agent "{agent.name}" does not support capability "{request.role}"')


def _find_existing_run(request: RunRequest, tx: Transaction) -> tuple[Run | None, Sequence[Run]]:
    """Return the run created earlier for this request, else the ancestors of a new one."""
    existing = tx.get_run_by_key(request.key)
    return existing, ancestor_runs(request.parent_run, tx) if existing is None else ()


async def _compute_parent_permissions(
    session: Session, context: RuntimeContext, run: Run | None
) -> ParentPermissions:
    agent = await load_definition(session, context)
    return ParentPermissions(agent=agent, scope=compute_scope(agent, session, context, run=run))


async def check_spawn_allowed(
    request: RunRequest,
    session: Session,
    context: RuntimeContext,
    *,
    ancestors: Sequence[Run] | None = None,
    parent_permissions: ParentPermissions | None = None,
) -> Run:
    """Return the requesting run if it may start the requested agent.

    An agent starts only agents that its scope and the configuration allow, and none that already runs among
    its ancestors. Delegating to the same agent is limited by depth alone. `parent_permissions`: the session's
    permissions, if just computed for this run.

    Raises:
        Refused: the agent may not be started; the message says why.
    """
    if ancestors is None:
        ancestors = await context.ledger.read(lambda tx: ancestor_runs(request.parent_run, tx))
    if not ancestors:
        raise Refused(f"The requesting run {request.parent_run} is not in the ledger.")
    requesting_run = ancestors[-1]
    operator_policy = context.operator_policy()
    parent_scope = (
        parent_permissions or await _compute_parent_permissions(session, context, requesting_run)
    ).scope
    if pattern := first_match(operator_policy.deny_agents, request.agent):
        raise Refused(f"The configuration denies the agent {request.agent} (deny.agents: {pattern}).")
    if request.agent != session.agent and not (verdict := parent_scope.check_agent(request.agent)).ok:
        raise Refused(f"{session.agent} may not start {request.agent} ({verdict.rule}).")
    allowed = context.subagent_settings.allow_agents
    if allowed is not None and first_match(allowed, request.agent) is None:
        raise Refused(f"{request.agent} may not be started by other agents (subagents.allow_agents).")
    if cycle := delegation_cycle(request.agent, ancestors, allow_direct=True):
        raise Refused(f"{request.agent} is already running as an ancestor: {cycle}")
    return requesting_run


def delegation_cycle(agent: str, ancestors: Sequence[Run], *, allow_direct: bool = False) -> str:
    """Return the chain of agents, as `a > b > a`, if the agent already runs as an ancestor; else an empty string.

    `allow_direct`: an agent may delegate to itself directly, which only depth limits.
    """
    names = [run.agent for run in ancestors]
    others = list(names)
    while allow_direct and others and others[-1] == agent:
        others.pop()
    return " > ".join((*names, agent)) if agent in others else ""


def ancestor_runs(run_id: str | None, tx: Transaction) -> Sequence[Run]:
    """Return the chain of requesting runs from the tree's first run down to this one."""
    ancestors: list[Run] = []
    run = tx.get_run(run_id) if run_id else None
    while run is not None and len(ancestors) <= MAX_CONFIGURABLE_DEPTH:
        ancestors.append(run)
        run = tx.get_run(run.request.parent_run) if run.request.parent_run else None
    return ancestors[::-1]


async def _drop_unused_worktree(workspace: Workspace, context: RuntimeContext) -> None:
    """Remove the worktree of a session that could not be created."""
    if workspace.source_repository:
        await asyncio.shield(context.worktrees.remove(workspace))
