"""agent, explore, plan and agent_ask: delegate a task to an agent, and send it follow-up messages."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from msgspec.structs import replace

from retinue.domain import agent_pool
from retinue.domain.continuation import INCOMPLETE_NOTICE, is_incomplete
from retinue.domain.delivery import (
    NO_SUMMARY,
    escape_role_markers,
    failure_summary,
    no_work_notice,
    single_line,
    work_summary,
)
from retinue.domain.run import LIVE_STATUSES, Run, RunRequest, Status
from retinue.domain.session import Session
from retinue.domain.system_prompt import first_message
from retinue.domain.tool import Effect
from retinue.domain.transcript import Message
from retinue.errors import BadConfig, Conflict, Failed, NotFound, Refused, RetinueError
from retinue.interfaces import Call, RuntimeContext, Transaction
from retinue.runtime.approvals import run_request_key
from retinue.runtime.child_permissions import ChildSpec
from retinue.runtime.child_report import (
    INTERRUPTED_MARK,
    bounded_child_text,
    has_sufficient_result,
    is_insufficient_report,
    load_replies,
    load_reply_texts,
)
from retinue.runtime.child_wait import take_child_result
from retinue.runtime.run_creation import create_run
from retinue.runtime.run_events import make_event
from retinue.runtime.run_outcome import RunSuspended
from retinue.runtime.spawn import check_spawn_allowed, spawn_child
from retinue.tools.define import tool
from retinue.tools.delegation.json_result import json_result

GENERAL, EXPLORER, PLANNER = "general", "explorer", "planner"
NOT_SHOWN_TO_USER_NOTE = (
    "\n\n[Only you can see this result, the user cannot. Tell the user what matters to them.]"
)
BACKGROUND_NOTE = "The agent continues in the background as run {run}. Its result will be announced to you."
SUMMARY_REQUEST = (
    "You ended without a report. Say in a few sentences what you did, what you found, and what is still open."
)
NOT_FOUND = "Agent not found: {id}. Agent may have been evicted from pool or ID is invalid."
NO_POOL_WARNING = (
    "the agent pool is disabled (subagents.pool): {agent} is not kept and cannot be used with agent_ask"
)
BUSY = "Agent {id} is currently in use. Wait for current operation to complete."
MAX_COPIES = 100
"""Branches of branches whose original is searched."""
RECENT_RUNS = 500
"""Number of recent runs in which other pooled sessions are searched."""
CHILD_SLUG = re.compile(r"[a-z0-9-]{1,200}")
"""Valid folder names of a child."""

ARGUMENT_ERRORS = {
    "persist": "persist parameter must be a boolean",
    "task_prompt": "task_prompt parameter is required and must be a string",
    "agent_id": "agent_id parameter is required and must be a string",
    "message": "message parameter is required and must be a string",
}


def _validation_error(problem: str) -> str:
    return json_result(success=False, error=problem, error_type="validation_error")


def _format_argument_error(message: str) -> str:
    """Format an argument error: the documented message if the argument has one, else the given message."""
    problems = (
        problem for name, problem in ARGUMENT_ERRORS.items() if message.startswith(f"the argument `{name}`")
    )
    return _validation_error(next(problems, message))


def _delegation_refused_text(name: str) -> str:
    problem = f"{name} is not allowed from sub-agent sessions unless the agent's definition names it"
    return json_result(success=False, error=problem, error_type=Refused.code)


Task = Annotated[str, "The whole task: the agent does not see this conversation."]
Persist = Annotated[bool, "Whether to keep the agent for agent_ask."]


@tool(
    name="agent",
    effect=Effect.IDEMPOTENT,
    category="agents",
    is_delegation=True,
    agent_argument="agent_name",
    delegation_refused_text=_delegation_refused_text("agent"),
    format_argument_error=_format_argument_error,
)
async def agent(
    call: Call,
    *,
    agent_name: Annotated[str, "The agent to use."] = GENERAL,
    task_prompt: Task,
    persist: Persist = True,
) -> str:
    """Give a task to a specialised agent, which works in its own conversation and reports when it is done. Several
    calls in one reply run in parallel. If the agent persists, use its agent_id with agent_ask."""
    return await _delegate(call, "agent", agent_name.strip() or GENERAL, task_prompt, persist=persist)


@tool(
    name="explore",
    effect=Effect.IDEMPOTENT,
    category="agents",
    is_delegation=True,
    delegation_refused_text=_delegation_refused_text("explore"),
    format_argument_error=_format_argument_error,
)
async def explore(call: Call, *, task_prompt: Task, persist: Persist = True) -> str:
    """Let a read-only agent find out where things are and how they work together. Use it for broad questions about
    code or files, whose search would fill this conversation."""
    return await _delegate(call, "explore", EXPLORER, task_prompt, persist=persist)


@tool(
    name="plan",
    effect=Effect.IDEMPOTENT,
    category="agents",
    is_delegation=True,
    delegation_refused_text=_delegation_refused_text("plan"),
    format_argument_error=_format_argument_error,
)
async def plan(call: Call, *, task_prompt: Task, persist: Persist = True) -> str:
    """Let a read-only agent study the code and turn a goal into a plan of small steps."""
    return await _delegate(call, "plan", PLANNER, task_prompt, persist=persist)


async def _delegate(call: Call, tool_name: str, name: str, task: str, *, persist: bool) -> str:
    context = _require_context(call)
    if not task.strip():
        raise Failed(_validation_error(ARGUMENT_ERRORS["task_prompt"]))
    keep = persist and context.subagent_settings.pool_enabled
    request = _make_request(call, tool_name, name, first_message(task), keep=keep)
    if persist and not keep and not await context.ledger.read(lambda tx: tx.get_run_by_key(request.key)):
        context.events.emit(
            make_event(
                "run.state", call.run, context, phase="tool", warning=NO_POOL_WARNING.format(agent=name)
            )
        )
    child = ChildSpec(
        parent=call.session,
        description=single_line(task)[:40],
        use_definition_paths=True,
        build_prompt=lambda definition: agent_pool.prompt_with_task(definition, task),
    )
    try:
        run = await spawn_child(request, child, context)
    except NotFound as error:
        raise _error_result(f"Agent '{name}' not found", NotFound.code, agent_used=name) from error
    except (Refused, BadConfig) as error:
        raise _error_result(str(error), error.code, agent_used=name) from error
    return await _format_report(_require_ended(run), call, context)


def _require_ended(run: Run) -> Run:
    """Return the ended run without taking its result; raise RunSuspended for a live run that the call awaits.

    Taking the result deletes a temporary session, and its transcript may still have to be read. If the run ends
    at this very moment, the suspended call is woken at once.
    """
    if run.status.is_live and run.is_awaited:
        raise RunSuspended
    return run


async def _format_report(run: Run, call: Call, context: RuntimeContext) -> str:
    """Format the final reply, or a substitute for it."""
    agent_id = run.slug if run.request.keep_session else None
    if run.status.is_live:
        return json_result(
            success=True, result=BACKGROUND_NOTE.format(run=run.id), agent_used=run.agent, agent_id=agent_id
        )
    replies = await _load_replies(run, context)
    is_silent = bool(replies) and not replies[-1].tool_call_count and not replies[-1].text.strip()
    texts = await _load_reply_texts(run, context) if replies else []
    is_done = run.status is Status.DONE
    text = _choose_report(run, texts, is_silent=is_silent) if is_done else ""
    duration_s = _duration_s(run)
    if not text and is_done:
        follow_up = await _request_report(run, call, context)
        if follow_up is not None:
            text, duration_s = follow_up.text.strip(), duration_s + _duration_s(follow_up)
    await take_child_result(run, call, context)
    if not (is_done or text):
        raise _failure(run, texts, context)
    return _success(
        run,
        text or NO_SUMMARY.format(agent=run.agent),
        context,
        note=_result_notes(run),
        duration_s=duration_s,
        agent_id=agent_id,
    )


def _success(
    run: Run, text: str, context: RuntimeContext, *, note: str = "", duration_s: float, agent_id: str | None
) -> str:
    """Encode a finished child's report; a shortened one has the fields `truncated` and `length`."""
    report = bounded_child_text(run, text, context)
    return json_result(
        success=True,
        result=f"{report.text}{note}{NOT_SHOWN_TO_USER_NOTE}",
        agent_used=run.agent,
        duration_seconds=round(duration_s, 3),
        agent_id=agent_id,
        truncated=report.is_truncated or None,
        length=report.length if report.is_truncated else None,
        files=_files(run),
    )


def _files(run: Run) -> list[dict[str, object]] | None:
    """Return the files that the child left in its private /tmp; None if there are none."""
    return [{"path": each.path, "bytes": each.size} for each in run.report.files] or None


def _result_notes(run: Run) -> str:
    """Return the notes for an agent that replied without calling any tool, or whose reply was cut off."""
    notes = [no_work_notice(run)] if run.did_no_work else []
    notes += [INCOMPLETE_NOTICE] if is_incomplete(run) else []
    return "".join(f"\n\n[{each}]" for each in notes)


def _failure(run: Run, texts: Sequence[str], context: RuntimeContext) -> Failed:
    """Make the error for a run that did not finish. It is never a success, whatever text the run has."""
    summary = bounded_child_text(run, work_summary(run.agent, texts), context).text if texts else None
    return _error_result(
        escape_role_markers(failure_summary(run)),
        str(run.reason or run.status),
        agent_used=run.agent,
        result=summary,
        files=_files(run),
    )


async def _load_replies(run: Run, context: RuntimeContext) -> list[Message]:
    """Load the agent's replies, only if the final one is not enough.

    After a crash the session of a child that is not kept may be gone.
    """
    if run.status is Status.DONE and has_sufficient_result(run):
        return []
    return await load_replies(run, context)


async def _load_reply_texts(run: Run, context: RuntimeContext) -> list[str]:
    return [each.strip() for each in await load_reply_texts(run, context)]


def _choose_report(run: Run, texts: Sequence[str], *, is_silent: bool) -> str:
    """Return the final reply, or a summary of the work.

    The summary is used if there is no final reply or it is too short to be a report. Empty if there is no
    text at all.
    """
    text = "" if is_silent else run.text.strip()
    if run.report.has_output or not is_insufficient_report(text):
        return text
    earlier = [each for each in texts if INTERRUPTED_MARK not in each]
    if earlier and earlier != [text]:
        return work_summary(run.agent, earlier)
    return "" if INTERRUPTED_MARK in text else text


async def _request_report(run: Run, call: Call, context: RuntimeContext) -> Run | None:
    """Start one more run in the child's conversation that asks only for a report, and wait for it."""
    request = _make_request(
        call,
        run.request.entry_point,
        run.agent,
        SUMMARY_REQUEST,
        keep=run.request.keep_session,
        key_suffix=agent_pool.SUMMARY_KEY_SUFFIX,
    )
    try:
        follow_up = await create_run(request, await context.store.find(run.transcript_path), context)
    except (NotFound, Refused):
        return None
    return await take_child_result(follow_up, call, context)


def _duration_s(run: Run) -> float:
    return (run.duration_ms or 0) / 1000


@tool(
    name="agent_ask",
    effect=Effect.IDEMPOTENT,
    category="agents",
    is_delegation=True,
    recipient_argument="agent_id",
    delegation_refused_text=_delegation_refused_text("agent_ask"),
    format_argument_error=_format_argument_error,
)
async def agent_ask(
    call: Call,
    *,
    agent_id: Annotated[str, "The id that agent, explore or plan returned."],
    message: Annotated[str, "A question or the next task; the agent remembers its own conversation."],
) -> str:
    """Send a message to an agent that you started before and that persists; its conversation continues."""
    context = _require_context(call)
    for name, argument in (("agent_id", agent_id), ("message", message)):
        if not argument.strip():
            raise Failed(_validation_error(ARGUMENT_ERRORS[name]))
    key = run_request_key(call.run.id, call.id)
    run = await context.ledger.read(lambda tx: tx.get_run_by_key(key))
    if run is None:
        run = await _send_question(call, agent_id, message, context)
    finished = await take_child_result(run, call, context)
    if finished.status.is_live:
        return json_result(success=True, result=BACKGROUND_NOTE.format(run=finished.id), agent_id=agent_id)
    if finished.status is not Status.DONE:
        raise _failure(finished, await _load_reply_texts(finished, context), context)
    return _success(
        finished, finished.text.strip(), context, duration_s=_duration_s(finished), agent_id=agent_id
    )


async def _send_question(call: Call, agent_id: str, message: str, context: RuntimeContext) -> Run:
    """Send the question. If two callers are concurrent, one is refused, without side effects."""
    session = await _find_pooled_session(agent_id, call, context)
    request = _make_request(call, agent_pool.ASK_TOOL, session.agent, message, keep=True)
    request = replace(
        request, ceilings=call.run.request.ceilings
    )  # the session may have been created for a caller with more rights
    try:
        await check_spawn_allowed(request, call.session, context)
        return await create_run(request, session, context, exclusive=True)
    except Conflict as error:
        raise _error_result(BUSY.format(id=agent_id), "busy") from error
    except Refused as error:
        raise _error_result(str(error), error.code, agent_used=session.agent) from error


async def _find_pooled_session(agent_id: str, call: Call, context: RuntimeContext) -> Session:
    """Find a kept agent of this conversation by its id.

    An id is valid in this conversation only: the agent's session is in the conversation's folder.
    """
    not_found = _error_result(NOT_FOUND.format(id=agent_id), NotFound.code)
    if not CHILD_SLUG.fullmatch(agent_id) or not context.subagent_settings.pool_enabled:
        raise not_found
    try:
        session = await context.store.find(f"{call.session.path}/agents/{agent_id}")
    except RetinueError as error:
        raise not_found from error

    def load_runs(tx: Transaction) -> list[Run]:
        return [
            *tx.find_runs(status=LIVE_STATUSES),
            *tx.find_runs(limit=RECENT_RUNS),
            *tx.find_runs(session=session.id),
        ]

    available = agent_pool.available_sessions(
        agent_pool.pooled_sessions(await context.ledger.read(load_runs)), context.clock.now()
    )
    pooled = next((each for each in available if each.session_id == session.id), None)
    if pooled is None and await _is_copy_available(session, call, context):
        return session
    if pooled is None or session.attributes.get(agent_pool.RETIRED_ATTRIBUTE):
        raise not_found
    if pooled.is_in_use:
        raise _error_result(BUSY.format(id=agent_id), "busy")
    return session


async def _is_copy_available(session: Session, call: Call, context: RuntimeContext) -> bool:
    """Return True for a pooled agent that was copied into this branch and has not worked in it yet.

    The time in the pool counts from its last task or from the branching, whichever is later.
    """
    if session.attributes.get(agent_pool.RETIRED_ATTRIBUTE):
        return False
    runs = await context.ledger.read(lambda tx: tx.find_runs(session=session.id))
    origin_id = session.attributes.get(agent_pool.COPIED_FROM_ATTRIBUTE)
    for _ in range(MAX_COPIES):
        if runs or not isinstance(origin_id, str):
            break
        runs = await context.ledger.read(lambda tx, origin=origin_id: tx.find_runs(session=origin))
        with suppress(RetinueError):
            origin_id = (await context.store.find(origin_id)).attributes.get(agent_pool.COPIED_FROM_ATTRIBUTE)
    pooled = next(iter(agent_pool.pooled_sessions(runs)), None)
    if pooled is None or pooled.session_id == session.id:
        return False
    last_used_at = max(pooled.last_used_at, call.session.created_at)
    return context.clock.now() - last_used_at < agent_pool.IDLE_TIMEOUT


def _make_request(
    call: Call, tool_name: str, agent: str, task: str, *, keep: bool, key_suffix: str = ""
) -> RunRequest:
    return RunRequest(
        key=run_request_key(call.run.id, f"{call.id}{key_suffix}"),
        agent=agent,
        task=task,
        requester=call.session.key,
        parent_run=call.run.id,
        entry_point=tool_name,
        source="subagent",
        wait=True,
        keep_session=keep,
    )


def _require_context(call: Call) -> RuntimeContext:
    if call.context is None:
        raise _error_result("This tool requires a session.", "system_error")
    return call.context


def _error_result(message: str, error_type: str, **fields: object) -> Failed:
    return Failed(json_result(success=False, error=message, **fields, error_type=error_type))
