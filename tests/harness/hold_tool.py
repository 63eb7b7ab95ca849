"""A tool module with a tool that a test can hold: it returns when the test deletes a file."""

HOLD_TOOL = '''
import asyncio, os
from retinue import tool

@tool(effect="read")
async def hold(name: str) -> str:
    """Waits until the file of this name is gone."""
    while os.path.exists(name):
        await asyncio.sleep(0.01)
    return "held"
'''
