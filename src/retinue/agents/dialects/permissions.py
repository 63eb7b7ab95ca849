"""Translate a permission map of another program; what it denies stays denied."""

from collections.abc import Mapping
from typing import Any, cast

from retinue.agents import validators
from retinue.agents.dialects import path_patterns, tool_names
from retinue.agents.dialects.key_translators import KeySupport, Translation
from retinue.agents.validators import InvalidValue, KeyPath

_ANSWER_VALIDATOR = validators.one_of(("allow", "ask", "deny"))
_TOOLS_BY_PERMISSION = {
    "edit": ("edit", "write"),
    "webfetch": ("web_fetch",),
    "list": ("ls",),
    "task": ("agent",),
    "question": ("ask_user",),
}
"""Native tools covered by a permission of the source."""
_PATTERN_TOOLS = ("read", "glob", "grep", "list", "task", "skill")
_WRITING_TOOLS = ("edit", "write")

_AnswersByPattern = dict[str, dict[str, str]]


def translate_permissions(value: Any, path: KeyPath) -> Translation:
    """Translate permissions: denied tools are denied; allowed and ask follow the native approval rules."""
    if isinstance(value, str):
        denied = ("*",) if _ANSWER_VALIDATOR(value, path) == "deny" else ()
        return Translation(
            fields={},
            denied_tools=denied,
            verdict=KeySupport.MAPPED,
            note="tool_deny: *" if denied else "the usual approval rules apply",
        )
    if not isinstance(value, dict) or any(
        not isinstance(each, str | dict) for each in cast("dict[Any, Any]", value).values()
    ):
        raise InvalidValue(path, "must be allow, ask or deny for each tool; use tools and paths instead")
    permissions = validators.string_map(cast("Any", value), path)
    answers, pattern_answers = _parse_answers(permissions, path)
    fields: dict[str, Any] = {"notes": {str(path[-1]): validators.json_value(value, path)}}
    is_allow_list = answers.pop("*", "ask") == "deny"
    denied_tools = _native_tools(
        tool for tool, answer in answers.items() if answer == "deny" and tool != "skill"
    )
    if is_allow_list:
        allowed = _native_tools(tool for tool, answer in answers.items() if answer != "deny")
        fields["tool_allow"] = tuple(each for each in allowed if each not in denied_tools)
        denied_tools = ()
    # Several tools can start agents here; agent_deny covers all of them.
    for tool, field in (("skill", "skill_deny"), ("task", "agent_deny")):
        fields |= {field: ("*",)} if answers.get(tool) == "deny" else {}
    fields |= _limits_by_pattern(pattern_answers)
    notes = [f"{key}: {_format_field(each)}" for key, each in fields.items() if key != "notes"]
    notes += [f"tool_deny: {', '.join(denied_tools)}"] if denied_tools else []
    return Translation(
        fields=fields,
        denied_tools=denied_tools,
        verdict=KeySupport.MAPPED,
        note="; ".join(notes) if notes else "the usual approval rules apply",
    )


def _format_field(found: Any) -> str:
    if isinstance(found, dict):
        nested = cast("dict[str, tuple[str, ...]]", found)
        return "; ".join(f"{key} {', '.join(each)}" for key, each in nested.items())
    return ", ".join(found) or "nothing"


def _parse_answers(permissions: Mapping[str, Any], path: KeyPath) -> tuple[dict[str, str], _AnswersByPattern]:
    """Return one answer per tool, and answers by pattern for files, agents and skills."""
    answers: dict[str, str] = {}
    pattern_answers: _AnswersByPattern = {}
    for tool, answer in permissions.items():
        if not isinstance(answer, dict):
            answers[tool] = _ANSWER_VALIDATOR(answer, (*path, tool))
            continue
        patterns = {
            key: _ANSWER_VALIDATOR(each, (*path, tool, key))
            for key, each in validators.string_map(cast("Any", answer), (*path, tool)).items()
        }
        general = patterns.pop("*", "ask")
        has_exceptions = any((each == "deny") != (general == "deny") for each in patterns.values())
        if has_exceptions and (tool in _PATTERN_TOOLS or (tool in _WRITING_TOOLS and general != "deny")):
            answers[tool], pattern_answers[tool] = "ask", {"*": general} | patterns
        else:
            # Commands cannot be distinguished and definitions grant no writes: a partial denial denies all.
            answers[tool] = "deny" if has_exceptions else general
    return answers, pattern_answers


def _limits_by_pattern(pattern_answers: _AnswersByPattern) -> dict[str, Any]:
    """Convert the patterns into native lists.

    If two tools list what may be read, only patterns allowed by both remain.
    """
    fields: dict[str, Any] = {}
    paths: dict[str, tuple[str, ...]] = {}
    for tool, patterns in pattern_answers.items():
        allowed = tuple(key for key, each in patterns.items() if each == "allow" and key != "*")
        denied = tuple(key for key, each in patterns.items() if each == "deny" and key != "*")
        is_allow_list = patterns["*"] == "deny"
        if tool in ("task", "skill"):
            kind = "agent" if tool == "task" else "skill"
            fields |= {f"{kind}_allow": tuple(map(_slug_or_pattern, allowed))} if is_allow_list else {}
            fields |= {f"{kind}_deny": tuple(map(_slug_or_pattern, denied))} if denied else {}
            continue
        if is_allow_list:
            earlier = paths.get("read")
            globs = tuple(path_patterns.workspace_glob(_glob_in_any_folder(each)) for each in allowed)
            paths["read"] = tuple(each for each in globs if earlier is None or each in earlier)
        if denied:
            paths["deny"] = tuple(dict.fromkeys((*paths.get("deny", ()), *map(_widen_denial, denied))))
    return fields | ({"paths": paths} if paths else {})


def _native_tools(tools: Any) -> tuple[str, ...]:
    found: list[str] = []
    for tool in tools:
        found += _TOOLS_BY_PERMISSION.get(tool) or tool_names.tools_for_foreign_name(tool)
    return tuple(dict.fromkeys(found))


def _slug_or_pattern(pattern: str) -> str:
    return pattern if "*" in pattern else validators.slugify(pattern) or pattern


def _glob_in_any_folder(pattern: str) -> str:
    """Convert a pattern without a folder, which means every folder in the source."""
    plain = pattern.removeprefix("./")
    return plain if "/" in plain else f"**/{plain}"


def _widen_denial(pattern: str) -> str:
    """Return a glob that denies at least as much: in the source, a star crosses folders."""
    return _glob_in_any_folder("**".join(part for part in pattern.replace("**", "*").split("*")))
