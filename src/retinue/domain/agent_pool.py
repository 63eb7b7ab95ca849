"""The pool: agents that were handed a task and kept, and for a while can be asked more by whoever handed it to them."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from retinue.domain.agent import Agent
from retinue.domain.run import Run, iso
from retinue.domain.system_prompt import base, first_message, task_section
from retinue.domain.value import value

STARTING = frozenset({"agent", "explore", "plan"})
"""The doors whose agents are pooled."""
ASKING = "agent_ask"
"""The door that asks one of them more."""
AGAIN = "~summary"
"""Ends the key of a run that only asks what an agent did: part of the call before it, and no use of its own."""
RETIRED = "retired"
"""The attribute of a session that a person took out of the pool."""
MOST = 10
IDLE = timedelta(minutes=5)
ALL_TOOLS = ""
NO_TOOLS = "|"
"""What is hashed for an empty list: no list of names reads so, and a missing list is another matter."""


@value
class Use:
    """What the ledger knows of one pooled session."""

    session: str
    agent_id: str
    """The session's slug."""
    agent: str
    path: str
    parent: str
    """The key of the session that asked; nobody else can ask it more."""
    task: str
    """As its first message has it."""
    last_used_at: datetime
    working: bool
    """What it was given is not done yet."""
    in_use: bool
    """It is working, or a person talks with it."""
    count: int
    """How often it was given something to do."""


@value
class Entry:
    """One agent that can be asked more."""

    use: Use
    key: str
    created_at: datetime
    use_count: int
    """Of the key: how often this very definition was given something to do."""


def key(agent: Agent, prompt: str) -> str:
    """`agent-{name}@{promptHash}@{toolsHash}`: two agents share it only when name, prompt and tools are the same."""
    return f"agent-{agent.name}@{hashed(prompt)}@{hashed(tools_text(agent))}"


def tools_text(agent: Agent) -> str:
    """In any order the same. Tools that are taken away change what an agent can do, so they count."""
    denied = [f"!{name}" for name in agent.tool_deny or ()]
    if agent.tool_allow is None:
        return "|".join(sorted(denied)) if denied else ALL_TOOLS
    return "|".join(sorted({*agent.tool_allow, *denied})) or NO_TOOLS


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def specialised(agent: Agent, task: str) -> str:
    """The system message of one call: what the definition says, and this call's task."""
    return f"{base(agent)}\n\n{task_section(task)}"


def unspecialised(prompt: str, message: str) -> str:
    """What the definition said, of a system message made for the task of this first message."""
    task = message.removeprefix(first_message("")).replace("\r\n", "\n")
    return prompt.removesuffix(task_section(task).rstrip("\n")).strip("\n")


def uses(runs: Iterable[Run]) -> list[Use]:
    """The pooled sessions among these runs, the latest used first. What a person says to one of them keeps it busy and
    is no use of it: it neither stays for that nor comes back."""
    by_session: dict[str, list[Run]] = {}
    for run in {each.id: each for each in runs}.values():
        by_session.setdefault(run.session_id, []).append(run)
    found = [use for each in by_session.values() if (use := _use(each)) is not None]
    return sorted(found, key=lambda use: (use.last_used_at, use.session), reverse=True)


def _use(runs: Sequence[Run]) -> Use | None:
    ours = sorted((run for run in runs if _pooled(run)), key=lambda run: run.created_at)
    if not ours:
        return None
    first = ours[0]
    return Use(
        session=first.session_id,
        agent_id=first.slug,
        agent=first.agent,
        path=first.path,
        parent=first.ask.requester,
        task=first.ask.task or "",
        last_used_at=max(run.ended_at or run.started_at or run.created_at for run in ours),
        working=any(run.status.live for run in ours),
        in_use=any(run.status.live for run in runs),
        count=sum(not run.ask.key.endswith(AGAIN) for run in ours),
    )


def _pooled(run: Run) -> bool:
    door = run.ask.door in STARTING or run.ask.door == ASKING
    return door and run.ask.keep and run.ask.parent_run is not None


def standing(found: Sequence[Use], now: datetime) -> list[Use]:
    """Those that can still be asked: all that are at work, and of the idle ones the latest used, as long as there is
    room and their time is not up. `found` is in the order of `uses`, so none that is out comes back in."""
    room = MOST - sum(use.working for use in found)
    kept: list[Use] = []
    for use in found:
        if not use.working:
            room -= 1
        if use.working or (room >= 0 and now - use.last_used_at < IDLE):
            kept.append(use)
    return kept


def entries(found: Mapping[str, tuple[Use, str, datetime]]) -> list[Entry]:
    """By session: its use, its key and when it was made."""
    counts: dict[str, int] = {}
    for use, each, _ in found.values():
        counts[each] = counts.get(each, 0) + use.count
    return [
        Entry(use=use, key=each, created_at=created, use_count=counts[each])
        for use, each, created in found.values()
    ]


def as_json(entry: Entry) -> dict[str, Any]:
    """A row of `pool list`."""
    name, prompt_hash, tools_hash = entry.key.removeprefix("agent-").split("@")
    return {
        "key": entry.key,
        "agent": name,
        "prompt_hash": prompt_hash,
        "tools_hash": tools_hash,
        "agent_id": entry.use.agent_id,
        "session_id": entry.use.session,
        "parent": entry.use.parent,
        "created_at": iso(entry.created_at),
        "last_used_at": iso(entry.use.last_used_at),
        "use_count": entry.use_count,
        "in_use": entry.use.in_use,
    }


def stats(found: Sequence[Entry], now: datetime) -> dict[str, Any]:
    """What `pool stats` prints. Ages are in seconds, since the agent was made."""
    ages = [round((now - entry.created_at).total_seconds(), 1) for entry in found]
    busy = sum(entry.use.in_use for entry in found)
    return {
        "total": len(found),
        "in_use": busy,
        "available": len(found) - busy,
        "max": MOST,
        "idle_seconds": IDLE.total_seconds(),
        "oldest_age_seconds": max(ages, default=None),
        "newest_age_seconds": min(ages, default=None),
    }
