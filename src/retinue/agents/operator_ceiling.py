"""The operator's ceiling over definitions: excess permissions are removed and reported."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.glob import first_match, matches

Globs = tuple[str, ...]

_LISTS = (("tools", "tool_allow"), ("capabilities", "capability_allow"), ("agents", "agent_allow"))


def apply_operator_ceiling(agent: Agent, ceiling: Mapping[str, Any] | None) -> tuple[Agent, tuple[str, ...]]:
    """Return the agent within the ceiling, and a note for each permission removed.

    Paths are restricted later, where the workspace is known; what will be removed there is reported here.
    """
    if not ceiling:
        return agent, ()
    notes: list[str] = []
    for key, name in _LISTS:
        limit: Globs | None = ceiling.get(key)
        if limit is None:
            continue
        requested: Globs | None = getattr(agent, name)
        allowed = limit if requested is None else common_patterns(requested, limit)
        removed = (
            ("everything else",)
            if requested is None
            else tuple(each for each in requested if each not in allowed)
        )
        if removed:
            notes.append(f"{name}: {', '.join(removed)} removed by the operator's ceiling")
        agent = replace(agent, **{name: allowed})
    if ceiling.get("writable") is False and agent.workspace.writable is not False:
        notes.append("workspace.writable: removed by the operator's ceiling")
        agent = replace(agent, workspace=replace(agent.workspace, writable=False))
    if ceiling.get("network") is False and first_match(agent.tool_allow or (), "web_fetch"):
        notes.append("tool_allow: web_fetch removed by the operator's ceiling")
        agent = replace(agent, tool_deny=(*(agent.tool_deny or ()), "web_fetch"))
    return agent, (*notes, *_path_clip_notes(agent, ceiling.get("paths") or {}))


def _path_clip_notes(agent: Agent, path_ceiling: Mapping[str, Globs | None]) -> list[str]:
    notes: list[str] = []
    for key in ("read", "write"):
        limit = path_ceiling.get(key)
        requested: Globs = (getattr(agent.paths, key) if agent.paths is not None else None) or ()
        removed = (
            []
            if limit is None
            else [
                each
                for each in requested
                if not any(covers_pattern(limit_pattern, each) for limit_pattern in limit)
            ]
        )
        if limit is not None and removed:
            notes.append(
                f"paths.{key}: {', '.join(removed)} restricted to {', '.join(limit) or 'nothing'} by the operator's ceiling"
            )
    return notes


def common_patterns(requested: Globs, limit: Globs) -> Globs:
    """Return the patterns allowed by both lists: those of one list that a pattern of the other covers."""
    patterns = [each for each in requested if any(covers_pattern(other, each) for other in limit)]
    patterns += [each for each in limit if any(covers_pattern(other, each) for other in requested)]
    return tuple(dict.fromkeys(patterns))


def covers_pattern(wide: str, narrow: str) -> bool:
    """Return True only if every name matched by `narrow` is certainly matched by `wide`."""
    if wide == narrow:
        return True
    if not any(char in narrow for char in "*?[\\"):
        return matches(wide, narrow)
    if any(char in wide for char in "?[\\") or ("**" in narrow and "**" not in wide):
        return False
    return matches(wide, narrow)
