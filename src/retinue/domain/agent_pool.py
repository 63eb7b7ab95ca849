"""The agent pool: finished agents that stay available to their requester for further tasks."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from retinue.domain.agent import Agent
from retinue.domain.run import Run
from retinue.domain.system_prompt import base_prompt, first_message, task_section
from retinue.domain.timestamps import iso_timestamp

POOLED_TOOLS = frozenset({"agent", "explore", "plan"})
"""The delegation tools whose agents are pooled."""
ASK_TOOL = "agent_ask"
"""The delegation tool that gives a pooled agent another task."""
SUMMARY_KEY_SUFFIX = "~summary"
"""Key suffix of a run that only summarises; it belongs to the previous call and is not counted as a use."""
RETIRED_ATTRIBUTE = "retired"
"""Attribute of a session that a person removed from the pool."""
COPIED_FROM_ATTRIBUTE = "copied_from"
"""Attribute of an agent's session that was copied into a branch: the id of the original."""
MAX_POOLED = 10
IDLE_TIMEOUT = timedelta(minutes=5)
ALL_TOOLS = ""
NO_TOOLS = "|"
"""Fingerprint of an empty tool list, distinct from that of any list of names; ALL_TOOLS is that of no list."""


class PooledSession(Struct, frozen=True, kw_only=True):
    """One pooled session, as derived from its runs in the ledger."""

    session_id: str
    slug: str
    agent: str
    path: str
    parent_key: str
    """Key of the requesting session, the only one that may give it further tasks."""
    task: str
    """The task in the session's first message."""
    last_used_at: datetime
    is_working: bool
    """True while the task of the session is not finished."""
    is_in_use: bool
    """True while the agent is working or a person is talking with it."""
    use_count: int
    """Number of tasks the agent was given."""


class PoolEntry(Struct, frozen=True, kw_only=True):
    """A pooled agent that can be given another task."""

    pooled_session: PooledSession
    key: str
    created_at: datetime
    use_count: int
    """Number of tasks given to agents with this key."""


def pool_key(agent: Agent, prompt: str) -> str:
    """Return `agent-{name}@{promptHash}@{toolsHash}`, equal only for the same name, prompt and tools."""
    return f"agent-{agent.name}@{short_hash(prompt)}@{short_hash(tools_fingerprint(agent))}"


def tools_fingerprint(agent: Agent) -> str:
    """Return the agent's tools, sorted.

    Denied tools change what an agent can do, so they are included.
    """
    denied_names = [f"!{name}" for name in agent.tool_deny or ()]
    if agent.tool_allow is None:
        return "|".join(sorted(denied_names)) if denied_names else ALL_TOOLS
    return "|".join(sorted({*agent.tool_allow, *denied_names})) or NO_TOOLS


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def prompt_with_task(agent: Agent, task: str) -> str:
    """Return the definition's prompt followed by the task of this call."""
    return f"{base_prompt(agent)}\n\n{task_section(task)}"


def prompt_without_task(prompt: str, message: str) -> str:
    """Remove the task section, which repeats this first message, from a system prompt."""
    task = message.removeprefix(first_message("")).replace("\r\n", "\n")
    return prompt.removesuffix(task_section(task).rstrip("\n")).strip("\n")


def pooled_sessions(runs: Iterable[Run]) -> list[PooledSession]:
    """Return the pooled sessions among the runs, most recently used first.

    A person's message keeps a session busy but does not count as a use, so it does not extend the session's
    time in the pool.
    """
    by_session: dict[str, list[Run]] = {}
    for run in {each.id: each for each in runs}.values():
        by_session.setdefault(run.session_id, []).append(run)
    sessions = [session for each in by_session.values() if (session := _pooled_session(each)) is not None]
    return sorted(sessions, key=lambda session: (session.last_used_at, session.session_id), reverse=True)


def _pooled_session(runs: Sequence[Run]) -> PooledSession | None:
    pooled_runs = sorted((run for run in runs if _is_pooled_run(run)), key=lambda run: run.created_at)
    if not pooled_runs:
        return None
    first = pooled_runs[0]
    return PooledSession(
        session_id=first.session_id,
        slug=first.slug,
        agent=first.agent,
        path=first.transcript_path,
        parent_key=first.request.requester,
        task=first.request.task or "",
        last_used_at=max(run.ended_at or run.started_at or run.created_at for run in pooled_runs),
        is_working=any(run.status.is_live for run in pooled_runs),
        is_in_use=any(run.status.is_live for run in runs),
        use_count=sum(not run.request.key.endswith(SUMMARY_KEY_SUFFIX) for run in pooled_runs),
    )


def _is_pooled_run(run: Run) -> bool:
    is_pooled_tool = run.request.entry_point in POOLED_TOOLS or run.request.entry_point == ASK_TOOL
    return is_pooled_tool and run.request.keep_session and run.request.parent_run is not None


def available_sessions(sessions: Sequence[PooledSession], now: datetime) -> list[PooledSession]:
    """Return the sessions that can be given another task.

    These are all working sessions, and the most recently used idle ones within the pool's size and idle timeout.
    `sessions` must be in the order of `pooled_sessions`, so that a session that left the pool does not return.
    """
    free_places = MAX_POOLED - sum(session.is_working for session in sessions)
    available: list[PooledSession] = []
    for session in sessions:
        if not session.is_working:
            free_places -= 1
        if session.is_working or (free_places >= 0 and now - session.last_used_at < IDLE_TIMEOUT):
            available.append(session)
    return available


def pool_entries(by_session: Mapping[str, tuple[PooledSession, str, datetime]]) -> list[PoolEntry]:
    """Build the pool's entries from session id → (session, key, created at)."""
    counts: dict[str, int] = {}
    for session, key, _ in by_session.values():
        counts[key] = counts.get(key, 0) + session.use_count
    return [
        PoolEntry(pooled_session=session, key=key, created_at=created, use_count=counts[key])
        for session, key, created in by_session.values()
    ]


def pool_entry_as_json(entry: PoolEntry) -> dict[str, Any]:
    """Return a row of `pool list`."""
    name, prompt_hash, tools_hash = entry.key.removeprefix("agent-").split("@")
    return {
        "key": entry.key,
        "agent": name,
        "prompt_hash": prompt_hash,
        "tools_hash": tools_hash,
        "agent_id": entry.pooled_session.slug,
        "session_id": entry.pooled_session.session_id,
        "parent": entry.pooled_session.parent_key,
        "created_at": iso_timestamp(entry.created_at),
        "last_used_at": iso_timestamp(entry.pooled_session.last_used_at),
        "use_count": entry.use_count,
        "in_use": entry.pooled_session.is_in_use,
    }


def pool_stats(entries: Sequence[PoolEntry], now: datetime) -> dict[str, Any]:
    """Return what `pool stats` prints. Ages are in seconds since the agent was created."""
    ages = [round((now - entry.created_at).total_seconds(), 1) for entry in entries]
    in_use = sum(entry.pooled_session.is_in_use for entry in entries)
    return {
        "total": len(entries),
        "in_use": in_use,
        "available": len(entries) - in_use,
        "max": MAX_POOLED,
        "idle_seconds": IDLE_TIMEOUT.total_seconds(),
        "oldest_age_seconds": max(ages, default=None),
        "newest_age_seconds": min(ages, default=None),
    }
