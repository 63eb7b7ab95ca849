"""interject: let a watcher comment on the session that it watches."""

from typing import Annotated, Literal

from retinue.domain.tool import Effect
from retinue.domain.watch import Severity
from retinue.errors import Failed
from retinue.interfaces import Call
from retinue.runtime.interjections import InterjectionText
from retinue.runtime.interjections import post_interjection as said
from retinue.tools.define import tool

TURN_ENDED = "It is said, and the turn that you watch is ended."
TURN_ALREADY_OVER = "It is said. The turn that you heard of had ended already."
SHOWN_AS_WARNING = "It is said, as a warning: your definition does not let you end the turn that you watch."
SHOWN = "It is said: a person sees it at once."


@tool(effect=Effect.IDEMPOTENT, category="agents", asks="never", inspects_runs=True)
async def interject(
    call: Call,
    severity: Annotated[
        Literal["info", "warning", "interrupt"],
        "info: it can wait. warning: it will cost them soon. interrupt: it ends their turn, for what is about to "
        "destroy work or send something out.",
    ],
    reason: Annotated[str, "What you saw, with its place or their own words, and why it matters."],
    suggestion: Annotated[str, "What they should do instead."] = "",
) -> str:
    """Speak up about what you watch. A person sees it at once, and can pass it on or set it aside. Use it only for what
    changes what they should do next, once for each thing."""
    if call.context is None:
        raise Failed("there is nobody to speak to")
    if not reason.strip():
        raise Failed("there is no reason: say what you saw, and why it matters")
    comment = InterjectionText(
        severity=Severity(severity), reason=reason.strip(), suggestion=suggestion.strip()
    )
    saved = await said(comment, call, call.context)
    if comment.severity is not Severity.INTERRUPT:
        return SHOWN
    if saved.severity is not Severity.INTERRUPT:
        return SHOWN_AS_WARNING
    return TURN_ENDED if saved.interrupts else TURN_ALREADY_OVER
