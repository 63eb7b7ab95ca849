"""request_scope_expansion: ask a person to allow one more path or command."""

from typing import Annotated

from retinue.domain.approval import Answer
from retinue.domain.tool import ApprovalRequirement, Effect
from retinue.interfaces import Call
from retinue.tools.define import tool


@tool(
    effect=Effect.IDEMPOTENT, category="people", asks=ApprovalRequirement.ALWAYS, access=("scope", "resource")
)
async def request_scope_expansion(
    call: Call,
    tool: Annotated[str, "The tool that needs it, for example read, write or bash."],
    resource: Annotated[str, "The one path, or the exact command, that was refused."],
    reason: Annotated[str, "Why you need it, in one sentence for the person who decides."],  # noqa: ARG001  (shown to the person)
) -> str:
    """Request access to something outside your scope from a person. Use it only after a tool has refused something that
    the task requires. The person sees your reason, and may refuse, allow it once, or add it to your scope."""
    if call.approval_answer is Answer.ADD:
        return f"Added to your scope: {tool} {resource}. It stays allowed."
    return f"Allowed once: {tool} {resource}. Only the next such call is allowed."
