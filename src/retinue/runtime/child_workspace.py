"""Where a new session works, and what it may read and write there: computed once, at its birth, and kept with it."""

from collections.abc import Callable, Sequence

from retinue.domain.agent import Agent, Paths, WorkspacePolicy
from retinue.domain.ceiling import Ceiling
from retinue.domain.change import replace
from retinue.domain.glob import matches
from retinue.domain.permissions.scope import DEFAULT_DENY, DEFAULT_WRITE, Scope
from retinue.domain.permissions.scope_builder import handed_on
from retinue.domain.rules import Globs, absolute, below, literal
from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.domain.tmp_paths import elsewhere
from retinue.domain.value import value
from retinue.domain.workspace import Isolation, Workspace
from retinue.errors import Refused, RetinueError
from retinue.interfaces import Ports
from retinue.runtime.run_plan import definition, scope_of


@value
class Standing:
    """What a session stands on: its definition, and its rights in the run that asks."""

    agent: Agent
    rights: Scope


@value
class Child:
    """What is said about a child beyond its task."""

    parent: Session
    description: str
    allowed_paths: Sequence[str] | None = None
    """None: the parent's read patterns. Empty: no restriction. Patterns: exactly those."""
    denied_paths: Sequence[str] | None = None
    by_person: bool = False
    """A person asked for just this: paths named here may go beyond what the parent could hand on."""
    own_paths: bool = False
    """Its paths are those of its definition, else the workspace; what is said above of paths does not count."""
    workspace: WorkspacePolicy | None = None
    """Instead of the definition's."""
    prompt: Callable[[Agent], str] | None = None
    """Its system message, made of its definition, instead of the definition's own."""
    key: str = ""
    """What it is called by, besides its folder's name."""
    leaf: bool = False
    """It starts nobody, whatever its definition says."""
    asker: Run | None = None
    """The run that asks for it: what holds for that run holds for the child."""
    standing: Standing | None = None
    """The parent's in that run, where it was looked up a moment ago."""


@value
class Birth:
    """The rights that a child is born with."""

    workspace: Workspace
    paths: Paths
    ceilings: tuple[Ceiling, ...]
    lifted: Paths


def overridden(
    own: WorkspacePolicy,
    *,
    isolation: Isolation | None = None,
    folder: str | None = None,
    writable: bool | None = None,
) -> WorkspacePolicy:
    """The definition's policy with what is said of it for one session. Whom the definition keeps from writing, or keeps
    to a worktree, is not let write elsewhere by that."""
    kind = own.isolation if isolation is None else isolation
    kept_apart = own.isolation is Isolation.SANDBOX and kind is not Isolation.SANDBOX
    may = own.writable if writable is None else writable
    if own.writable is False or kept_apart:
        may = False
    return WorkspacePolicy(isolation=kind, path=own.path if isolation is None else folder, writable=may)


def bound(policy: WorkspacePolicy, root: str) -> Workspace:
    """Shared and custom are writable unless the policy says no; a sandbox only where it says yes."""
    writable = policy.isolation is not Isolation.SANDBOX if policy.writable is None else policy.writable
    path = policy.path or root
    place = path if path.startswith("/") else f"{root.rstrip('/')}/{path}"
    return Workspace(
        root=place, isolation=policy.isolation, writable=writable, label=place.rsplit("/", 1)[-1]
    )


async def settled(
    policy: WorkspacePolicy, root: str, ports: Ports, *, above: Workspace | None = None
) -> Workspace:
    """A sandbox in a repository is a worktree of its own, or there is no session. Elsewhere it can only be looked at.
    `above` is where a parent works."""
    meant = root if above is None else above.meant
    place = replace(bound(policy, root), project="" if meant == root else meant)
    if place.isolation is Isolation.CUSTOM:
        return replace(_real(place, above, ports), project=meant)
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


def _real(place: Workspace, above: Workspace | None, ports: Ports) -> Workspace:
    """A folder that a definition names: it must be there, and none that is closed to every agent."""
    real = ports.files(Scope(root=place.root)).name(place.root)
    made = above is not None and bool(above.source) and matches(below(above.root), real)
    house = () if made else ports.bounds().closed
    try:
        ports.files(Scope(root=real, read=(below(real),), house=house)).list(real)
    except RetinueError as error:
        raise Refused(f"the workspace {place.root} of the definition cannot be used: {error}") from error
    return replace(place, root=real)


async def birth(agent: Agent, child: Child, ports: Ports) -> Birth:
    """A child's place and rights: its own, within what its parent can hand on. In a worktree of its own the same holds
    for the copies of files as for the files."""
    above = child.standing.agent if child.standing else await definition(child.parent, ports)
    rights = child.standing.rights if child.standing else None
    ceilings = handed_down(above, child.parent, ports, run=child.asker, rights=rights)
    old = child.parent.workspace
    place = await settled(child.workspace or agent.workspace, old.root, ports, above=old)
    if not all(each.writable for each in ceilings):
        place = replace(place, writable=False)
    deny = _denied(child, agent)
    if place.source:
        ceilings = tuple(_in_copy(each, old.root, place.root) for each in ceilings)
        deny = (*deny, *(new for each in ceilings for new in each.deny if new not in deny))
        own = (below(place.root),)
    else:
        place, own = _in_the_same(place, old), ()
    if child.own_paths:
        paths = _own(agent.paths or Paths(), place, own)
    else:
        paths = Paths(
            read=_readable(child, above, own),
            write=(*DEFAULT_WRITE, *own) if place.writable else DEFAULT_WRITE,
        )
    paths = replace(paths, deny=tuple(dict.fromkeys(deny)))
    return Birth(workspace=place, paths=paths, ceilings=ceilings, lifted=_lifted(child, paths, place, own))


def handed_down(
    above: Agent, parent: Session, ports: Ports, *, run: Run | None = None, rights: Scope | None = None
) -> tuple[Ceiling, ...]:
    """What a session can hand on, as the last link of the chain that it stands under itself."""
    if rights is None:
        rights = scope_of(above, parent, ports, run=run)
    over = () if run is None else run.ask.ceilings
    return (*parent.ceilings, *over, handed_on(above, rights, by=parent.slug))


def _denied(child: Child, agent: Agent) -> Globs:
    if child.own_paths:
        return (agent.paths and agent.paths.deny) or ()
    return DEFAULT_DENY if child.denied_paths is None else tuple(child.denied_paths)


def _own(said: Paths, place: Workspace, own: Globs) -> Paths:
    """What the definition says, with the workspace where it says nothing: to read, and to write after a yes."""
    read = (below(place.root),) if said.read is None else said.read
    write = None if said.write is None and place.writable else said.write or DEFAULT_WRITE
    if own:
        write = (*(write or DEFAULT_WRITE), *own) if place.writable else write
    return Paths(read=(*read, *(each for each in own if each not in read)), write=write)


def _in_the_same(place: Workspace, old: Workspace) -> Workspace:
    """Who works in the parent's worktree, or in a folder of it, works in a worktree."""
    return replace(place, source=old.source) if matches(below(old.root), place.root) else place


def _in_copy(ceiling: Ceiling, old: str, new: str) -> Ceiling:
    return replace(
        ceiling,
        read=None if ceiling.read is None else _copied(ceiling.read, old, new),
        deny=_copied(ceiling.deny, old, new),
    )


def _copied(patterns: Globs, old: str, new: str) -> Globs:
    """The same, and what they mean for a folder's copy; a pattern of /tmp means no such folder."""
    also: list[str] = []
    for each in elsewhere(patterns):
        if each.startswith(f"{literal(old)}/"):
            also.append(literal(new) + each.removeprefix(literal(old)))
        elif each.endswith("/**") and matches(each, old):
            also.append(below(new))
    return (*patterns, *(each for each in also if each not in patterns))


def _readable(child: Child, above: Agent, own: Globs) -> Globs:
    if child.allowed_paths is None:
        inherited = above.paths.read if above.paths is not None else None
        if own:
            return own
        return inherited if inherited is not None else (below(child.parent.workspace.root),)
    return tuple(child.allowed_paths) or ("/**",)


def _lifted(child: Child, paths: Paths, place: Workspace, own: Globs) -> Paths:
    """A worktree is the child's own to write in, wherever it lies; what a person named is theirs to give."""
    named = (
        absolute(paths.read or (), place.root) if child.by_person and child.allowed_paths is not None else ()
    )
    return Paths(read=named or None, write=own or None)
