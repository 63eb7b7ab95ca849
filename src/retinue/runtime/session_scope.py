"""The scope of a session: its definition, the operator's policy and its own facts, as they are now."""

from msgspec.structs import replace

from retinue.domain.agent import Agent, PathPatterns, ToolExposure
from retinue.domain.approval import Answer
from retinue.domain.limits import MAX_CONFIGURABLE_DEPTH
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.run import Run
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.watch import WATCHES_ATTRIBUTE
from retinue.interfaces import RuntimeContext
from retinue.runtime.approvals import Caller

LEAF_ATTRIBUTE = "leaf"
"""Session attribute: the session may start no agents."""


async def current_caller(caller: Caller, context: RuntimeContext) -> Caller:
    """Return the caller with the scope that its definition and the operator's policy give it now.

    The definitions apply as they are at the call, so that what a person removes is
    refused at once. While nothing has changed, this costs a few stats.

    Raises:
        RetinueError: the definition is missing, cannot be read or is not trusted any more.
    """
    agent = await load_definition(caller.session, context)
    policy = context.operator_policy()
    if (agent is caller.agent or agent == caller.agent) and policy == caller.operator_policy:
        return caller
    scope = await run_scope(agent, caller.run, caller.session, context)
    return replace(caller, agent=agent, operator_policy=policy, scope=scope)


async def load_definition(session: Session, context: RuntimeContext) -> Agent:
    """Return the definition that applies to a session.

    A child uses the preset.md in its own folder. A top-level session uses the live definition until a person
    edits its preset.md: from then on it uses that file. A worker has neither exit tools nor an output schema: its last
    reply is its result, for a task that only its requester knows.
    """
    preset, current_hash = await context.store.read_preset(session)
    if session.is_top_level and current_hash == session.preset_hash:
        return context.agents.get(session.agent, session.workspace.intended_folder).agent
    is_worker = session.attributes.get(LEAF_ATTRIBUTE) and (preset.exits or preset.output_schema is not None)
    return replace(preset, exits=None, output_schema=None) if is_worker else preset


async def run_scope(agent: Agent, run: Run, session: Session, context: RuntimeContext) -> Scope:
    """Compute the scope of a session in a run, restricted to what this machine's sandbox can enforce."""
    return restrict_to_sandbox_level(
        await _add_granted_paths(compute_scope(agent, session, context, run=run), run, context),
        await find_sandbox_level(context),
        context,
    )


def compute_scope(
    agent: Agent, session: Session, context: RuntimeContext, *, run: Run | None = None
) -> Scope:
    """Compute the scope of a session, in a given run if there is one.

    A run that another agent requested in a session not below its own gets its depth from that agent, and is
    limited to what that agent could pass on, without a person's grants to this session.
    """
    scope = build_scope(agent, scope_inputs(session, context, run=run), context.operator_policy())
    scope = with_skills(scope, session.agent, session.workspace.intended_folder, context)
    ceilings = () if run is None else run.request.ceilings
    return replace(scope, user_grants=PathPatterns()) if ceilings and session.is_top_level else scope


def scope_inputs(session: Session, context: RuntimeContext, *, run: Run | None) -> ScopeInputs:
    workspace = session.workspace
    return ScopeInputs(
        root=workspace.root,
        workspace_label=workspace.label,
        is_worktree=bool(workspace.source_repository),
        git_dir=workspace.git_dir,
        writable=workspace.writable,
        tmp_folder=context.sandbox.tmp_folder_for(session),
        configured_git_paths=context.sandbox.configured_git_paths(workspace.root),
        is_child=not session.is_top_level,
        depth=session.depth if run is None else max(session.depth, run.depth),
        max_depth=min(context.limits.max_depth, MAX_CONFIGURABLE_DEPTH),
        is_leaf=session.attributes.get(LEAF_ATTRIBUTE) is True,
        is_watcher=WATCHES_ATTRIBUTE in session.attributes,
        ceilings=session.ceilings if run is None else (*session.ceilings, *run.request.ceilings),
        user_grants=session.user_grants,
    )


def with_skills(scope: Scope, agent: str, folder: str, context: RuntimeContext) -> Scope:
    """Add the agent's skills to the scope; if only tools are exposed, skills are not looked up."""
    return (
        scope
        if scope.tool_exposure is ToolExposure.TOOLS
        else scope.with_skills(context.find_skills(agent, folder))
    )


async def _add_granted_paths(scope: Scope, run: Run, context: RuntimeContext) -> Scope:
    """Add paths that a person granted at this run's request; they apply to this run alone."""
    if not run.request.ceilings:
        return scope
    approvals = await context.ledger.read(lambda tx: tx.find_approvals(run=run.id))
    for each in approvals:
        tool = context.tools.get(each.tool)
        if each.answer is Answer.ADD and tool is not None and tool.access in ("read", "write"):
            scope = scope.with_user_grant(each.resource, tool.access)
    return scope


def restrict_to_sandbox_level(scope: Scope, level: SandboxLevel, context: RuntimeContext) -> Scope:
    """Restrict the scope to what this machine's sandbox can enforce.

    Below the configured minimum level, commands are disabled.
    """
    if level.is_at_least(context.minimum_sandbox_level):
        return scope
    restricted = replace(
        scope,
        shell_blocked_reason=f"sandbox level {level} is below sandbox.minimum ({context.minimum_sandbox_level})",
    )
    return restricted.with_skills(scope.available_skills)


async def find_sandbox_level(context: RuntimeContext) -> SandboxLevel:
    """Return the sandbox level; it is not probed if every level is acceptable, to save time."""
    return (
        SandboxLevel.NONE
        if context.minimum_sandbox_level is SandboxLevel.NONE
        else await context.sandbox.detect_level()
    )
