"""The operator's ceiling over definitions: what asks for more is clipped, and the clipping is told."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from retinue.domain.agent import Agent
from retinue.domain.glob import first_match, matches

Globs = tuple[str, ...]

_LISTS = (("tools", "tool_allow"), ("capabilities", "capability_allow"), ("agents", "agent_allow"))


def clip(agent: Agent, ceiling: Mapping[str, Any] | None) -> tuple[Agent, tuple[str, ...]]:
    """The agent within the ceiling, and a sentence for each thing taken away. Paths are held to it where the workspace
    is known; what will be taken away there is told here."""
    if not ceiling:
        return agent, ()
    said: list[str] = []
    for key, name in _LISTS:
        limit: Globs | None = ceiling.get(key)
        if limit is None:
            continue
        asked: Globs | None = getattr(agent, name)
        within = limit if asked is None else common(asked, limit)
        gone = ("everything else",) if asked is None else tuple(each for each in asked if each not in within)
        if gone:
            said.append(f"{name}: {', '.join(gone)} taken away by the operator's ceiling")
        agent = replace(agent, **{name: within})
    if ceiling.get("writable") is False and agent.workspace.writable is not False:
        said.append("workspace.writable: taken away by the operator's ceiling")
        agent = replace(agent, workspace=replace(agent.workspace, writable=False))
    if ceiling.get("network") is False and first_match(agent.tool_allow or (), "web_fetch"):
        said.append("tool_allow: web_fetch taken away by the operator's ceiling")
        agent = replace(agent, tool_deny=(*(agent.tool_deny or ()), "web_fetch"))
    return agent, (*said, *_paths(agent, ceiling.get("paths") or {}))


def _paths(agent: Agent, most: Mapping[str, Globs | None]) -> list[str]:
    said: list[str] = []
    for key in ("read", "write"):
        limit = most.get(key)
        asked: Globs = (getattr(agent.paths, key) if agent.paths is not None else None) or ()
        gone = (
            [] if limit is None else [each for each in asked if not any(covers(wide, each) for wide in limit)]
        )
        if limit is not None and gone:
            said.append(
                f"paths.{key}: {', '.join(gone)} held to {', '.join(limit) or 'nothing'} by the operator's ceiling"
            )
    return said


def common(asked: Globs, limit: Globs) -> Globs:
    """Patterns that both allow: those of one list that some pattern of the other covers."""
    kept = [each for each in asked if any(covers(other, each) for other in limit)]
    kept += [each for each in limit if any(covers(other, each) for other in asked)]
    return tuple(dict.fromkeys(kept))


def covers(wide: str, narrow: str) -> bool:
    """Whether every word that `narrow` matches is surely matched by `wide`; in doubt, no."""
    if wide == narrow:
        return True
    if not any(char in narrow for char in "*?[\\"):
        return matches(wide, narrow)
    if any(char in wide for char in "?[\\") or ("**" in narrow and "**" not in wide):
        return False
    return matches(wide, narrow)
