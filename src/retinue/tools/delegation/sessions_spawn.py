"""sessions_spawn and sessions_list: run background workers in isolated sessions.

Their results are announced to the parent.
"""

from typing import Annotated, Literal

import msgspec

from retinue.domain.delivery import single_line, subagent_status
from retinue.domain.run import Run, RunRequest
from retinue.domain.system_prompt import worker_prompt
from retinue.domain.timestamps import iso_timestamp
from retinue.domain.tool import Effect
from retinue.errors import BadConfig, Failed, NotFound, Refused
from retinue.interfaces import Call, Transaction
from retinue.runtime.approvals import run_request_key
from retinue.runtime.child_permissions import ChildSpec
from retinue.runtime.spawn import spawn_child
from retinue.tools.define import tool
from retinue.tools.delegation.json_result import json_result

TOOL_NAME = "sessions_spawn"
MAX_LISTED = 200
DELEGATION_REFUSED = json_result(
    status="forbidden", error="sessions_spawn is not allowed from sub-agent sessions"
)


def _format_argument_error(message: str) -> str:
    return json_result(status="error", error=message)


@tool(
    name=TOOL_NAME,
    effect=Effect.IDEMPOTENT,
    category="sessions",
    is_delegation=True,
    delegation_refused_text=DELEGATION_REFUSED,
    format_argument_error=_format_argument_error,
)
async def sessions_spawn(
    call: Call,
    *,
    task: Annotated[str, "The whole task: the worker does not see this conversation."],
    label: Annotated[str | None, "A short name, such as research."] = None,
    model: Annotated[str | None, "The model to use instead of the default."] = None,
    thinking: Annotated[Literal["off", "low", "medium", "high"] | None, "The thinking level."] = None,
    timeoutSeconds: Annotated[  # noqa: N803  (a documented argument name)
        Annotated[int, msgspec.Meta(ge=0)] | None, "Deadline in seconds; 0 means the configured maximum."
    ] = None,
    cleanup: Annotated[
        Literal["delete", "keep"], "Whether to keep its conversation after its result was announced."
    ] = "keep",
) -> str:
    """Spawn a background sub-agent run in an isolated session. Results are announced back when complete. Continue
    with something else in the meantime, or end your turn."""
    context = call.context
    if context is None:
        raise Failed(json_result(status="error", error="This tool requires a session."))
    if not task.strip():
        raise Failed(json_result(status="error", error="task is empty"))
    agent = call.session.agent
    key = f"agent:{agent}:subagent:{context.clock.new_uuid()}"
    request = RunRequest(
        key=run_request_key(call.run.id, call.id),
        agent=agent,
        task=task,
        requester=call.session.key,
        parent_run=call.run.id,
        entry_point=TOOL_NAME,
        source="subagent",
        label=single_line(label or ""),
        model=model or context.subagent_settings.model,
        thinking=thinking,
        deadline_seconds=timeoutSeconds,
        keep_session=cleanup == "keep",
    )
    prompt = worker_prompt(requester=call.session.key, session=key, label=request.label or agent, task=task)
    child = ChildSpec(
        parent=call.session,
        description=request.label or single_line(task)[:40],
        use_definition_paths=True,
        build_prompt=lambda _: prompt,
        alias=key,
        is_leaf=True,
    )
    try:
        run = await spawn_child(request, child, context)
    except (Refused, NotFound) as error:
        raise Failed(json_result(status="forbidden", error=str(error))) from error
    except BadConfig as error:
        raise Failed(json_result(status="error", error=str(error))) from error
    return json_result(status="accepted", runId=run.id, sessionKey=run.session_key)


@tool(name="sessions_list", effect=Effect.READ, category="sessions", inspects_runs=True)
async def sessions_list(
    call: Call,
    limit: Annotated[Annotated[int, msgspec.Meta(ge=1, le=MAX_LISTED)], "The maximum number of rows."] = 50,
) -> str:
    """List the runs that this conversation has started in other sessions, newest first, each with its status and its
    session's key."""
    context = call.context
    if context is None:
        raise Failed(json_result(status="error", error="This tool requires a session."))

    def load_child_runs(tx: Transaction) -> list[Run]:
        parent_runs = tx.find_runs(session=call.session.id)
        children = [run for each in parent_runs for run in tx.find_runs(parent_run=each.id, limit=limit)]
        return sorted(children, key=lambda run: run.id, reverse=True)[:limit]

    runs = await context.ledger.read(load_child_runs)
    return json_result(count=len(runs), sessions=[_run_row(run) for run in runs])


def _run_row(run: Run) -> dict[str, object]:
    return {
        "key": run.session_key,
        "runId": run.id,
        "agentId": run.agent,
        "label": run.request.label or None,
        "status": subagent_status(run),
        "startedAt": iso_timestamp(run.started_at),
        "finishedAt": iso_timestamp(run.ended_at),
        "error": run.error or None,
    }
