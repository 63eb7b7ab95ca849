"""Tools whose effects can be counted from outside: each leaves one line in a file that no agent's runtime owns."""

import asyncio
import os
from contextlib import suppress

from retinue.interfaces import Call
from retinue.tools.define import tool

FILE = "effects.log"
LINE = 2 * 26 + 2
"""Bytes of a mark: two ids, a blank and the end of the line."""
MOMENT = 0.01
"""Seconds on either side of the effect, so that a kill has somewhere to fall."""


async def _left(call: Call) -> str:
    await asyncio.sleep(MOMENT)
    descriptor = os.open(
        f"{call.session.workspace.root}/{FILE}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    try:
        os.write(descriptor, f"{call.run.id} {call.id}\n".encode())
        with suppress(OSError):  # a fault may strike here: what is written has happened, and is told as such
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    await asyncio.sleep(MOMENT)
    return f"done({call.id})"


@tool(effect="once", asks="never")
async def mark(call: Call) -> str:
    """Leaves a mark, which must not happen twice."""
    return await _left(call)


@tool(effect="once")
async def sign(call: Call) -> str:
    """Leaves a mark that a person must have allowed."""
    return await _left(call)
