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
    """End your work and hand it over for review. Call it when the task is done and you have checked it yourself."""
    return _require_text(summary, "summary: say what you did")


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def ask_for_help(message: Annotated[str, "What you need, and what you have tried."]) -> str:
    """End your work because you cannot go on without a person. Call it only for what you cannot find out yourself."""
    return _require_text(message, "message: say what you need")


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def llm_unreachable(reason: Annotated[str, "What was asked, and what came back."]) -> str:
    """End your work because a model that it needs cannot be reached."""
    return _require_text(reason, "reason: say what could not be reached")


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def approve(summary: Annotated[str, "What you looked at, and why it is good."] = "") -> str:
    """End your review: the work can stay as it is."""
    return _require_text(summary or "approved", "")


@tool(effect=Effect.IDEMPOTENT, category="exits", asks="never")
async def request_changes(text: Annotated[str, "What must change, worst first, each with its place."]) -> str:
    """End your review: the work must be changed first."""
    return _require_text(text, "text: say what must change")


def exit_tools() -> tuple[Tool, ...]:
    return submit_for_review, ask_for_help, llm_unreachable, approve, request_changes


def _require_text(text: str, missing: str) -> str:
    if not text.strip():
        raise Failed(f"there is no {missing}")
    return RUN_ENDED
