"""Scope: what a session may touch, compiled once per run and asked by everyone who decides."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from retinue.domain.agent import Agent, Paths
from retinue.domain.glob import first_match
from retinue.domain.prompt import SYSTEM_PREFIX

Globs = tuple[str, ...]

DEFAULT_DENY: Globs = ("**/.git/**", "**/runtime/**", "**/.env", "**/node_modules/**")
"""What a child is denied when nobody says otherwise (seed 000)."""

DEFAULT_WRITE: Globs = ("/tmp/**",)  # noqa: S108  (a pattern of the seed; it means the agent's private tmp)

NO_SCOPE = "no_scope_config"
"""The word for a child whose preset.md lost its paths."""

ALWAYS_CLOSED: Globs = (
    "**/.git/hooks/**", "**/.git/config", "**/.git/modules/**/config", "**/.git/modules/**/hooks/**",
    "**/.vscode/tasks.json", "**/.vscode/launch.json", "**/.idea/runConfigurations/**", "**/.zed/tasks.json",
    "**/.bashrc", "**/.bash_profile", "**/.bash_login", "**/.bash_logout", "**/.profile", "**/.zshrc", "**/.zshenv",
    "**/.zprofile", "**/.zlogin", "**/.config/fish/**", "**/.config/autostart/**", "**/.config/systemd/**",
    "**/.ssh/**", "**/.gnupg/**", "**/.aws/**", "**/.netrc", "**/.git-credentials", "**/.pgpass",
    "**/.docker/config.json", "**/.kube/**", "**/.npmrc", "**/.pypirc",
    "**/.config/gcloud/**", "**/.config/gh/**", "/proc/**", "/sys/**", "/dev/**", "/etc/shadow", "/etc/gshadow",
)  # fmt: skip
"""Never opened for an agent, whatever its scope says; Retinue's own home is added at run time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Allow and deny globs of one kind. Absent allow: no restriction. Deny wins."""

    allow: Globs | None = None
    deny: Globs = ()

    def verdict(self, value: str, *, ignore_case: bool = False) -> "Verdict":
        hit = first_match(self.deny, value, ignore_case=ignore_case)
        if hit is not None:
            return Verdict(ok=False, rule=f"deny {hit}")
        if self.allow is None:
            return Verdict(ok=True, rule="no list")
        hit = first_match(self.allow, value)
        return Verdict(ok=hit is not None, rule=f"allow {hit}" if hit else "nothing allows it")

    def permits(self, value: str) -> bool:
        return self.verdict(value).ok


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    ok: bool
    rule: str
    """The rule that decided, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Effective rights. The same object filters the tool list, judges calls and binds the file guard."""

    tools: Rule = Rule()
    capabilities: Rule = Rule()
    agents: Rule = Rule()
    operator: Rule = Rule()
    """The operator's denied tools: beats everything, `system_` included."""
    read: Globs = ()
    """Absolute patterns. No match is a refusal."""
    write: Globs = ()
    deny: Globs = ()
    closed: Globs = ALWAYS_CLOSED
    root: str = "/"
    """The workspace: relative paths start here."""
    writable: bool = True
    configured: bool = True
    """False for a child whose preset lost its paths: then no path is in scope."""
    most_read: Globs | None = None
    """The user's ceiling: what no definition widens. None: no word on this."""
    most_write: Globs | None = None
    most_tools: Rule = Rule()
    most_capabilities: Rule = Rule()

    def tool(self, name: str, capabilities: Iterable[str] = ()) -> Verdict:
        """Operator deny, then the tool globs, then every capability; the one function for listing and calling."""
        if not (verdict := self.operator.verdict(name)).ok:
            return Verdict(ok=False, rule=f"operator {verdict.rule}")
        if name.startswith(SYSTEM_PREFIX):
            return Verdict(ok=True, rule="the runtime's own")
        for rule, word in ((self.tools, "tools"), (self.most_tools, "the ceiling's tools")):
            if not (verdict := rule.verdict(name)).ok:
                return Verdict(ok=False, rule=f"{word}: {verdict.rule}")
        for capability in capabilities:
            for rule, word in (
                (self.capabilities, "capability"),
                (self.most_capabilities, "the ceiling's capability"),
            ):
                if not (verdict := rule.verdict(capability)).ok:
                    return Verdict(ok=False, rule=f"{word} {capability}: {verdict.rule}")
        return Verdict(ok=True, rule="in scope")

    def path(self, real: str, wish: Literal["read", "write"] = "read") -> Verdict:
        """`real` is the name of the file that was opened, never the name that was asked for."""
        for globs, word in ((self.closed, "always closed"), (self.deny, "deny")):
            if hit := first_match(globs, real, ignore_case=True):
                return Verdict(ok=False, rule=f"{word} {hit}")
        if not self.configured:
            return Verdict(ok=False, rule=NO_SCOPE)
        if wish == "write" and not self.writable:
            return Verdict(ok=False, rule="the workspace is read-only")
        own, most = (self.read, self.most_read) if wish == "read" else (self.write, self.most_write)
        hit = first_match(own, real)
        if hit is None:
            return Verdict(ok=False, rule=f"nothing allows {wish}")
        if most is not None and first_match(most, real) is None:
            return Verdict(ok=False, rule=f"the ceiling allows {wish} only in {', '.join(most) or 'nothing'}")
        return Verdict(ok=True, rule=f"{wish} {hit}")

    @property
    def hash(self) -> str:
        facts: dict[str, Any] = {
            "tools": _rule(self.tools),
            "capabilities": _rule(self.capabilities),
            "agents": _rule(self.agents),
            "operator": _rule(self.operator),
            "read": self.read,
            "write": self.write,
            "deny": self.deny,
            "closed": self.closed,
            "root": self.root,
            "writable": self.writable,
            "configured": self.configured,
            "most": [self.most_read, self.most_write, _rule(self.most_tools), _rule(self.most_capabilities)],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the operator says for every scope: what is denied live, what is closed, and the most anyone may have."""

    deny_tools: Globs = ()
    deny_paths: Globs = ()
    deny_agents: Globs = ()
    closed: Globs = ()
    """Retinue's own home and configuration."""
    ceiling: Paths = Paths()
    most_tools: Globs | None = None
    most_capabilities: Globs | None = None
    writable: bool = True


def compile_scope(
    agent: Agent,
    *,
    root: str,
    writable: bool = True,
    child: bool = False,
    bounds: Bounds = Bounds(),  # noqa: B008  (a frozen value)
) -> Scope:
    """`root` is the workspace; a definition without paths means the workspace, but for a child it means nothing:
    a child's paths were written into its preset, and one that lost them is not to gain by it."""
    paths, most = agent.paths or Paths(), bounds.ceiling
    return Scope(
        tools=Rule(allow=agent.tool_allow, deny=agent.tool_deny or ()),
        capabilities=Rule(allow=agent.capability_allow, deny=agent.capability_deny or ()),
        agents=Rule(allow=agent.agent_allow, deny=(agent.agent_deny or ()) + bounds.deny_agents),
        operator=Rule(deny=bounds.deny_tools),
        read=(below(root),) if paths.read is None else absolute(paths.read, root),
        write=absolute(paths.write or (), root),
        deny=absolute((*(paths.deny or ()), *(most.deny or ()), *bounds.deny_paths), root),
        closed=ALWAYS_CLOSED + bounds.closed,
        root=root,
        writable=writable and bounds.writable,
        configured=not child or agent.paths is not None,
        most_read=None if most.read is None else absolute(most.read, root),
        most_write=None if most.write is None else absolute(most.write, root),
        most_tools=Rule(allow=bounds.most_tools),
        most_capabilities=Rule(allow=bounds.most_capabilities),
    )


def absolute(patterns: Globs, root: str) -> Globs:
    """A pattern that starts neither with / nor with ** is relative to the workspace; one that ends in / is a
    folder and all that is in it."""
    return tuple(_absolute(pattern, root) for pattern in patterns)


def _absolute(pattern: str, root: str) -> str:
    if pattern == ".":
        return literal(root)
    if not pattern.startswith(("/", "**")):
        pattern = f"{literal(root).rstrip('/')}/{pattern.removeprefix('./')}"
    return f"{pattern}**" if pattern.endswith("/") else pattern


def below(root: str) -> str:
    """The pattern of a folder and all that is in it."""
    return "/**" if root == "/" else f"{literal(root)}/**"


def literal(path: str) -> str:
    """A real path as a pattern that means only itself: file names may hold `*` and `[`."""
    return "".join(f"\\{char}" if char in "*?[\\" else char for char in path)


def _rule(rule: Rule) -> list[list[str] | None]:
    return [None if rule.allow is None else sorted(rule.allow), sorted(rule.deny)]
