"""Start runs in a new session, in an existing one, or as a child of a session."""

import asyncio
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from retinue.app.composition import check_model
from retinue.app.context import AppContext
from retinue.app.permissions import DEFAULT_AGENT, check_agent_allowed
from retinue.app.references import find_session
from retinue.app.run_options import COMMAND_TRIGGER, RunOptions, SpawnOptions
from retinue.app.workspace_folder import check_home_allowed, current_folder
from retinue.domain.agent import Agent, Role, Thinking, WorkspacePolicy
from retinue.domain.rules import subtree_pattern
from retinue.domain.run import LIVE_STATUSES, Run, RunRequest, WaitReason
from retinue.domain.session import Session
from retinue.domain.transcript import Message
from retinue.domain.workspace import Isolation
from retinue.errors import BadDefinition, Failed, NotFound, Refused, SessionLocked, UsageError
from retinue.runtime import run_control
from retinue.runtime.child_permissions import ChildSpec
from retinue.runtime.child_workspace import apply_workspace_override
from retinue.runtime.exit_tools import validate_exit_tools
from retinue.runtime.open_conversation import LOCK_RETRIES, LOCK_RETRY_SECONDS
from retinue.runtime.run_creation import create_run
from retinue.runtime.session_scope import load_definition
from retinue.runtime.spawn import create_session, spawn_child
from retinue.runtime.structured_output import check_output_schema
from retinue.tools.delegation.request_review import review_task
from retinue.tools.git_diff import WorkspaceDiff, workspace_diff

REVIEW_COMMAND = "review"
"""Slash command whose agent receives the diff of the workspace."""


async def start_run(text: str | None, options: RunOptions, context: AppContext) -> Run:
    """Start a run and return it without waiting for its end.

    Everything that can be wrong is checked before anything is written.
    """
    _check_timeout(options.timeout_s)
    _check_thinking(options.thinking)
    context.agents.ensure_general_agent()
    target = await _select_session(options.session, options.agent, context)
    if target is not None:
        _check_no_workspace_options(target, options)
    agent_definition = await _agent_definition(target, options, context)
    check_model(context.runtime.select_model(agent_definition, options.model), context.config)
    validate_exit_tools(agent_definition, context.runtime)
    check_output_schema(options.output_schema, agent_definition, context.runtime)
    live_runs = [] if target is None else await _live_runs(target, text, context)
    if target is not None and live_runs:
        _check_keeps_schema(options.output_schema, live_runs)
        resumed = await resume_with_message(
            target, text, context, model=options.model, owner=options.owner, key=options.key
        )
        if resumed:
            return resumed
    is_typed, is_existing = text is None, target is not None
    if target is None:
        if text is None or not text.strip():
            raise UsageError("The task is missing. Give it as TEXT, or `-` to read it from standard input.")
        policy = _workspace_policy(
            agent_definition, options.workspace, options.isolation, writable=options.writable
        )
        root = _resolve_folder(options.workspace)
        is_named = options.workspace is not None
        check_home_allowed(root, policy, is_named=is_named, allow_home=options.allow_home)
        await context.ledger_check.run()
        target = await create_session(agent_definition.name, root, context.runtime, policy=policy)
    else:
        text = await _task_text(target, text, live_runs, context)
    run_request = RunRequest(
        key=options.key or f"once:{context.clock.new_uuid()}",
        agent=target.agent,
        task=text,
        is_typed=is_typed,
        session=target.id if is_existing else None,
        entry_point=options.entry_point,
        label=options.label,
        model=options.model,
        thinking=options.thinking,
        output_schema=agent_definition.output_schema
        if options.output_schema is None
        else options.output_schema,
        deadline_seconds=options.timeout_s,
        role=Role.PRIMARY,
        trigger=options.trigger,
    )
    return await create_run(run_request, target, context.runtime, owner=options.owner)


async def spawn_run(text: str, options: SpawnOptions, context: AppContext) -> Run:
    """Create a child session, with its own copy of the definition, and start its first run."""
    _check_timeout(options.timeout_s)
    parent = await find_session(options.parent, context)
    agent_definition = _child_definition(options.agent, parent, context)
    description = options.description or options.label or " ".join(text.split()[:6])
    if options.in_conversation and is_review_agent(agent_definition):
        text, description = await build_review_task(text, parent, context), description or "review"
    if not text.strip():
        raise UsageError("The task is missing. Give the child's task as TEXT.")
    check_model(context.runtime.select_model(agent_definition, options.model), context.config)
    check_output_schema(None, agent_definition, context.runtime)
    isolation, allowed_paths = options.isolation, options.allowed_paths
    if options.workspace is not None:
        isolation = isolation or Isolation.CUSTOM
        if isolation != Isolation.CUSTOM:
            raise UsageError(
                f"--isolation {isolation} uses the parent's folder. Leave out --workspace, or use --isolation custom."
            )
        if allowed_paths is None:
            allowed_paths = (subtree_pattern(_resolve_folder(options.workspace)),)
    policy = _workspace_policy(agent_definition, options.workspace, isolation, writable=options.writable)
    if options.workspace is not None:
        folder = _resolve_folder(options.workspace)
        check_home_allowed(folder, policy, is_named=True, allow_home=options.allow_home)
    await context.ledger_check.run()
    run_request = RunRequest(
        key=options.key or f"once:{context.clock.new_uuid()}",
        agent=options.agent,
        task=text,
        requester=parent.key,
        entry_point="PersistentAgent",
        source="subagent",
        trigger=options.trigger,
        inbox="" if options.trigger == COMMAND_TRIGGER else parent.id,
        announce_to=parent.id if options.trigger == COMMAND_TRIGGER else "",
        label=options.label or options.description,
        model=options.model,
        output_schema=agent_definition.output_schema,
        deadline_seconds=options.timeout_s,
    )
    child = ChildSpec(
        parent=parent,
        description=description,
        use_definition_paths=options.in_conversation,
        allowed_paths=allowed_paths,
        denied_paths=options.denied_paths,
        workspace=policy,
        requested_by_person=True,
    )
    return await spawn_child(run_request, child, context.runtime)


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s >= 0):
        raise UsageError(
            f"timeout must be a number of seconds, not {timeout_s:g}. 0 means the configured maximum."
        )


def _check_thinking(thinking: str | None) -> None:
    if thinking is not None and thinking not in set(Thinking):
        raise UsageError(f"thinking must be one of {', '.join(Thinking)}, not {thinking!r}.")


def _check_keeps_schema(schema: Mapping[str, Any] | None, live_runs: Sequence[Run]) -> None:
    """Raise UsageError if the text would continue a waiting run that has another schema."""
    if schema is None:
        return
    for run in live_runs:
        if run.waiting_for is WaitReason.PERSON and run.request.output_schema != schema:
            raise UsageError(
                f"Run {run.id} of this session waits for your reply and has no such output schema. Leave the schema "
                "out, or cancel the run."
            )


def is_review_agent(agent: Agent) -> bool:
    """Return True for an agent with the slash command /review: it receives the diff of the workspace."""
    return REVIEW_COMMAND in {each.removeprefix("/") for each in agent.triggers.slash}


async def build_review_task(text: str, session: Session, context: AppContext) -> str:
    """Return the task of a reviewer: the text, and the changes in the session's workspace since the last commit.

    Raises:
        UsageError: There is neither a text nor a change.
        Failed: There is no text, and the change cannot be read.
    """
    try:
        changes = await workspace_diff(None, session, context.runtime)
        problem = "" if changes.has_changes else changes.empty_reason
    except Failed as error:
        if not text.strip():
            raise
        problem, changes = str(error), WorkspaceDiff()
    if not problem:
        return review_task(text, changes, session.workspace.root, context.runtime)
    if not text.strip():
        raise UsageError(f"There is nothing to review: {problem}. Type the task after the command.")
    return f"{text}\n\n(There is no diff: {problem}.)"


async def resume_with_message(
    session: Session,
    text: str | None,
    context: AppContext,
    *,
    model: str | None = None,
    owner: str | None = None,
    key: str = "",
) -> Run | None:
    """Resume the run of a session that waits for a person's reply; return None if no run waits."""
    check_not_blank(text)
    return await run_control.answer_waiting_run(
        session,
        text,
        context.runtime,
        model=model,
        owner=owner,
        entry=keyed_entry_id(key) if key else "",
    )


def check_not_blank(text: str | None) -> None:
    """Raise UsageError for a blank text; None is allowed, because then the text typed in the file counts."""
    if text is not None and not text.strip():
        raise UsageError("The text is empty. Send a text.")


def keyed_entry_id(key: str) -> str:
    """Return the entry id for a message with an idempotency key.

    Used where the message resumes a run, so that no new run carries the key.
    """
    return f"said-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


async def _select_session(session: str | None, agent: str | None, context: AppContext) -> Session | None:
    """Return the session the run goes into, or None for a new one."""
    if session is None or session == "create":
        return None
    if session in ("latest", "latest-or-create"):
        name = DEFAULT_AGENT if agent is None else agent
        found = await context.store.sessions(agent=name, children=False)
        if not found and session == "latest":
            raise NotFound(f"No existing session for agent {name}. Leave out --session to start one.")
        return await context.store.find(found[0].path) if found else None
    target = await find_session(session, context)
    if agent is not None and target.agent != agent:
        raise Refused(
            f"Session does not belong to this agent: {target.slug} belongs to {target.agent}, not {agent}."
        )
    return target


async def _agent_definition(target: Session | None, options: RunOptions, context: AppContext) -> Agent:
    name = options.agent or DEFAULT_AGENT if target is None else target.agent
    check_agent_allowed(name, context.runtime)
    if target is not None:
        return await load_definition(target, context.runtime)
    return context.agents.get(
        DEFAULT_AGENT if options.agent is None else options.agent, _resolve_folder(options.workspace)
    ).agent


def _child_definition(name: str, parent: Session, context: AppContext) -> Agent:
    """Return the definition for a child; a broken definition raises its own error instead of NotFound."""
    check_agent_allowed(name, context.runtime)
    try:
        return context.agents.get(name, parent.workspace.intended_folder).agent
    except NotFound as error:
        if isinstance(error.__cause__, BadDefinition):
            raise
        raise NotFound(f"Preset template not found: {name} (checked .md and .org)") from error


async def _live_runs(session: Session, text: str | None, context: AppContext) -> list[Run]:
    """Check the text and return the session's live runs.

    Only a session with live runs can wait for a reply.
    """
    check_not_blank(text)
    return await context.ledger.read(lambda tx: tx.find_runs(status=LIVE_STATUSES, session=session.id))


async def _task_text(
    session: Session, text: str | None, live_runs: Sequence[Run], context: AppContext
) -> str:
    """Return the task: the given text, else what a person typed at the end of the file.

    Raises SessionLocked if another process has the session's lock.
    """
    if any(
        run.owner_id in (context.runtime.owners.own_id, context.runtime.owners.id_for_new_run())
        for run in live_runs
    ):
        if text is None:
            raise UsageError(f"{session.slug} has an active run. Give a text to queue a message behind it.")
        return text
    if text is not None:
        await _check_unlocked(session, context)
        return text
    async with context.store.open(session) as conversation:
        if (typed_text := conversation.typed_text()).strip():
            return typed_text
        if (
            conversation.entries
            and isinstance(last_entry := conversation.entries[-1], Message)
            and last_entry.role == "user"
        ):
            return last_entry.text
    path = f"{session.path}/session.md"
    raise UsageError(f"No text at the end of {path}. Write below its last line, or give TEXT.")


async def _check_unlocked(session: Session, context: AppContext) -> None:
    """Raise SessionLocked if a process keeps the session open; one that adds a result holds it only for a moment."""
    for _ in range(LOCK_RETRIES):
        with suppress(SessionLocked):
            await context.store.check_unlocked(session)
            return
        await asyncio.sleep(LOCK_RETRY_SECONDS)
    await context.store.check_unlocked(session)


def _workspace_policy(
    agent: Agent,
    workspace: str | os.PathLike[str] | None,
    isolation: str | None,
    *,
    writable: bool | None,
) -> WorkspacePolicy:
    """Return the definition's workspace policy with a person's overrides for this session."""
    isolation_kind = None if isolation is None else Isolation(isolation)
    if isolation_kind is Isolation.CUSTOM and workspace is None:
        raise UsageError("--isolation custom requires --workspace DIR")
    folder = _resolve_folder(workspace) if isolation_kind is Isolation.CUSTOM else None
    policy = apply_workspace_override(
        agent.workspace, isolation=isolation_kind, folder=folder, writable=writable
    )
    if writable and not policy.writable:
        rule = "writable: false" if agent.workspace.writable is False else "isolation: sandbox"
        raise Refused(
            f"{agent.name} cannot write there: its definition sets workspace {rule}, which no option overrides. "
            "Leave out --writable, or change the definition."
        )
    return policy


def _check_no_workspace_options(session: Session, options: RunOptions) -> None:
    if options.isolation is not None or options.writable is not None:
        raise UsageError(
            f"{session.slug} already has a workspace. --isolation, --writable and --read-only are for new sessions."
        )


def _resolve_folder(workspace: str | os.PathLike[str] | None) -> str:
    root = os.path.realpath(current_folder() if workspace is None else workspace)
    if not Path(root).is_dir():
        raise UsageError(f"Workspace is not a folder: {workspace}")
    return root
