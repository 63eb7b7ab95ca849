"""A new session, and its first run."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.domain.agent import Agent, Defined, WorkspacePolicy, preset_hash
from retinue.domain.ceiling import Ceiling
from retinue.domain.change import replace
from retinue.domain.glob import first_match
from retinue.domain.limits import HARD_DEPTH
from retinue.domain.run import Ask, Run
from retinue.domain.sanitize import safe_text, shown
from retinue.domain.session import NewSession, Session
from retinue.domain.workspace import Workspace
from retinue.errors import Refused
from retinue.interfaces import Ports, Tx
from retinue.runtime.child_workspace import Child, Standing, birth, settled
from retinue.runtime.run_creation import send
from retinue.runtime.run_plan import LEAF, definition, scope_of


async def begin(
    agent: str, root: str, ports: Ports, *, name: str | None = None, policy: WorkspacePolicy | None = None
) -> Session:
    """A new top-level session, idle until something is sent to it. `policy` of the workspace: instead of the
    definition's."""
    defined = ports.agents.get(agent, root)
    place = await settled(policy or defined.agent.workspace, root, ports)
    new = NewSession(
        agent=agent,
        preset=defined.preset,
        preset_hash=preset_hash(defined.preset),
        workspace=place,
        name=name,
    )
    return await _made(new, ports)


async def spawn(ask: Ask, child: Child, ports: Ports) -> Run:
    """A child of a session. Its configuration is its own copy of the definition, its paths are written into it. Where
    the ledger refuses the run after all, the folder goes again."""
    first, above = await ports.ledger.look(lambda tx: _known(ask, tx))
    if first is not None:
        return first
    defined = ports.agents.get(ask.agent, child.parent.workspace.meant)
    _fits(defined.agent, ask)
    if ask.parent_run is not None and ask.model is None and defined.agent.model is None:
        ask = replace(ask, model=ports.subagents.model)
    ports.model(defined.agent, ask.model)  # what nobody here can work is told before anything is made
    if ask.parent_run is not None:
        standing = await _standing(child.parent, ports, above[-1] if above else None)
        asker = await permitted(ask, child.parent, ports, above=above, standing=standing)
        child = replace(child, asker=asker, standing=standing)
    deepest = min(ports.limits.max_depth, HARD_DEPTH)
    if child.parent.depth >= deepest:
        raise Refused(
            f"{child.parent.slug} is {child.parent.depth} deep and gets no child: {deepest} is the limit"
        )
    for pattern in (*(child.allowed_paths or ()), *(child.denied_paths or ())):
        if shown(pattern) != pattern:
            raise Refused(f"the path {shown(pattern)!r} holds characters that cannot be seen: leave them out")
    session = await _left_behind(ask, child, ports) or await _child(ask, child, defined, ports)
    try:
        return await send(ask, session, ports)
    except Refused:
        await ports.store.delete(session)
        raise


async def _left_behind(ask: Ask, child: Child, ports: Ports) -> Session | None:
    """The folder that a process made for this very ask before it died, and before the run was written down."""
    if child.asker is None or child.asker.attempts < 2:  # noqa: PLR2004  (taken up again)
        return None
    found = await ports.store.sessions(agent=ask.agent)
    same = (each for each in found if each.parent == child.parent.id)
    return next((each for each in same if each.attributes.get("ask") == ask.key), None)


async def _child(ask: Ask, child: Child, defined: Defined, ports: Ports) -> Session:
    facts = {"role": ask.role, "trigger": ask.trigger, "ask": ask.key}
    return await seated(defined, child, ports, attributes=facts)


async def seated(
    defined: Defined,
    child: Child,
    ports: Ports,
    *,
    attributes: Mapping[str, Any],
    under: tuple[Ceiling, ...] = (),
) -> Session:
    """A child's session, idle until something is sent to it. `under`: what binds it besides what those above hand on."""
    born = await birth(defined.agent, child, ports)
    try:
        preset = ports.with_paths(defined.preset, born.paths)
        if child.prompt is not None:
            preset = ports.with_prompt(preset, safe_text(ports.redact(child.prompt(defined.agent))))
        new = NewSession(
            agent=defined.agent.name,
            preset=preset,
            preset_hash=preset_hash(preset),
            workspace=born.workspace,
            parent=child.parent,
            description=ports.redact(child.description),
            aliases=(child.key,) if child.key else (),
            ceilings=(*born.ceilings, *under),
            lifted=born.lifted,
            attributes={**attributes} | ({LEAF: True} if child.leaf else {}),
        )
    except BaseException:
        await _no_litter(born.workspace, ports)
        raise
    return await _made(new, ports)


async def _made(new: NewSession, ports: Ports) -> Session:
    try:
        return await ports.store.create(new)
    except BaseException:
        await _no_litter(new.workspace, ports)
        raise


def _fits(agent: Agent, ask: Ask) -> None:
    """An agent is started only in a role that it has."""
    if ask.role not in agent.roles:
        raise Refused(f'Agent "{agent.name}" does not support capability "{ask.role}"')


def _known(ask: Ask, tx: Tx) -> tuple[Run | None, Sequence[Run]]:
    """The run that was born of this ask before, else those that it would be born below."""
    first = tx.run_by_key(ask.key)
    return first, ancestry(ask.parent_run, tx) if first is None else ()


async def _standing(session: Session, ports: Ports, run: Run | None) -> Standing:
    agent = await definition(session, ports)
    return Standing(agent=agent, rights=scope_of(agent, session, ports, run=run))


async def permitted(
    ask: Ask,
    session: Session,
    ports: Ports,
    *,
    above: Sequence[Run] | None = None,
    standing: Standing | None = None,
) -> Run:
    """The run that asks, if it may: an agent starts only those it may know of and the configuration lets be started,
    and none that is at work `above` it already. One that hands work to its own like is bounded by depth alone.
    `standing`: what the session stands on, where that was looked up for this very run."""
    if above is None:
        above = await ports.ledger.look(lambda tx: ancestry(ask.parent_run, tx))
    if not above:
        raise Refused(f"run {ask.parent_run} asked for this one, and the ledger does not know it")
    asker = above[-1]
    line = [run.agent for run in above]
    bounds = ports.bounds()
    rights = (standing or await _standing(session, ports, asker)).rights.under(bounds)
    if hit := first_match(bounds.deny_agents, ask.agent):
        raise Refused(f"the configuration denies the agent {ask.agent} (deny.agents: {hit})")
    if ask.agent != session.agent and not (verdict := rights.agent(ask.agent)).ok:
        raise Refused(f"{session.agent} may not start {ask.agent} ({verdict.rule})")
    allowed = ports.subagents.allow_agents
    if allowed is not None and first_match(allowed, ask.agent) is None:
        raise Refused(f"{ask.agent} may not be started by other agents (subagents.allow_agents)")
    others = [*line]
    while others and others[-1] == ask.agent:
        others.pop()
    if ask.agent in others:
        raise Refused(f"{ask.agent} is at work above already: {' > '.join((*line, ask.agent))}")
    return asker


def ancestry(run_id: str | None, tx: Tx) -> Sequence[Run]:
    """From the first run of a tree down to this one."""
    found: list[Run] = []
    run = tx.run(run_id) if run_id else None
    while run is not None and len(found) <= HARD_DEPTH:
        found.append(run)
        run = tx.run(run.ask.parent_run) if run.ask.parent_run else None
    return found[::-1]


async def _no_litter(place: Workspace, ports: Ports) -> None:
    """A worktree whose session could not be made is nobody's: it goes again."""
    if place.source:
        await asyncio.shield(ports.drop_worktree(place))
