"""The fields of an agent definition: every accepted key, its other spellings, and its validator."""

import re
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import fields

from retinue.agents import validators
from retinue.agents.dialects import key_translators, path_patterns, permissions
from retinue.agents.dialects.key_translators import KeySupport, KeyTranslator, Translation
from retinue.agents.validators import InvalidValue, KeyPath, Validator
from retinue.domain.agent import AGENT_NAME, AgentType, Role, ToolExposure
from retinue.domain.limits import Limits
from retinue.domain.workspace import Isolation

_DECIMAL = re.compile(r"-?[0-9]{1,20}\.[0-9]{1,20}")

PartialDefinition = dict[str, Any]
"""Fields that one source defines, nested as in a definition; None clears a value from a lower source."""


class FieldResult(Struct, frozen=True, kw_only=True):
    """The outcome of interpreting one key of a source."""

    key: str
    value: Any
    verdict: KeySupport
    note: str = ""
    error: InvalidValue | None = None
    is_unknown: bool = False


def agent_name(raw_value: Any, path: KeyPath) -> str:
    text = validators.text_value(raw_value, path)
    if AGENT_NAME.fullmatch(text):
        return text
    slug = validators.slugify(text)
    suggestion = f", such as '{slug}'" if AGENT_NAME.fullmatch(slug) else ""
    raise InvalidValue(
        path,
        f"'{text[:80]}' is not a valid name; use a-z, 0-9 and hyphens, at most 64 characters{suggestion}",
    )


_PATH_GLOBS = validators.path_globs
_PATH_LISTS = {"read": _PATH_GLOBS, "write": _PATH_GLOBS, "deny": _PATH_GLOBS}
_PATHS = validators.map_with_keys(_PATH_LISTS | {"default_deny": validators.bool_value})
_COMMANDS = validators.map_with_keys({"allow": _PATH_GLOBS, "deny": _PATH_GLOBS})
_WORKSPACE = validators.map_with_keys(
    {
        "isolation": validators.one_of([str(each) for each in Isolation]),
        "path": validators.line_value,
        "writable": validators.bool_value,
    }
)
_CEILING = validators.map_with_keys(
    {
        "tools": validators.name_list,
        "capabilities": validators.name_list,
        "agents": validators.name_list,
        "skills": validators.name_list,
        "paths": validators.map_with_keys(_PATH_LISTS),
        "writable": validators.bool_value,
        "network": validators.bool_value,
    }
)
_LIMITS = validators.map_with_keys({each.name: validators.number_between(0, 1e9) for each in fields(Limits)})
_EXTERNAL = validators.map_with_keys(
    {"inputUrl": validators.line_value, "callbackBaseUrl": validators.line_value}
)
_ROLES = validators.list_of(validators.one_of([str(each) for each in Role]))


def ceiling_value(raw_value: Any, path: KeyPath) -> dict[str, Any]:
    return _CEILING(raw_value, path)


def _role_list(raw_value: Any, path: KeyPath) -> tuple[str, ...]:
    roles: tuple[str, ...] = _ROLES(
        list(validators.name_list(raw_value, path)) if isinstance(raw_value, str) else raw_value, path
    )
    if not roles:
        raise InvalidValue(path, "must name at least one role, or be left out")
    return tuple(dict.fromkeys(roles))


OUTPUT_SCHEMA = "output_schema"
_NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})


def output_schema(raw_value: Any, path: KeyPath) -> dict[str, Any]:
    """Validate the form of a JSON Schema; its content is checked when a run uses it, because that is slow to import."""
    return _with_numbers(validators.json_map(raw_value, path))


def _with_numbers(node: Any) -> Any:
    """Return a schema in which the limits of numbers are numbers: YAML keeps `0.5` as text."""
    if isinstance(node, list):
        return [_with_numbers(each) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", node).items():
        is_number = key in _NUMBER_KEYWORDS and isinstance(value, str) and _DECIMAL.fullmatch(value)
        found[key] = float(value) if is_number else _with_numbers(value)
    return found


_MAX_COUNT = 10_000_000

_FIELD_VALIDATORS: dict[str, Validator] = {
    "name": agent_name,
    "display_name": validators.line_value,
    "description": validators.text_value,
    "prompt": validators.text_value,
    "driver_settings": key_translators.validate_driver_settings,
    "temperature": validators.number_between(0, 2),
    "max_tokens": validators.integer_between(1, _MAX_COUNT),
    "max_turns": validators.integer_between(1, _MAX_COUNT),
    "type": validators.one_of([str(each) for each in AgentType]),
    "roles": _role_list,
    "tool_exposure": validators.one_of([str(each) for each in ToolExposure]),
    "skill_allow": validators.name_list,
    "skill_deny": validators.name_list,
    "capability_allow": validators.name_list,
    "capability_deny": validators.name_list,
    "agent_allow": validators.name_list,
    "agent_deny": validators.name_list,
    "ui_visible": validators.bool_value,
    "api_exposed": validators.bool_value,
    "paths": _PATHS,
    "shell_commands": _COMMANDS,
    "workspace": _WORKSPACE,
    "exits": validators.name_list,
    OUTPUT_SCHEMA: output_schema,
    "interrupts": validators.bool_value,
    "limits": _LIMITS,
    "ceiling": ceiling_value,
    "extends": agent_name,
    "external": _EXTERNAL,
    "notes": validators.json_map,
}
"""Fields whose value is used as written."""

_FIELD_TRANSLATORS: dict[str, KeyTranslator] = {
    "model": key_translators.translate_model,
    "fallback_models": key_translators.translate_fallback_models,
    "driver": key_translators.translate_driver,
    "thinking": key_translators.translate_thinking,
    "triggers": key_translators.translate_triggers,
    "tool_allow": key_translators.translate_tool_allow,
    "tool_deny": key_translators.translate_tool_deny,
}
"""Native fields whose value has several notations."""

EXTERNAL_NOTE = "external agents are not supported yet"
_UNUSED_FIELDS = {"api_exposed": "it has no effect"}
"""Fields reserved for later use, with the note that tells the author that they have no effect."""

_FIELD_NOTES: dict[str, str] = dict.fromkeys(
    ("skill_allow", "skill_deny"), "has an effect only if tool_exposure is skills or mixed"
)
"""Additional notes about fields."""

FIELD_NAMES = (*_FIELD_VALIDATORS, *_FIELD_TRANSLATORS)

KEY_ALIASES: dict[str, str] = {
    "agentName": "name", "agent_name": "name",
    "agentId": "name", "agent_id": "name", "id": "name", "slug": "name",
    "displayName": "display_name", "title": "display_name",
    "whenToUse": "description", "when_to_use": "description",
    "systemPrompt": "prompt", "system_prompt": "prompt", "system": "prompt", "instructions": "prompt",
    "developer_instructions": "prompt", "roleDefinition": "prompt",
    "fallbackModels": "fallback_models", "fallback-models": "fallback_models", "fallbacks": "fallback_models",
    "fallback_model": "fallback_models", "fallbackModel": "fallback_models", "fallback-model": "fallback_models",
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
    "shellCommands": "shell_commands", "outputSchema": "output_schema",
}  # fmt: skip
"""Other spellings of native fields; a definition may set each field only once."""

DISPLAY_ONLY_KEYS = (
    "color", "colour", "icon", "emoji", "category", "tags", "author", "version", "license", "vibe",
    "memory", "background", "initialPrompt", "argument-hint", "metadata", "created", "updated",
)  # fmt: skip
"""Keys that are stored among the notes, for display only."""

_FOREIGN_KEYS: dict[str, KeyTranslator] = {
    "chat": key_translators.translate_chat,
    "defaultWorkspace": key_translators.translate_default_workspace,
    "permissionOverrides": key_translators.translate_permission_overrides,
    "subagents": key_translators.translate_subagents,
    "isolation": key_translators.translate_isolation,
    **dict.fromkeys(("permissionMode", "permission_mode", "permission-mode"), key_translators.translate_permission_mode),
    **dict.fromkeys(("allowed_paths", "allowedPaths"), path_patterns.translate_allowed_paths),
    **dict.fromkeys(
        ("denied_paths", "deniedPaths", "forbidden_paths", "blocked_paths", "disallowed_paths"), path_patterns.translate_denied_paths
    ),
    "file_access": path_patterns.translate_file_access,
    "network_access": path_patterns.translate_network_access,
    "mode": key_translators.translate_mode,
    "permission": permissions.translate_permissions,
    "permissions": permissions.translate_permissions,
    **dict.fromkeys(("readonly", "readOnly", "read_only", "read-only"), key_translators.translate_read_only),
    **dict.fromkeys(("canEdit", "can_edit", "enable_write_tools"), key_translators.translate_can_edit),
    "sandbox_mode": key_translators.translate_sandbox_mode,
    "groups": key_translators.translate_tool_groups,
    "agents": key_translators.translate_agent_list,
    "spawns": key_translators.translate_agent_list,
    "disable": key_translators.refuse_disabled_agent,
    "disabled": key_translators.refuse_disabled_agent,
    "hidden": key_translators.translate_hidden,
    "promptPath": lambda raw_value, path: Translation(
        fields={"prompt_path": validators.line_value(raw_value, path)}, verdict=KeySupport.MAPPED, note="the file's text is the prompt"
    ),
    "hooks": key_translators.refuse_key("hooks are not supported, so they would block nothing; remove them"),
    **dict.fromkeys(
        ("mcpServers", "mcp-servers", "mcp_servers"),
        key_translators.refuse_key("servers are set up in the configuration, not in a definition; remove it"),
    ),
    **{key: key_translators.keep_as_note(key) for key in DISPLAY_ONLY_KEYS},
}  # fmt: skip
"""Keys that set native fields in another way, or that are refused or only stored."""

_OVERRIDES = {"permissionOverrides": ("defaultWorkspace",)}
"""Keys that override fields which other keys of the same definition set."""

KNOWN_KEYS = frozenset((*FIELD_NAMES, *KEY_ALIASES, *_FOREIGN_KEYS))


def interpret_fields(
    raw: Mapping[str, Any], path: KeyPath = ()
) -> tuple[PartialDefinition, list[FieldResult]]:
    """Interpret a source: its fields, and the result of each key. Never raises; errors are in the results."""
    partial: PartialDefinition = {}
    owners: dict[KeyPath, str] = {}
    denied_tools: tuple[str, ...] = ()
    read_only = False
    results: list[FieldResult] = []
    for key, raw_value in sorted(raw.items(), key=lambda item: item[0] in _OVERRIDES):
        try:
            translation = _translate_key(key, raw_value, (*path, key))
            _check_no_duplicates(translation.fields, key, owners, path)
        except InvalidValue as error:
            results.append(
                FieldResult(
                    key=key,
                    value=raw_value,
                    verdict=KeySupport.REFUSED,
                    note=error.problem,
                    error=error,
                    is_unknown=key not in KNOWN_KEYS,
                )
            )
            continue
        partial = merge_definitions(partial, translation.fields)
        denied_tools += translation.denied_tools
        read_only = read_only or translation.is_read_only
        results.append(
            FieldResult(key=key, value=raw_value, verdict=translation.verdict, note=translation.note)
        )
    if denied_tools:
        partial["tool_deny"] = tuple(dict.fromkeys((*(partial.get("tool_deny") or ()), *denied_tools)))
    if read_only:
        partial["workspace"] = merge_definitions(partial.get("workspace") or {}, {"writable": False})
    return partial, results


def merge_definitions(base: Mapping[str, Any], override: Mapping[str, Any]) -> PartialDefinition:
    """Merge definitions field by field, nested maps included; the override wins. A schema is replaced as a whole.

    None is kept, so that it clears values of lower sources too.
    """
    result: PartialDefinition = dict(base)
    for key, raw_value in override.items():
        base_value = result.get(key)
        result[key] = (
            merge_definitions(base_value, raw_value)  # pyright: ignore[reportUnknownArgumentType]  (partials are maps by text)
            if isinstance(base_value, dict) and isinstance(raw_value, dict) and key != OUTPUT_SCHEMA
            else raw_value
        )
    return result


def _translate_key(key: str, raw_value: Any, path: KeyPath) -> Translation:
    native = KEY_ALIASES.get(key, key)
    if key not in KNOWN_KEYS:
        raise InvalidValue(
            path,
            f"is not a known field{validators.known_names_hint(key, KNOWN_KEYS) or validators.known_names_hint(key, FIELD_NAMES)}",
        )
    if raw_value is None:
        return Translation(fields={native: None} if native in FIELD_NAMES else {})
    if native in _FIELD_VALIDATORS:
        note = f"as {native}" if native != key else ""
        is_external = native == "external" or (native == "type" and raw_value == str(AgentType.EXTERNAL))
        unused_note = EXTERNAL_NOTE if is_external else _UNUSED_FIELDS.get(native)
        return Translation(
            fields={native: _FIELD_VALIDATORS[native](raw_value, path)},
            verdict=KeySupport.KEPT if unused_note else KeySupport.HONOURED,
            note="; ".join(filter(None, (note, unused_note, _FIELD_NOTES.get(native)))),
        )
    return (_FIELD_TRANSLATORS.get(native) or _FOREIGN_KEYS[native])(raw_value, path)


def _check_no_duplicates(
    translated: Mapping[str, Any], key: str, owners: dict[KeyPath, str], path: KeyPath
) -> None:
    """Raise InvalidValue if two keys of one definition set the same field: choosing one would be a guess."""
    for leaf in _leaf_paths(translated, ()):
        for length in range(1, len(leaf) + 1):
            other_key = owners.get(leaf[:length])
            if other_key is not None and leaf[0] != "notes" and other_key not in _OVERRIDES.get(key, ()):
                raise InvalidValue(
                    (*path, key), f"is the same setting as '{other_key}'; remove one of the two"
                )
    owners.update(dict.fromkeys(_leaf_paths(translated, ()), key))


def _leaf_paths(translated: Mapping[str, Any], path: KeyPath) -> list[KeyPath]:
    found: list[KeyPath] = []
    for key, raw_value in translated.items():
        leaf_path = (*path, key)
        found += (
            _leaf_paths(raw_value, leaf_path)  # pyright: ignore[reportUnknownArgumentType]  (partials are maps by text)
            if isinstance(raw_value, dict) and raw_value and not path
            else [leaf_path]
        )
    return found
