"""Translate keys of other programs' agent definitions into native fields."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, cast

from msgspec import Struct

from retinue.agents import validators
from retinue.agents.dialects import tool_names
from retinue.agents.validators import InvalidValue, KeyPath
from retinue.domain.agent import Role, Thinking
from retinue.domain.cli_agent import InvalidSetting, parse_cli_settings
from retinue.domain.providers import PROVIDER_ALIASES, PROVIDERS
from retinue.domain.workspace import Isolation


class KeySupport(StrEnum):
    HONOURED = "honoured"
    """Same meaning as in the source."""
    MAPPED = "mapped"
    """Expressed by other native fields."""
    KEPT = "kept"
    """Stored and displayed, without effect."""
    REFUSED = "refused"
    """Not available here."""


class Translation(Struct, frozen=True, kw_only=True):
    """The translation of one key."""

    fields: Mapping[str, Any]
    """Native fields, nested as in a definition."""
    verdict: KeySupport = KeySupport.HONOURED
    note: str = ""
    denied_tools: tuple[str, ...] = ()
    """Tools that this key denies, whatever other keys allow."""
    is_read_only: bool = False
    """True if nothing may be changed, whatever other keys say about the workspace."""


KeyTranslator = Callable[[Any, KeyPath], Translation]

CLAUDE_MODELS = {
    "sonnet": "anthropic:claude-sonnet-5-5",
    "opus": "anthropic:claude-opus-5-5",
    "haiku": "anthropic:claude-haiku-5-5",
}
NATIVE_DRIVERS = (*PROVIDER_ALIASES, "external", "pydantic-ai")
FOREIGN_DRIVERS = {
    foreign_name: driver for spec in PROVIDERS.values() for foreign_name, driver in spec.foreign_names.items()
}
"""Other programs' names of providers, in lower case."""


def translate_model(value: Any, path: KeyPath) -> Translation:
    """Translate a model's name, a list of models to try in order, or a map of `primary` and `fallbacks`."""
    if isinstance(value, list):
        return _translate_model_list(cast("list[Any]", value), path)
    if isinstance(value, dict):
        return _translate_model_map(value, path)
    found = validators.line_value(value, path)
    if found == "inherit":
        return Translation(fields={"model": None}, verdict=KeySupport.MAPPED, note="the default model")
    if found in CLAUDE_MODELS:
        model_name = CLAUDE_MODELS[found]
        return Translation(
            fields={"model": model_name}, verdict=KeySupport.MAPPED, note=f"'{found}' is {model_name}"
        )
    return Translation(fields={"model": found})


def _translate_model_list(models: list[Any], path: KeyPath) -> Translation:
    if not models:
        raise InvalidValue(path, "must name at least one model")
    translated = {**translate_model(models[0], (*path, 0)).fields}
    if len(models) > 1:
        translated["fallback_models"] = tuple(
            _fallback_model(each, (*path, index)) for index, each in enumerate(models[1:], 1)
        )
    return Translation(
        fields=translated,
        verdict=KeySupport.MAPPED,
        note="the first is model, the others are fallback_models",
    )


def _translate_model_map(value: Any, path: KeyPath) -> Translation:
    found = validators.map_with_keys({"primary": translate_model, "fallbacks": translate_fallback_models})(
        value, path
    )
    if found.get("primary") is None:
        raise InvalidValue(path, "has no primary; name a model")
    translated = {**found["primary"].fields}
    if found.get("fallbacks") is not None:
        translated |= found["fallbacks"].fields
    return Translation(
        fields=translated, verdict=KeySupport.MAPPED, note="primary is model, fallbacks are fallback_models"
    )


def translate_fallback_models(value: Any, path: KeyPath) -> Translation:
    """Translate a list of models, or one text that separates them by commas."""
    if isinstance(value, str):
        value = [each for each in (part.strip() for part in value.split(",")) if each]
    raw = validators.list_of(validators.line_value)(value, path)
    models = tuple(_fallback_model(each, (*path, index)) for index, each in enumerate(raw))
    changed = [f"'{old}' is {new}" for old, new in zip(raw, models, strict=True) if old != new]
    return Translation(
        fields={"fallback_models": models},
        verdict=KeySupport.MAPPED if changed else KeySupport.HONOURED,
        note=", ".join(changed),
    )


def _fallback_model(value: Any, path: KeyPath) -> str:
    found = validators.line_value(value, path)
    if found == "inherit":
        raise InvalidValue(path, "must name a model")
    return CLAUDE_MODELS.get(found, found)


def translate_driver(value: Any, path: KeyPath) -> Translation:
    found = validators.line_value(value, path)
    if found in NATIVE_DRIVERS:
        return Translation(fields={"driver": found})
    provider = FOREIGN_DRIVERS.get(found.lower())
    if provider is None:
        raise InvalidValue(
            path,
            f"'{found[:60]}' is not a known driver{validators.known_names_hint(found, (*NATIVE_DRIVERS, *FOREIGN_DRIVERS))}",
        )
    return Translation(
        fields={"driver": provider}, verdict=KeySupport.MAPPED, note=f"'{found}' is the driver {provider}"
    )


def translate_thinking(value: Any, path: KeyPath) -> Translation:
    if isinstance(value, bool):
        level = Thinking.MEDIUM if value else Thinking.OFF
        return Translation(fields={"thinking": str(level)}, verdict=KeySupport.MAPPED, note=f"as {level}")
    found = validators.text_value(value, path)
    level_name = {"xhigh": "max", "minimal": "low", "none": "off"}.get(found)
    if level_name is not None:
        return Translation(
            fields={"thinking": level_name}, verdict=KeySupport.MAPPED, note=f"'{found}' is {level_name}"
        )
    return Translation(fields={"thinking": validators.one_of([str(each) for each in Thinking])(value, path)})


def translate_tool_allow(value: Any, path: KeyPath) -> Translation:
    if isinstance(value, dict):
        return _translate_tool_map(validators.string_map(cast("Any", value), path), path)
    return _translate_tool_list("tool_allow", value, path)


def translate_tool_deny(value: Any, path: KeyPath) -> Translation:
    return _translate_tool_list("tool_deny", value, path)


def _translate_tool_list(name: str, value: Any, path: KeyPath) -> Translation:
    tools = validators.name_list(value, path)
    for index, each in enumerate(tools):
        if "(" in each:
            raise InvalidValue(
                (*path, index),
                f"'{each[:60]}' limits a tool to certain arguments; write the tool's name only, "
                "and list commands that need no approval in shell_commands",
            )
    absent = [each for each in tools if name == "tool_deny" and each in tool_names.NARROWER_TOOLS]
    mapped = tuple(each for each in tools if each not in absent)
    native_tools = tool_names.native_tool_names(mapped)
    if native_tools == tools:
        return Translation(fields={name: native_tools})
    changed = [
        f"{each} is {tool_names.native_tool_name(each)}"
        for each in mapped
        if tool_names.native_tool_name(each) != each
    ]
    if absent:
        changed.append(f"no such tool here, nothing to deny: {', '.join(absent)}")
    return Translation(fields={name: native_tools}, verdict=KeySupport.MAPPED, note=", ".join(changed))


_TOOL_DETAIL_VALIDATOR = validators.map_with_keys(
    {
        "enabled": validators.bool_value,
        "mode": validators.one_of(("read", "write", "execute")),
        "notes": validators.text_value,
    }
)


def _translate_tool_map(found: Mapping[str, Any], path: KeyPath) -> Translation:
    """Translate a map of tools: either switches or details.

    Switches are `write: false`; details are `bash: {enabled: true, mode: read}`. A map with details lists all
    allowed tools.
    """
    if all(isinstance(each, bool) for each in found.values()):
        return _translate_tool_switches(found)
    if any(isinstance(each, list) for each in found.values()):
        raise InvalidValue(path, "groups the tools under other names; write one list of the allowed tools")
    details = {
        tool_names.native_tool_name(name): _TOOL_DETAIL_VALIDATOR(each, (*path, name))
        for name, each in found.items()
        if each is not None
    }
    allowed = tuple(name for name, each in details.items() if each.get("enabled") is not False)
    kept_details = {
        name: {key: detail for key, detail in each.items() if key != "enabled"}
        for name, each in details.items()
    }
    kept_details = {name: each for name, each in kept_details.items() if each}
    translated: dict[str, Any] = {"tool_allow": allowed}
    if kept_details:
        translated["notes"] = {"tools": kept_details}
    return Translation(
        fields=translated, verdict=KeySupport.MAPPED, note=f"tool_allow: {', '.join(allowed) or 'nothing'}"
    )


def _translate_tool_switches(found: Mapping[str, bool]) -> Translation:
    """Translate tool switches, which change a full set of tools.

    Only `"*": false` starts from an empty set.
    """
    enabled = tool_names.native_tool_names(
        tuple(name for name, each in found.items() if each and name != "*")
    )
    disabled_tools = tool_names.native_tool_names(
        tuple(name for name, each in found.items() if not each and name != "*")
    )
    if found.get("*") is False:
        return Translation(
            fields={"tool_allow": enabled},
            verdict=KeySupport.MAPPED,
            note=f"tool_allow: {', '.join(enabled) or 'nothing'}",
        )
    note = f"tool_deny: {', '.join(disabled_tools)}" if disabled_tools else "all tools are allowed"
    return Translation(fields={}, denied_tools=disabled_tools, verdict=KeySupport.MAPPED, note=note)


def validate_driver_settings(value: Any, path: KeyPath) -> dict[str, Any]:
    """Validate provider settings.

    An API key is refused, because definitions are copied into every session's folder.
    """
    found = validators.json_map(value, path)
    for key in ("api_key", "apiKey"):
        if key in found:
            raise InvalidValue(
                (*path, key),
                "contains an API key; put it into an environment variable and set api_key_env to its name",
            )
    return found


def check_cli_agent_settings(provider: str | None, settings: Mapping[str, Any] | None, path: KeyPath) -> None:
    """Raise InvalidValue if the settings of a CLI agent cannot be used."""
    try:
        parse_cli_settings(provider or "", settings or {})
    except InvalidSetting as error:
        raise InvalidValue((*path, error.key), str(error), separator=" ") from error


_CHAT_VALIDATOR = validators.map_with_keys(
    {
        "provider": translate_driver,
        "model": translate_model,
        "config": validate_driver_settings,
        "models": validators.name_patterns,
    }
)


def translate_chat(value: Any, path: KeyPath) -> Translation:
    found = _CHAT_VALIDATOR(value, path)
    translated: dict[str, Any] = {}
    for key in ("provider", "model"):
        if key in found:
            translated |= (
                found[key].fields
                if found[key] is not None
                else {"driver" if key == "provider" else key: None}
            )
    if "config" in found:
        translated["driver_settings"] = found["config"]
        check_cli_agent_settings(translated.get("driver"), found["config"], (*path, "config"))
    if found.get("models"):
        translated["notes"] = {"chat_models": list(found["models"])}
    return Translation(fields=translated, verdict=KeySupport.MAPPED, note="driver, model and driver_settings")


_WORKSPACE_VALIDATOR = validators.map_with_keys(
    {
        "mode": validators.one_of(("inherit", "shared", "sandbox", "custom")),
        "customPath": validators.line_value,
        "allowWrites": validators.bool_value,
        "label": validators.text_value,
    }
)


def translate_default_workspace(value: Any, path: KeyPath) -> Translation:
    found = _WORKSPACE_VALIDATOR(value, path)
    workspace: dict[str, Any] = {}
    if "mode" in found:
        workspace["isolation"] = "shared" if found["mode"] == "inherit" else found["mode"]
    if "customPath" in found:
        workspace["path"] = found["customPath"]
    if "allowWrites" in found:
        workspace["writable"] = found["allowWrites"]
    translated: dict[str, Any] = {"workspace": workspace}
    if found.get("label"):
        translated["notes"] = {"workspace_label": found["label"]}
    return Translation(fields=translated, verdict=KeySupport.MAPPED, note="workspace")


_OVERRIDES_VALIDATOR = validators.map_with_keys(
    dict.fromkeys(("allowWrites", "allowShell", "allowNetwork"), validators.bool_value)
)


def translate_permission_overrides(value: Any, path: KeyPath) -> Translation:
    """Translate overrides: a disabled permission is denied, an enabled one is merely not denied."""
    found = _OVERRIDES_VALIDATOR(value, path)
    translated: dict[str, Any] = {}
    if found.get("allowWrites") is not None:
        translated["workspace"] = {"writable": found["allowWrites"]}
    tools = (("allowShell", "bash"), ("allowNetwork", "web_fetch"))
    denied_tools = tuple(tool for key, tool in tools if found.get(key) is False)
    return Translation(
        fields=translated,
        denied_tools=denied_tools,
        verdict=KeySupport.MAPPED,
        note="workspace.writable and tool_deny",
    )


_SUBAGENTS_VALIDATOR = validators.map_with_keys(
    dict.fromkeys(("allowAgents", "allow_agents"), validators.name_list)
    | {"model": validators.line_value, "thinking": validators.line_value}
)


def translate_subagents(value: Any, path: KeyPath) -> Translation:
    found = _SUBAGENTS_VALIDATOR(value, path)
    translated: dict[str, Any] = {}
    for key in ("allowAgents", "allow_agents"):
        if key in found:
            translated["agent_allow"] = found[key]
    other_settings = {key: found[key] for key in ("model", "thinking") if found.get(key)}
    if other_settings:
        translated["notes"] = {"subagents": other_settings}
    return Translation(
        fields=translated,
        verdict=KeySupport.MAPPED,
        note="agent_allow; the model is set in the configuration",
    )


def translate_isolation(value: Any, path: KeyPath) -> Translation:
    if value == "worktree":
        return Translation(
            fields={"workspace": {"isolation": "sandbox", "writable": True}},
            verdict=KeySupport.MAPPED,
            note="a sandboxed workspace",
        )
    found = validators.one_of([str(each) for each in Isolation])(value, path)
    return Translation(
        fields={"workspace": {"isolation": found}}, verdict=KeySupport.MAPPED, note="workspace.isolation"
    )


def _read_only_translation() -> Translation:
    return Translation(
        fields={},
        denied_tools=tool_names.WRITING_TOOLS,
        is_read_only=True,
        verdict=KeySupport.MAPPED,
        note="read-only",
    )


def translate_read_only(value: Any, path: KeyPath) -> Translation:
    if validators.bool_value(value, path):
        return _read_only_translation()
    return Translation(fields={}, verdict=KeySupport.KEPT, note="restricts nothing")


def translate_can_edit(value: Any, path: KeyPath) -> Translation:
    if validators.bool_value(value, path):
        return Translation(fields={}, verdict=KeySupport.KEPT, note="restricts nothing")
    return Translation(
        fields={}, denied_tools=("write", "edit"), verdict=KeySupport.MAPPED, note="tool_deny: write, edit"
    )


def translate_sandbox_mode(value: Any, path: KeyPath) -> Translation:
    found = validators.line_value(value, path)
    if found == "read-only":
        return _read_only_translation()
    if found == "workspace-write":
        return Translation(
            fields={"notes": {"sandbox_mode": found}},
            verdict=KeySupport.KEPT,
            note="the usual approval rules apply",
        )
    raise InvalidValue(path, f"'{found[:40]}' would allow more than a definition can; remove it")


def refuse_disabled_agent(value: Any, path: KeyPath) -> Translation:
    if validators.bool_value(value, path):
        raise InvalidValue(path, "the agent is disabled in this file; remove the field to use it here")
    return Translation(fields={}, verdict=KeySupport.KEPT, note="restricts nothing")


def translate_agent_list(value: Any, path: KeyPath) -> Translation:
    """Translate the agents that may be called, by their names in the source."""
    agent_names = tuple(
        each if "*" in each else validators.slugify(each) or each
        for each in validators.name_list(value, path)
    )
    note = f"agent_allow: {', '.join(agent_names) or 'none'}"
    return Translation(fields={"agent_allow": agent_names}, verdict=KeySupport.MAPPED, note=note)


_TOOLS_BY_GROUP: dict[str, tuple[str, ...]] = {
    "read": ("read", "ls", "glob", "grep"),
    "edit": ("write", "edit"),
    "write": ("write", "edit"),
    "command": ("bash",),
    "execute": ("bash",),
    "browser": ("web_fetch",),
    "mcp": ("*.*",),
    "modes": ("agent",),
    "subtasks": ("agent",),
    "questions": ("ask_user",),
}
"""Tools granted by each group; every mode may also ask the user and keep a to-do list."""


def translate_tool_groups(value: Any, path: KeyPath) -> Translation:
    """Translate tool groups.

    A group limited to certain files is left out, because the limit cannot be enforced here.
    """
    allowed: list[str] = []
    skipped: list[str] = []
    for index, each in enumerate(validators.list_of(lambda item, _: item)(value, path)):
        first: Any = each[0] if isinstance(each, list) and each else each  # pyright: ignore[reportUnknownVariableType]  (a list as it was written)
        named = validators.one_of(tuple(_TOOLS_BY_GROUP))(first, (*path, index))
        if isinstance(each, list):
            skipped.append(named)
        else:
            allowed += _TOOLS_BY_GROUP[named]
    tools = tuple(dict.fromkeys((*allowed, "ask_user", "todo")))
    note = f"tool_allow: {', '.join(tools)}"
    note += f"; left out, because limited to some files: {', '.join(skipped)}" if skipped else ""
    return Translation(fields={"tool_allow": tools}, verdict=KeySupport.MAPPED, note=note)


def translate_permission_mode(value: Any, path: KeyPath) -> Translation:
    found = validators.line_value(value, path)
    if found == "plan":
        return _read_only_translation()
    if found in ("default", "manual"):
        return Translation(
            fields={"notes": {"permissionMode": found}},
            verdict=KeySupport.KEPT,
            note="the usual approval rules apply",
        )
    raise InvalidValue(
        path, f"'{found[:40]}' would approve calls in advance, which a definition cannot do; remove it"
    )


def translate_mode(value: Any, path: KeyPath) -> Translation:
    roles = {
        "primary": (Role.PRIMARY,),
        "subagent": (Role.SUBTASK,),
        "all": (Role.PRIMARY, Role.SUBTASK),
    }
    found = validators.one_of(tuple(roles))(value, path)
    role_names = tuple(str(each) for each in roles[found])
    return Translation(
        fields={"roles": role_names}, verdict=KeySupport.MAPPED, note=f"roles: {', '.join(role_names)}"
    )


def translate_hidden(value: Any, path: KeyPath) -> Translation:
    is_visible = not validators.bool_value(value, path)
    return Translation(
        fields={"ui_visible": is_visible}, verdict=KeySupport.MAPPED, note="ui_visible, inverted"
    )


_TRIGGERS_VALIDATOR = validators.map_with_keys(
    {"slash": validators.name_list, "hotkeys": validators.name_patterns, "hotkey": validators.line_value}
)


def translate_triggers(value: Any, path: KeyPath) -> Translation:
    found = _TRIGGERS_VALIDATOR(value, path)
    hotkey = found.pop("hotkey", None)
    if hotkey is not None:
        found["hotkeys"] = (*(found.get("hotkeys") or ()), hotkey)
    return Translation(fields={"triggers": found})


def keep_as_note(name: str) -> KeyTranslator:
    """Return a translator that stores the key among the notes."""

    def translate(value: Any, path: KeyPath) -> Translation:
        return Translation(
            fields={"notes": {name: validators.json_value(value, path)}},
            verdict=KeySupport.KEPT,
            note="stored for display only",
        )

    return translate


def refuse_key(reason: str) -> KeyTranslator:
    def translate(value: Any, path: KeyPath) -> Translation:  # noqa: ARG001  (the signature of KeyTranslator)
        raise InvalidValue(path, reason)

    return translate
