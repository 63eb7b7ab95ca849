"""The plan of a run: definition, scope, tools, prompt and model, fixed when the run starts."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import Agent, AgentDefinition, PathPatterns, ToolExposure
from retinue.domain.approval import Answer
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.limits import MAX_CONFIGURABLE_DEPTH
from retinue.domain.model_turn import Model
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.providers import CLI_AGENTS
from retinue.domain.run import Run
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.skill import Skill
from retinue.domain.system_prompt import MESSAGE_TOOL, assemble_prompt, capability_sections
from retinue.domain.tool import ToolSpec
from retinue.domain.watch import WATCHES_ATTRIBUTE
from retinue.interfaces import RuntimeContext, Tool
from retinue.runtime.startable_agents import other_agents, startable_agents, with_agent_names
from retinue.runtime.tool_executor import visible_tools

LEAF_ATTRIBUTE = "leaf"
"""Session attribute: the session may start no agents."""


PLAN_CACHE_KEY = "plan"
"""Key of the last run's plan in the conversation's provider cache."""


class RunPlan(Struct, frozen=True, kw_only=True):
    """Everything that configures a run; fixed until it ends, so that the prompt prefix stays cacheable."""

    agent: Agent
    scope: Scope
    scope_hash: str
    tools: tuple[ToolSpec, ...]
    system: str
    model: Model


class _PlanInputs(Struct, frozen=True, kw_only=True):
    """Everything a plan depends on, except the definitions of other agents."""

    agent: Agent
    model: Model
    scope_inputs: ScopeInputs
    operator_policy: OperatorPolicy
    skills: Sequence[Skill]
    tools: tuple[Tool, ...]
    level: SandboxLevel


class _CachedPlan(Struct, frozen=True, kw_only=True):
    """A plan with its inputs; `definitions` is None if no tool takes an agent's name."""

    plan: RunPlan
    inputs: _PlanInputs
    definitions: list[AgentDefinition] | None


async def build_run_plan(
    run: Run, session: Session, context: RuntimeContext, provider_cache: dict[str, Any]
) -> RunPlan:
    """Build a run's plan, or reuse the one of the conversation's last run if its inputs are unchanged."""
    agent = await load_definition(session, context)
    model = context.select_model(agent, run.request.model)
    inputs = _PlanInputs(
        agent=agent,
        model=model if run.request.thinking is None else replace(model, thinking=run.request.thinking),
        scope_inputs=_scope_inputs(session, context, run=run),
        operator_policy=context.operator_policy(),
        skills=_available_skills(agent, session, context),
        tools=tuple(context.tools.values()),
        level=await find_sandbox_level(context),
    )
    cached = _reuse_plan(
        provider_cache.get(PLAN_CACHE_KEY), inputs, run, session, context
    ) or await _compile_plan(run, session, inputs, context)
    provider_cache[PLAN_CACHE_KEY] = cached
    return cached.plan


def _reuse_plan(
    cached: _CachedPlan | None, inputs: _PlanInputs, run: Run, session: Session, context: RuntimeContext
) -> _CachedPlan | None:
    """Return the cached plan if it is still valid.

    A run requested from outside the session never shares a plan: its scope may include its own approvals.
    """
    if cached is None or run.request.ceilings or cached.inputs != inputs:
        return None
    if cached.definitions is None:
        return cached
    definitions = context.agents.list_definitions(session.workspace.intended_folder)
    # Keep the newest objects: identical ones need no comparison field by field next time.
    return (
        replace(cached, inputs=inputs, definitions=definitions) if cached.definitions == definitions else None
    )


async def _compile_plan(
    run: Run, session: Session, inputs: _PlanInputs, context: RuntimeContext
) -> _CachedPlan:
    scope = restrict_to_sandbox_level(
        await _add_granted_paths(compute_scope(inputs.agent, session, context, run=run), run, context),
        inputs.level,
        context,
    )
    visible = (
        () if inputs.model.provider in CLI_AGENTS else tuple(visible_tools(context.tools, scope).values())
    )
    can_delegate = any(_is_delegation_tool(tool) for tool in visible)
    definitions = context.agents.list_definitions(session.workspace.intended_folder) if can_delegate else None
    startable = tuple(startable_agents(scope, definitions or (), context))
    tools = tuple(with_agent_names(tool, startable) for tool in visible)
    prompt_parts = capability_sections(
        [(tool.name, tool.description) for tool in tools],
        skills=scope.available_skills,
        other_agents=other_agents(session.agent, startable),
        delegation_tools=[tool.spec.name for tool in visible if _is_delegation_tool(tool)],
    )
    # In its own top-level session an agent has its own prompt, regardless of the requester.
    system = assemble_prompt(inputs.agent, prompt_parts, depth=int(session.depth > 0))
    plan = RunPlan(
        agent=inputs.agent, scope=scope, scope_hash=scope.hash, tools=tools, system=system, model=inputs.model
    )
    return _CachedPlan(plan=plan, inputs=inputs, definitions=definitions)


def _is_delegation_tool(tool: Tool) -> bool:
    return bool(tool.agent_argument) or tool.spec.name == MESSAGE_TOOL


async def load_definition(session: Session, context: RuntimeContext) -> Agent:
    """Return the definition that applies to a session.

    A child uses the preset.md in its own folder. A top-level session uses the live definition until a person
    edits its preset.md: from then on it uses that file.
    """
    preset, current_hash = await context.store.read_preset(session)
    if session.is_top_level and current_hash == session.preset_hash:
        return context.agents.get(session.agent, session.workspace.intended_folder).agent
    return preset


def compute_scope(
    agent: Agent, session: Session, context: RuntimeContext, *, run: Run | None = None
) -> Scope:
    """Compute the scope of a session, in a given run if there is one.

    A run that another agent requested in a session not below its own gets its depth from that agent, and is
    limited to what that agent could pass on, without a person's grants to this session.
    """
    scope = build_scope(agent, _scope_inputs(session, context, run=run), context.operator_policy())
    scope = with_skills(scope, session.agent, session.workspace.intended_folder, context)
    ceilings = () if run is None else run.request.ceilings
    return replace(scope, user_grants=PathPatterns()) if ceilings and session.is_top_level else scope


def _scope_inputs(session: Session, context: RuntimeContext, *, run: Run | None) -> ScopeInputs:
    workspace = session.workspace
    return ScopeInputs(
        root=workspace.root,
        workspace_label=workspace.label,
        is_worktree=bool(workspace.source_repository),
        writable=workspace.writable,
        tmp_folder=context.sandbox.tmp_folder_for(session),
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


def _available_skills(agent: Agent, session: Session, context: RuntimeContext) -> Sequence[Skill]:
    if agent.tool_exposure is ToolExposure.TOOLS:
        return ()
    return context.find_skills(session.agent, session.workspace.intended_folder)


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
