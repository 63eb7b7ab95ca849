"""A tool that blocks until the test opens its gate, so that a run is in the middle of a call."""

import asyncio

from retinue.interfaces import Tool
from retinue.tools.define import tool


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
