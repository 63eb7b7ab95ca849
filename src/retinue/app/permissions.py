"""Permissions of agents and sessions."""

from typing import Any, Literal

from msgspec.structs import replace

from retinue.app.context import AppContext
from retinue.app.references import find_session
from retinue.app.workspace_folder import current_folder
from retinue.domain.approval import ApprovalPolicy
from retinue.domain.ceiling import Ceiling
from retinue.domain.glob import first_match
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.rules import Globs, Verdict
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.skill import Skill
from retinue.errors import Failed, OutOfScope, Refused
from retinue.interfaces import RuntimeContext, Tool
from retinue.runtime import tool_executor
from retinue.runtime.session_scope import (
    compute_scope,
    find_sandbox_level,
    load_definition,
    restrict_to_sandbox_level,
    with_skills,
)
from retinue.runtime.startable_agents import startable_agents, with_agent_names

DEFAULT_AGENT = "general"

AccessKind = Literal["read", "write", "run", "tool", "agent"]


class PermissionService:
    """What agents and sessions may do."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._runtime = context.runtime

    async def tool_verdicts(
        self, *, agent: str | None = None, session: str | None = None, folder: str | None = None
    ) -> list[tuple[Tool, Verdict]]:
        """Return every known tool as a model would see it, with its permission verdict.

        Args:
            agent: For this agent; default `general`.
            session: For this session instead.
            folder: The folder the agent would work in; default is the current one.
        """
        scope, working_folder = await self._scope_and_folder(agent=agent, session=session, folder=folder)
        nameable_agents = startable_agents(
            scope, self._runtime.agents.list_definitions(working_folder), self._runtime
        )
        return [
            (
                replace(tool, spec=with_agent_names(tool, nameable_agents)),
                tool_executor.check_tool_allowed(tool, scope),
            )
            for _, tool in sorted(self._runtime.tools.items())
        ]

    async def scope(
        self, *, agent: str | None = None, session: str | None = None, folder: str | None = None
    ) -> Scope:
        """Return the scope of a session, or of an agent that would work in `folder`.

        The default folder is the current one.
        """
        return (await self._scope_and_folder(agent=agent, session=session, folder=folder))[0]

    async def _scope_and_folder(
        self, *, agent: str | None, session: str | None, folder: str | None
    ) -> tuple[Scope, str]:
        """Return the scope and its folder, whose project may add agents."""
        if session is not None:
            chosen = await find_session(session, self._context)
            scope = compute_scope(await load_definition(chosen, self._runtime), chosen, self._runtime)
            working_folder = chosen.workspace.intended_folder
        else:
            working_folder = folder or current_folder()
            agent_definition = self._runtime.agents.get(
                DEFAULT_AGENT if agent is None else agent, working_folder
            ).agent
            scope = build_scope(
                agent_definition, ScopeInputs(root=working_folder), self._runtime.operator_policy()
            )
            scope = with_skills(scope, agent_definition.name, working_folder, self._runtime)
        return restrict_to_sandbox_level(
            scope, await find_sandbox_level(self._runtime), self._runtime
        ), working_folder

    async def skill_verdicts(
        self, *, agent: str | None = None, session: str | None = None, folder: str | None = None
    ) -> list[tuple[Skill, Verdict]]:
        """Return every skill available to an agent or session in its folder, with its permission verdict."""
        scope = await self.scope(agent=agent, session=session, folder=folder)
        name, working_folder = agent or DEFAULT_AGENT, folder or current_folder()
        if session is not None:
            chosen = await find_session(session, self._context)
            name, working_folder = chosen.agent, chosen.workspace.intended_folder
        return [(each, scope.check_skill(each)) for each in self._runtime.find_skills(name, working_folder)]

    async def scope_json(self, session: str) -> dict[str, Any]:
        """Return what `scope show` prints: every rule that applies to a session, and who set it."""
        scope = await self.scope(session=session)
        level = await self._runtime.sandbox.detect_level()
        shell = scope.shell_commands
        return {
            "hash": scope.hash,
            "workspace": scope.root,
            "writable": scope.writable,
            "has_paths": scope.has_paths,
            "paths": {"read": scope.read, "write": scope.write, "deny": scope.deny},
            "preapproved": {"write": scope.preapproved_writes, "run": (shell and shell.allow) or ()},
            "denied_commands": (shell and shell.deny) or (),
            "tmp": scope.tmp_folder or None,
            "tools": {"allow": scope.tools.allow, "deny": scope.tools.deny},
            "capabilities": {"allow": scope.capabilities.allow, "deny": scope.capabilities.deny},
            "agents": {"allow": scope.agents.allow, "deny": scope.agents.deny},
            "skills": {
                "exposure": str(scope.tool_exposure),
                "allow": scope.skills.allow,
                "deny": scope.skills.deny,
                "available": [each.name for each in scope.available_skills],
            },
            "denied_by_operator": {"tools": scope.operator_tools.deny},
            "ceilings": [each.as_json() for each in scope.ceilings if _restricts_anything(each)],
            "granted_by_user": {"read": scope.user_grants.read, "write": scope.user_grants.write},
            "protected_paths": [*scope.closed_paths, *scope.retinue_paths],
            "guarded_paths": list(scope.guarded_paths),
            "approvals": str(self._runtime.approval_policy()),
            "sandbox": {
                "level": str(level),
                "minimum": str(self._runtime.minimum_sandbox_level),
                "blocked_reason": scope.shell_blocked_reason or None,
            },
        }

    async def check(self, session: str, kind: AccessKind, value: str) -> dict[str, Any]:
        """Return the verdict on one access, the rule behind it, and whether it would require approval.

        Args:
            session: The session.
            kind: `read`, `write`, `run`, `tool` or `agent`.
            value: A path, command or name.
        """
        scope = await self.scope(session=session)
        verdict, real_path = self._evaluate_access(scope, kind, value)
        needs_approval = verdict.ok and await self._requires_approval(scope, kind, real_path)
        if needs_approval and self._runtime.approval_policy() is ApprovalPolicy.DENY:
            verdict, needs_approval = Verdict(ok=False, rule="approvals = deny"), False
        return {
            "kind": kind,
            "value": value,
            "real_path": real_path,
            "ok": verdict.ok,
            "rule": verdict.rule,
            "requires_approval": needs_approval,
        }

    def _evaluate_access(self, scope: Scope, kind: AccessKind, value: str) -> tuple[Verdict, str]:
        if kind == "tool":
            tool = self._runtime.tools.get(value)
            if tool is None:
                return Verdict(ok=False, rule=f"unknown tool {value!r}"), value
            return tool_executor.check_tool_allowed(tool, scope), value
        if kind == "agent":
            return scope.check_agent(value), value
        if kind == "run":
            bash = self._runtime.tools.get("bash")
            result = (
                scope.check_command(value) if bash is None else tool_executor.check_tool_allowed(bash, scope)
            )
            return (scope.check_command(value) if result.ok else result), value
        files = self._runtime.sandbox.files_for(scope)
        real_path = files.real_path(value)
        try:
            result = files.check_access(value, kind)
        except OutOfScope as error:
            verdict = scope.check_path(real_path, kind)
            return (verdict if not verdict.ok else Verdict(ok=False, rule=str(error))), real_path
        except Failed:  # missing or cannot be opened now: the rules for its name still apply
            return scope.check_path(real_path, kind), real_path
        return scope.check_path(result, kind), result

    async def _requires_approval(self, scope: Scope, kind: AccessKind, real_path: str) -> bool:
        """Return whether an allowed access requires approval, by the same rules as for the built-in tools."""
        policy = str(self._runtime.approval_policy())
        if kind == "write":
            if self._runtime.sandbox.files_for(scope).is_guarded(real_path):
                return True
            return not (scope.is_write_preapproved(real_path) or policy == "auto")
        if kind == "run":
            is_strict = await self._runtime.sandbox.detect_level() is SandboxLevel.STRICT
            return not (is_strict and (policy == "auto" or scope.check_command_preapproved(real_path).ok))
        return False


def check_agent_allowed(name: str, runtime: RuntimeContext) -> None:
    """Raise Refused if the operator's configuration denies the agent."""
    if hit := first_match(runtime.operator_policy().deny_agents, name):
        raise Refused(f"The configuration denies the agent {name} (deny.agents: {hit}).")


def _restricts_anything(ceiling: Ceiling) -> bool:
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
