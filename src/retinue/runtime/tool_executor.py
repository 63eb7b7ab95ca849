"""The tool executor: the only place that checks, authorizes and calls tools."""

import asyncio
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from time import perf_counter

from msgspec.structs import fields, replace

from retinue.domain.ceiling import FileAccess
from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_TOOL_RESULT_CHARS
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Verdict
from retinue.domain.sanitize import text_for_model
from retinue.domain.timestamps import iso_timestamp_seconds
from retinue.domain.tool import ApprovalRequirement, Effect
from retinue.domain.transcript import ToolCall, ToolResult
from retinue.errors import DiskError, OutOfScope, Refused, RetinueError
from retinue.interfaces import Call, RuntimeContext, Tool
from retinue.runtime import side_effects
from retinue.runtime.approvals import (
    Authorization,
    Caller,
    PendingToolCall,
    authorize,
    run_request_key,
    use_one_time_approval,
)
from retinue.runtime.child_files import with_child_files
from retinue.runtime.run_outcome import RunSuspended, Suspension
from retinue.runtime.session_scope import current_caller

MAX_CACHED_SCOPES = 256
_PATH_AND_COMMAND_FIELDS = frozenset(
    {
        "read", "write", "preapproved_writes", "deny", "closed_paths", "guarded_paths", "retinue_paths", "root",
        "is_worktree", "git_dir", "workspace_label", "tmp_folder", "writable", "has_paths", "shell_commands", "user_grants",
        "child_tmp_folders",
    }
)  # fmt: skip
"""Scope fields about files and commands, which do not affect whether a tool is visible."""
_tool_rule_key: Callable[[Scope], Hashable] = attrgetter(
    *(each.name for each in fields(Scope) if each.name not in _PATH_AND_COMMAND_FIELDS)
)
NOT_LISTED_REASON = "a sub-agent's definition must list the tools that start agents"
SCOPE_REQUEST_TOOL = "request_scope_expansion"
SCOPE_REQUEST_ADVICE = (
    f" If you need it, request it with {SCOPE_REQUEST_TOOL}; otherwise continue without it."
)


def check_tool_allowed(tool: Tool, scope: Scope) -> Verdict:
    """Check whether a tool is allowed, for the tool list and for calls alike."""
    return _cached_verdict(tool, scope, _verdict_cache_for(scope))


def visible_tools(tools: Mapping[str, Tool], scope: Scope) -> Mapping[str, Tool]:
    """Return the tools that the model sees, in a stable order."""
    cache, table = _verdict_cache_for(scope), (tuple(tools), tuple(tools.values()))
    if cache.tool_table != table:
        verdicts = {name: _cached_verdict(tools[name], scope, cache).ok for name in sorted(tools)}
        cache.tool_table = table
        cache.visible = {name: tools[name] for name, ok in verdicts.items() if ok}
    return cache.visible


@dataclass(slots=True)
class _VerdictCache:
    """Verdicts shared by scopes with the same tool rules, as thousands of siblings may have."""

    verdicts: dict[str, tuple[Tool, Verdict]] = field(default_factory=dict[str, tuple[Tool, Verdict]])
    tool_table: tuple[tuple[str, ...], tuple[Tool, ...]] = ((), ())
    visible: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    """Visible tools of `tool_table`."""


def _cached_verdict(tool: Tool, scope: Scope, cache: _VerdictCache) -> Verdict:
    name = tool.spec.name
    cached = cache.verdicts.get(name)
    if cached is None or cached[0] is not tool:
        cached = cache.verdicts[name] = (tool, _evaluate_tool(tool, scope))
    return cached[1]


_caches_by_scope_id: dict[int, tuple[Scope, _VerdictCache]] = {}
"""Verdict caches by scope identity: comparing the rule fields takes longer than checking one tool."""


def _verdict_cache_for(scope: Scope) -> _VerdictCache:
    cached_scope, cache = _caches_by_scope_id.get(id(scope), (None, None))
    if cache is None or cached_scope is not scope:
        cache = _shared_verdict_cache(_tool_rule_key(scope))
        if len(_caches_by_scope_id) >= MAX_CACHED_SCOPES:
            _caches_by_scope_id.clear()
        _caches_by_scope_id[id(scope)] = (scope, cache)
    return cache


@lru_cache(maxsize=MAX_CACHED_SCOPES)
def _shared_verdict_cache(_rule_key: Hashable) -> _VerdictCache:
    return _VerdictCache()


def _evaluate_tool(tool: Tool, scope: Scope) -> Verdict:
    tool_verdict = scope.check_tool(tool.spec.name, tool.capabilities)
    if tool_verdict.ok and tool.unavailable_reason:
        return Verdict(ok=False, rule=tool.unavailable_reason)
    if tool_verdict.ok and not (exposure_verdict := scope.check_plugin_exposed(tool.plugin)).ok:
        return exposure_verdict
    if tool_verdict.ok and tool.is_delegation and not scope.can_delegate(tool.spec.name):
        return Verdict(ok=False, rule=NOT_LISTED_REASON)
    if tool_verdict.ok and tool.is_delegation and scope.depth_limit_reason:
        return Verdict(ok=False, rule=scope.depth_limit_reason)
    if tool_verdict.ok and tool.access == "run" and scope.shell_blocked_reason:
        return Verdict(ok=False, rule=scope.shell_blocked_reason)
    return tool_verdict


async def execute_tool_call(
    tool_call: ToolCall, caller: Caller, context: RuntimeContext
) -> ToolResult | Suspension:
    """Execute one tool call and return its result; a refusal is a result like any other.

    For a call that must wait for a person or a child, returns a `Suspension`; the call is executed again when
    the run resumes.
    """
    started = perf_counter()
    try:
        ok, text = await _validate_and_run(tool_call, caller, context)
    except RunSuspended as suspended:
        return Suspension(
            question=suspended.question,
            calls_to_approve=(tool_call.id,) if suspended.needs_approval else (),
        )
    tool = context.tools.get(tool_call.tool)
    elapsed_s = perf_counter() - started
    tool_result = ToolResult(
        call_id=tool_call.id,
        text=truncate_tool_result(context.redact(text_for_model(text))),
        ok=ok,
        duration_ms=round(
            1000
            * (
                elapsed_s
                if tool is None or not tool.is_delegation
                else await _elapsed_s(tool_call, caller, elapsed_s, context)
            )
        ),
        at=iso_timestamp_seconds(context.clock.now()),
        run=caller.run.id,
    )
    if tool is not None and tool.effect is Effect.ONCE:
        await side_effects.record_end(tool_call, tool_result, context)
    return tool_result


async def _elapsed_s(tool_call: ToolCall, caller: Caller, elapsed_s: float, context: RuntimeContext) -> float:
    """Return the seconds since the first execution of a call, which is repeated if it waited for a run."""
    key = run_request_key(caller.run.id, tool_call.id)
    child = await context.ledger.read(lambda tx: tx.get_run_by_key(key))
    return (
        elapsed_s
        if child is None
        else max(elapsed_s, (context.clock.now() - child.created_at).total_seconds())
    )


async def request_approval_early(tool_call: ToolCall, caller: Caller, context: RuntimeContext) -> bool:
    """Ask a person about a call that runs after others of its reply; return False if it needs no approval.

    Nothing is decided here: when the call runs, it is checked like any other.

    Raises:
        DiskError: Retinue's own storage failed.
    """
    tool = context.tools.get(tool_call.tool)
    if tool is None or tool.approval_requirement is ApprovalRequirement.NEVER:
        return False
    if tool.effect is Effect.ONCE and await context.ledger.read(lambda tx: tx.get_side_effect(tool_call.id)):
        return False  # it was started before
    pending_call = await _parse_call(tool_call, caller, context)
    if not isinstance(pending_call, PendingToolCall):
        return False
    try:
        await authorize(replace(pending_call, runs_later=True), context)
    except RunSuspended:
        return True
    except DiskError:
        raise
    except RetinueError:
        return False
    return False


async def _validate_and_run(tool_call: ToolCall, caller: Caller, context: RuntimeContext) -> tuple[bool, str]:
    tool = context.tools.get(tool_call.tool)
    if (
        tool
        and not tool_call.invalid_reason
        and (recorded := await side_effects.find_recorded_result(tool_call, tool, context)) is not None
    ):
        return recorded
    parsed = await _parse_call(tool_call, caller, context)
    return await _authorize_and_invoke(parsed, context) if isinstance(parsed, PendingToolCall) else parsed


async def _parse_call(
    tool_call: ToolCall, caller: Caller, context: RuntimeContext
) -> PendingToolCall | tuple[bool, str]:
    """Return the call with its tool, arguments and present scope, or the result of a call that may not run."""
    if tool_call.invalid_reason:
        return (
            False,
            f"This call did not run: {tool_call.invalid_reason}. Correct and repeat it; if it was cut off, use smaller steps.",
        )
    tool = context.tools.get(tool_call.tool)
    try:
        caller = await current_caller(caller, context)
    except RetinueError as error:
        message = f"{tool_call.tool} did not run, because your definition is not valid now. {error}"
        return False, denial_json("no_definition", tool_call.tool, message=message)
    scope = caller.scope
    if tool is None:
        names = ", ".join(visible_tools(context.tools, scope)) or "none"
        return False, denial_json(
            "unknown_tool",
            tool_call.tool,
            message=f"Unknown tool {tool_call.tool!r}. Your tools: {names}.",
        )
    tool_verdict = check_tool_allowed(tool, scope)
    if not tool_verdict.ok and tool.delegation_refused_text and tool_verdict.rule == NOT_LISTED_REASON:
        return False, tool.delegation_refused_text
    # The delegation tool reports the depth limit with its own text: no run is created below it.
    if not tool_verdict.ok and tool_verdict.rule != scope.depth_limit_reason:
        return False, denial_json(
            "tool_not_allowed",
            tool_call.tool,
            allowed=scope.tools.allow or (),
            denied=scope.tools.deny + scope.operator_tools.deny,
            message=f'Tool "{tool_call.tool}" is not allowed for this agent ({tool_verdict.rule}).',
        )
    try:
        args = tool.parse_arguments(_encode_arguments(tool_call.args))
    except ValueError as error:
        default_message = f"Invalid arguments for {tool_call.tool}: {error}"
        return False, tool.format_argument_error(
            str(error)
        ) if tool.format_argument_error else default_message
    scope = await with_child_files(scope, tool, args, caller.session, context)
    caller = caller if scope is caller.scope else replace(caller, scope=scope)
    return PendingToolCall(tool_call=tool_call, tool=tool, args=args, caller=caller)


async def _authorize_and_invoke(pending_call: PendingToolCall, context: RuntimeContext) -> tuple[bool, str]:
    """Authorize a call, requesting a person's approval if needed, and invoke the tool.

    Raises:
        DiskError: Retinue's own storage failed. The model cannot do anything about it, so it is not a result.
    """
    try:
        try:
            return await _invoke_tool(pending_call, await authorize(pending_call, context), context)
        except OutOfScope as error:
            if (authorization := await use_one_time_approval(pending_call, error, context)) is None:
                raise
            return await _invoke_tool(pending_call, authorization, context)
    except OutOfScope as error:
        advice = SCOPE_REQUEST_ADVICE if _can_request_scope(pending_call, error, context) else ""
        return False, denial_json(
            error.error,
            pending_call.tool.spec.name,
            resource=error.resource,
            allowed=error.allowed,
            denied=error.denied,
            message=f"{error}{advice}",
        )
    except Refused as error:
        name, resource = pending_call.tool.spec.name, pending_call.resource
        return False, denial_json(error.code, name, resource=resource, message=str(error))
    except DiskError:
        raise
    except RetinueError as error:
        return False, str(error)


def _can_request_scope(pending_call: PendingToolCall, error: OutOfScope, context: RuntimeContext) -> bool:
    """Return True if asking a person for more scope could help.

    No approval allows access to what is protected, denied or above the ceiling.
    """
    if error.error != "out_of_scope" or not error.resource:
        return error.error == "out_of_scope"
    scope = pending_call.caller.scope
    access: FileAccess = "write" if pending_call.tool.access == "write" else "read"
    real_path = context.sandbox.files_for(scope).real_path(error.resource)
    return scope.with_user_grant(real_path, access).check_path(real_path, access).ok


async def _invoke_tool(
    pending_call: PendingToolCall, authorization: Authorization, context: RuntimeContext
) -> tuple[bool, str]:
    """Invoke the tool and turn an exception of its body into a result.

    A cancellation propagates only if this task was cancelled: something that the body awaited may have been
    cancelled, and that does not stop the run.
    """
    caller, name, tool_call = pending_call.caller, pending_call.tool.spec.name, pending_call.tool_call
    recorded = await side_effects.record_start(tool_call, caller.run, pending_call.tool, context)
    tool_context = Call(
        run=caller.run,
        session=caller.session,
        id=tool_call.id,
        recorded_intent=recorded,
        record_intent=lambda note: side_effects.record_note(tool_call, note, context),
        files=authorization.files,
        shell=context.sandbox.shell_for(authorization.scope),
        approval_answer=authorization.answer,
        ask_user=context.ask_user,
        context=context if pending_call.tool.is_delegation or pending_call.tool.inspects_runs else None,
    )
    try:
        return True, await pending_call.tool.function(pending_call.args, tool_context)
    except (RetinueError, RunSuspended):
        raise
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        return False, f"{name} failed: an operation it waited for was cancelled"
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a tool's body may fail in any way; the model gets the error)
        return False, f"{name} failed: {type(error).__name__}: {error}"


def denial_json(
    error: str,
    tool: str,
    *,
    message: str,
    resource: str = "",
    allowed: tuple[str, ...] = (),
    denied: tuple[str, ...] = (),
) -> str:
    """Return the JSON text of a refusal."""
    return json.dumps(
        {
            "success": False,
            "error": error,
            "tool": tool,
            "resource": resource,
            "allowed_patterns": list(allowed),
            "deny_patterns": list(denied),
            "message": message,
        },
        ensure_ascii=False,
    )


def truncate_tool_result(text: str, limit: int = MAX_TOOL_RESULT_CHARS) -> str:
    """Shorten a long text to its start and end, with a note of how much was omitted."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters omitted …]\n{text[-half:]}"


def _encode_arguments(args: str) -> bytes:
    raw = (args or "{}").encode("utf-8", "replace")
    if len(raw) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"{len(raw):,} bytes; the limit is {MAX_ARGUMENT_BYTES:,}")
    return raw
