"""inbox: what became of the agents that were started from this conversation, for whoever asks instead of waiting."""

from typing import Annotated, Any

from retinue.domain.delivery import as_json, harmless
from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call
from retinue.runtime.inbox import Row, drained, waiting
from retinue.runtime.tool_executor import capped
from retinue.tools.define import tool
from retinue.tools.delegation.answer_json import said

MAX_ROWS = 100
"""That are taken at once; and that are shown of those that are not."""
MAX_SUMMARY = 20_000
MAX_WORDS = 100_000
"""Characters of one result, and of all together, that are shown; the whole stands in their transcripts."""


@tool(effect=Effect.READ, category="agents", looks=True)
async def inbox(
    call: Call,
    drain: Annotated[bool, "Take the results now, so that they are not announced to you again."] = False,
) -> str:
    """Look at what became of the agents you started: those still at work, and results that you have not heard of yet.
    Results also come by themselves at your next turn, so there is no need to ask again and again."""
    ports = call.ports
    if ports is None:
        raise Failed("there is no session to look from")
    taken = await drained(call.session.id, ports, by=call.id, most=MAX_ROWS) if drain else []
    rest = await ports.ledger.look(lambda tx: waiting(call.session.id, tx))
    rows = [*rest[:MAX_ROWS], *taken]
    room = min(MAX_SUMMARY, MAX_WORDS // max(1, len(rows)))
    return said(updates=[_shown(row, room) for row in rows], more=max(0, len(rest) - MAX_ROWS) or None)


def _shown(row: Row, room: int) -> dict[str, Any]:
    """A child's words are data: the JSON string holds them, and what looks like another speaker in them is marked."""
    facts = as_json(*row)
    for name in ("summary", "error", "label"):
        if facts[name] is not None:
            facts[name] = harmless(capped(facts[name], room))
    return {name: fact for name, fact in facts.items() if fact is not None}
