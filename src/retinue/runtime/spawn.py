"""A new session, and its first run."""

from collections.abc import Sequence
from dataclasses import dataclass

from retinue.domain.agent import Agent, Defined, Paths, WorkspacePolicy, preset_hash
from retinue.domain.limits import HARD_DEPTH
from retinue.domain.rule import absolute, below
from retinue.domain.run import Ask, Run
from retinue.domain.scope import DEFAULT_DENY, DEFAULT_WRITE, handed_on
from retinue.domain.session import Session
from retinue.domain.workspace import Isolation, Workspace
from retinue.errors import Refused
from retinue.ports import NewSession, Ports
from retinue.runtime.prepare import definition, scope_of
from retinue.runtime.send import send


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """What is said about a child beyond its task."""

    parent: Session
    description: str
    allowed_paths: Sequence[str] | None = None
    """None: the parent's read patterns. Empty: no restriction. Patterns: exactly those."""
    denied_paths: Sequence[str] | None = None
    by_person: bool = False
    """A person asked for just this: paths named here may go beyond what the parent could hand on."""


async def begin(agent: str, root: str, ports: Ports, *, name: str | None = None) -> Session:
    """A new top-level session, idle until something is sent to it."""
    defined = ports.agents.get(agent)
    return await ports.store.create(
        NewSession(
            agent=agent,
            preset=defined.preset,
            preset_hash=preset_hash(defined.preset),
            workspace=bound(defined.agent.workspace, root),
            name=name,
        )
    )


async def spawn(ask: Ask, child: Child, ports: Ports) -> Run:
    """A child of a session. Its configuration is its own copy of the definition, its paths are written into it."""
    defined = ports.agents.get(ask.agent)
    deepest = min(ports.limits.max_depth, HARD_DEPTH)
    if child.parent.depth >= deepest:
        raise Refused(
            f"{child.parent.slug} is {child.parent.depth} deep and gets no child: {deepest} is the limit"
        )
    above = await definition(child.parent, ports)
    rights = scope_of(above, child.parent, ports)
    paths = _paths(child, above)
    preset = ports.with_paths(defined.preset, paths)
    named = child.by_person and child.allowed_paths is not None
    session = await ports.store.create(
        NewSession(
            agent=ask.agent,
            preset=preset,
            preset_hash=preset_hash(preset),
            workspace=_workspace(defined, child.parent),
            parent=child.parent,
            description=child.description,
            ceilings=(*child.parent.ceilings, handed_on(above, rights, by=child.parent.slug)),
            lifted=Paths(read=absolute(paths.read or (), rights.root) if named else None),
        )
    )
    return await send(ask, session, ports)


def bound(policy: WorkspacePolicy, root: str) -> Workspace:
    """Shared and custom are writable unless the policy says no; a sandbox only where it says yes."""
    writable = policy.isolation is not Isolation.SANDBOX if policy.writable is None else policy.writable
    return Workspace(root=policy.path or root, isolation=policy.isolation, writable=writable)


def _workspace(defined: Defined, parent: Session) -> Workspace:
    return bound(defined.agent.workspace, parent.workspace.root)


def _paths(child: Child, above: Agent) -> Paths:
    return Paths(
        read=_readable(child, above),
        write=DEFAULT_WRITE,
        deny=DEFAULT_DENY if child.denied_paths is None else tuple(child.denied_paths),
    )


def _readable(child: Child, above: Agent) -> tuple[str, ...]:
    if child.allowed_paths is None:
        inherited = above.paths.read if above.paths is not None else None
        return inherited if inherited is not None else (below(child.parent.workspace.root),)
    return tuple(child.allowed_paths) or ("/**",)
