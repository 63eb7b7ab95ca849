"""The tool `mail`, whose calls have a side effect that a test can count."""

import asyncio

from retinue.interfaces import Tool
from retinue.tools.define import tool


def make_mail_tool(sent: list[str], *, hold: asyncio.Event | None = None, asks: str | None = "never") -> Tool:
    """Make the tool `mail`, which adds the recipient to `sent` and returns when `hold` is set."""

    @tool(name="mail", asks=asks)
    async def mail(to: str) -> str:
        """Sends a mail."""
        sent.append(to)
        if hold is not None:
            await hold.wait()
        return f"sent to {to}"

    return mail
