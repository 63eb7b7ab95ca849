"""The fields of a definition: every key that may stand in one, in our spelling and in others', and what it says."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from retinue.agents import validators
from retinue.agents.dialects import key_aliases, path_patterns, permissions
from retinue.agents.dialects.key_aliases import Handler, Said, Verdict
from retinue.agents.validators import Path, Reader, Wrong
from retinue.domain.agent import NAME, Exposure, Kind, Role
from retinue.domain.limits import Limits
from retinue.domain.value import value
from retinue.domain.workspace import Isolation

Partial = dict[str, Any]
"""What one source says, by native field and nested as in a definition; None clears what was said before."""


@value
class Reading:
    """What became of one key of a source."""

    key: str
    value: Any
    verdict: Verdict
    note: str = ""
    wrong: Wrong | None = None
    unknown: bool = False


def name(given: Any, path: Path) -> str:
    found = validators.text(given, path)
    if NAME.fullmatch(found):
        return found
    slug = validators.slugged(found)
    say = f"; '{slug}' would do" if slug else ""
    raise Wrong(path, f"'{found[:80]}' is not a name: use a-z, 0-9 and hyphens, at most 64{say}")


_GLOBS = validators.globs
_PATHS = validators.table({"read": _GLOBS, "write": _GLOBS, "deny": _GLOBS})
_COMMANDS = validators.table({"allow": _GLOBS, "deny": _GLOBS})
_WORKSPACE = validators.table(
    {
        "isolation": validators.one_of([str(each) for each in Isolation]),
        "path": validators.word,
        "writable": validators.flag,
    }
)
_CEILING = validators.table(
    {
        "tools": validators.names,
        "capabilities": validators.names,
        "agents": validators.names,
        "skills": validators.names,
        "paths": _PATHS,
        "writable": validators.flag,
        "network": validators.flag,
    }
)
_LIMITS = validators.table({each.name: validators.number(0, 1e9) for each in fields(Limits)})
_EXTERNAL = validators.table({"inputUrl": validators.word, "callbackBaseUrl": validators.word})
_ROLES = validators.listed(validators.one_of([str(each) for each in Role]))


def ceiling(given: Any, path: Path) -> dict[str, Any]:
    return _CEILING(given, path)


def _roles(given: Any, path: Path) -> tuple[str, ...]:
    found: tuple[str, ...] = _ROLES(
        list(validators.names(given, path)) if isinstance(given, str) else given, path
    )
    if not found:
        raise Wrong(path, "must name at least one role, or be left out")
    return tuple(dict.fromkeys(found))


_HUGE = 10_000_000

_NATIVE: dict[str, Reader] = {
    "name": name,
    "display_name": validators.word,
    "description": validators.text,
    "prompt": validators.text,
    "driver_settings": key_aliases.driver_settings,
    "temperature": validators.number(0, 2),
    "max_tokens": validators.whole(1, _HUGE),
    "max_turns": validators.whole(1, _HUGE),
    "type": validators.one_of([str(each) for each in Kind]),
    "roles": _roles,
    "tool_exposure": validators.one_of([str(each) for each in Exposure]),
    "skill_allow": validators.names,
    "skill_deny": validators.names,
    "capability_allow": validators.names,
    "capability_deny": validators.names,
    "agent_allow": validators.names,
    "agent_deny": validators.names,
    "ui_visible": validators.flag,
    "api_exposed": validators.flag,
    "paths": _PATHS,
    "shell_commands": _COMMANDS,
    "workspace": _WORKSPACE,
    "exits": validators.names,
    "interrupts": validators.flag,
    "limits": _LIMITS,
    "ceiling": ceiling,
    "extends": name,
    "external": _EXTERNAL,
    "notes": validators.open_map,
}
"""Fields whose value is taken as it stands."""

_HANDLED: dict[str, Handler] = {
    "model": key_aliases.model,
    "driver": key_aliases.driver,
    "thinking": key_aliases.thinking,
    "triggers": key_aliases.triggers,
    "tool_allow": key_aliases.tool_allow,
    "tool_deny": key_aliases.tool_deny,
}
"""Native fields whose value may be said in several ways."""

_IDLE = {"api_exposed": "it changes nothing"}
"""Fields that are kept for what may come: whoever wrote them is told that nothing obeys them."""

_NOTED: dict[str, str] = dict.fromkeys(
    ("skill_allow", "skill_deny"), "counts where tool_exposure is skills or mixed"
)
"""What must be known of a field beside what it says."""

NATIVE = (*_NATIVE, *_HANDLED)

ALIASES: dict[str, str] = {
    "agentName": "name", "agent_name": "name",
    "agentId": "name", "agent_id": "name", "id": "name", "slug": "name",
    "displayName": "display_name", "title": "display_name",
    "whenToUse": "description", "when_to_use": "description",
    "systemPrompt": "prompt", "system_prompt": "prompt", "system": "prompt", "instructions": "prompt",
    "developer_instructions": "prompt", "roleDefinition": "prompt",
    "backend": "driver", "provider": "driver",
    "driverSettings": "driver_settings",
    "maxTokens": "max_tokens", "maxTurns": "max_turns", "maxSteps": "max_turns",
    "steps": "max_turns",
    "effort": "thinking", "reasoningEffort": "thinking", "reasoning_effort": "thinking",
    "model_reasoning_effort": "thinking", "thinking_level": "thinking", "thinkingLevel": "thinking",
    "thinking-level": "thinking",
    "capabilities": "roles",
    "tools": "tool_allow", "toolAllowlist": "tool_allow", "tool_allowlist": "tool_allow",
    "allowed-tools": "tool_allow", "allowedTools": "tool_allow", "allowed_tools": "tool_allow",
    "toolDenylist": "tool_deny", "tool_denylist": "tool_deny",
    "disallowed-tools": "tool_deny", "disallowedTools": "tool_deny", "disallowed_tools": "tool_deny",
    "tools_allowed": "tool_allow", "tools_denied": "tool_deny", "denied_tools": "tool_deny",
    "denied-tools": "tool_deny", "deniedTools": "tool_deny", "exclude_tools": "tool_deny",
    "excludeTools": "tool_deny", "blockedTools": "tool_deny", "blocked_tools": "tool_deny",
    "restrictedTools": "tool_deny", "restricted_tools": "tool_deny", "forbiddenTools": "tool_deny",
    "forbidden_tools": "tool_deny",
    "toolExposure": "tool_exposure",
    "skillAllowlist": "skill_allow", "skillDenylist": "skill_deny", "skills": "skill_allow",
    "capabilityAllowlist": "capability_allow", "capabilityDenylist": "capability_deny",
    "agentAllowlist": "agent_allow", "agentDenylist": "agent_deny",
    "uiVisible": "ui_visible", "apiExposed": "api_exposed",
    "shellCommands": "shell_commands",
}  # fmt: skip
"""Other spellings of our fields: in one definition a field is said once."""

KEPT = (
    "color", "colour", "icon", "emoji", "category", "tags", "author", "version", "license", "vibe",
    "memory", "background", "initialPrompt", "argument-hint", "metadata", "created", "updated",
)  # fmt: skip
"""Keys that are stored among the notes, for show."""

_OTHER: dict[str, Handler] = {
    "chat": key_aliases.chat,
    "defaultWorkspace": key_aliases.default_workspace,
    "permissionOverrides": key_aliases.permission_overrides,
    "subagents": key_aliases.subagents,
    "isolation": key_aliases.isolation,
    **dict.fromkeys(("permissionMode", "permission_mode", "permission-mode"), key_aliases.permission_mode),
    **dict.fromkeys(("allowed_paths", "allowedPaths"), path_patterns.allowed_paths),
    **dict.fromkeys(
        ("denied_paths", "deniedPaths", "forbidden_paths", "blocked_paths", "disallowed_paths"), path_patterns.denied_paths
    ),
    "file_access": path_patterns.file_access,
    "network_access": path_patterns.network_access,
    "mode": key_aliases.mode,
    "permission": permissions.permission,
    "permissions": permissions.permission,
    **dict.fromkeys(("readonly", "readOnly", "read_only", "read-only"), key_aliases.read_only),
    **dict.fromkeys(("canEdit", "can_edit", "enable_write_tools"), key_aliases.may_write),
    "sandbox_mode": key_aliases.sandbox_mode,
    "groups": key_aliases.groups,
    "agents": key_aliases.agents,
    "spawns": key_aliases.agents,
    "disable": key_aliases.disabled,
    "disabled": key_aliases.disabled,
    "hidden": key_aliases.hidden,
    "promptPath": lambda given, path: Said(
        sets={"prompt_path": validators.word(given, path)}, verdict=Verdict.MAPPED, note="the file's text is the prompt"
    ),
    "hooks": key_aliases.refused("hooks are not run here, so what they stop is not stopped; remove them"),
    **dict.fromkeys(
        ("mcpServers", "mcp-servers", "mcp_servers"),
        key_aliases.refused("servers are set up by the operator, not by a definition; remove it"),
    ),
    **{key: key_aliases.kept(key) for key in KEPT},
}  # fmt: skip
"""Keys that say something about one or more of our fields in another way, or nothing here."""

KNOWN = frozenset((*NATIVE, *ALIASES, *_OTHER))


def interpret(raw: Mapping[str, Any], path: Path = ()) -> tuple[Partial, list[Reading]]:
    """What a source says, and for each of its keys what became of it. Never raises: a wrong key is in its reading."""
    partial: Partial = {}
    owners: dict[Path, str] = {}
    denied: tuple[str, ...] = ()
    read_only = False
    readings: list[Reading] = []
    for key, given in raw.items():
        try:
            said = _said(key, given, (*path, key))
            _claim(said.sets, key, owners, path)
        except Wrong as wrong:
            readings.append(
                Reading(
                    key=key,
                    value=given,
                    verdict=Verdict.REFUSED,
                    note=wrong.problem,
                    wrong=wrong,
                    unknown=key not in KNOWN,
                )
            )
            continue
        partial = merged(partial, said.sets)
        denied += said.denies
        read_only = read_only or said.read_only
        readings.append(Reading(key=key, value=given, verdict=said.verdict, note=said.note))
    if denied:
        partial["tool_deny"] = tuple(dict.fromkeys((*(partial.get("tool_deny") or ()), *denied)))
    if read_only:
        partial["workspace"] = merged(partial.get("workspace") or {}, {"writable": False})
    return partial, readings


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Partial:
    """Field by field, later wins, maps within fields too; None stays, so that it clears what lies further below."""
    result: Partial = dict(below)
    for key, given in above.items():
        under = result.get(key)
        result[key] = merged(under, given) if isinstance(under, dict) and isinstance(given, dict) else given  # pyright: ignore[reportUnknownArgumentType]  (partials are maps by text)
    return result


def _said(key: str, given: Any, path: Path) -> Said:
    native = ALIASES.get(key, key)
    if key not in KNOWN:
        raise Wrong(
            path, f"is not a known field{validators.hint(key, KNOWN) or validators.hint(key, NATIVE)}"
        )
    if given is None:
        return Said(sets={native: None} if native in NATIVE else {})
    if native in _NATIVE:
        note = f"as {native}" if native != key else ""
        idle = _IDLE.get(native)
        return Said(
            sets={native: _NATIVE[native](given, path)},
            verdict=Verdict.KEPT if idle else Verdict.HONOURED,
            note="; ".join(filter(None, (note, idle, _NOTED.get(native)))),
        )
    return (_HANDLED.get(native) or _OTHER[native])(given, path)


def _claim(sets: Mapping[str, Any], key: str, owners: dict[Path, str], path: Path) -> None:
    """Two keys of one definition never say the same thing: which one holds would be a guess."""
    for leaf in _leaves(sets, ()):
        for at in range(1, len(leaf) + 1):
            other = owners.get(leaf[:at])
            if other is not None and leaf[0] != "notes":
                raise Wrong((*path, key), f"says the same as '{other}'; keep one of the two")
    owners.update(dict.fromkeys(_leaves(sets, ()), key))


def _leaves(sets: Mapping[str, Any], path: Path) -> list[Path]:
    found: list[Path] = []
    for key, given in sets.items():
        here = (*path, key)
        found += _leaves(given, here) if isinstance(given, dict) and given and not path else [here]  # pyright: ignore[reportUnknownArgumentType]  (partials are maps by text)
    return found
