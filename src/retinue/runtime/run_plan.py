"""The plan of a run: definition, scope, tools, prompt and model, fixed when the run starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import Agent, AgentDefinition, ToolExposure
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.model_turn import Model
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs
from retinue.domain.providers import CLI_AGENTS
from retinue.domain.run import Run
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.skill import Skill
from retinue.domain.system_prompt import MESSAGE_TOOL, assemble_prompt, capability_sections
from retinue.domain.tool import Effect, ToolSpec
from retinue.interfaces import RuntimeContext, Tool
from retinue.runtime.approvals import Caller
from retinue.runtime.session_scope import (
    find_sandbox_level,
    load_definition,
    run_scope,
    scope_inputs,
)
from retinue.runtime.startable_agents import other_agents, startable_agents, with_agent_names
from retinue.runtime.tool_executor import visible_tools

READING_TOOLS = frozenset({"web_fetch"})
"""Tools that only read, although a call of them is not repeated."""
PLAN_CACHE_KEY = "plan"
"""Key of the last run's plan in the conversation's provider cache."""
PREFIX_CACHE_KEY = "prefix"
"""Key of the last run's prompt and tool list in the conversation's provider cache."""


class RunPlan(Struct, frozen=True, kw_only=True):
    """Everything that configures a run; fixed until it ends, so that the prompt prefix stays cacheable.

    The tool executor checks each call against the definition and the policy of that moment.
    """

    agent: Agent
    operator_policy: OperatorPolicy
    """The operator's policy when the scope was computed."""
    scope: Scope
    scope_hash: str
    tools: tuple[ToolSpec, ...]
    system: str
    model: Model
    output_schema: Mapping[str, Any] | None = None
    """JSON Schema of the final answer."""
    can_only_think: bool = False
    """None of its tools changes anything or delegates work."""

    def caller(self, run: Run, session: Session) -> Caller:
        """Return the caller of this run's tool calls."""
        return Caller(
            run=run,
            session=session,
            agent=self.agent,
            operator_policy=self.operator_policy,
            scope=self.scope,
        )


class _PlanInputs(Struct, frozen=True, kw_only=True):
    """Everything a plan depends on, except the definitions of other agents."""

    agent: Agent
    model: Model
    output_schema: Mapping[str, Any] | None
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
        model=model if run.request.thinking is None else model.with_thinking(run.request.thinking),
        output_schema=agent.output_schema if run.request.output_schema is None else run.request.output_schema,
        scope_inputs=scope_inputs(session, context, run=run),
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
    scope = await run_scope(inputs.agent, run, session, context)
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
        agent=inputs.agent,
        operator_policy=inputs.operator_policy,
        scope=scope,
        scope_hash=scope.hash,
        tools=tools,
        system=system,
        model=inputs.model,
        output_schema=inputs.output_schema,
        can_only_think=inputs.model.provider not in CLI_AGENTS
        and not any(_does_work(tool, scope) for tool in visible),
    )
    return _CachedPlan(plan=plan, inputs=inputs, definitions=definitions)


def keep_prefix(plan: RunPlan, run: Run, provider_cache: dict[str, Any]) -> RunPlan:
    """Return the plan with the prompt and the tool list that the run's earlier requests had.

    A run that was suspended continues with them, so that its prompt prefix stays cached. For another
    model, nothing is cached, so they are built again.
    """
    run_id, model, system, tools = provider_cache.get(PREFIX_CACHE_KEY) or ("", None, "", ())
    if run_id == run.id and model == plan.model:
        return replace(plan, system=system, tools=tools)
    provider_cache[PREFIX_CACHE_KEY] = (run.id, plan.model, plan.system, plan.tools)
    return plan


def _does_work(tool: Tool, scope: Scope) -> bool:
    """Return True if an agent with this tool can be expected to do more than read and think."""
    if tool.is_delegation:
        return scope.is_orchestrator or (scope.depth == 0 and scope.writable)
    return tool.spec.name not in READING_TOOLS and (tool.effect is Effect.ONCE or tool.access == "write")


def _is_delegation_tool(tool: Tool) -> bool:
    return bool(tool.agent_argument) or tool.spec.name == MESSAGE_TOOL


def _available_skills(agent: Agent, session: Session, context: RuntimeContext) -> Sequence[Skill]:
    if agent.tool_exposure is ToolExposure.TOOLS:
        return ()
    return context.find_skills(session.agent, session.workspace.intended_folder)
