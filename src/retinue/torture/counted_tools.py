"""Tools with countable side effects.

Each call appends one line to a file that the runtime does not control.
"""

import asyncio
import os
from contextlib import suppress

from retinue.interfaces import Call
from retinue.tools.define import tool

EFFECTS_FILE = "effects.log"
EFFECTS_VARIABLE = "TORTURE_EFFECTS"
"""Environment variable with the path of that file."""
LINE_BYTES = 2 * 26 + 2
"""Length of a line: two ids, a space and a newline."""
PAUSE_SECONDS = 0.01
"""Pause before and after the side effect, so that a kill can fall there."""


async def _write_mark(call: Call) -> str:
    await asyncio.sleep(PAUSE_SECONDS)
    descriptor = os.open(os.environ[EFFECTS_VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{call.run.id} {call.id}\n".encode())
        # A fault may be injected here: the line is written, so the call reports success.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    await asyncio.sleep(PAUSE_SECONDS)
    return f"done({call.id})"


@tool(effect="once", asks="never")
async def mark(call: Call, label: str = "") -> str:  # noqa: ARG001  (makes calls differ, so that none counts as a loop)
    """Append a mark, which must not happen twice."""
    return await _write_mark(call)


@tool(effect="once")
async def sign(call: Call) -> str:
    """Append a mark, which requires approval."""
    return await _write_mark(call)
