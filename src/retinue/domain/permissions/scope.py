"""Scope: the effective rights of a session, computed once per run and used by every permission check."""

import hashlib
import json
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from retinue.domain.agent import PathPatterns, ShellCommands, ToolExposure
from retinue.domain.ceiling import Ceiling, FileAccess
from retinue.domain.exit_tools import EXIT_TOOLS
from retinue.domain.glob import first_match, matches
from retinue.domain.limits import MAX_CONFIGURABLE_DEPTH
from retinue.domain.permissions import git_paths, shell_commands
from retinue.domain.permissions.guarded_paths import GUARDED_PATHS, patterns_in_dependencies
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED_PATHS
from retinue.domain.rules import (
    Globs,
    Rule,
    Verdict,
    escape_glob,
    literal_components,
    subtree_pattern,
)
from retinue.domain.skill import SHELL_TOOL, Skill, skill_folder_patterns
from retinue.domain.system_prompt import SYSTEM_PREFIX
from retinue.domain.tmp_paths import TMP, is_named_tmp_path, is_under_tmp, without_private_tmp
from retinue.domain.watch import INTERJECT_TOOL

DEFAULT_DENIED_PATHS: Globs = ("**/.git/**", "**/runtime/**", "**/.env", "**/node_modules/**")
"""Paths that a child is denied by default."""

DEFAULT_WRITABLE_PATHS: Globs = (f"{TMP}/**",)
"""The agent's private /tmp, a folder that no other agent sees."""

_HASH_FORM = 1
"""Increase it if a scope's hash changes for the same permissions."""

IN_SCOPE = Verdict(ok=True, rule="in scope")

NO_SCOPE_RULE = "no_scope_config"
"""Rule name for a child whose preset.md has lost its paths."""


_STORED_NAMES = {
    "tool_exposure": "exposure",
    "available_skills": "shelf",
    "operator_tools": "operator",
    "exit_tools": "exits",
    "preapproved_writes": "granted",
    "closed_paths": "closed",
    "guarded_paths": "guarded",
    "retinue_paths": "house",
    "is_worktree": "made",
    "workspace_label": "label",
    "tmp_folder": "tmp",
    "max_depth": "deepest",
    "is_orchestrator": "orchestrates",
    "is_leaf": "leaf",
    "is_watcher": "watches",
    "has_paths": "configured",
    "shell_commands": "commands",
    "shell_blocked_reason": "unheld",
    "user_grants": "lifted",
    "child_tmp_folders": "child_tmp",
}
"""Field → its name in stored JSON, where the two differ."""


class Scope(Struct, frozen=True, kw_only=True, rename=_STORED_NAMES):
    """The effective rights of a session.

    One object filters the tool list, checks tool calls, restricts file access and configures the sandbox.
    """

    tools: Rule = Rule()
    capabilities: Rule = Rule()
    agents: Rule = Rule()
    skills: Rule = Rule()
    tool_exposure: ToolExposure = ToolExposure.TOOLS
    available_skills: tuple[Skill, ...] = ()
    """The skills the agent has; it may read their folders, other agents may not."""
    operator_tools: Rule = Rule()
    """Tools denied by the operator; overrides everything, including `system_` tools."""
    exit_tools: Globs = ()
    """Tools with which the agent ends its run; available even if its tool list does not name them."""
    read: Globs = ()
    """Absolute patterns. A path that matches none is refused."""
    write: Globs = ()
    preapproved_writes: Globs = ()
    """Writes that need no approval, because the definition names them."""
    deny: Globs = ()
    closed_paths: Globs = ALWAYS_CLOSED_PATHS
    guarded_paths: Globs = GUARDED_PATHS
    retinue_paths: Globs = ()
    """Retinue's own folders, closed except for a worktree that was created for this agent."""
    root: str = "/"
    """The workspace: relative paths start here."""
    is_worktree: bool = False
    """The workspace is a worktree that Retinue created for this session."""
    git_dir: str = ""
    """Git's folder for this worktree, as it was recorded when Retinue created the worktree."""
    workspace_label: str = ""
    """Name of the workspace for display."""
    tmp_folder: str = ""
    """The real folder behind /tmp; empty if this agent has none."""
    writable: bool = True
    depth: int = 0
    """0 for a session that was not started by another one."""
    max_depth: int = MAX_CONFIGURABLE_DEPTH
    """Maximum depth; an agent at this depth cannot start others."""
    is_orchestrator: bool = False
    is_leaf: bool = False
    """The agent cannot start others, whatever its definition says."""
    is_watcher: bool = False
    """The session watches another one and has the watchers' tool."""
    has_paths: bool = True
    """False for a child whose preset lost its paths: then no path is in scope."""
    shell_commands: ShellCommands | None = None
    shell_blocked_reason: str = ""
    """Why no command may run: the sandbox is weaker than the operator requires. Empty if commands may run."""
    ceilings: tuple[Ceiling, ...] = ()
    """The configuration's ceiling, then those of the parents, outermost first. All of them apply."""
    user_grants: PathPatterns = field(default_factory=PathPatterns)
    """Paths a person allowed this session beyond a parent's ceiling."""
    child_tmp_folders: tuple[str, ...] = ()
    """Private /tmp folders of this agent's own sub-agents, which it may read."""

    def check_tool(self, name: str, capabilities: Iterable[str] = ()) -> Verdict:
        """Check the operator's denials, the tool globs and every capability; used for listing and calling
        alike.
        """
        if not (verdict := self.operator_tools.check(name)).ok:
            return Verdict(ok=False, rule=f"operator {verdict.rule}")
        if name.startswith(SYSTEM_PREFIX):
            return Verdict(ok=True, rule="a tool of the runtime")
        is_implied = name in self.exit_tools or (self.is_watcher and name == INTERJECT_TOOL)
        rule = Rule(deny=self.tools.deny) if is_implied else self.tools
        if not (verdict := rule.check(name)).ok:
            return Verdict(ok=False, rule=f"tools: {verdict.rule}")
        if name in EXIT_TOOLS:
            return self._check_exit_tool(name)
        if name == INTERJECT_TOOL:
            return Verdict(
                ok=self.is_watcher, rule="the agent is a watcher" if self.is_watcher else "only for watchers"
            )
        required = tuple(capabilities)
        for capability in required:
            if not (verdict := self.capabilities.check(capability)).ok:
                return Verdict(ok=False, rule=f"capability {capability}: {verdict.rule}")
        for ceiling in self.ceilings:
            if denial := ceiling.tool_denial_reason(name, required):
                return Verdict(ok=False, rule=denial)
        return IN_SCOPE

    def _check_exit_tool(self, name: str) -> Verdict:
        """Check an exit tool; it accesses nothing, so no ceiling applies."""
        if name in self.exit_tools:
            return Verdict(ok=True, rule="an exit tool of this agent")
        return Verdict(ok=False, rule="only for agents whose definition lists it in exits")

    def check_agent(self, name: str) -> Verdict:
        """Check whether this agent may see another agent and delegate to it."""
        if not (verdict := self.agents.check(name)).ok:
            return Verdict(ok=False, rule=f"agents: {verdict.rule}")
        for ceiling in self.ceilings:
            if denial := ceiling.agent_denial_reason(name):
                return Verdict(ok=False, rule=denial)
        return IN_SCOPE

    def check_skill(self, skill: Skill) -> Verdict:
        """Check whether this agent has a skill.

        The skill's folder is the operator's, so the paths of ceilings do not apply; their `skills` do.
        """
        if self.tool_exposure is ToolExposure.TOOLS:
            return Verdict(ok=False, rule="tool_exposure is tools")
        if not (verdict := self.skills.check(skill.name)).ok:
            return Verdict(ok=False, rule=f"skills: {verdict.rule}")
        denials = (each.skill_denial_reason(skill) for each in self.ceilings)
        if denial := next(
            filter(None, (*denials, *map(self._closed_or_denied_rule, (skill.file, skill.cli)))), None
        ):
            return Verdict(ok=False, rule=denial)
        if not self.has_paths:
            return Verdict(ok=False, rule=NO_SCOPE_RULE)
        if self.shell_blocked_reason or not self.check_tool(SHELL_TOOL).ok:
            return Verdict(ok=False, rule=f"using it requires the tool {SHELL_TOOL}")
        return Verdict(ok=True, rule=verdict.rule)

    def with_skills(self, skills: Iterable[Skill]) -> Self:
        """Return the scope with the skills that `check_skill` allows."""
        return replace(self, available_skills=tuple(each for each in skills if self.check_skill(each).ok))

    def check_plugin_exposed(self, plugin: str) -> Verdict:
        """Check whether a plugin's operations are offered as tools."""
        if plugin and self.tool_exposure is ToolExposure.SKILLS:
            return Verdict(ok=False, rule="tool_exposure is skills, and this tool belongs to a plugin")
        if plugin in (each.name for each in self.available_skills):
            return Verdict(ok=False, rule=f"use the skill {plugin} instead")
        return Verdict(ok=True, rule="exposed")

    def can_delegate(self, tool: str) -> bool:
        """Return True if this agent may start others with the delegation tool.

        Below the top level, its definition must allow it by the tool's name or by the orchestrator role.
        """
        if self.is_leaf:
            return False
        return (
            self.depth == 0 or self.is_orchestrator or tool in (*(self.tools.allow or ()), *self.exit_tools)
        )

    @property
    def depth_limit_reason(self) -> str:
        """Return why the depth limit keeps the agent from starting others; empty if it does not."""
        if self.depth < self.max_depth:
            return ""
        return f"its depth is {self.depth}, and the maximum is {self.max_depth} (limits.max_depth)"

    def check_path(self, real_path: str, access: FileAccess = "read") -> Verdict:
        """Check access to a file, by the real path that was opened, never the requested one."""
        if closing_rule := self.closing_rule(real_path, access):
            return Verdict(ok=False, rule=closing_rule)
        if not self.has_paths:
            return Verdict(ok=False, rule=NO_SCOPE_RULE)
        if shared_pattern := self._shared_folder_pattern(real_path, access):
            denial = next(filter(None, (each.deny_list_reason(real_path) for each in self.ceilings)), None)
            return Verdict(ok=denial is None, rule=denial or f"shared with this agent {shared_pattern}")
        if self._allows_own_git_path(real_path, access):
            return Verdict(ok=True, rule="git's files of this worktree")
        is_private = self.is_private_tmp(real_path)
        if access == "write" and not self.writable and not is_private:
            return Verdict(ok=False, rule="the workspace is read-only")
        pattern = first_match(self.patterns_for(access, real_path), real_path)
        if pattern is None:
            return Verdict(ok=False, rule=f"nothing allows {access}")
        if not is_private:
            granted_pattern = first_match(
                (self.user_grants.read if access == "read" else self.user_grants.write) or (), real_path
            )
            for ceiling in self.ceilings:
                denial = ceiling.path_denial_reason(real_path, access, own_tmp=self.root != TMP)
                if denial and (
                    ceiling.is_operator_ceiling
                    or granted_pattern is None
                    or ceiling.deny_list_reason(real_path)
                ):
                    return Verdict(ok=False, rule=denial)
        return Verdict(ok=True, rule=f"{access} {pattern}")

    def _allows_own_git_path(self, real_path: str, access: FileAccess) -> bool:
        """Return whether git needs this access to work in the worktree that was created for this session.

        Whoever may use the worktree may use them: of the ceilings only denied paths and the operator's apply.
        """
        common_dir = self.common_git_dir
        if not common_dir or not f"{real_path}/".startswith(f"{common_dir}/"):
            return False
        allowed = git_paths.worktree_access(real_path[len(common_dir) + 1 :], self.git_dir.rpartition("/")[2])
        if allowed not in (access, "write") or not self.check_path(self.root, access).ok:
            return False
        pointer = f"{self.root}/{git_paths.GIT_FOLDER}"
        return first_match(self.deny, pointer, ignore_case=True) is None and not any(
            each.deny_list_reason(real_path)
            or each.deny_list_reason(pointer)
            or (each.is_operator_ceiling and each.path_denial_reason(real_path, access))
            for each in self.ceilings
        )

    @property
    def common_git_dir(self) -> str:
        """Return the git folder that the worktree created for this session shares with others; empty if none."""
        return git_paths.common_git_dir(self.git_dir)

    @property
    def own_git_patterns(self) -> Globs:
        """Return the pattern of the repository that the worktree created for this session belongs to."""
        return (subtree_pattern(self.common_git_dir),) if self.git_dir else ()

    def is_private_tmp(self, name: str) -> bool:
        """Return True if a path is in the agent's own /tmp.

        A workspace below /tmp and paths below /tmp that a pattern names are not.
        """
        return (
            bool(self.tmp_folder)
            and is_under_tmp(name)
            and not is_named_tmp_path(name, self.root, self._path_patterns())
        )

    def _path_patterns(self) -> Globs:
        return (*self.read, *self.write, *self.shared_folder_patterns, *self.own_git_patterns)

    def patterns_for(self, access: FileAccess, name: str) -> Globs:
        """Return the patterns that apply to a path; `/tmp/**` applies only to the agent's own /tmp."""
        patterns = self.read + self.shared_folder_patterns if access == "read" else self.write
        is_shared_tmp = is_under_tmp(name) and self.root != TMP and not self.is_private_tmp(name)
        return without_private_tmp(patterns) if is_shared_tmp else patterns

    def closing_rule(self, real_path: str, access: FileAccess = "read") -> str | None:
        """Return the rule that closes a path whatever else allows it, or None."""
        if closed := self._closed_or_denied_rule(real_path):
            return closed
        pattern = first_match(self.retinue_paths, real_path)
        if pattern is None or (self.is_worktree and matches(subtree_pattern(self.root), real_path)):
            return None
        return None if self._shared_folder_pattern(real_path, access) else f"always closed {pattern}"

    @property
    def shared_folders(self) -> tuple[str, ...]:
        """Return the folders outside its workspace that Retinue lets this agent read as a whole."""
        return (*(each.folder for each in self.available_skills), *self.child_tmp_folders)

    @property
    def shared_folder_patterns(self) -> Globs:
        """Return patterns for the shared folders and everything in them."""
        skill_patterns = skill_folder_patterns(self.available_skills)
        if not self.child_tmp_folders:
            return skill_patterns
        return (*skill_patterns, *map(subtree_pattern, self.child_tmp_folders))

    def _shared_folder_pattern(self, real_path: str, access: FileAccess) -> str | None:
        """Return the pattern of the shared folder that contains the path, if access is read."""
        if access != "read" or not (self.available_skills or self.child_tmp_folders):
            return None
        return first_match(self.shared_folder_patterns, real_path)

    def _closed_or_denied_rule(self, real_path: str) -> str | None:
        for globs, word in ((self.closed_paths, "always closed"), (self.deny, "deny")):
            if pattern := first_match(globs, real_path, ignore_case=True):
                return f"{word} {pattern}"
        return None

    def check_command(self, text: str) -> Verdict:
        """Check whether a command may run at all; the sandbox enforces what it can access."""
        if denied := shell_commands.denied_text(text, self.shell_commands):
            return Verdict(ok=False, rule=f"shell_commands deny {denied}")
        return Verdict(ok=True, rule="nothing denies it")

    def is_guarded(self, real_path: str) -> bool:
        """Return True if other programs act on the file, so that a broad pattern does not allow writing it.

        Only a pattern that names the guarded path itself allows it.
        """
        patterns = self.guarded_paths
        if "/node_modules/" in real_path:
            patterns = patterns_in_dependencies(patterns)
        if first_match(patterns, real_path, ignore_case=True) is None or self.is_private_tmp(real_path):
            return False
        literal_prefixes = [
            "/" + "/".join(literal_components(each)) for each in self.write if matches(each, real_path)
        ]
        return any(
            matches(guard, real_path, ignore_case=True)
            and not any(matches(guard, path, ignore_case=True) for path in literal_prefixes)
            for guard in patterns
        )

    def guards_repository(self, folder: str) -> bool:
        """Return True if a git folder of any name is guarded, as `.git` is.

        Only a write pattern that names it, or something in it, allows writing it.
        """
        if not self.guarded_paths or self.is_private_tmp(folder):
            return False
        named = ("/" + "/".join(literal_components(each)) for each in self.write)
        return not any(
            path != self.root and (path == folder or path.startswith(f"{folder}/")) for path in named
        )

    def is_write_preapproved(self, real_path: str) -> bool:
        """Return True if a write in scope was allowed in advance, so that no approval is needed."""
        is_shared_tmp = is_under_tmp(real_path) and not self.is_private_tmp(real_path)
        return (
            not self.is_guarded(real_path)
            and first_match(
                without_private_tmp(self.preapproved_writes) if is_shared_tmp else self.preapproved_writes,
                real_path,
            )
            is not None
        )

    def check_command_preapproved(self, text: str) -> Verdict:
        """Check whether a command was allowed in advance.

        A skill's command counts under the skill's name if its folder is the user's, which no agent can write.
        """
        skill_names = {each.cli: each.name for each in self.available_skills if each.source == "user"}
        return shell_commands.check_preapproved(text, self.shell_commands, skill_names)

    def with_user_grant(self, real_path: str, access: FileAccess) -> Self:
        """Return the scope with access to this one file, which a person allowed once."""
        pattern = (escape_glob(real_path),)
        user_grants = replace(
            self.user_grants, **{access: ((getattr(self.user_grants, access) or ()) + pattern)}
        )
        if access == "read":
            return replace(self, read=self.read + pattern, user_grants=user_grants)
        return replace(
            self,
            write=self.write + pattern,
            preapproved_writes=self.preapproved_writes + pattern,
            user_grants=user_grants,
        )

    @property
    def hash(self) -> str:
        commands = self.shell_commands or ShellCommands()
        data: dict[str, Any] = {
            "tools": self.tools.sorted_patterns(),
            "capabilities": self.capabilities.sorted_patterns(),
            "agents": self.agents.sorted_patterns(),
            "operator": self.operator_tools.sorted_patterns(),
            "read": self.read,
            "write": self.write,
            "granted": self.preapproved_writes,
            "deny": self.deny,
            "closed": _patterns_hash(self.closed_paths),
            "guarded": _patterns_hash(self.guarded_paths),
            "house": self.retinue_paths,
            "root": self.root,
            "made": self.is_worktree,
            "tmp": self.tmp_folder,
            "writable": self.writable,
            "configured": self.has_paths,
            "depth": [self.depth, self.is_orchestrator, self.is_leaf],
            "commands": [commands.allow, commands.deny, self.shell_blocked_reason],
            "ceilings": [each.as_json() for each in self.ceilings],
            "lifted": [self.user_grants.read, self.user_grants.write],
        } | ({"exits": self.exit_tools} if self.exit_tools else {})
        if self.is_watcher:
            data["watches"] = True
        if self.git_dir:
            data["git_dir"] = self.git_dir
        if self.child_tmp_folders:
            data["child_tmp"] = self.child_tmp_folders
        if self.tool_exposure is not ToolExposure.TOOLS:
            data["skills"] = [
                self.tool_exposure,
                self.skills.sorted_patterns(),
                [each.as_json() for each in self.available_skills],
            ]
        return _short_hash(json.dumps(data, sort_keys=True))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def built_in_rules_version() -> str:
    """Return what differs between versions of Retinue that hash the same permissions differently."""
    return _short_hash(json.dumps([_HASH_FORM, ALWAYS_CLOSED_PATHS, GUARDED_PATHS]))


@lru_cache(maxsize=64)
def _patterns_hash(patterns: Globs) -> str:
    """Hash the patterns; cached, because there are many and nearly all scopes have the same."""
    return _short_hash(json.dumps(patterns))
