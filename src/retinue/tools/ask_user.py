"""ask_user: ask the user a question and wait for the answer."""

from typing import Annotated

from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call
from retinue.runtime.approvals import AnswerDeferred
from retinue.runtime.loop_result import RunSuspended
from retinue.tools.define import tool


@tool(effect=Effect.IDEMPOTENT, category="people", asks="never")
async def ask_user(
    call: Call,
    question: Annotated[str, "One question, complete in itself."],
    options: Annotated[
        list[str] | None, "Answers to choose from; any other answer may come all the same."
    ] = None,
) -> str:
    """Ask the person a question and wait for the answer. Use it only for what you cannot find out yourself
    and must not decide alone."""
    if not question.strip():
        raise Failed("the question is empty")
    try:
        return await call.ask_user(question, options or [])
    except AnswerDeferred as error:
        raise RunSuspended(question) from error
