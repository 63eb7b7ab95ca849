"""What a run goes by: definition, rights, tools, prompt and model, fixed at its start."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from retinue.domain.agent import Agent, Defined, Exposure, Paths
from retinue.domain.approval import Answer
from retinue.domain.ceiling import Bounds
from retinue.domain.change import replace
from retinue.domain.cli_agent import PROGRAMS
from retinue.domain.limits import HARD_DEPTH
from retinue.domain.model_turn import Model
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import Ground, compile_scope
from retinue.domain.run import Run
from retinue.domain.sandbox_level import Level
from retinue.domain.session import Session
from retinue.domain.skill import Skill
from retinue.domain.system_prompt import MESSAGE, means, spoken
from retinue.domain.tool import ToolSpec
from retinue.domain.value import value
from retinue.domain.watch import WATCHES
from retinue.interfaces import Ports, Tool
from retinue.runtime.startable_agents import nameable, naming, peers
from retinue.runtime.tool_executor import offered

LEAF = "leaf"
"""The attribute of a session that starts nobody."""


PLAN = "plan"
"""Where a conversation keeps the plan of its last run."""
MOST_TOLD = 16


@value
class Plan:
    """Stays the same until the run ends, so that the request's beginning does too."""

    agent: Agent
    scope: Scope
    scope_hash: str
    tools: tuple[ToolSpec, ...]
    system: str
    model: Model


@value
class _Found:
    """All that a plan is made from, but for the agents that can be named."""

    agent: Agent
    model: Model
    ground: Ground
    bounds: Bounds
    skills: Sequence[Skill]
    tools: tuple[Tool, ...]
    level: Level


@value
class _Known:
    """A plan, what it was made from, and all agents that there were; None: it has no way to name anybody."""

    plan: Plan
    found: _Found
    everybody: list[Defined] | None


async def prepare(run: Run, session: Session, ports: Ports, memo: dict[str, Any]) -> Plan:
    """Where everything is as the run before in this conversation found it, its plan serves again: `memo` keeps it."""
    agent = await definition(session, ports)
    model = ports.model(agent, run.ask.model)
    found = _Found(
        agent=agent,
        model=model if run.ask.thinking is None else replace(model, thinking=run.ask.thinking),
        ground=_ground(session, ports, run=run),
        bounds=ports.bounds(),
        skills=_skills(agent, session, ports),
        tools=tuple(ports.tools.values()),
        level=await level_of(ports),
    )
    known = _still(memo.get(PLAN), found, run, session, ports) or await _planned(run, session, found, ports)
    memo[PLAN] = known
    return known.plan


def _still(known: _Known | None, found: _Found, run: Run, session: Session, ports: Ports) -> _Known | None:
    """What is known, if it is so now. What a person added for one run of somebody else's is never another's."""
    if known is None or run.ask.ceilings or known.found != found:
        return None
    if known.everybody is None:
        return known
    everybody = ports.agents.all(session.workspace.meant)
    # The newest are kept: what is the very same is not compared field by field the next time.
    return replace(known, found=found, everybody=everybody) if known.everybody == everybody else None


async def _planned(run: Run, session: Session, found: _Found, ports: Ports) -> _Known:
    scope = held(await _added(scope_of(found.agent, session, ports, run=run), run, ports), found.level, ports)
    having = () if found.model.driver in PROGRAMS else tuple(offered(ports.tools, scope).values())
    doors = any(_door(tool) for tool in having)
    everybody = ports.agents.all(session.workspace.meant) if doors else None
    named = tuple(nameable(scope, everybody or (), ports))
    tools, words = _told(
        _Telling(
            having=having,
            named=named,
            others=tuple(peers(session.agent, named)),
            skills=scope.shelf,
        )
    )
    # In a conversation of its own an agent is itself, whoever asks for the run.
    system = spoken(found.agent, words, depth=int(session.depth > 0))
    plan = Plan(
        agent=found.agent, scope=scope, scope_hash=scope.hash, tools=tools, system=system, model=found.model
    )
    return _Known(plan=plan, found=found, everybody=everybody)


def _door(tool: Tool) -> bool:
    return bool(tool.names_agent) or tool.spec.name == MESSAGE


@value
class _Telling:
    """What a model is told that it has, before it is put into words."""

    having: tuple[Tool, ...]
    named: tuple[Agent, ...]
    others: tuple[Agent, ...]
    skills: Sequence[Skill]


_Words = tuple[tuple[ToolSpec, ...], tuple[str, ...]]
_known_words: deque[tuple[_Telling, _Words]] = deque(maxlen=MOST_TOLD)
"""The latest few: thousands of children are told what their siblings were."""


def _told(telling: _Telling) -> _Words:
    for known, words in tuple(_known_words):
        if known == telling:
            return words
    tools = tuple(naming(tool, telling.named) for tool in telling.having)
    words = means(
        [(tool.name, tool.description) for tool in tools],
        skills=telling.skills,
        others=telling.others,
        doors=[tool.spec.name for tool in telling.having if _door(tool)],
    )
    _known_words.appendleft((telling, (tools, words)))
    return tools, words


async def definition(session: Session, ports: Ports) -> Agent:
    """A child obeys the preset.md in its own folder. A top-level session follows the live definition,
    until a person edits its preset.md: then that rules."""
    own, own_hash = await ports.store.preset(session)
    if session.top and own_hash == session.preset_hash:
        return ports.agents.get(session.agent, session.workspace.meant).agent
    return own


def scope_of(agent: Agent, session: Session, ports: Ports, *, run: Run | None = None) -> Scope:
    """A run that an agent asked for in a conversation not below its own is as deep as that makes it, and held to what
    that agent could hand on: what a person once allowed this conversation, they did not allow that agent."""
    scope = compile_scope(agent, _ground(session, ports, run=run), ports.bounds())
    scope = skilled(scope, session.agent, session.workspace.meant, ports)
    above = () if run is None else run.ask.ceilings
    return replace(scope, lifted=Paths()) if above and session.top else scope


def _ground(session: Session, ports: Ports, *, run: Run | None) -> Ground:
    place = session.workspace
    return Ground(
        root=place.root,
        label=place.label,
        made=bool(place.source),
        writable=place.writable,
        tmp=ports.tmp(session),
        child=not session.top,
        depth=session.depth if run is None else max(session.depth, run.depth),
        deepest=min(ports.limits.max_depth, HARD_DEPTH),
        leaf=session.attributes.get(LEAF) is True,
        watches=WATCHES in session.attributes,
        ceilings=session.ceilings if run is None else (*session.ceilings, *run.ask.ceilings),
        lifted=session.lifted,
    )


def skilled(scope: Scope, agent: str, at: str, ports: Ports) -> Scope:
    """With the skills it has. Where tools are all that is exposed, nobody looks for any."""
    return scope if scope.exposure is Exposure.TOOLS else scope.having(ports.skills(agent, at))


def _skills(agent: Agent, session: Session, ports: Ports) -> Sequence[Skill]:
    if agent.tool_exposure is Exposure.TOOLS:
        return ()
    return ports.skills(session.agent, session.workspace.meant)


async def _added(scope: Scope, run: Run, ports: Ports) -> Scope:
    """What a person added because this very run asked for it is its own, whoever asked for the run."""
    if not run.ask.ceilings:
        return scope
    asked = await ports.ledger.look(lambda tx: tx.approvals(run=run.id))
    for each in asked:
        tool = ports.tools.get(each.tool)
        if each.answer is Answer.ADD and tool is not None and tool.touch in ("read", "write"):
            scope = scope.plus(each.resource, tool.touch)
    return scope


def held(scope: Scope, level: Level, ports: Ports) -> Scope:
    """The scope as the sandbox of this machine can hold it: below the operator's minimum no command is run."""
    if level.reaches(ports.minimum):
        return scope
    loose = replace(scope, unheld=f"the sandbox is {level}, and sandbox.minimum is {ports.minimum}")
    return loose.having(scope.shelf)


async def level_of(ports: Ports) -> Level:
    """Where any level will do, none is looked for, and a run without commands pays nothing."""
    return Level.NONE if ports.minimum is Level.NONE else await ports.level()
