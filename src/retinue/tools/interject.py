"""interject: let a watcher comment on the session that it watches."""

from typing import Annotated, Literal

from retinue.domain.tool import Effect
from retinue.domain.watch import Severity
from retinue.errors import Failed
from retinue.interfaces import Call
from retinue.runtime.interjections import InterjectionText, post_interjection
from retinue.tools.define import tool

TURN_ENDED = "Posted. The watched turn was interrupted."
POSTED_TURN_ENDED = "Posted. The watched turn had already ended."
POSTED_AS_WARNING = "Posted as a warning: your definition does not allow you to interrupt the watched turn."
POSTED = "Posted. It is shown to the user immediately."


@tool(effect=Effect.IDEMPOTENT, category="agents", asks="never", inspects_runs=True)
async def interject(
    call: Call,
    severity: Annotated[
        Literal["info", "warning", "interrupt"],
        "info: not urgent. warning: it will cause harm soon. interrupt: ends the watched turn; for an action that is "
        "about to destroy work or send data out.",
    ],
    reason: Annotated[str, "What you saw, with its location or a quote, and why it matters."],
    suggestion: Annotated[str, "What should be done instead."] = "",
) -> str:
    """Post a comment on the session you watch. It is shown to the user immediately, and the user can
    forward or dismiss it. Use it only for what changes the next steps, once for each problem."""
    if call.context is None:
        raise Failed("This tool requires a watched session.")
    if not reason.strip():
        raise Failed("reason is empty. Describe what you saw, and why it matters.")
    comment = InterjectionText(
        severity=Severity(severity), reason=reason.strip(), suggestion=suggestion.strip()
    )
    saved = await post_interjection(comment, call, call.context)
    if comment.severity is not Severity.INTERRUPT:
        return POSTED
    if saved.severity is not Severity.INTERRUPT:
        return POSTED_AS_WARNING
    return TURN_ENDED if saved.interrupts else POSTED_TURN_ENDED
