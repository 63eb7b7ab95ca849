"""The pool as a person sees it: which agents can still be asked more, and taking them out."""

from contextlib import suppress
from datetime import datetime

from retinue.app.sessions import Sessions
from retinue.domain import agent_pool
from retinue.domain.agent_pool import Entry, Use
from retinue.domain.session import Session
from retinue.errors import NotFound, Refused, RetinueError


async def pooled(app: Sessions) -> list[Entry]:
    """The latest used first. One whose session was deleted, or whose preset cannot be read, cannot be asked."""
    runs = await app.ledger.look(lambda tx: tx.runs())
    found: dict[str, tuple[Use, str, datetime]] = {}
    for use in agent_pool.standing(agent_pool.uses(runs), app.chance.now()):
        with suppress(RetinueError):
            session = await app.store.find(use.path)
            if not session.attributes.get(agent_pool.RETIRED):
                found[use.session] = (use, await _key(app, session, use), session.created_at)
    return agent_pool.entries(found)


async def _key(app: Sessions, session: Session, use: Use) -> str:
    agent, _ = await app.store.preset(session)
    return agent_pool.key(agent, agent_pool.unspecialised(agent.prompt, use.task))


async def cleared(app: Sessions, ref: str | None = None) -> list[Entry]:
    """Takes one agent out of the pool, or all that are idle: their ids name nobody any more, their conversations stay."""
    entries = await pooled(app)
    if ref is not None:
        entries = [entry for entry in entries if ref in (entry.use.agent_id, entry.use.session)]
        if not entries:
            raise NotFound(f"there is no agent {ref} in the pool: `retinue pool list` shows who is")
        if entries[0].use.in_use:
            raise Refused(f"{ref} is at work: wait for it, or stop its run with `retinue runs cancel`")
    idle = [entry for entry in entries if not entry.use.in_use]
    for entry in idle:
        session = await app.store.find(entry.use.path)
        await app.store.change(session, attributes={**session.attributes, agent_pool.RETIRED: True})
    return idle
