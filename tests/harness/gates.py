"""A tool that blocks until the test opens its gate, so that a run is in the middle of a call."""

import asyncio

from retinue.interfaces import Tool
from retinue.testing.scripted_provider import tool_call_reply
from retinue.tools.define import tool

PONDER_CALL = tool_call_reply(("ponder", "{}"))
"""A reply that calls the tool of `make_gated_tool`."""


def make_gated_tool(gate: asyncio.Event, started: asyncio.Event | None = None) -> Tool:
    """Make the tool `ponder`, which sets `started` and returns when `gate` is open."""

    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        if started is not None:
            started.set()
        await gate.wait()
        return "so"

    return ponder
