"""agents_message and agents_list: send a message to another agent and get its response."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Literal
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.continuation import INCOMPLETE_NOTICE, is_incomplete
from retinue.domain.delivery import escape_role_markers, failure_summary
from retinue.domain.run import LIVE_STATUSES, Reason, Run, RunRequest, Status
from retinue.domain.session import Session
from retinue.domain.system_prompt import LIST_TOOL, MESSAGE_TOOL
from retinue.domain.thinking import thinking_text
from retinue.domain.tool import Effect
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.errors import BadConfig, DiskError, Failed, NotFound, Refused, RetinueError
from retinue.interfaces import Call, RuntimeContext, Transaction
from retinue.runtime.approvals import run_request_key
from retinue.runtime.child_permissions import inherited_ceilings
from retinue.runtime.child_report import bounded_child_text
from retinue.runtime.child_wait import take_child_result
from retinue.runtime.run_creation import create_run
from retinue.runtime.session_scope import compute_scope, load_definition
from retinue.runtime.spawn import ancestor_runs, check_spawn_allowed, create_session, delegation_cycle
from retinue.runtime.startable_agents import other_agents, startable_agents
from retinue.runtime.tool_executor import truncate_tool_result
from retinue.tools.define import tool
from retinue.tools.delegation.json_result import json_result

LATEST_SESSION, CREATE_SESSION, LATEST_OR_CREATE_SESSION = "latest", "create", "latest-or-create"
DEFAULT_TIMEOUT_S = 300
MAX_TOOL_CALLS = 200
ANNOUNCED_LATER_NOTE = (
    "The response will be announced as [Async response, responseId={run}]. Continue in the meantime."
)
_CREATION_LOCKS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""Locks for creating sessions, by event loop.

Several runs may send to an agent at once: the first call creates its session, and the others find it.
"""


def _error_json(
    code: str, message: str, reason: str = "", extra_fields: Mapping[str, object] | None = None
) -> str:
    """Encode an error as JSON; all errors of these tools have this shape."""
    details = {"code": code, "message": message} | ({"reason": reason} if reason else {})
    return json_result(error=details, **(extra_fields or {}))


def _format_argument_error(message: str) -> str:
    return _error_json("invalid_arguments", message)


DELEGATION_REFUSED = _error_json(
    "agent_not_accessible",
    "an agent that handles a message from another agent may not send messages, unless its definition lists agents_message",
)


class _MessageRequest(Struct, frozen=True, kw_only=True):
    """Arguments of one call: the message, the agent and the session."""

    agent: str
    content: str
    session: str
    wait: bool
    timeout_s: float


@tool(
    name=MESSAGE_TOOL,
    effect=Effect.IDEMPOTENT,
    capabilities=["agents.write"],
    category="agents",
    is_delegation=True,
    recipient_argument="agentId",
    delegation_refused_text=DELEGATION_REFUSED,
    format_argument_error=_format_argument_error,
)
async def agents_message(
    call: Call,
    *,
    agentId: Annotated[str, "The agent that receives the message."],  # noqa: N803  (a documented argument name)
    content: Annotated[str, "The message; it becomes a user message in a conversation of that agent."],
    session: Annotated[
        str,
        "The conversation: latest, create, latest-or-create, or the id of one that belongs to the agent.",
    ] = LATEST_OR_CREATE_SESSION,
    mode: Annotated[
        Literal["sync", "async"],
        "sync waits for the response; async returns immediately, and the response is announced later.",
    ] = "sync",
    timeout: Annotated[  # noqa: ASYNC109  (a documented argument name; not an asyncio timeout)
        Annotated[float, msgspec.Meta(ge=0)],
        "Seconds that sync waits; 0 means the configured maximum. The agent continues after that.",
    ] = DEFAULT_TIMEOUT_S,
) -> str:
    """Send a message to another agent, which answers in its own conversation with its own tools and history. Ask for
    one thing at a time: one message, one response."""
    context = call.context
    if context is None:
        raise Failed(_error_json("agent_message_failed", "This tool requires a session."))
    timeout_s = float(context.limits.run_timeout_s(timeout))
    message = _MessageRequest(
        agent=agentId, content=content, session=session, wait=mode == "sync", timeout_s=timeout_s
    )
    key = run_request_key(call.run.id, call.id)
    run = await context.ledger.read(lambda tx: tx.get_run_by_key(key)) or await _send_message(
        key, message, call, context
    )
    if message.wait:
        run = await take_child_result(run, call, context)
    return await _format_result(run, message, context)


async def _send_message(key: str, message: _MessageRequest, call: Call, context: RuntimeContext) -> Run:
    """Send the message. All checks are made before a session is chosen or created."""
    for name, argument in (("content", message.content), ("session", message.session)):
        if not argument.strip():
            raise Failed(_error_json("invalid_arguments", f"{name} is empty"))
    deadline = context.clock.now() + timedelta(seconds=message.timeout_s)
    request = RunRequest(
        key=key,
        agent=message.agent,
        task=message.content,
        requester=call.session.key,
        parent_run=call.run.id,
        entry_point=MESSAGE_TOOL,
        source="subagent",
        wait=message.wait,
        wait_until=deadline if message.wait else None,
        announce_if_busy=True,
        is_independent=not message.wait,
        ceilings=inherited_ceilings(
            await load_definition(call.session, context), call.session, context, run=call.run
        ),
    )
    await _check_target_agent(request, call, context)
    target_session, is_new = await _choose_session(message, call, context)
    try:
        return await create_run(
            replace(request, session=None if is_new else target_session.id), target_session, context
        )
    except Refused as refused:
        if is_new:
            await context.store.delete(target_session)
        raise Failed(_error_json("agent_message_failed", str(refused))) from refused


async def _check_target_agent(request: RunRequest, call: Call, context: RuntimeContext) -> None:
    """Check that the agent can take the message.

    It must exist, be visible and allowed, have a model, and not itself be waiting for the caller.
    """
    refusal = f"Agent not accessible: {request.agent}"
    try:
        target = context.agents.get(request.agent, call.session.workspace.intended_folder).agent
    except NotFound as missing:
        raise Failed(_error_json("agent_not_found", f"Agent not found: {request.agent}")) from missing
    ancestors = await context.ledger.read(lambda tx: ancestor_runs(call.run.id, tx))
    if cycle := delegation_cycle(request.agent, ancestors):
        raise Failed(
            _error_json("agent_not_accessible", f"{refusal}: it is already running as an ancestor: {cycle}")
        )
    if not target.ui_visible:
        raise Failed(
            _error_json("agent_not_accessible", refusal, reason="its definition sets ui_visible: false")
        )
    try:
        await check_spawn_allowed(request, call.session, context, ancestors=ancestors)
    except Refused as refused:
        raise Failed(_error_json("agent_not_accessible", refusal, reason=str(refused))) from refused
    try:
        context.select_model(target, None)
    except BadConfig as bad:
        raise Failed(
            _error_json("agent_not_available", f"Agent not available: {request.agent}: {bad}")
        ) from bad


async def _choose_session(
    message: _MessageRequest, call: Call, context: RuntimeContext
) -> tuple[Session, bool]:
    """Return the session for the message, and whether it was created.

    A crash between creating the session and the run leaves an empty session.
    """
    if message.session == CREATE_SESSION:
        return await _create_session(message, call, context), True
    if message.session not in (LATEST_SESSION, LATEST_OR_CREATE_SESSION):
        return await _find_session(message.session, message.agent, context), False
    if found := await _latest_session(message.agent, context):
        return found, False
    if message.session == LATEST_SESSION:
        raise Failed(_error_json("agent_session_error", "No existing session for agent"))
    async with _CREATION_LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if found := await _latest_session(message.agent, context):
            return found, False
        return await _create_session(message, call, context), True


async def _create_session(message: _MessageRequest, call: Call, context: RuntimeContext) -> Session:
    try:
        return await create_session(message.agent, call.session.workspace.root, context)
    except DiskError:
        raise
    except RetinueError as failed:
        raise Failed(_error_json("agent_session_error", str(failed))) from failed


async def _latest_session(agent: str, context: RuntimeContext) -> Session | None:
    return next(iter(await context.store.sessions(agent=agent, children=False)), None)


async def _find_session(ref: str, agent: str, context: RuntimeContext) -> Session:
    """Find a top-level session by its id, slug, key or alias.

    Paths are not accepted, because they could lead to any folder. Another session's child cannot be addressed.
    """
    listed = await context.store.sessions(children=False)
    found = [each for each in listed if ref in (each.id, each.slug, each.key, *each.aliases)]
    if len(found) > 1 and {each.slug for each in found} == {ref}:
        current = await context.store.find(ref)  # of several branches, the slug means the current one
        found = [each for each in found if each.id == current.id]
    if not found:
        raise Failed(_error_json("agent_session_error", "Session not found"))
    if len(found) > 1:
        keys = ", ".join(each.key for each in found)
        raise Failed(_error_json("agent_session_error", f"Session is ambiguous: {ref} matches {keys}"))
    if found[0].agent != agent:
        raise Failed(_error_json("agent_session_error", "Session does not belong to this agent"))
    return found[0]


async def _format_result(run: Run, message: _MessageRequest, context: RuntimeContext) -> str:
    fields = await message_result(run, context, wait=message.wait, timeout_s=message.timeout_s)
    if "error" in fields:
        raise Failed(json_result(**fields))
    return json_result(**fields)


async def message_result(
    run: Run, context: RuntimeContext, *, wait: bool, timeout_s: float, later_note: str = ANNOUNCED_LATER_NOTE
) -> dict[str, object]:
    """Return the state of a message, in the tool's documented shape.

    The key `error` is present if the message failed. `later_note` says how a later response arrives.
    """
    fields: dict[str, object] = {
        "agentId": run.agent,
        "sessionId": run.session_id,
        "sessionName": await _session_name(run, context),
        "created": run.request.session is None,
        "responseId": run.id,
    }
    if not wait:
        queued = await context.ledger.read(lambda tx: is_queued_behind(run, tx))
        accepted = {"mode": "async", "status": "queued" if queued else "started", **fields}
        return accepted | ({"messageId": run.id} if queued else {})
    if run.status.is_live or await context.ledger.read(
        lambda tx: tx.find_deliveries(run=run.id, answers_call=False)
    ):
        return (
            {"mode": "sync"}
            | fields
            | _pending_fields(run, timeout_s, later_note.format(run=run.id), context)
        )
    if run.status is not Status.DONE:
        failure = {"error": {"code": "agent_message_failed", "message": failure_summary(run)}} | fields
        has_summary = run.reason is Reason.INTERRUPTED and run.text
        return failure | (
            {"response": bounded_child_text(run, run.text, context).text} if has_summary else {}
        )
    response = bounded_child_text(run, run.text, context)
    return {
        "mode": "sync",
        "status": "complete",
        **fields,
        "response": response.text,
        "truncated": response.is_truncated,
        **({"message": INCOMPLETE_NOTICE} if is_incomplete(run) else {}),
        "durationMs": run.duration_ms,
        "toolCallCount": run.tool_calls,
        **await _transcript_fields(run, context),
    }


def _pending_fields(
    run: Run, timeout_s: float, later_note: str, context: RuntimeContext
) -> dict[str, object]:
    """Return the fields for a message that is not answered yet.

    Its session was busy, the wait timed out, or a person moved it to the background.
    """
    deadline = run.request.wait_until
    if run.started_at is None and (deadline is None or context.clock.now() < deadline):
        return {"status": "queued", "messageId": run.id, "message": f"Busy. {later_note}"}
    return {
        "status": "timeout",
        "timeoutSeconds": int(timeout_s) if timeout_s.is_integer() else timeout_s,
        "message": f"No response yet; the agent continues. {later_note}",
    }


def is_queued_behind(run: Run, tx: Transaction) -> bool:
    """Return whether the run has not started because its session is busy with something else."""
    current = tx.get_run(run.id) or run
    live_runs = (
        tx.find_runs(session=run.session_id, status=LIVE_STATUSES) if current.status is Status.QUEUED else ()
    )
    return any(
        each.id != run.id and not each.waits_between_turns and each.created_at <= run.created_at
        for each in live_runs
    )


async def _session_name(run: Run, context: RuntimeContext) -> str:
    """Return the session's display name, or its folder's name."""
    try:
        return (await context.store.find(run.session_id)).name or run.slug
    except RetinueError:
        return run.slug


async def _transcript_fields(run: Run, context: RuntimeContext) -> dict[str, object]:
    """Return the fields taken from the run's transcript.

    `toolCalls` is None while another process has that open. `thinkingText` is present if the answer has any.
    """
    try:
        async with context.store.open(await context.store.find(run.transcript_path)) as conversation:
            earlier = await conversation.read_earlier_entries(run.id) if run.tool_calls else ()
            entries = [*earlier, *conversation.entries]
    except RetinueError:
        return {"toolCalls": None if run.tool_calls else []}
    rows = _tool_call_rows(run, entries) if run.tool_calls else []
    replies = (entry for entry in reversed(entries) if isinstance(entry, Message) and entry.role == "agent")
    answer = next((entry for entry in replies if entry.run == run.id), None)
    if answer is None or not (thinking := context.redact(thinking_text(answer.provider_data))):
        return {"toolCalls": rows}
    return {
        "toolCalls": rows,
        "thinkingText": truncate_tool_result(
            escape_role_markers(thinking), context.limits.child_result_chars
        ),
    }


def _tool_call_rows(run: Run, entries: Sequence[Entry]) -> list[dict[str, object]]:
    duration_ms_by_call = {
        entry.call_id: entry.duration_ms for entry in entries if isinstance(entry, ToolResult)
    }
    calls = [entry for entry in entries if isinstance(entry, ToolCall) and entry.run == run.id]
    return [
        {"name": each.tool, "durationMs": duration_ms_by_call.get(each.id, 0)}
        for each in calls[:MAX_TOOL_CALLS]
    ]


@tool(
    name=LIST_TOOL,
    effect=Effect.READ,
    capabilities=["agents.read"],
    category="agents",
    inspects_runs=True,
    format_argument_error=_format_argument_error,
)
async def agents_list(
    call: Call,
    includeAll: Annotated[  # noqa: N803  (a documented argument name)
        bool, "Also list hidden agents; they accept no messages."
    ] = False,
) -> str:
    """List the other agents to which you can delegate, and what each is for."""
    context = call.context
    if context is None:
        raise Failed(_error_json("agent_not_available", "This tool requires a session."))
    agent_definition = await load_definition(call.session, context)
    scope = compute_scope(agent_definition, call.session, context, run=call.run)
    startable = startable_agents(
        scope, context.agents.list_definitions(call.session.workspace.intended_folder), context
    )
    others = other_agents(call.session.agent, startable, include_hidden=includeAll)
    return json_result(agents=[_agent_row(each) for each in others])


def _agent_row(agent: Agent) -> dict[str, object]:
    row: dict[str, object] = {
        "agentId": agent.name,
        "displayName": agent.title,
        "description": agent.description,
        "type": str(agent.type),
    }
    return row if agent.ui_visible else row | {"uiVisible": False}
