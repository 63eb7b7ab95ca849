"""Approvals: decide whether a tool call needs a person's approval; request it, wait for it and use it up."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.approval import (
    Answer,
    Approval,
    ApprovalPolicy,
    ApprovalState,
    NamedFile,
    ToolAccess,
    approval_digest,
)
from retinue.domain.ceiling import FileAccess, OperatorPolicy
from retinue.domain.glob import first_match
from retinue.domain.permissions.guarded_paths import guarding_program
from retinue.domain.permissions.scope import Scope, built_in_rules_version
from retinue.domain.run import Run
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.tool import ApprovalRequirement
from retinue.domain.transcript import ToolCall
from retinue.errors import OutOfScope, Refused, UserUnavailable
from retinue.interfaces import RuntimeContext, ScopedFiles, Tool, Transaction
from retinue.runtime.command_files import hash_used_files
from retinue.runtime.run_events import make_event
from retinue.runtime.run_outcome import RunSuspended

PERSON = "person"
ALWAYS_ASKS_REASON = "this tool requires approval for every call"


class AnswerDeferred(UserUnavailable):
    """Nobody can answer now, but somebody can later, so the question may stay open."""


class Caller(Struct, frozen=True, kw_only=True):
    """The run and session that make a call, their scope, and what it was computed from."""

    run: Run
    session: Session
    agent: Agent
    operator_policy: OperatorPolicy
    scope: Scope


class PendingToolCall(Struct, frozen=True, kw_only=True):
    """A parsed tool call that has not been authorized yet."""

    tool_call: ToolCall
    tool: Tool
    args: Mapping[str, Any]
    caller: Caller
    runs_later: bool = False
    """Other calls run first: a person is asked now, and an approval is not used up."""

    @property
    def resource(self) -> str:
        return self.tool.resource_of(self.args) if self.tool.resource_of else self.tool.spec.name


class Authorization(Struct, frozen=True, kw_only=True):
    """Rights with which an authorized call runs."""

    scope: Scope
    files: ScopedFiles
    answer: Answer | None = None


async def authorize(pending_call: PendingToolCall, context: RuntimeContext) -> Authorization:
    """Authorize a tool call, requesting a person's approval if needed.

    Raises:
        OutOfScope, Refused: the call is not allowed; the message says why.
        RunSuspended: the call waits for a person, or it needs an approval and runs later.
    """
    tool, scope = pending_call.tool, pending_call.caller.scope
    if tool.approval_requirement is ApprovalRequirement.NEVER:
        return Authorization(scope=scope, files=context.sandbox.files_for(scope))
    if tool.is_delegation and await _is_repeated_delegation(pending_call, context):
        return Authorization(scope=scope, files=context.sandbox.files_for(scope))
    if tool.check_call is not None:
        await tool.check_call(
            pending_call.args, pending_call.caller.run, pending_call.caller.session, context
        )
    if tool.access == "scope":
        return await _authorize_scope_request(pending_call, context)
    if tool.access == "run":
        return await _authorize_command(pending_call, context)
    if tool.access in ("read", "write"):
        return await _authorize_file(pending_call, context)
    if context.approval_policy() is ApprovalPolicy.AUTO:
        return Authorization(scope=scope, files=context.sandbox.files_for(scope))
    await request_approval(
        ApprovalRequest(
            pending_call=pending_call, resource=pending_call.resource, reason=_explain_approval(pending_call)
        ),
        context,
    )
    return Authorization(scope=scope, files=context.sandbox.files_for(scope), answer=Answer.ALLOW)


def _explain_approval(pending_call: PendingToolCall) -> str:
    """Return the reason shown to a person for a call without a path or command."""
    if not pending_call.tool.is_delegation:
        return "this tool has side effects"
    if pending_call.args.get("allowed_paths") == []:
        return "it starts another agent, which may read every file on this machine that is not protected or denied"
    return "it starts another agent with its own permissions"


def _explain_file_approval(pending_call: PendingToolCall, real_path: str, *, is_guarded: bool) -> str:
    scope = pending_call.caller.scope
    if is_guarded:
        pattern = first_match(scope.guarded_paths, real_path, ignore_case=True)
        program, which = (guarding_program(pattern), pattern) if pattern else ("git", "a git repository")
        return f"{program} obeys this file ({which}), so every change requires approval"
    return ALWAYS_ASKS_REASON if scope.is_write_preapproved(real_path) else "not preapproved by any rule"


def run_request_key(run: str, call: str) -> str:
    """Return the idempotency key of the run that a tool call requests.

    A repeated call finds the existing run instead of creating a second one.
    """
    return f"call:{run}/{call}"


async def _is_repeated_delegation(pending_call: PendingToolCall, context: RuntimeContext) -> bool:
    """Return True if this delegation call already created its run and is repeated after a wait."""
    key = run_request_key(pending_call.caller.run.id, pending_call.tool_call.id)
    return await context.ledger.read(lambda tx: tx.get_run_by_key(key)) is not None


async def use_one_time_approval(
    pending_call: PendingToolCall, error: OutOfScope, context: RuntimeContext
) -> Authorization | None:
    """Use up a person's one-time approval for a file that the scope refuses; None if there is none."""
    if pending_call.tool.access not in ("read", "write") or not error.resource:
        return None
    scope = await _use_file_approval(pending_call, error.resource, context)
    return None if scope is None else Authorization(scope=scope, files=context.sandbox.files_for(scope))


async def _authorize_file(pending_call: PendingToolCall, context: RuntimeContext) -> Authorization:
    scope, resource = pending_call.caller.scope, pending_call.resource
    access: FileAccess = "write" if pending_call.tool.access == "write" else "read"
    try:
        real_path = context.sandbox.files_for(scope).check_access(resource, access)
    except OutOfScope:
        widened = await _use_file_approval(pending_call, resource, context)
        if widened is None:
            raise
        return Authorization(scope=widened, files=context.sandbox.files_for(widened))
    files = context.sandbox.files_for(scope)
    is_guarded = files.is_guarded(real_path)
    granted = (
        scope.is_write_preapproved(real_path)
        and not is_guarded
        and pending_call.tool.approval_requirement is not ApprovalRequirement.ALWAYS
    )
    if granted or (context.approval_policy() is ApprovalPolicy.AUTO and not is_guarded):
        return Authorization(scope=scope, files=files)
    await request_approval(
        ApprovalRequest(
            pending_call=pending_call,
            resource=real_path,
            reason=_explain_file_approval(pending_call, real_path, is_guarded=is_guarded),
        ),
        context,
    )
    return Authorization(scope=scope, files=files.restrict_writes_to(real_path), answer=Answer.ALLOW)


async def _authorize_command(pending_call: PendingToolCall, context: RuntimeContext) -> Authorization:
    scope, text = pending_call.caller.scope, pending_call.resource
    if not (verdict := scope.check_command(text)).ok:
        raise OutOfScope(
            f"this command is denied ({verdict.rule})",
            resource=text,
            denied=(scope.shell_commands and scope.shell_commands.deny) or (),
            error="command_not_allowed",
        )
    level = await context.sandbox.detect_level()
    granted = scope.check_command_preapproved(text)
    authorization = Authorization(scope=scope, files=context.sandbox.files_for(scope))
    skips_approval = granted.ok and pending_call.tool.approval_requirement is not ApprovalRequirement.ALWAYS
    if level is SandboxLevel.STRICT and (skips_approval or context.approval_policy() is ApprovalPolicy.AUTO):
        return authorization
    named_files = await hash_used_files(text, authorization.files, context)
    if level is SandboxLevel.STRICT and await _use_approval(
        pending_call, "run", text, context, files=named_files
    ):
        return authorization
    reason = ALWAYS_ASKS_REASON if skips_approval or granted.ok else granted.rule
    if level is not SandboxLevel.STRICT:
        reason = f"the sandbox level is {level}, so every command requires approval"
    await request_approval(
        ApprovalRequest(
            pending_call=pending_call, resource=text, reason=reason, level=level, files=named_files
        ),
        context,
    )
    return replace(authorization, answer=Answer.ALLOW)


async def _authorize_scope_request(pending_call: PendingToolCall, context: RuntimeContext) -> Authorization:
    """Authorize a request for more scope; refuse what no approval could allow without asking a person."""
    scope, resource = pending_call.caller.scope, pending_call.resource
    target_tool = context.tools.get(str(pending_call.args.get("tool", "")))
    if target_tool is None or target_tool.access not in ("read", "write", "run"):
        raise Refused(
            f"You can request access to paths and commands only; {pending_call.args.get('tool')!r} uses neither. "
            "An agent's tools are listed in its preset.md."
        )
    if await _is_scope_added(pending_call, context):
        return Authorization(scope=scope, files=context.sandbox.files_for(scope), answer=Answer.ADD)
    if target_tool.access == "run":
        verdict = scope.check_command(resource)
        if scope.shell_blocked_reason or not verdict.ok:
            raise Refused(f"No approval can allow this: {scope.shell_blocked_reason or verdict.rule}")
    else:
        files, resource = (
            context.sandbox.files_for(scope),
            context.sandbox.files_for(scope).real_path(resource),
        )
        with suppress(OutOfScope):
            files.check_access(resource, target_tool.access)
            raise Refused(f"{resource} is already in your scope. Call {target_tool.spec.name}.")
        if not (
            verdict := scope.with_user_grant(resource, target_tool.access).check_path(
                resource, target_tool.access
            )
        ).ok:
            raise Refused(f"No approval can allow this: {verdict.rule}")
    files = context.sandbox.files_for(scope)
    named_files = await hash_used_files(resource, files, context) if target_tool.access == "run" else ()
    reason = str(pending_call.args.get("reason", ""))
    question = ApprovalRequest(
        pending_call=pending_call, resource=resource, reason=reason, is_scope_request=True, files=named_files
    )
    approval = await request_approval(question, context)
    return Authorization(scope=scope, files=files, answer=approval.answer)


async def _is_scope_added(pending_call: PendingToolCall, context: RuntimeContext) -> bool:
    """Return True if a person's `add` for this very call has been written to the scope since."""

    def step(tx: Transaction) -> bool:
        approvals = tx.find_approvals(
            run=pending_call.caller.run.id, call=pending_call.tool_call.id, state=[ApprovalState.ALLOWED]
        )
        return any(each.answer is Answer.ADD for each in approvals)

    return await context.ledger.read(step)


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """The exact action that a person is asked to approve."""

    pending_call: PendingToolCall
    resource: str
    reason: str
    level: SandboxLevel | None = None
    is_scope_request: bool = False
    """The request is for more scope, and the approval is kept for a later call."""
    files: tuple[NamedFile, ...] = ()

    def digest(self, files: tuple[NamedFile, ...]) -> str:
        """Return the digest that an approval of this question covers, given the content of the named files."""
        scope = self.pending_call.caller.scope
        # Approving a command in a strict sandbox does not approve it in a weaker one.
        rights = scope.hash if self.level is None else f"{scope.hash} {self.level}"
        name, args = self.pending_call.tool.spec.name, self.pending_call.args
        return approval_digest(
            name, args, resource=self.resource, root=scope.root, scope_hash=rights, files=files
        )


async def request_approval(question: ApprovalRequest, context: RuntimeContext) -> Approval:
    """Return the approval once a person has allowed exactly this call.

    The approval is used up, unless it is kept for a later call. The request is stored in the ledger, so it
    outlives this process and can be answered from any client.

    Raises:
        RunSuspended: nobody has answered yet.
        OutOfScope: the request was denied or has expired.
    """
    if context.approval_policy() is ApprovalPolicy.DENY:
        raise _denied_error(question, "the configuration denies every approval request (approvals = deny)")
    if context.is_unattended:
        raise _denied_error(
            question, "it requires approval, and nobody can give it in this temporary session"
        )
    if question.pending_call.runs_later:
        await _request_once(question, context)
        raise RunSuspended(needs_approval=True)
    approval = await context.ledger.write(lambda tx: _find_or_create_approval(question, tx, context))
    if approval.state is ApprovalState.PENDING:
        raise RunSuspended(needs_approval=True)
    if approval.state is ApprovalState.EXPIRED:
        raise _denied_error(question, f"not answered within {context.limits.approval_seconds:g} s")
    if approval.state is ApprovalState.DENIED:
        raise _denied_error(question, "a person denied it")
    return approval


async def _request_once(question: ApprovalRequest, context: RuntimeContext) -> None:
    """Ask about a call that runs later, unless that was done; when it runs, the answer is checked and used up."""
    run_id, call_id = question.pending_call.caller.run.id, question.pending_call.tool_call.id

    def step(tx: Transaction) -> None:
        if not tx.find_approvals(run=run_id, call=call_id):
            _insert_approval(question, tx, context, context.clock.now())

    if not await context.ledger.read(lambda tx: tx.find_approvals(run=run_id, call=call_id)):
        await context.ledger.write(step)


async def void_approvals(run_id: str, call_ids: Collection[str], context: RuntimeContext) -> None:
    """Void the pending approvals of calls that will not run."""

    def pending(tx: Transaction) -> list[Approval]:
        found = tx.find_approvals(run=run_id, state=[ApprovalState.PENDING])
        return [each for each in found if each.call in call_ids]

    def step(tx: Transaction) -> None:
        for each in pending(tx):
            tx.update_approval(each.void())

    if call_ids and await context.ledger.read(pending):
        await context.ledger.write(step)


def _find_or_create_approval(question: ApprovalRequest, tx: Transaction, context: RuntimeContext) -> Approval:
    """Return the approval for a question; insert one if this exact question was not asked yet.

    A denial stays valid even if the named files have changed since.
    """
    now, caller = context.clock.now(), question.pending_call.caller
    approvals = tx.find_approvals(run=caller.run.id, call=question.pending_call.tool_call.id)
    previous = approvals[-1] if approvals else None
    if previous is None:
        return _insert_approval(question, tx, context, now)
    if previous.state is ApprovalState.PENDING and now >= previous.expires_at:
        previous = previous.expire()
        tx.update_approval(previous)
    is_same = _is_same_question(previous, question, question.files, context)
    if previous.state is ApprovalState.ALLOWED and is_same and not question.is_scope_request:
        tx.update_approval(previous.mark_used())
    if previous.state is not ApprovalState.USED and is_same:
        return previous
    if previous.state in (ApprovalState.DENIED, ApprovalState.EXPIRED) and _is_same_question(
        previous, question, previous.files, context
    ):
        return previous
    if previous.state is ApprovalState.PENDING:
        tx.update_approval(previous.void())
    return _insert_approval(_explain_changed_files(question, previous), tx, context, now)


def _is_same_question(
    previous: Approval, question: ApprovalRequest, files: tuple[NamedFile, ...], context: RuntimeContext
) -> bool:
    """Return True if an approval is for exactly this call, given the content of the named files.

    Another version of Retinue hashes the same permissions differently. After an upgrade the call itself is compared,
    so that a person who has answered is not asked again.
    """
    if previous.digest == question.digest(files):
        return True
    if previous.rules == built_in_rules_version():
        return False
    call, scope = question.pending_call, question.pending_call.caller.scope
    return (previous.args, previous.resource, previous.root, previous.level, previous.files) == (
        call.tool_call.args,
        context.redact(question.resource),
        scope.root,
        question.level,
        files,
    )


def _explain_changed_files(question: ApprovalRequest, previous: Approval) -> ApprovalRequest:
    """Say in a repeated question which files changed since the first one."""
    if previous.digest != question.digest(previous.files):
        return question
    paths = dict.fromkeys(each.path for each in {*question.files} ^ {*previous.files})
    return replace(question, reason=f"changed since you were asked: {', '.join(sorted(paths))}")


def _insert_approval(
    question: ApprovalRequest, tx: Transaction, context: RuntimeContext, now: datetime
) -> Approval:
    pending_call, caller = question.pending_call, question.pending_call.caller
    approval = Approval(
        id=context.clock.new_entry_id(),
        run=caller.run.id,
        session=caller.session.id,
        agent=caller.session.agent,
        call=pending_call.tool_call.id,
        tool=str(pending_call.args["tool"]) if question.is_scope_request else pending_call.tool.spec.name,
        access="scope" if question.is_scope_request else pending_call.tool.access,
        resource=context.redact(question.resource),
        args=pending_call.tool_call.args,
        reason=context.redact(question.reason),
        root=caller.scope.root,
        level=question.level,
        files=question.files,
        chain=_requester_chain(caller, tx),
        digest=question.digest(question.files),
        rules=built_in_rules_version(),
        asked_at=now,
        expires_at=now + timedelta(seconds=context.limits.approval_seconds),
    )
    tx.add_approval(approval)
    facts = {"approval": approval.id, "tool": approval.tool, "resource": approval.resource}
    tx.emit(make_event("approval.asked", caller.run, context, **facts))
    return approval


def _denied_error(question: ApprovalRequest, reason: str) -> OutOfScope:
    name = question.pending_call.tool.spec.name
    outcome = "access was not granted" if question.is_scope_request else f"{name} did not run"
    return OutOfScope(
        f"{outcome}: {reason}. Continue without it, or explain why you need it.",
        resource=question.resource,
        error="approval_denied",
    )


def _requester_chain(caller: Caller, tx: Transaction) -> tuple[str, ...]:
    """Return the chain of requesters, outermost first, from ledger rows and never from a model's output."""
    names: list[str] = []
    run: Run | None = caller.run
    while run is not None and len(names) < _MAX_CHAIN_LENGTH:
        names.append(run.session_key)
        run = tx.get_run(run.request.parent_run) if run.request.parent_run else None
    return (PERSON, *reversed(names))


_MAX_CHAIN_LENGTH = 16


async def _use_file_approval(
    pending_call: PendingToolCall, resource: str, context: RuntimeContext
) -> Scope | None:
    """Return the scope with access to this one file, if a person allowed exactly that for this run.

    The approval is used up.
    """
    scope = pending_call.caller.scope
    access: FileAccess = "write" if pending_call.tool.access == "write" else "read"
    real_path = context.sandbox.files_for(scope).real_path(resource)
    widened = scope.with_user_grant(real_path, access)
    if not widened.check_path(real_path, access).ok or not await _use_approval(
        pending_call, access, real_path, context
    ):
        return None
    return widened


async def _use_approval(
    pending_call: PendingToolCall,
    access: ToolAccess,
    resource: str,
    context: RuntimeContext,
    *,
    files: tuple[NamedFile, ...] = (),
) -> bool:
    def step(tx: Transaction) -> bool:
        for each in tx.find_approvals(run=pending_call.caller.run.id, state=[ApprovalState.ALLOWED]):
            target_tool = context.tools.get(each.tool)
            is_one_time = each.access == "scope" and each.answer is Answer.ALLOW
            is_same = (each.resource, each.files) == (resource, files)
            if is_one_time and is_same and target_tool is not None and target_tool.access == access:
                if not pending_call.runs_later:
                    tx.update_approval(each.mark_used())
                return True
        return False

    return await context.ledger.write(step)
