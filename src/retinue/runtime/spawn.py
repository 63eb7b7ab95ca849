"""A new session, and its first run."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from retinue.domain.agent import preset_hash
from retinue.domain.limits import HARD_DEPTH
from retinue.domain.run import Ask, Run
from retinue.domain.session import Session
from retinue.domain.workspace import Workspace
from retinue.errors import Refused
from retinue.ports import NewSession, Ports, Tx
from retinue.runtime.place import Child, birth, settled
from retinue.runtime.prepare import definition, scope_of
from retinue.runtime.send import send


async def begin(agent: str, root: str, ports: Ports, *, name: str | None = None) -> Session:
    """A new top-level session, idle until something is sent to it."""
    defined = ports.agents.get(agent, root)
    place = await settled(defined.agent.workspace, root, ports)
    async with _no_litter(place, ports):
        return await ports.store.create(
            NewSession(
                agent=agent,
                preset=defined.preset,
                preset_hash=preset_hash(defined.preset),
                workspace=place,
                name=name,
            )
        )


async def spawn(ask: Ask, child: Child, ports: Ports) -> Run:
    """A child of a session. Its configuration is its own copy of the definition, its paths are written into it."""
    if first := await ports.ledger.look(lambda tx: tx.run_by_key(ask.key)):
        return first
    if ask.parent_run is not None:
        await _may_start(ask, child, ports)
    defined = ports.agents.get(ask.agent, child.parent.workspace.meant)
    deepest = min(ports.limits.max_depth, HARD_DEPTH)
    if child.parent.depth >= deepest:
        raise Refused(
            f"{child.parent.slug} is {child.parent.depth} deep and gets no child: {deepest} is the limit"
        )
    born = await birth(defined.agent.workspace, child, ports)
    async with _no_litter(born.workspace, ports):
        preset = ports.with_paths(defined.preset, born.paths)
        session = await ports.store.create(
            NewSession(
                agent=ask.agent,
                preset=preset,
                preset_hash=preset_hash(preset),
                workspace=born.workspace,
                parent=child.parent,
                description=ports.redact(child.description),
                ceilings=born.ceilings,
                lifted=born.lifted,
            )
        )
    return await send(ask, session, ports)


async def _may_start(ask: Ask, child: Child, ports: Ports) -> None:
    """An agent starts only those it may know of, and none that is at work above it already."""
    above = await definition(child.parent, ports)
    rights = scope_of(above, child.parent, ports).under(ports.bounds())
    if not (verdict := rights.agent(ask.agent)).ok:
        raise Refused(f"{child.parent.agent} may not start {ask.agent} ({verdict.rule})")
    line = await ports.ledger.look(lambda tx: ancestry(ask.parent_run, tx))
    if ask.agent in line:
        raise Refused(f"{ask.agent} is at work above already: {' > '.join((*line, ask.agent))}")


def ancestry(run_id: str | None, tx: Tx) -> tuple[str, ...]:
    """The agents from the first run of a tree down to this one."""
    names: list[str] = []
    run = tx.run(run_id) if run_id else None
    while run is not None and len(names) <= HARD_DEPTH:
        names.append(run.agent)
        run = tx.run(run.ask.parent_run) if run.ask.parent_run else None
    return tuple(reversed(names))


@asynccontextmanager
async def _no_litter(place: Workspace, ports: Ports) -> AsyncGenerator[None]:
    """A worktree whose session could not be made is nobody's: it goes again."""
    try:
        yield
    except BaseException:
        if place.source:
            await asyncio.shield(ports.drop_worktree(place))
        raise
