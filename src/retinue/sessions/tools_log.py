"""tools.org: one heading per tool call, for people who read logs in an outline. It is never read back."""

import re
from datetime import datetime

from retinue.domain.run import iso_seconds
from retinue.domain.transcript import Called, Returned
from retinue.sessions.markdown.writer import spelled

_ORG_SYNTAX = re.compile(r"(\n[ \t]*)(,*(?:\*|#\+))")
"""At the start of a line. Looked for by the end of the line before: that is many times as fast as `^`."""


def heading(called: Called, returned: Returned, started_at: datetime) -> str:
    """The call with its properties, its arguments and what came of it."""
    outcome = "ok" if returned.ok else "failed"
    tool, call = _flat(called.tool), _flat(called.id)
    return (
        f"* {tool} {call}\n"
        f":PROPERTIES:\n"
        f":ID: {call}\n"
        f":TOOL: {tool}\n"
        f":START: {iso_seconds(started_at)}\n"
        f":DURATION_MS: {returned.ms}\n"
        f":OUTCOME: {outcome}\n"
        f":END:\n"
        f"#+begin_src json\n{_block(called.args)}#+end_src\n"
        f"#+begin_example\n{_block(returned.text)}#+end_example\n\n"
    )


def _flat(text: str) -> str:
    return text if text.isalnum() and text.isascii() else " ".join(spelled(text).split())


def _block(text: str) -> str:
    """No line of it can end the block or open a heading."""
    if not text:
        return ""
    safe = spelled(text)
    if "*" in safe or "#+" in safe:
        safe = _ORG_SYNTAX.sub(r"\1,\2", f"\n{safe}")[1:]
    return safe if safe.endswith("\n") else f"{safe}\n"
