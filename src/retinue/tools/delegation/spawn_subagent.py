"""spawn_subagent: delegate a subtask to an agent with its own conversation and workspace."""

from typing import Annotated, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import Role
from retinue.domain.bounded_text import read_result_call
from retinue.domain.delivery import failure_summary, files_note, inbox_status, run_label, single_line
from retinue.domain.run import Reason, Run, RunRequest, Status
from retinue.domain.tool import Effect
from retinue.domain.workspace import Isolation
from retinue.errors import BadDefinition, Failed, NotFound, Refused
from retinue.interfaces import Call, RuntimeContext
from retinue.runtime.approvals import run_request_key
from retinue.runtime.child_permissions import ChildSpec
from retinue.runtime.child_report import format_report
from retinue.runtime.child_wait import take_child_result
from retinue.runtime.child_workspace import apply_workspace_override
from retinue.runtime.spawn import check_spawn_allowed, spawn_child
from retinue.runtime.watchers import start_watch
from retinue.tools.define import tool
from retinue.tools.delegation.json_result import json_result

TOOL_NAME = "spawn_subagent"
NO_SESSION_ERROR = "This tool requires a session."
MAX_DESCRIPTION_CHARS = 40

WATCH_INSTRUCTIONS = "The watched agent started you and asks you to watch for this:\n{text}"

WorkspaceMode = Literal["inherit", "sandbox", "custom"]
ReturnMode = Literal["blocking", "background"]
ISOLATION_BY_MODE = {"inherit": Isolation.SHARED, "sandbox": Isolation.SANDBOX, "custom": Isolation.CUSTOM}


class WorkspaceOverride(Struct, frozen=True, kw_only=True):
    """Workspace for one call, overriding the one in the agent's definition."""

    mode: Annotated[
        WorkspaceMode | None,
        msgspec.Meta(
            description="inherit: your own folder; sandbox: a separate worktree; custom: another folder."
        ),
    ] = None
    customPath: Annotated[  # noqa: N815  (a documented argument name)
        str | None, msgspec.Meta(description="The folder for mode custom; you must be allowed to read it.")
    ] = None
    allowWrites: Annotated[  # noqa: N815  (a documented argument name)
        bool | None,
        msgspec.Meta(
            description="Whether it may write there; your own rights and its definition still apply."
        ),
    ] = None


@tool(
    name=TOOL_NAME, effect=Effect.IDEMPOTENT, category="agents", is_delegation=True, agent_argument="agentId"
)
async def spawn_subagent(
    call: Call,
    *,
    agentId: Annotated[str, "The agent to use."],  # noqa: N803  (a documented argument name)
    prompt: Annotated[str, "The whole task: the agent does not see this conversation."],
    capability: Annotated[
        Literal["primary", "subtask", "watcher", "orchestrator"],
        "The role in which it is started. watcher: it watches this conversation and comments; the prompt says what to look for.",
    ] = "subtask",
    returnMode: Annotated[  # noqa: N803  (a documented argument name)
        ReturnMode,
        "blocking: wait for its summary. background: continue; its result is delivered to your inbox.",
    ] = "blocking",
    label: Annotated[str | None, "A short name."] = None,
    workspace: Annotated[WorkspaceOverride | None, "Overrides the workspace of its definition."] = None,
) -> str:
    """Delegate a subtask to another agent, which works in its own conversation and returns only a summary. Use it for
    independent tasks that would fill this conversation with detail."""
    context = call.context
    if context is None:
        raise Failed(NO_SESSION_ERROR)
    if not prompt.strip():
        raise Failed("The prompt is empty. Describe the task.")
    if capability == Role.WATCHER:
        return await _start_watcher(agentId, prompt, call, context)
    request = RunRequest(
        key=run_request_key(call.run.id, call.id),
        agent=agentId,
        task=prompt,
        requester=call.session.key,
        parent_run=call.run.id,
        entry_point=TOOL_NAME,
        source="subagent",
        label=single_line(label or ""),
        wait=returnMode == "blocking",
        role=capability,
    )
    run = await find_existing_run(request, context)
    if run is None:
        child = ChildSpec(
            parent=call.session, description=request.label or single_line(prompt), use_definition_paths=True
        )
        run = await start_child_run(
            request, _with_workspace_override(child, workspace, request, call), context
        )
    return await child_result(run, call, context)


async def _start_watcher(agent: str, instructions: str, call: Call, context: RuntimeContext) -> str:
    """Let the agent watch the caller's conversation; it comments from its next part on, and the call does not wait."""
    request = RunRequest(
        key=run_request_key(call.run.id, call.id),
        agent=agent,
        task=None,
        requester=call.session.key,
        parent_run=call.run.id,
        entry_point=TOOL_NAME,
        role=Role.WATCHER,
    )
    try:
        await check_spawn_allowed(request, call.session, context)
        watch = await start_watch(
            call.session,
            agent,
            context,
            trigger=request.trigger,
            instructions=WATCH_INSTRUCTIONS.format(text=instructions.strip()),
        )
    except NotFound as error:
        raise _unknown_agent_error(agent, error) from error
    except Refused as error:
        raise Failed(str(error)) from error
    return json_result(
        sessionId=watch.watcher, watchId=watch.id, agentId=agent, name=watch.name, status="waiting"
    )


async def find_existing_run(request: RunRequest, context: RuntimeContext) -> Run | None:
    """Return the run that this same call created before a crash, or None."""
    return await context.ledger.read(lambda tx: tx.get_run_by_key(request.key))


async def start_child_run(request: RunRequest, child: ChildSpec, context: RuntimeContext) -> Run:
    """Create the child's run, with this tool's documented error messages."""
    try:
        return await spawn_child(
            request, replace(child, description=child.description[:MAX_DESCRIPTION_CHARS]), context
        )
    except NotFound as error:
        raise _unknown_agent_error(request.agent, error) from error
    except Refused as error:
        raise Failed(str(error)) from error


async def child_result(run: Run, call: Call, context: RuntimeContext) -> str:
    """Return the child's report if the caller waits, else its status."""
    if not run.request.wait:
        return _background_result(run)
    run = await take_child_result(run, call, context)
    if run.status.is_live:
        return _background_result(run)
    if run.reason is Reason.INTERRUPTED and run.text.strip():
        return format_report(run, run.text, context)
    if run.status is not Status.DONE:
        raise Failed(
            f"{run_label(run)} error: {failure_summary(run)} (its conversation: {run.transcript_path}; "
            f"to read its text so far, call: {read_result_call(run.id)}){files_note(run)}"
        )
    return format_report(run, run.text, context)


def _background_result(run: Run) -> str:
    return json_result(sessionId=run.session_id, runId=run.id, agentId=run.agent, status=inbox_status(run))


def _unknown_agent_error(agent: str, error: NotFound) -> Failed:
    """Make the error for an unknown agent; a broken definition is reported with its own error."""
    return Failed(
        str(error) if isinstance(error.__cause__, BadDefinition) else f"Unknown agent profile: {agent}"
    )


def _with_workspace_override(
    child: ChildSpec, override: WorkspaceOverride | None, request: RunRequest, call: Call
) -> ChildSpec:
    if override is None or call.context is None:
        return child
    try:
        policy = call.context.agents.get(
            request.agent, call.session.workspace.intended_folder
        ).agent.workspace
    except NotFound as error:
        raise _unknown_agent_error(request.agent, error) from error
    overridden_policy = apply_workspace_override(
        policy,
        isolation=None if override.mode is None else ISOLATION_BY_MODE[override.mode],
        folder=_override_folder(override, call),
        writable=override.allowWrites,
    )
    return replace(child, workspace=overridden_policy)


def _override_folder(override: WorkspaceOverride, call: Call) -> str | None:
    """Return the real path of the folder, which the caller itself must be allowed to read."""
    if (override.mode == "custom") != bool(override.customPath):
        raise Failed(
            "workspace.customPath requires workspace.mode custom, and vice versa. Give both or neither."
        )
    return call.files.check_access(override.customPath, "read") if override.customPath else None
