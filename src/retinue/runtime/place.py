"""Where a new session works, and what it may read and write there: computed once, at its birth, and kept with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retinue.domain.agent import Agent, Paths, WorkspacePolicy
from retinue.domain.ceiling import Ceiling
from retinue.domain.rule import absolute, below
from retinue.domain.scope import DEFAULT_DENY, DEFAULT_WRITE, Scope, handed_on
from retinue.domain.session import Session
from retinue.domain.workspace import Isolation, Workspace
from retinue.errors import Refused, RetinueError
from retinue.ports import Ports
from retinue.runtime.prepare import definition, scope_of


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """The rights that a child is born with."""

    workspace: Workspace
    paths: Paths
    ceilings: tuple[Ceiling, ...]
    lifted: Paths


def bound(policy: WorkspacePolicy, root: str) -> Workspace:
    """Shared and custom are writable unless the policy says no; a sandbox only where it says yes."""
    writable = policy.isolation is not Isolation.SANDBOX if policy.writable is None else policy.writable
    path = policy.path or root
    place = path if path.startswith("/") else f"{root.rstrip('/')}/{path}"
    return Workspace(
        root=place, isolation=policy.isolation, writable=writable, label=place.rsplit("/", 1)[-1]
    )


async def settled(policy: WorkspacePolicy, root: str, ports: Ports, *, meant: str = "") -> Workspace:
    """A sandbox in a repository is a worktree of its own, or there is no session. Elsewhere it can only be looked at.
    `meant` is the folder whose project's agents count, where that is not the root."""
    meant = meant or root
    place = replace(bound(policy, root), project="" if meant == root else meant)
    if place.isolation is Isolation.CUSTOM:
        return replace(_real(place, ports), project=meant)
    if place.isolation is not Isolation.SANDBOX:
        return place
    made = await ports.worktree(place.root, ports.chance.entry_id().lower())
    if made is not None:
        return replace(place, root=made[0], source=made[1], project=meant)
    if place.writable:
        raise Refused(
            f"{place.root} is in no git repository, so the agent gets no workspace of its own there to write in: "
            "run `git init` and commit, or set workspace.writable: false or isolation: shared in its definition"
        )
    return place


def _real(place: Workspace, ports: Ports) -> Workspace:
    """A folder that a definition names: it must be there, and none that is closed to every agent."""
    real = ports.files(Scope(root=place.root)).name(place.root)
    try:
        ports.files(Scope(root=real, read=(below(real),), house=ports.bounds().closed)).list(real)
    except RetinueError as error:
        raise Refused(f"the workspace {place.root} of the definition cannot be used: {error}") from error
    return replace(place, root=real)


async def birth(policy: WorkspacePolicy, child: Child, ports: Ports) -> Birth:
    """A child's place and rights: its own, within what its parent can hand on."""
    above = await definition(child.parent, ports)
    rights = scope_of(above, child.parent, ports)
    ceilings = (*child.parent.ceilings, handed_on(above, rights, by=child.parent.slug))
    above_place = child.parent.workspace
    place = await settled(policy, above_place.root, ports, meant=above_place.meant)
    if not all(each.writable for each in ceilings):
        place = replace(place, writable=False)
    paths = Paths(
        read=_readable(child, above, place),
        write=(*DEFAULT_WRITE, below(place.root)) if place.source and place.writable else DEFAULT_WRITE,
        deny=DEFAULT_DENY if child.denied_paths is None else tuple(child.denied_paths),
    )
    return Birth(workspace=place, paths=paths, ceilings=ceilings, lifted=_lifted(child, paths, place))


def _readable(child: Child, above: Agent, place: Workspace) -> tuple[str, ...]:
    if child.allowed_paths is None:
        inherited = above.paths.read if above.paths is not None else None
        if place.source:
            return (below(place.root),)
        return inherited if inherited is not None else (below(child.parent.workspace.root),)
    return tuple(child.allowed_paths) or ("/**",)


def _lifted(child: Child, paths: Paths, place: Workspace) -> Paths:
    """A worktree is the child's own, wherever it lies; what a person named is theirs to give."""
    own = (below(place.root),) if place.source else ()
    named = (
        absolute(paths.read or (), place.root) if child.by_person and child.allowed_paths is not None else ()
    )
    return Paths(read=(*own, *named) or None, write=own or None)
