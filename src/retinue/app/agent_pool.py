"""The agent pool: list agents that can take more work, and retire them."""

from contextlib import suppress
from datetime import datetime

from retinue.app.home_access import HomeAccess
from retinue.domain import agent_pool
from retinue.domain.agent_pool import PooledSession, PoolEntry
from retinue.domain.session import Session
from retinue.errors import NotFound, Refused, RetinueError


async def list_pool_agents(home: HomeAccess) -> list[PoolEntry]:
    """Return the pool's agents, most recently used first.

    Agents whose session is deleted or whose preset is unreadable are left out.
    """
    runs = await home.ledger.read(lambda tx: tx.find_runs())
    pooled_by_session: dict[str, tuple[PooledSession, str, datetime]] = {}
    for pooled in agent_pool.available_sessions(agent_pool.pooled_sessions(runs), home.clock.now()):
        with suppress(RetinueError):
            session = await home.store.find(pooled.path)
            if not session.attributes.get(agent_pool.RETIRED_ATTRIBUTE):
                pooled_by_session[pooled.session_id] = (
                    pooled,
                    await _pool_key(home, session, pooled),
                    session.created_at,
                )
    return agent_pool.pool_entries(pooled_by_session)


async def _pool_key(home: HomeAccess, session: Session, pooled: PooledSession) -> str:
    agent, _ = await home.store.read_preset(session)
    return agent_pool.pool_key(agent, agent_pool.prompt_without_task(agent.prompt, pooled.task))


async def retire_pool_agents(home: HomeAccess, ref: str | None = None) -> list[PoolEntry]:
    """Retire one agent, or all idle ones: their ids become invalid, their sessions are kept.

    Raises:
        NotFound: The pool has no such agent.
        Refused: The agent is busy.
    """
    entries = await list_pool_agents(home)
    if ref is not None:
        entries = [
            entry for entry in entries if ref in (entry.pooled_session.slug, entry.pooled_session.session_id)
        ]
        if not entries:
            raise NotFound(f"No agent {ref} in the pool. List them with `retinue pool list`.")
        if entries[0].pooled_session.is_in_use:
            raise Refused(
                f"{ref} is busy. Wait until it is done, or stop its run with `retinue runs cancel`."
            )
    idle = [entry for entry in entries if not entry.pooled_session.is_in_use]
    for entry in idle:
        session = await home.store.find(entry.pooled_session.path)
        await home.store.update(
            session, attributes={**session.attributes, agent_pool.RETIRED_ATTRIBUTE: True}
        )
    return idle
