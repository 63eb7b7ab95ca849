"""What a run goes by: definition, rights, tools, prompt and model, fixed at its start."""

from dataclasses import dataclass

from retinue.domain.agent import Agent, Exposure, Paths
from retinue.domain.approval import Answer
from retinue.domain.change import replace
from retinue.domain.level import Level
from retinue.domain.program import PROGRAMS
from retinue.domain.prompt import MESSAGE, system_prompt
from retinue.domain.run import Run
from retinue.domain.scope import Ground, Scope, compile_scope
from retinue.domain.session import Session
from retinue.domain.tool import ToolSpec
from retinue.domain.turn import Model
from retinue.domain.watch import WATCHES
from retinue.ports import Ports, Tool
from retinue.runtime.guard import offered
from retinue.runtime.peers import nameable, peers

LEAF = "leaf"
"""The attribute of a session that starts nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Stays the same until the run ends, so that the request's beginning does too."""

    agent: Agent
    scope: Scope
    tools: tuple[ToolSpec, ...]
    system: str
    model: Model


async def prepare(run: Run, session: Session, ports: Ports) -> Plan:
    agent = await definition(session, ports)
    scope = await held(await _added(scope_of(agent, session, ports, run=run), run, ports), ports)
    model = ports.model(agent, run.ask.model)
    having = () if model.driver in PROGRAMS else offered(ports.tools, scope).values()
    doors = [tool.spec.name for tool in having if tool.names_agent or tool.spec.name == MESSAGE]
    names = nameable(scope, session.workspace.meant, ports) if doors else []
    tools = tuple(_naming(tool, names) if tool.names_agent else tool.spec for tool in having)
    if run.ask.thinking is not None:
        model = replace(model, thinking=run.ask.thinking)
    return Plan(
        agent=agent,
        scope=scope,
        tools=tools,
        system=system_prompt(
            agent,
            [(tool.name, tool.description) for tool in tools],
            depth=session.depth,  # in a conversation of its own an agent is itself, whoever asks for the run
            skills=scope.shelf,
            others=peers(session.agent, names, session.workspace.meant, ports),
            doors=doors,
        ),
        model=model,
    )


def _naming(tool: Tool, names: list[str]) -> ToolSpec:
    """A tool that takes an agent's name shows which names there are for this agent."""
    known = dict(tool.spec.schema["properties"])
    known[tool.names_agent] = {**known[tool.names_agent], "enum": names}
    return replace(tool.spec, schema={**tool.spec.schema, "properties": known})


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
    place = session.workspace
    above = () if run is None else run.ask.ceilings
    ground = Ground(
        root=place.root,
        label=place.label,
        made=bool(place.source),
        writable=place.writable,
        tmp=ports.tmp(session),
        child=not session.top,
        depth=session.depth if run is None else max(session.depth, run.depth),
        leaf=session.attributes.get(LEAF) is True,
        watches=WATCHES in session.attributes,
        ceilings=(*session.ceilings, *above),
        lifted=session.lifted,
    )
    scope = skilled(compile_scope(agent, ground, ports.bounds()), session.agent, place.meant, ports)
    return replace(scope, lifted=Paths()) if above and session.top else scope


def skilled(scope: Scope, agent: str, at: str, ports: Ports) -> Scope:
    """With the skills it has. Where tools are all that is exposed, nobody looks for any."""
    return scope if scope.exposure is Exposure.TOOLS else scope.having(ports.skills(agent, at))


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


async def held(scope: Scope, ports: Ports) -> Scope:
    """The scope as the sandbox of this machine can hold it: below the operator's minimum no command is run. Where any
    level will do, none is looked for, and a run without commands pays nothing."""
    if ports.minimum is Level.NONE or (level := await ports.level()).reaches(ports.minimum):
        return scope
    loose = replace(scope, unheld=f"the sandbox is {level}, and sandbox.minimum is {ports.minimum}")
    return loose.having(scope.shelf)
