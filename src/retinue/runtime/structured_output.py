"""Final answers with an output schema: check them, and ask for an invalid one again."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.continuation import CUT_STOP_REASON
from retinue.domain.providers import MODEL_APIS, PROVIDERS
from retinue.domain.run import Reason, Status
from retinue.domain.transcript import Entry, Message, Notice
from retinue.errors import UsageError
from retinue.interfaces import Conversation, RuntimeContext
from retinue.runtime.exit_tools import WAIT_FOR_CHILDREN, has_pending_work
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.run_outcome import RunOutcome
from retinue.runtime.run_plan import RunPlan

MAX_CORRECTIONS = 3
"""How often an invalid answer is asked for again in one run."""
INVALID_OUTPUT_NOTICE = "output"
"""Kind of the notice that asks for an answer again."""
CORRECTION_PROMPT = (
    "Your final answer is not valid: {error}. Give the whole answer again: only the JSON value, without any other "
    "text. It must match this JSON Schema:\n{schema}"
)
OUTPUT_SECTION = "Your final answer must be one JSON value that matches this JSON Schema, without any other text:\n{schema}"
CUT_ERROR = "the answer was cut off at the output limit"
FAILED_ERROR = "the final answer does not match the output schema: {error}"
_FENCED = re.compile(r"\s*```[a-zA-Z]*[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)


def with_output_section(plan: RunPlan, context: RuntimeContext) -> RunPlan:
    """Return the plan with its schema in the system prompt, if its provider has no other place for one.

    Raises:
        UsageError: The schema is none, or the run would have to end by an exit tool.
    """
    schema, provider = plan.output_schema, plan.model.provider
    if schema is None:
        return plan
    check_output_schema(schema, plan.agent, context)
    if provider not in PROVIDERS or provider in MODEL_APIS:
        return plan
    section = OUTPUT_SECTION.format(schema=_schema_text(schema))
    return replace(plan, system=f"{plan.system}\n\n{section}".strip())


def check_output_schema(schema: Mapping[str, Any] | None, agent: Agent, context: RuntimeContext) -> None:
    """Check the schema of a run, which is the agent's own unless the run has another one.

    Raises:
        UsageError: It is no schema, or the agent ends its runs by exit tools.
    """
    schema = agent.output_schema if schema is None else schema
    if schema is None:
        return
    if problem := context.find_schema_error(schema):
        owner = f"{agent.name}: " if schema is agent.output_schema else ""
        raise UsageError(f"{owner}output_schema {problem}.")
    if agent.exits:
        raise UsageError(
            f"{agent.name} ends its runs with exit tools ({', '.join(agent.exits)}), so it gives no final answer. An "
            "output schema is for agents without `exits`."
        )


async def check_final_answer(
    message: Message, conversation: Conversation, plan: RunPlan, attempt: RunAttempt
) -> RunOutcome | None:
    """Return the outcome of a final answer; None if it was sent back.

    While the run waits for sub-agents, a reply that does not match is not its final answer.

    Args:
        message: The reply without tool calls.
        conversation: Where a correction is asked for.
        plan: A plan with an output schema.
        attempt: The attempt at the run; its text becomes the bare JSON.
    """
    schema = plan.output_schema or {}
    text = _bare_json(message.text)
    is_cut = message.stop_reason == CUT_STOP_REASON
    error = CUT_ERROR if is_cut else attempt.context.find_output_error(schema, text)
    run = attempt.run
    if not error:
        attempt.run = replace(run, text=text, report=replace(run.report, has_output=True))
        return RunOutcome(status=Status.DONE)
    attempt.run = run = replace(run, report=replace(run.report, has_output=False))
    if not is_cut and await attempt.context.ledger.read(lambda tx: has_pending_work(run, tx)):
        return WAIT_FOR_CHILDREN
    entries = [*await conversation.read_earlier_entries(run.id), *conversation.entries]
    max_turns = plan.agent.max_turns
    if count_corrections(run.id, entries) >= MAX_CORRECTIONS or (
        max_turns is not None and run.turns >= max_turns
    ):
        return RunOutcome(
            status=Status.FAILED, reason=Reason.INVALID_OUTPUT, error=FAILED_ERROR.format(error=error)
        )
    prompt = CORRECTION_PROMPT.format(error=error, schema=_schema_text(schema))
    await attempt.append_entries(conversation, attempt.make_notice(INVALID_OUTPUT_NOTICE, prompt))
    return None


def count_corrections(run: str, entries: Sequence[Entry]) -> int:
    return sum(
        isinstance(entry, Notice) and entry.run == run and entry.topic == INVALID_OUTPUT_NOTICE
        for entry in entries
    )


def _schema_text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)


def _bare_json(text: str) -> str:
    """Return the text without surrounding blanks, and without a code fence around all of it."""
    fenced = _FENCED.fullmatch(text)
    return (fenced[1] if fenced else text).strip()
