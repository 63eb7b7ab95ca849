"""Exit tools: tools that end a run with a final message."""

from typing import Annotated

from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Tool
from retinue.tools.define import tool

RUN_ENDED = "The run ends here."


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def submit_for_review(
    summary: Annotated[str, "What you did, how you checked it, and what is still open."],
) -> str:
    """End your work and submit it for review. Call it when the task is done and you have checked it yourself."""
    return _require_text(summary, "summary is empty. Describe what you did.")


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def ask_for_help(message: Annotated[str, "What you need, and what you have tried."]) -> str:
    """End your work because you cannot continue without a person. Call it only for what you cannot find out yourself."""
    return _require_text(message, "message is empty. Describe what you need.")


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def llm_unreachable(reason: Annotated[str, "The request, and the response or error."]) -> str:
    """End your work because a model that it needs cannot be reached."""
    return _require_text(reason, "reason is empty. Say which model could not be reached.")


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def approve(summary: Annotated[str, "What you checked, and why it is good."] = "") -> str:
    """End your review and accept the work as it is."""
    return _require_text(summary or "approved", "")


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def request_changes(
    text: Annotated[str, "What must change, most severe first, each with its location."],
) -> str:
    """End your review and request changes to the work."""
    return _require_text(text, "text is empty. Describe what must change.")


def exit_tools() -> tuple[Tool, ...]:
    return submit_for_review, ask_for_help, llm_unreachable, approve, request_changes


def _require_text(text: str, error: str) -> str:
    if not text.strip():
        raise Failed(error)
    return RUN_ENDED
