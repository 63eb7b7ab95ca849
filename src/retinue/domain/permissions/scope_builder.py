"""Ground: where a session stands, and the scope that its definition comes to there."""

from collections import deque
from dataclasses import field

from retinue.domain.agent import Agent, Paths, Role
from retinue.domain.ceiling import Bounds, Ceiling, ceiling_of
from retinue.domain.change import replace
from retinue.domain.limits import HARD_DEPTH
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED
from retinue.domain.permissions.scope import DEFAULT_WRITE, Scope
from retinue.domain.rules import Globs, Rule, absolute, below
from retinue.domain.value import value


@value
class Ground:
    """Where a session stands when its scope is compiled: facts of the session, not of its definition."""

    root: str
    label: str = ""
    made: bool = False
    writable: bool = True
    tmp: str = ""
    child: bool = False
    depth: int = 0
    deepest: int = HARD_DEPTH
    """How deep the deepest may be that anybody starts."""
    leaf: bool = False
    """It was started to do one thing itself: it starts nobody."""
    watches: bool = False
    ceilings: tuple[Ceiling, ...] = ()
    """Of the sessions above, outermost first."""
    lifted: Paths = field(default_factory=Paths)


_MOST_COMPILED = 8
_compiled: deque[tuple[Agent, Ground, Bounds, Scope]] = deque(maxlen=_MOST_COMPILED)
"""The latest few: a parent's is asked for by each of its children."""


def compile_scope(agent: Agent, ground: Ground, bounds: Bounds = Bounds()) -> Scope:  # noqa: B008  (a frozen value)
    """As it was compiled a moment ago, where nothing of it differs."""
    for known in tuple(_compiled):
        if known[0] is agent and known[2] is bounds and known[1] == ground:
            return known[3]
    scope = _compile(agent, ground, bounds)
    _compiled.appendleft((agent, ground, bounds, scope))
    return scope


def _compile(agent: Agent, ground: Ground, bounds: Bounds) -> Scope:
    """A definition without paths means the workspace, but for a child it means nothing: a child's paths were written
    into its preset, and one that lost them is not to gain by it."""
    root, paths, most = ground.root, agent.paths or Paths(), _placed(bounds.ceiling, ground.root)
    granted = _granted(paths, ground)
    unsaid = paths.write is None and (agent.paths is not None or not ground.child)
    kept = not ground.child and below(root) in (ground.lifted.write or ())
    write = (below(root), *granted) if unsaid or kept else granted
    read = (below(root),) if paths.read is None else absolute(paths.read, root)
    return Scope(
        tools=Rule(allow=agent.tool_allow, deny=agent.tool_deny or ()),
        capabilities=Rule(allow=agent.capability_allow, deny=agent.capability_deny or ()),
        agents=Rule(allow=agent.agent_allow, deny=(agent.agent_deny or ()) + bounds.deny_agents),
        skills=Rule(allow=agent.skill_allow, deny=agent.skill_deny or ()),
        exposure=agent.tool_exposure,
        operator=Rule(deny=bounds.deny_tools),
        exits=agent.exits or (),
        read=read + tuple(each for each in DEFAULT_WRITE if each in write),
        write=write,
        granted=granted,
        deny=absolute((*(paths.deny or ()), *bounds.deny_paths), root),
        # What git knows of a worktree we made is in its one file `.git`: whoever changes that chooses what git obeys.
        closed=(*ALWAYS_CLOSED, below(f"{root}/.git")) if ground.made else ALWAYS_CLOSED,
        house=bounds.closed,
        root=root,
        made=ground.made,
        label=ground.label,
        tmp=ground.tmp,
        writable=ground.writable,
        depth=ground.depth,
        deepest=ground.deepest,
        leaf=ground.leaf,
        watches=ground.watches,
        orchestrates=Role.ORCHESTRATOR in agent.roles,
        configured=not ground.child or agent.paths is not None,
        commands=agent.shell_commands,
        ceilings=(most, *ground.ceilings),
        lifted=ground.lifted,
    )


def _granted(paths: Paths, ground: Ground) -> Globs:
    granted = absolute(paths.write, ground.root) if paths.write is not None else DEFAULT_WRITE
    if not ground.tmp:
        granted = tuple(each for each in granted if each not in DEFAULT_WRITE)
    if ground.made and paths.write is None:
        granted = (*granted, below(ground.root))  # made for it alone: what it writes there disturbs nobody
    return granted


def _placed(ceiling: Ceiling, root: str) -> Ceiling:
    return replace(
        ceiling,
        read=None if ceiling.read is None else absolute(ceiling.read, root),
        write=None if ceiling.write is None else absolute(ceiling.write, root),
        deny=absolute(ceiling.deny, root),
    )


def handed_on(agent: Agent, scope: Scope, *, by: str) -> Ceiling:
    """The most that a session hands on to those it starts: what its definition's ceiling says, else the paths it has
    itself, and none if it lost them. Its own tool list binds only itself: one who may do nothing may still have others
    do it."""
    said = ceiling_of(agent.ceiling, by=by, root=scope.root)
    writes = agent.ceiling is not None and agent.ceiling.get("writable") is not None
    return replace(
        said,
        read=_own(scope, scope.read) if said.read is None else said.read,
        write=_own(scope, scope.write) if said.write is None else said.write,
        deny=(*scope.deny, *(each for each in said.deny if each not in scope.deny)),
        writable=said.writable if writes else scope.writable,
    )


def _own(scope: Scope, patterns: Globs) -> Globs:
    return patterns if scope.configured else ()
