"""A ceiling: the most that a session may have because of someone above it, whatever its own definition says."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from retinue.domain.glob import first_match
from retinue.domain.rules import Globs, Rule, absolute
from retinue.domain.skill import Skill
from retinue.domain.tmp_paths import elsewhere, inside
from retinue.domain.value import value

Wish = Literal["read", "write"]
OPERATOR = "the configuration"
NETWORK = "network"
"""The capability of a tool that reaches beyond this machine."""


@value
class Ceiling:
    """One link of the chain from the configuration down to a session. None: this link says nothing of that kind."""

    by: str
    """Whose it is: the configuration, or the slug of the session that handed the work on."""
    tools: Globs | None = None
    capabilities: Globs | None = None
    agents: Globs | None = None
    skills: Globs | None = None
    read: Globs | None = None
    """Absolute patterns, as all of a ceiling's paths."""
    write: Globs | None = None
    deny: Globs = ()
    writable: bool = True
    network: bool | None = None

    @property
    def firm(self) -> bool:
        """The operator's holds whatever a person answers; another session's is widened by a person's word."""
        return self.by == OPERATOR

    def tool(self, name: str, capabilities: Iterable[str]) -> str | None:
        """The objection to a tool, or None."""
        tagged = tuple(capabilities)
        if self.network is False and NETWORK in tagged:
            return f"{self} lets nothing reach the network"
        if not (verdict := Rule(allow=self.tools).verdict(name)).ok:
            return f"{self}'s tools: {verdict.rule}"
        for capability in tagged:
            if not (verdict := Rule(allow=self.capabilities).verdict(capability)).ok:
                return f"{self}'s capability {capability}: {verdict.rule}"
        return None

    def agent(self, name: str) -> str | None:
        if self.agents is None:
            return None
        verdict = Rule(allow=self.agents).verdict(name)
        return None if verdict.ok else f"{self}'s agents: {verdict.rule}"

    def skill(self, skill: Skill) -> str | None:
        verdict = Rule(allow=self.skills).verdict(skill.plugin)
        objection = None if verdict.ok else f"{self}'s skills: {verdict.rule}"
        return objection or self.denied(skill.file) or self.denied(skill.cli)

    def path(self, real: str, wish: Wish, *, own_tmp: bool = True) -> str | None:
        """The objection to a file, or None. `own_tmp`: a pattern of /tmp means a folder of the agent's own, which
        this file is not in."""
        if denied := self.denied(real):
            return denied
        if wish == "write" and not self.writable:
            return f"{self} lets nothing be written"
        most = self.read if wish == "read" else self.write
        speak = elsewhere(most) if most is not None and own_tmp and inside(real) else most
        if speak is not None and first_match(speak, real) is None:
            return f"{self} allows {wish} only in {', '.join(speak) or 'nothing'}"
        return None

    def denied(self, real: str) -> str | None:
        """What nobody lifts for a session below: it can only be denied more."""
        hit = first_match(self.deny, real, ignore_case=True)
        return None if hit is None else f"{self} denies {hit}"

    def __str__(self) -> str:
        return "the ceiling" if self.firm else f"the ceiling of {self.by}"

    def facts(self) -> dict[str, Any]:
        """How it is stored with the session it binds."""
        return {
            "by": self.by,
            "tools": self.tools,
            "capabilities": self.capabilities,
            "agents": self.agents,
            "paths": {"read": self.read, "write": self.write, "deny": self.deny},
            "writable": self.writable,
            "network": self.network,
        } | ({} if self.skills is None else {"skills": self.skills})


@value
class Bounds:
    """What the operator says for every scope: what is denied live, what is closed, and the most anyone may have."""

    deny_tools: Globs = ()
    deny_paths: Globs = ()
    deny_agents: Globs = ()
    closed: Globs = ()
    """Retinue's own home and configuration."""
    ceiling: Ceiling = Ceiling(by=OPERATOR)
    """Its paths may be relative: they start at each session's workspace."""


def ceiling_of(said: Mapping[str, Any] | None, *, by: str, root: str) -> Ceiling:
    """As a definition, the configuration or session.json says it; relative patterns start at the workspace."""
    facts = said or {}
    paths: Mapping[str, Any] = facts.get("paths") or {}
    return Ceiling(
        by=by,
        tools=_globs(facts.get("tools")),
        capabilities=_globs(facts.get("capabilities")),
        agents=_globs(facts.get("agents")),
        skills=_globs(facts.get("skills")),
        read=_paths(paths.get("read"), root),
        write=_paths(paths.get("write"), root),
        deny=_paths(paths.get("deny"), root) or (),
        writable=facts.get("writable") is not False,
        network=facts.get("network"),
    )


def _globs(said: Iterable[str] | None) -> Globs | None:
    return None if said is None else tuple(said)


def _paths(said: Iterable[str] | None, root: str) -> Globs | None:
    return None if said is None else absolute(tuple(said), root)
