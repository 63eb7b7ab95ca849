"""ask_user: ask the user a question and wait for the answer."""

from typing import Annotated

from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call
from retinue.runtime.approvals import AnswerDeferred
from retinue.runtime.run_outcome import RunSuspended
from retinue.tools.define import tool


@tool(effect=Effect.IDEMPOTENT, category="people", asks="never")
async def ask_user(
    call: Call,
    question: Annotated[str, "One self-contained question."],
    options: Annotated[
        list[str] | None, "Answers to choose from; the person may give another answer."
    ] = None,
) -> str:
    """Ask the person a question and wait for the answer. Use it only for what you cannot find out yourself
    and must not decide yourself."""
    if not question.strip():
        raise Failed("The question is empty.")
    try:
        return await call.ask_user(question, options or [])
    except AnswerDeferred as error:
        raise RunSuspended(question) from error
