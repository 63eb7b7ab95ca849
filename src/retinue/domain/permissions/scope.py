"""Scope: what a session may touch, compiled once per run and asked by everyone who decides."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import field
from functools import lru_cache
from typing import Any, Self

from retinue.domain.agent import Exposure, Paths, ShellCommands
from retinue.domain.ceiling import Bounds, Ceiling, Wish
from retinue.domain.change import replace
from retinue.domain.exit_tools import EXITS
from retinue.domain.glob import first_match, matches
from retinue.domain.limits import HARD_DEPTH
from retinue.domain.permissions import shell_commands
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED, GUARDED
from retinue.domain.rules import Globs, Rule, Verdict, absolute, below, literal, named
from retinue.domain.skill import SHELL, Skill, folders
from retinue.domain.system_prompt import SYSTEM_PREFIX
from retinue.domain.tmp_paths import TMP, elsewhere, inside, is_a_place
from retinue.domain.value import value
from retinue.domain.watch import INTERJECT

DEFAULT_DENY: Globs = ("**/.git/**", "**/runtime/**", "**/.env", "**/node_modules/**")
"""What a child is denied when nobody says otherwise (seed 000)."""

DEFAULT_WRITE: Globs = (f"{TMP}/**",)
"""The agent's private tmp: a folder of its own that nobody else sees."""

IN_SCOPE = Verdict(ok=True, rule="in scope")

NO_SCOPE = "no_scope_config"
"""The word for a child whose preset.md lost its paths."""


@value
class Scope:
    """Effective rights. The same object filters the tool list, judges calls, binds the file guard and builds the
    sandbox."""

    tools: Rule = Rule()
    capabilities: Rule = Rule()
    agents: Rule = Rule()
    skills: Rule = Rule()
    exposure: Exposure = Exposure.TOOLS
    shelf: tuple[Skill, ...] = ()
    """The skills it has: their folders are open to it for reading, and to no one else."""
    operator: Rule = Rule()
    """The operator's denied tools: beats everything, `system_` included."""
    exits: Globs = ()
    """Tools by which the agent ends its run: it has them without its tool list naming them."""
    read: Globs = ()
    """Absolute patterns. No match is a refusal."""
    write: Globs = ()
    granted: Globs = ()
    """Writes that need not ask: the definition names them."""
    deny: Globs = ()
    closed: Globs = ALWAYS_CLOSED
    guarded: Globs = GUARDED
    house: Globs = ()
    """Retinue's own folders: closed too, but for what lies in a workspace that was made for this agent."""
    root: str = "/"
    """The workspace: relative paths start here."""
    made: bool = False
    """The workspace is a worktree that Retinue made for this session."""
    label: str = ""
    """What people call the workspace."""
    tmp: str = ""
    """The real folder behind /tmp; empty: this agent has none."""
    writable: bool = True
    depth: int = 0
    """0: a session that no other one started."""
    deepest: int = HARD_DEPTH
    """How deep the deepest may be that anybody starts: whoever is there starts nobody."""
    orchestrates: bool = False
    leaf: bool = False
    """It starts nobody, whatever its definition says."""
    watches: bool = False
    """It sits beside another session, and has the tool by which watchers speak."""
    configured: bool = True
    """False for a child whose preset lost its paths: then no path is in scope."""
    commands: ShellCommands | None = None
    unheld: str = ""
    """Why no command is run at all: the sandbox is looser than the operator asks for. Empty: commands are run."""
    ceilings: tuple[Ceiling, ...] = ()
    """The configuration's first, then those of the sessions above, outermost first. All of them hold."""
    lifted: Paths = field(default_factory=Paths)
    """What a person allowed this session although a session above could not hand it on."""

    def tool(self, name: str, capabilities: Iterable[str] = ()) -> Verdict:
        """Operator deny, then the tool globs, then every capability; the one function for listing and calling."""
        if not (verdict := self.operator.verdict(name)).ok:
            return Verdict(ok=False, rule=f"operator {verdict.rule}")
        if name.startswith(SYSTEM_PREFIX):
            return Verdict(ok=True, rule="the runtime's own")
        given = name in self.exits or (self.watches and name == INTERJECT)
        own = Rule(deny=self.tools.deny) if given else self.tools
        if not (verdict := own.verdict(name)).ok:
            return Verdict(ok=False, rule=f"tools: {verdict.rule}")
        if name in EXITS:
            return self._exit(name)
        if name == INTERJECT:
            return Verdict(ok=self.watches, rule="it watches" if self.watches else "only for those who watch")
        tagged = tuple(capabilities)
        for capability in tagged:
            if not (verdict := self.capabilities.verdict(capability)).ok:
                return Verdict(ok=False, rule=f"capability {capability}: {verdict.rule}")
        for ceiling in self.ceilings:
            if objection := ceiling.tool(name, tagged):
                return Verdict(ok=False, rule=objection)
        return IN_SCOPE

    def _exit(self, name: str) -> Verdict:
        """It touches nothing, so nothing above can have anything against it."""
        if name in self.exits:
            return Verdict(ok=True, rule="an exit of this agent")
        return Verdict(ok=False, rule="only for agents whose exits name it")

    def agent(self, name: str) -> Verdict:
        """Whether this agent may know of another and hand work to it."""
        if not (verdict := self.agents.verdict(name)).ok:
            return Verdict(ok=False, rule=f"agents: {verdict.rule}")
        for ceiling in self.ceilings:
            if objection := ceiling.agent(name):
                return Verdict(ok=False, rule=objection)
        return IN_SCOPE

    def skill(self, skill: Skill) -> Verdict:
        """Whether this agent has a skill. Its folder is the operator's, so no ceiling's paths bind it: `skills` does."""
        if self.exposure is Exposure.TOOLS:
            return Verdict(ok=False, rule="tool_exposure is tools")
        if not (verdict := self.skills.verdict(skill.plugin)).ok:
            return Verdict(ok=False, rule=f"skills: {verdict.rule}")
        objections = (each.skill(skill) for each in self.ceilings)
        if objection := next(filter(None, (*objections, *map(self._closed, (skill.file, skill.cli)))), None):
            return Verdict(ok=False, rule=objection)
        if not self.configured:
            return Verdict(ok=False, rule=NO_SCOPE)
        if self.unheld or not self.tool(SHELL).ok:
            return Verdict(ok=False, rule=f"it has no {SHELL} to use it with")
        return Verdict(ok=True, rule=verdict.rule)

    def having(self, skills: Iterable[Skill]) -> Self:
        """The same rights, and those of these skills that it may have."""
        return replace(self, shelf=tuple(each for each in skills if self.skill(each).ok))

    def exposes(self, plugin: str) -> Verdict:
        """Whether a plugin's tools are offered as tools."""
        if plugin and self.exposure is Exposure.SKILLS:
            return Verdict(ok=False, rule="tool_exposure is skills, and it is a plugin's")
        if plugin in (each.plugin for each in self.shelf):
            return Verdict(ok=False, rule=f"it has the skill {plugin} instead")
        return Verdict(ok=True, rule="exposed")

    def hands_on(self, door: str) -> bool:
        """Whether this agent may start others through a door: below the top only where its definition says so, by the
        door's name or by its role."""
        if self.leaf:
            return False
        return self.depth == 0 or self.orchestrates or door in (*(self.tools.allow or ()), *self.exits)

    @property
    def too_deep(self) -> str:
        """Why it starts nobody however it was named; empty: it may."""
        if self.depth < self.deepest:
            return ""
        return f"it is {self.depth} deep, and {self.deepest} is the limit (limits.max_depth)"

    def path(self, real: str, wish: Wish = "read") -> Verdict:
        """`real` is the name of the file that was opened, never the name that was asked for."""
        if shut := self.shut(real, wish):
            return Verdict(ok=False, rule=shut)
        if not self.configured:
            return Verdict(ok=False, rule=NO_SCOPE)
        if own := self._skilled(real, wish):
            objection = next(filter(None, (each.denied(real) for each in self.ceilings)), None)
            return Verdict(ok=objection is None, rule=objection or f"skill {own}")
        private = self.private(real)
        if wish == "write" and not self.writable and not private:
            return Verdict(ok=False, rule="the workspace is read-only")
        hit = first_match(self.patterns(wish, real), real)
        if hit is None:
            return Verdict(ok=False, rule=f"nothing allows {wish}")
        if not private:
            lifted = first_match((self.lifted.read if wish == "read" else self.lifted.write) or (), real)
            for ceiling in self.ceilings:
                objection = ceiling.path(real, wish, own_tmp=self.root != TMP)
                if objection and (ceiling.firm or lifted is None or ceiling.denied(real)):
                    return Verdict(ok=False, rule=objection)
        return Verdict(ok=True, rule=f"{wish} {hit}")

    def private(self, name: str) -> bool:
        """Whether a name is in the agent's own /tmp: not in a workspace or a place below /tmp that a pattern names."""
        return bool(self.tmp) and inside(name) and not is_a_place(name, self.root, self._named())

    def _named(self) -> Globs:
        return (*self.read, *self.write, *folders(self.shelf))

    def patterns(self, wish: Wish, name: str) -> Globs:
        """Those that speak for a name: `/tmp/**` speaks only for the agent's own /tmp."""
        said = self.read + folders(self.shelf) if wish == "read" else self.write
        shared = inside(name) and self.root != TMP and not self.private(name)
        return elsewhere(said) if shared else said

    def shut(self, real: str, wish: Wish = "read") -> str | None:
        """The rule that closes a place whatever allows it, or None."""
        if closed := self._closed(real):
            return closed
        hit = first_match(self.house, real)
        if hit is None or (self.made and matches(below(self.root), real)):
            return None
        return None if self._skilled(real, wish) else f"always closed {hit}"

    def _skilled(self, real: str, wish: Wish) -> str | None:
        """The pattern of the skill's folder that a place is in, if it is one of this agent's and is only to be read."""
        return first_match(folders(self.shelf), real) if self.shelf and wish == "read" else None

    def _closed(self, real: str) -> str | None:
        for globs, word in ((self.closed, "always closed"), (self.deny, "deny")):
            if hit := first_match(globs, real, ignore_case=True):
                return f"{word} {hit}"
        return None

    def command(self, text: str) -> Verdict:
        """Whether a command may be run at all; where it runs, and what it reaches there, is the sandbox's business."""
        if hit := shell_commands.blocked(text, self.commands):
            return Verdict(ok=False, rule=f"shell_commands deny {hit}")
        return Verdict(ok=True, rule="nothing denies it")

    def guards(self, real: str) -> bool:
        """Whether other programs obey what stands there. Then a wide grant does not speak for writing it: only one that
        names the place itself does."""
        if first_match(self.guarded, real, ignore_case=True) is None or self.private(real):
            return False
        outright = ["/" + "/".join(named(each)) for each in self.write if matches(each, real)]
        return any(
            matches(guard, real, ignore_case=True)
            and not any(matches(guard, place, ignore_case=True) for place in outright)
            for guard in self.guarded
        )

    def grants_write(self, real: str) -> bool:
        """Whether a write that is in scope was granted in advance, so that nobody is asked."""
        shared = inside(real) and not self.private(real)
        return (
            not self.guards(real)
            and first_match(elsewhere(self.granted) if shared else self.granted, real) is not None
        )

    def grants_command(self, text: str) -> Verdict:
        """The command of a skill goes by the skill's name, if the folder is the user's, which no agent writes."""
        own = {each.cli: each.plugin for each in self.shelf if each.source == "user"}
        return shell_commands.need_not_ask(text, self.commands, own)

    def plus(self, real: str, wish: Wish) -> Self:
        """The same rights and this one file: a person allowed it, once."""
        one = (literal(real),)
        lifted = replace(self.lifted, **{wish: ((getattr(self.lifted, wish) or ()) + one)})
        if wish == "read":
            return replace(self, read=self.read + one, lifted=lifted)
        return replace(self, write=self.write + one, granted=self.granted + one, lifted=lifted)

    def under(self, bounds: Bounds) -> Self:
        """The same rights under what the operator denies now: a deny counts at once, a lifted one with the next run."""
        if not (bounds.deny_paths or bounds.deny_tools or bounds.deny_agents):
            return self
        paths = tuple(each for each in absolute(bounds.deny_paths, self.root) if each not in self.deny)
        tools = tuple(each for each in bounds.deny_tools if each not in self.operator.deny)
        agents = tuple(each for each in bounds.deny_agents if each not in self.agents.deny)
        if not paths and not tools and not agents:
            return self
        return replace(
            self,
            deny=self.deny + paths,
            operator=Rule(deny=self.operator.deny + tools),
            agents=replace(self.agents, deny=self.agents.deny + agents),
        ).having(self.shelf)

    @property
    def hash(self) -> str:
        shell = self.commands or ShellCommands()
        facts: dict[str, Any] = {
            "tools": self.tools.facts(),
            "capabilities": self.capabilities.facts(),
            "agents": self.agents.facts(),
            "operator": self.operator.facts(),
            "read": self.read,
            "write": self.write,
            "granted": self.granted,
            "deny": self.deny,
            "closed": _of_many(self.closed),
            "guarded": _of_many(self.guarded),
            "house": self.house,
            "root": self.root,
            "made": self.made,
            "tmp": self.tmp,
            "writable": self.writable,
            "configured": self.configured,
            "depth": [self.depth, self.orchestrates, self.leaf],
            "commands": [shell.allow, shell.deny, self.unheld],
            "ceilings": [each.facts() for each in self.ceilings],
            "lifted": [self.lifted.read, self.lifted.write],
        } | ({"exits": self.exits} if self.exits else {})
        if self.watches:
            facts["watches"] = True
        if self.exposure is not Exposure.TOOLS:
            facts["skills"] = [self.exposure, self.skills.facts(), [each.as_json() for each in self.shelf]]
        return _hashed(json.dumps(facts, sort_keys=True))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _of_many(patterns: Globs) -> str:
    """Hundreds that are the same for nearly every scope."""
    return _hashed(json.dumps(patterns))
