"""A new session, and its first run."""

from retinue.domain.agent import preset_hash
from retinue.domain.limits import HARD_DEPTH
from retinue.domain.run import Ask, Run
from retinue.domain.session import Session
from retinue.errors import Refused
from retinue.ports import NewSession, Ports
from retinue.runtime.place import Child, birth, settled
from retinue.runtime.send import send


async def begin(agent: str, root: str, ports: Ports, *, name: str | None = None) -> Session:
    """A new top-level session, idle until something is sent to it."""
    defined = ports.agents.get(agent, root)
    return await _created(
        NewSession(
            agent=agent,
            preset=defined.preset,
            preset_hash=preset_hash(defined.preset),
            workspace=await settled(defined.agent.workspace, root, ports),
            name=name,
        ),
        ports,
    )


async def spawn(ask: Ask, child: Child, ports: Ports) -> Run:
    """A child of a session. Its configuration is its own copy of the definition, its paths are written into it."""
    defined = ports.agents.get(ask.agent, child.parent.workspace.meant)
    deepest = min(ports.limits.max_depth, HARD_DEPTH)
    if child.parent.depth >= deepest:
        raise Refused(
            f"{child.parent.slug} is {child.parent.depth} deep and gets no child: {deepest} is the limit"
        )
    born = await birth(defined.agent.workspace, child, ports)
    preset = ports.with_paths(defined.preset, born.paths)
    session = await _created(
        NewSession(
            agent=ask.agent,
            preset=preset,
            preset_hash=preset_hash(preset),
            workspace=born.workspace,
            parent=child.parent,
            description=ports.redact(child.description),
            ceilings=born.ceilings,
            lifted=born.lifted,
        ),
        ports,
    )
    return await send(ask, session, ports)


async def _created(new: NewSession, ports: Ports) -> Session:
    """A worktree whose session could not be made is nobody's: it goes again."""
    try:
        return await ports.store.create(new)
    except BaseException:
        if new.workspace.source:
            await ports.drop_worktree(new.workspace)
        raise
