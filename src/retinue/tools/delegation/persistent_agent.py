"""PersistentAgent: delegate to a child session in the parent's folder; returns all its replies."""

from collections.abc import Mapping
from typing import Annotated, Any

from retinue.domain.approval import Answer
from retinue.domain.run import Reason, Run, RunRequest, Status
from retinue.domain.session import Session
from retinue.domain.tool import ApprovalRequirement, Effect
from retinue.errors import Failed, NotFound
from retinue.interfaces import Call, RuntimeContext
from retinue.runtime.approvals import run_request_key
from retinue.runtime.child_permissions import ChildSpec
from retinue.runtime.child_report import ALL_REPLIES_TOOL, format_report, load_reply_texts, load_result
from retinue.runtime.child_wait import take_child_result
from retinue.runtime.spawn import check_child_request, spawn_child
from retinue.tools.define import tool

TOOL_NAME = ALL_REPLIES_TOOL
NO_SESSION_ERROR = "PersistentAgent requires parent persistent session"
NO_EARLIER_TEXT = "The agent ended without any text."
CANCELLED_ERROR = "Error: User aborted agent"
BACKGROUND_NOTE = "The agent continues in the background as run {run}. Its result will be announced to you. Continue in the meantime."
NETWORK_REASONS = frozenset(
    {Reason.RATE_LIMITED, Reason.UNREACHABLE, Reason.INCOMPLETE, Reason.PROVIDER, Reason.AUTH}
)


async def _check_call(args: Mapping[str, Any], run: Run, session: Session, context: RuntimeContext) -> None:
    if not context.is_persistent:
        raise Failed(NO_SESSION_ERROR)
    if not args["prompt"].strip():
        raise Failed("The prompt is empty. Describe the task.")
    request = RunRequest(
        key=run_request_key(run.id, "check"),
        agent=args["preset"],
        task=None,
        parent_run=run.id,
        entry_point=TOOL_NAME,
    )
    child = ChildSpec(
        parent=session,
        description=args["description"],
        allowed_paths=args.get("allowed_paths"),
        denied_paths=args.get("denied_paths"),
    )
    try:
        await check_child_request(request, child, context)
    except NotFound as error:
        raise Failed(_not_found_error(args["preset"])) from error


def _not_found_error(preset: str) -> str:
    return f"Preset template not found: {preset} (checked .md and .org)"


@tool(
    name=TOOL_NAME,
    effect=Effect.IDEMPOTENT,
    category="gptel-persistent",
    is_delegation=True,
    asks=ApprovalRequirement.ALWAYS,
    agent_argument="preset",
    check_call=_check_call,
)
async def persistent_agent(
    call: Call,
    preset: Annotated[str, "The agent to use."],
    description: Annotated[str, "A few words that describe the task; they become part of its folder's name."],
    prompt: Annotated[str, "The whole task: the agent does not see this conversation."],
    allowed_paths: Annotated[
        list[str] | None,
        "Globs of what it may read; default: what you may read; [] for no restriction.",
    ] = None,
    denied_paths: Annotated[list[str] | None, "Globs of what else it may not access."] = None,
) -> str:
    """Delegate a task to another agent, which works in its own conversation and answers when it is done. Use it for
    independent tasks that would fill this conversation with detail. The result contains all its replies."""
    context = call.context
    if context is None:
        raise Failed(NO_SESSION_ERROR)
    request = RunRequest(
        key=run_request_key(call.run.id, call.id),
        agent=preset,
        task=prompt,
        requester=call.session.key,
        parent_run=call.run.id,
        entry_point=TOOL_NAME,
        source="subagent",
        label=description,
        wait=True,
    )
    child = ChildSpec(
        parent=call.session,
        description=description,
        allowed_paths=allowed_paths,
        denied_paths=denied_paths,
        requested_by_person=call.approval_answer is Answer.ALLOW,
    )
    try:
        run = await spawn_child(request, child, context)
    except NotFound as error:
        raise Failed(_not_found_error(preset)) from error
    return await _format_result(await take_child_result(run, call, context), context)


async def _format_result(run: Run, context: RuntimeContext) -> str:
    if run.status.is_live:
        return BACKGROUND_NOTE.format(run=run.id)
    if run.reason is Reason.INTERRUPTED and run.text.strip():
        return format_report(run, run.text, context)
    if run.status is Status.CANCELLED:
        raise Failed(CANCELLED_ERROR)
    if run.status is not Status.DONE:
        failure = "Error: Network failure\n" if run.reason in NETWORK_REASONS else "Error: "
        report = format_report(run, await _earlier_text(run, context), context)
        raise Failed(f"{failure}{run.error or run.reason or run.status}\n\n{report}")
    return format_report(run, run.text if run.turns == 1 else await load_result(run, context), context)


async def _earlier_text(run: Run, context: RuntimeContext) -> str:
    """Return the child's replies before it failed."""
    return "\n\n".join(await load_reply_texts(run, context)) or NO_EARLIER_TEXT
