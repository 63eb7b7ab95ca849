"""What a surface asks about rights, and what a person answers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from retinue.app.references import Naming
from retinue.app.tree_activity import ahead
from retinue.domain.approval import Answer, Approval, Policy, State
from retinue.domain.approval import as_json as approval_as_json
from retinue.domain.ceiling import Ceiling
from retinue.domain.change import replace
from retinue.domain.glob import first_match
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import Ground, compile_scope
from retinue.domain.rules import Globs, Verdict
from retinue.domain.run import Run
from retinue.domain.sandbox_level import Level
from retinue.domain.skill import Skill
from retinue.errors import Failed, NotFound, OutOfScope, Refused, Usage
from retinue.interfaces import Ports, Tool, Tx
from retinue.runtime import run_control, tool_executor
from retinue.runtime.run_plan import definition, held, level_of, scope_of, skilled
from retinue.runtime.startable_agents import nameable, naming

DEFAULT_AGENT = "general"

Kind = Literal["read", "write", "run", "tool", "agent"]


class Rights(Naming):
    """The half of the application that a person decides with."""

    def __init__(self, ports: Ports, owner_lives: Callable[[str], bool]) -> None:
        self._ports = ports
        self._owner_lives = owner_lives

    async def tools(
        self, *, agent: str | None = None, session: str | None = None, at: str | None = None
    ) -> list[tuple[Tool, Verdict]]:
        """Every known tool as a model would be shown it, with the verdict of the one gate."""
        scope, place = await self._scoped(agent=agent, session=session, at=at)
        named = nameable(scope, self._ports.agents.all(place), self._ports)
        return [
            (replace(tool, spec=naming(tool, named)), tool_executor.verdict(tool, scope))
            for _, tool in sorted(self._ports.tools.items())
        ]

    async def scope(
        self, *, agent: str | None = None, session: str | None = None, at: str | None = None
    ) -> Scope:
        """Of a session, or of an agent that would work in the folder `at`; without it, where this process is."""
        return (await self._scoped(agent=agent, session=session, at=at))[0]

    async def _scoped(self, *, agent: str | None, session: str | None, at: str | None) -> tuple[Scope, str]:
        """With the folder that is meant, whose project may add agents."""
        if session is not None:
            chosen = await self.session(session)
            own = scope_of(await definition(chosen, self._ports), chosen, self._ports)
            place = chosen.workspace.meant
        else:
            place = at or str(Path.cwd())
            about = self._ports.agents.get(DEFAULT_AGENT if agent is None else agent, place).agent
            own = compile_scope(about, Ground(root=place), self._ports.bounds())
            own = skilled(own, about.name, place, self._ports)
        return held(own, await level_of(self._ports), self._ports), place

    async def skills_of(
        self, *, agent: str | None = None, session: str | None = None, at: str | None = None
    ) -> list[tuple[Skill, Verdict]]:
        """Every skill there is for an agent or a session where it works, with the word of its scope."""
        scope = await self.scope(agent=agent, session=session, at=at)
        name, place = agent or DEFAULT_AGENT, at or str(Path.cwd())
        if session is not None:
            chosen = await self.session(session)
            name, place = chosen.agent, chosen.workspace.meant
        return [(each, scope.skill(each)) for each in self._ports.skills(name, place)]

    async def scope_json(self, session: str) -> dict[str, Any]:
        """What `scope show` prints: everything that applies to a session, and whose word it is."""
        scope = await self.scope(session=session)
        level = await self._ports.level()
        shell = scope.commands
        return {
            "hash": scope.hash,
            "workspace": scope.root,
            "writable": scope.writable,
            "configured": scope.configured,
            "paths": {"read": scope.read, "write": scope.write, "deny": scope.deny},
            "needs_no_yes": {"write": scope.granted, "run": (shell and shell.allow) or ()},
            "commands_denied": (shell and shell.deny) or (),
            "tmp": scope.tmp or None,
            "tools": {"allow": scope.tools.allow, "deny": scope.tools.deny},
            "capabilities": {"allow": scope.capabilities.allow, "deny": scope.capabilities.deny},
            "agents": {"allow": scope.agents.allow, "deny": scope.agents.deny},
            "skills": {
                "exposure": str(scope.exposure),
                "allow": scope.skills.allow,
                "deny": scope.skills.deny,
                "has": [each.plugin for each in scope.shelf],
            },
            "operator_denies": {"tools": scope.operator.deny},
            "ceilings": [each.facts() for each in scope.ceilings if _says_something(each)],
            "lifted": {"read": scope.lifted.read, "write": scope.lifted.write},
            "always_closed": [*scope.closed, *scope.house],
            "guarded": list(scope.guarded),
            "approvals": str(self._ports.policy),
            "sandbox": {
                "level": str(level),
                "minimum": str(self._ports.minimum),
                "runs_nothing": scope.unheld or None,
            },
        }

    async def scope_test(self, session: str, kind: Kind, value: str) -> dict[str, Any]:
        """The verdict on one thing, the rule that gave it, and whether a person would be asked first."""
        scope = await self.scope(session=session)
        verdict, real = self._verdict(scope, kind, value)
        asks = verdict.ok and await self._asks(scope, kind, real)
        if asks and self._ports.policy is Policy.DENY:
            verdict, asks = Verdict(ok=False, rule="approvals = deny"), False
        return {
            "kind": kind,
            "value": value,
            "real": real,
            "ok": verdict.ok,
            "rule": verdict.rule,
            "asks": asks,
        }

    def _verdict(self, scope: Scope, kind: Kind, value: str) -> tuple[Verdict, str]:
        if kind == "tool":
            tool = self._ports.tools.get(value)
            if tool is None:
                return Verdict(ok=False, rule=f"there is no tool {value!r}"), value
            return tool_executor.verdict(tool, scope), value
        if kind == "agent":
            return scope.agent(value), value
        if kind == "run":
            bash = self._ports.tools.get("bash")
            judged = scope.command(value) if bash is None else tool_executor.verdict(bash, scope)
            return (scope.command(value) if judged.ok else judged), value
        files = self._ports.files(scope)
        real = files.name(value)
        try:
            judged = files.judge(value, kind)
        except OutOfScope as error:
            rule = scope.path(real, kind)
            return (rule if not rule.ok else Verdict(ok=False, rule=str(error))), real
        except Failed:  # it is not there, or cannot be opened now: the rules on its name still say something
            return scope.path(real, kind), real
        return scope.path(judged, kind), judged

    async def _asks(self, scope: Scope, kind: Kind, real: str) -> bool:
        """By the same rules as the gate, for the tools that come with Retinue."""
        policy = str(self._ports.policy)
        if kind == "write":
            return not (scope.grants_write(real) or (policy == "auto" and not scope.guards(real)))
        if kind == "run":
            strict = await self._ports.level() is Level.STRICT
            return not (strict and (policy == "auto" or scope.grants_command(real).ok))
        return False

    # approvals

    async def approvals(self, *, run: str | None = None, all_states: bool = False) -> list[Approval]:
        """What waits for a person, oldest first; what waited too long is closed first, and nobody's run stays so."""
        await run_control.expire(self._ports, alive=self._owner_lives, adopt=False)
        states: Sequence[State] | None = None if all_states else [State.PENDING]
        return await self._ports.ledger.look(lambda tx: tx.approvals(run=run, state=states))

    async def approval(self, ref: str) -> Approval:
        """By id or unambiguous prefix."""
        if not ref:
            raise Usage("say which approval: `retinue approvals list` shows those that wait")

        def step(tx: Tx) -> list[Approval]:
            exact = tx.approval(ref)
            return [exact] if exact else tx.approvals(prefix=ref)

        found = await self._ports.ledger.look(step)
        if not found:
            raise NotFound(f"there is no approval {ref}: `retinue approvals list` shows those that wait")
        if len(found) > 1:
            raise Usage(f"{ref} could be several approvals: {', '.join(each.id for each in found[:8])} …")
        return found[0]

    async def answer(self, ref: str, said: Answer | str, *, by: str = "person") -> Approval:
        """A person's word on one question. Whoever works the run goes on with it; if nobody does, this process."""
        asked = await self.approval(ref)
        await run_control.expire(self._ports, alive=self._owner_lives, adopt=False)
        return await run_control.answer(asked.id, Answer(said), self._ports, by=by, alive=self._owner_lives)

    async def works(self, run: Run) -> bool:
        """Whether this process goes on with a run, or the daemon beside it does."""
        now = await self._ports.ledger.look(lambda tx: tx.run(run.id))
        return now is not None and now.owner in (self._ports.owner, self._ports.worker())

    async def awaited(self, run: Run) -> list[str]:
        """The ids of what a run, one it asked for, or one that it stands behind waits for a person with."""
        return [each.id for each in await self._ports.ledger.look(lambda tx: _pending(run, tx))]

    async def asked_in(self, run: Run) -> list[Approval]:
        """What a run, those it asked for and those it stands behind wait for a person with, the oldest first."""
        await run_control.expire(self._ports, alive=self._owner_lives, adopt=False)
        return await self._ports.ledger.look(lambda tx: _pending(run, tx))

    def _not_denied(self, name: str) -> None:
        if hit := first_match(self._ports.bounds().deny_agents, name):
            raise Refused(f"the configuration denies the agent {name} (deny.agents: {hit})")


def _pending(run: Run, tx: Tx) -> list[Approval]:
    """Of its own tree; of a run that waits its turn also what those before it wait with."""
    runs: set[str] = set()
    for each in (run, *ahead(run, tx)):
        runs |= {below.id for below in tx.runs(root=each.root)} if each.root == each.id else {each.id}
    return [each for each in tx.approvals(state=[State.PENDING]) if each.run in runs]


def approvals_json(approvals: Sequence[Approval]) -> list[dict[str, Any]]:
    return [approval_as_json(each) for each in approvals]


def _says_something(ceiling: Ceiling) -> bool:
    lists: tuple[Globs | None, ...] = (
        ceiling.tools,
        ceiling.capabilities,
        ceiling.agents,
        ceiling.skills,
        ceiling.read,
        ceiling.write,
        ceiling.deny or None,
    )
    return not ceiling.writable or ceiling.network is not None or any(each is not None for each in lists)
