"""A map of permissions, tool by tool, as other programs write it: what it denies is held here too."""

from collections.abc import Mapping
from typing import Any, cast

from retinue.agents import validators
from retinue.agents.dialects import path_patterns, tool_names
from retinue.agents.dialects.key_aliases import Said, Verdict
from retinue.agents.validators import Path, Wrong

_ANSWERS = validators.one_of(("allow", "ask", "deny"))
_PERMITTED = {
    "edit": ("edit", "write"),
    "webfetch": ("web_fetch",),
    "list": ("ls",),
    "task": ("agent",),
    "question": ("ask_user",),
}
"""Where one permission there covers tools that have other names here."""
_TOLD_APART = ("read", "glob", "grep", "list", "task", "skill")
_WRITING = ("edit", "write")

_ByPattern = dict[str, dict[str, str]]


def permission(value: Any, path: Path) -> Said:
    """What is denied is taken away; what is allowed or asked is judged here by our own rules."""
    if isinstance(value, str):
        denied = ("*",) if _ANSWERS(value, path) == "deny" else ()
        return Said(
            sets={}, denies=denied, verdict=Verdict.MAPPED, note="tool_deny: *" if denied else "asks as ever"
        )
    if not isinstance(value, dict) or any(
        not isinstance(each, str | dict) for each in cast("dict[Any, Any]", value).values()
    ):
        raise Wrong(path, "must answer allow, ask or deny for each tool; say it with tools and paths instead")
    written = validators.mapping(cast("Any", value), path)
    whole, parts = _answers(written, path)
    sets: dict[str, Any] = {"notes": {str(path[-1]): validators.anything(value, path)}}
    listed = whole.pop("*", "ask") == "deny"
    denies = _each(tool for tool, answer in whole.items() if answer == "deny" and tool != "skill")
    if listed:
        allowed = _each(tool for tool, answer in whole.items() if answer != "deny")
        sets["tool_allow"] = tuple(each for each in allowed if each not in denies)
        denies = ()
    # There are several ways to other agents here; the list of agents closes all of them.
    for tool, field in (("skill", "skill_deny"), ("task", "agent_deny")):
        sets |= {field: ("*",)} if whole.get(tool) == "deny" else {}
    sets |= _limits(parts)
    say = [f"{key}: {_said(each)}" for key, each in sets.items() if key != "notes"]
    say += [f"tool_deny: {', '.join(denies)}"] if denies else []
    return Said(
        sets=sets, denies=denies, verdict=Verdict.MAPPED, note="; ".join(say) if say else "asks as ever"
    )


def _said(found: Any) -> str:
    if isinstance(found, dict):
        inside = cast("dict[str, tuple[str, ...]]", found)
        return "; ".join(f"{key} {', '.join(each)}" for key, each in inside.items())
    return ", ".join(found) or "nothing"


def _answers(written: Mapping[str, Any], path: Path) -> tuple[dict[str, str], _ByPattern]:
    """One answer for each tool, and the answers by pattern where files, agents or skills can be told apart here."""
    whole: dict[str, str] = {}
    parts: _ByPattern = {}
    for tool, answer in written.items():
        if not isinstance(answer, dict):
            whole[tool] = _ANSWERS(answer, (*path, tool))
            continue
        patterns = {
            key: _ANSWERS(each, (*path, tool, key))
            for key, each in validators.mapping(cast("Any", answer), (*path, tool)).items()
        }
        general = patterns.pop("*", "ask")
        excepted = any((each == "deny") != (general == "deny") for each in patterns.values())
        if excepted and (tool in _TOLD_APART or (tool in _WRITING and general != "deny")):
            whole[tool], parts[tool] = "ask", {"*": general} | patterns
        else:
            # Commands cannot be told apart here, and no definition grants writing: denied for some is denied for all.
            whole[tool] = "deny" if excepted else general
    return whole, parts


def _limits(parts: _ByPattern) -> dict[str, Any]:
    """The patterns as lists of ours. Where two tools have lists of what may be read, only what both allow stays."""
    sets: dict[str, Any] = {}
    paths: dict[str, tuple[str, ...]] = {}
    for tool, patterns in parts.items():
        allowed = tuple(key for key, each in patterns.items() if each == "allow" and key != "*")
        denied = tuple(key for key, each in patterns.items() if each == "deny" and key != "*")
        listed = patterns["*"] == "deny"
        if tool in ("task", "skill"):
            kind = "agent" if tool == "task" else "skill"
            sets |= {f"{kind}_allow": tuple(map(_name, allowed))} if listed else {}
            sets |= {f"{kind}_deny": tuple(map(_name, denied))} if denied else {}
            continue
        if listed:
            before = paths.get("read")
            here = tuple(path_patterns.workspace_glob(_place(each)) for each in allowed)
            paths["read"] = tuple(each for each in here if before is None or each in before)
        if denied:
            paths["deny"] = tuple(dict.fromkeys((*paths.get("deny", ()), *map(_wide, denied))))
    return sets | ({"paths": paths} if paths else {})


def _each(tools: Any) -> tuple[str, ...]:
    found: list[str] = []
    for tool in tools:
        found += _PERMITTED.get(tool) or tool_names.borrowed(tool)
    return tuple(dict.fromkeys(found))


def _name(pattern: str) -> str:
    return pattern if "*" in pattern else validators.slugged(pattern) or pattern


def _place(pattern: str) -> str:
    """A pattern without a folder means every folder there."""
    plain = pattern.removeprefix("./")
    return plain if "/" in plain else f"**/{plain}"


def _wide(pattern: str) -> str:
    """A star crosses folders there; a denial must not come out narrower."""
    return _place("**".join(part for part in pattern.replace("**", "*").split("*")))
