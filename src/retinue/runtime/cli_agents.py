"""CLI agents: authorize their start, restrict their rights, and record their turns for recovery."""

import json

from msgspec.structs import replace

from retinue.domain.approval import ApprovalPolicy
from retinue.domain.ceiling import NETWORK_CAPABILITY
from retinue.domain.permissions.scope import Scope
from retinue.domain.providers import CLI_AGENTS
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.side_effect import SideEffect, SideEffectState, tool_call_hash
from retinue.domain.transcript import ToolCall
from retinue.errors import OutOfScope, RetinueError
from retinue.interfaces import Conversation, RuntimeContext, Transaction
from retinue.runtime.approvals import ApprovalRequest, PendingToolCall, request_approval
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.run_outcome import RunSuspended, Suspension
from retinue.runtime.run_plan import RunPlan
from retinue.runtime.session_scope import current_caller
from retinue.runtime.tool_executor import check_tool_allowed

SHELL_TOOL = "bash"
"""A CLI agent can run commands, so an agent that is denied this tool may not be a CLI agent."""
INTERRUPTED_TURN_NOTICE = (
    "You were interrupted: the process ended during your turn. What you had already done was not undone. "
    "Check the current state before you repeat anything."
)
READ_ONLY_PROMPT = (
    "You may read files here, but not change them. Describe changes you would make in your answer."
)
WRITABLE_PATTERNS_PROMPT = (
    "You may change files only where these patterns allow it: {patterns}. Elsewhere you may read."
)


def is_cli_agent(plan: RunPlan) -> bool:
    return plan.model.provider in CLI_AGENTS


async def authorize_cli_agent(plan: RunPlan, attempt: RunAttempt, session: Session) -> RunPlan | Suspension:
    """Return the plan restricted to what the CLI agent may do.

    In a strict sandbox that is what needs no approval; elsewhere a person must approve the start, and the run
    is suspended until then.

    Raises:
        OutOfScope: its scope cannot be enforced for a CLI agent.
    """
    context, provider = attempt.context, plan.model.provider
    caller = await current_caller(plan.caller(attempt.run, session), context)
    scope = caller.scope
    _check_scope_supported(plan, scope, context)
    level = await context.sandbox.detect_level()
    if level is SandboxLevel.STRICT:
        restricted = (
            scope
            if context.approval_policy() is ApprovalPolicy.AUTO
            else replace(scope, write=scope.preapproved_writes)
        )
        return replace(
            plan, scope=restricted, system=f"{plan.system}\n\n{_write_access_prompt(restricted)}".strip()
        )
    tool_call = ToolCall(
        id=attempt.run.id,
        tool=provider,
        args=json.dumps({"task": attempt.run.request.task}),
        run=attempt.run.id,
    )
    shell_tool = context.tools[SHELL_TOOL]
    tool = replace(shell_tool, spec=replace(shell_tool.spec, name=provider))
    question = ApprovalRequest(
        pending_call=PendingToolCall(
            tool_call=tool_call, tool=tool, args={"task": attempt.run.request.task}, caller=caller
        ),
        resource=f"{CLI_AGENTS[provider].binary} in {scope.root}",
        reason=f"the sandbox level is {level}, so {CLI_AGENTS[provider].binary} would run unrestricted, with all your permissions",
        level=level,
    )
    try:
        await request_approval(question, context)
    except RunSuspended:
        return Suspension(calls_to_approve=(tool_call.id,))
    return replace(plan, scope=scope)


def _check_scope_supported(plan: RunPlan, scope: Scope, context: RuntimeContext) -> None:
    """Refuse a scope that cannot be enforced, because Retinue cannot check the commands a CLI agent runs itself.

    Access to hosts other than its model's needs the network capability.
    """
    provider, shell_tool = plan.model.provider, context.tools[SHELL_TOOL]
    problem = (
        ""
        if (shell_verdict := check_tool_allowed(shell_tool, scope)).ok
        else f"this agent may not run commands ({shell_verdict.rule})"
    )
    if not problem and scope.shell_commands is not None and scope.shell_commands.deny:
        problem = f"{', '.join(scope.shell_commands.deny)} cannot be denied there (shell_commands.deny)"
    if problem:
        raise OutOfScope(
            f"{provider} runs its own commands, and {problem}. Use another provider, or change the definition."
        )
    if (
        plan.model.settings.get("hosts")
        and not (
            network_verdict := scope.check_tool(SHELL_TOOL, (*shell_tool.capabilities, NETWORK_CAPABILITY))
        ).ok
    ):
        raise OutOfScope(
            f"{provider} may not connect to the hosts in its settings ({network_verdict.rule}). Remove them."
        )


def _write_access_prompt(scope: Scope) -> str:
    patterns = (
        scope.write if scope.writable else tuple(each for each in scope.write if scope.is_private_tmp(each))
    )
    return WRITABLE_PATTERNS_PROMPT.format(patterns=", ".join(patterns)) if patterns else READ_ONLY_PROMPT


async def append_interrupted_notice(conversation: Conversation, attempt: RunAttempt) -> None:
    """Append one notice if a turn was started and never ended, to inform the CLI agent."""

    def step(tx: Transaction) -> bool:
        unfinished = [
            side_effect
            for side_effect in tx.find_side_effects(attempt.run.id)
            if side_effect.progress is SideEffectState.STARTED and side_effect.tool in CLI_AGENTS
        ]
        for side_effect in unfinished:
            tx.save_side_effect(side_effect.mark_unknown())
        return bool(unfinished)

    if await attempt.context.ledger.write(step):
        await attempt.append_entries(conversation, attempt.make_notice("resumed", INTERRUPTED_TURN_NOTICE))


async def record_turn_start(attempt: RunAttempt, plan: RunPlan) -> SideEffect:
    """Record the start of a turn, with the sandbox level, before it begins."""
    context = attempt.context
    side_effect = SideEffect(
        call=context.clock.new_entry_id(),
        run=attempt.run.id,
        tool=plan.model.provider,
        digest=tool_call_hash(plan.model.provider, attempt.run.request.task or ""),
        note=str(await context.sandbox.detect_level()),
        started_at=context.clock.now(),
    )
    await context.ledger.write(lambda tx: tx.save_side_effect(side_effect))
    return side_effect


async def record_turn_end(
    side_effect: SideEffect, attempt: RunAttempt, error: RetinueError | None = None
) -> None:
    """Record the end of a turn once its reply is in the transcript.

    Until then, a process that resumes the run does not know what the turn has done.
    """
    context = attempt.context
    text = "" if error is None else context.redact(str(error))
    finished = side_effect.finish(ok=error is None, text=text, at=context.clock.now())
    await context.ledger.write(lambda tx: tx.save_side_effect(finished))
