"""Ceilings: the maximum rights of a session because of the operator or its requesters."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from retinue.domain.glob import first_match
from retinue.domain.rules import Globs, Rule, absolute_patterns
from retinue.domain.skill import Skill
from retinue.domain.tmp_paths import is_under_tmp, without_private_tmp

FileAccess = Literal["read", "write"]
OPERATOR = "the configuration"
NETWORK_CAPABILITY = "network"
"""The capability of a tool that reaches beyond this machine."""


_STORED_NAMES = {"set_by": "by"}
"""Field → its name in stored JSON, where the two differ."""


class Ceiling(Struct, frozen=True, kw_only=True, rename=_STORED_NAMES):
    """The maximum rights set by the configuration or by one requester. None: no limit of that kind."""

    set_by: str
    """The configuration, or the slug of the session that delegated the work."""
    tools: Globs | None = None
    capabilities: Globs | None = None
    agents: Globs | None = None
    skills: Globs | None = None
    read: Globs | None = None
    """Absolute patterns, like all paths of a ceiling."""
    write: Globs | None = None
    deny: Globs = ()
    writable: bool = True
    network: bool | None = None

    @property
    def is_operator_ceiling(self) -> bool:
        """Return True for the operator's ceiling; a person's approval can exceed any other ceiling, but not this one."""
        return self.set_by == OPERATOR

    def tool_denial_reason(self, name: str, capabilities: Iterable[str]) -> str | None:
        """Return why a tool is denied, or None."""
        required = tuple(capabilities)
        if self.network is False and NETWORK_CAPABILITY in required:
            return f"{self} denies network access"
        if not (verdict := Rule(allow=self.tools).check(name)).ok:
            return f"{self}'s tools: {verdict.rule}"
        for capability in required:
            if not (verdict := Rule(allow=self.capabilities).check(capability)).ok:
                return f"{self}'s capability {capability}: {verdict.rule}"
        return None

    def agent_denial_reason(self, name: str) -> str | None:
        if self.agents is None:
            return None
        verdict = Rule(allow=self.agents).check(name)
        return None if verdict.ok else f"{self}'s agents: {verdict.rule}"

    def skill_denial_reason(self, skill: Skill) -> str | None:
        verdict = Rule(allow=self.skills).check(skill.name)
        denial = None if verdict.ok else f"{self}'s skills: {verdict.rule}"
        return denial or self.deny_list_reason(skill.file) or self.deny_list_reason(skill.cli)

    def path_denial_reason(self, real_path: str, access: FileAccess, *, own_tmp: bool = True) -> str | None:
        """Return why access to a file is denied, or None.

        `own_tmp`: /tmp patterns refer to the agent's private folder, and the file is not in it.
        """
        if denial := self.deny_list_reason(real_path):
            return denial
        if access == "write" and not self.writable:
            return f"{self} denies all writes"
        allowed = self.read if access == "read" else self.write
        patterns = (
            without_private_tmp(allowed)
            if allowed is not None and own_tmp and is_under_tmp(real_path)
            else allowed
        )
        if patterns is not None and first_match(patterns, real_path) is None:
            return (
                f"{self} allows {access} only in {', '.join(patterns)}"
                if patterns
                else f"{self} allows no {access} access"
            )
        return None

    def deny_list_reason(self, real_path: str) -> str | None:
        """Return which deny rule matches, or None; no approval overrides it."""
        pattern = first_match(self.deny, real_path, ignore_case=True)
        return None if pattern is None else f"{self} denies {pattern}"

    def __str__(self) -> str:
        return "the ceiling" if self.is_operator_ceiling else f"the ceiling of {self.set_by}"

    def as_json(self) -> dict[str, Any]:
        """Return the form stored in session.json."""
        return {
            "by": self.set_by,
            "tools": self.tools,
            "capabilities": self.capabilities,
            "agents": self.agents,
            "paths": {"read": self.read, "write": self.write, "deny": self.deny},
            "writable": self.writable,
            "network": self.network,
        } | ({} if self.skills is None else {"skills": self.skills})


class OperatorPolicy(Struct, frozen=True, kw_only=True):
    """The operator's policy for every scope: what is denied now, where Retinue's own files are, and the maximum rights."""

    deny_tools: Globs = ()
    deny_paths: Globs = ()
    deny_agents: Globs = ()
    retinue_paths: Globs = ()
    """Retinue's own home and configuration folders."""
    ceiling: Ceiling = Ceiling(set_by=OPERATOR)
    """The paths of this ceiling may be relative to each session's workspace."""


def parse_ceiling(fields: Mapping[str, Any] | None, *, set_by: str, root: str) -> Ceiling:
    """Parse a ceiling from a definition, the configuration or session.json.

    Relative patterns start at the workspace.
    """
    values = fields or {}
    paths: Mapping[str, Any] = values.get("paths") or {}
    return Ceiling(
        set_by=set_by,
        tools=_optional_globs(values.get("tools")),
        capabilities=_optional_globs(values.get("capabilities")),
        agents=_optional_globs(values.get("agents")),
        skills=_optional_globs(values.get("skills")),
        read=_absolute_globs(paths.get("read"), root),
        write=_absolute_globs(paths.get("write"), root),
        deny=_absolute_globs(paths.get("deny"), root) or (),
        writable=values.get("writable") is not False,
        network=values.get("network"),
    )


def _optional_globs(patterns: Iterable[str] | None) -> Globs | None:
    return None if patterns is None else tuple(patterns)


def _absolute_globs(patterns: Iterable[str] | None, root: str) -> Globs | None:
    return None if patterns is None else absolute_patterns(tuple(patterns), root)
