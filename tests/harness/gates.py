"""A tool that takes its time: whoever calls it is at work until a test lets it go on."""

import asyncio

from retinue.interfaces import Tool
from retinue.tools.define import tool


def make_gated_tool(gate: asyncio.Event) -> Tool:
    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        await gate.wait()
        return "so"

    return ponder
