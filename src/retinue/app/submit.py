"""Start runs: in a new session, in an existing one, or as a child of a session."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from retinue.agents.registry import FileAgentRegistry
from retinue.app.composition import check_model
from retinue.app.permissions import DEFAULT_AGENT
from retinue.app.references import ReferenceResolver
from retinue.app.run_control import check_not_blank
from retinue.app.sessions import LIVE_STATUSES
from retinue.config.load import Config
from retinue.domain.agent import Agent, Role, WorkspacePolicy
from retinue.domain.rules import subtree_pattern
from retinue.domain.run import Run, RunRequest, Status
from retinue.domain.session import Session
from retinue.domain.transcript import Message
from retinue.domain.workspace import Isolation
from retinue.errors import BadDefinition, NotFound, Refused, UsageError
from retinue.interfaces import RuntimeContext
from retinue.ledger.ledger import SqliteLedger
from retinue.runtime.child_workspace import ChildSpec, apply_workspace_override
from retinue.runtime.exit_tools import validate_exit_tools
from retinue.runtime.run_creation import create_run
from retinue.runtime.run_plan import load_definition
from retinue.runtime.spawn import create_session, spawn_child

COMMAND_TRIGGER = "command"


class RunSubmissionService(ReferenceResolver, ABC):
    """Start runs and child sessions."""

    config: Config
    agents: FileAgentRegistry
    _context: RuntimeContext
    _ledger: SqliteLedger
    _ledger_checked: bool

    @abstractmethod
    async def resume_with_message(
        self,
        session: Session,
        text: str | None,
        *,
        model: str | None = None,
        owner: str | None = None,
        key: str = "",
    ) -> Run | None:
        """Resume the run of a session that waits for a person's reply; None if no run waits."""

    @abstractmethod
    def _check_agent_allowed(self, name: str) -> None: ...

    async def start(  # noqa: PLR0913  (one parameter per option of `retinue run`)
        self,
        text: str | None,
        *,
        agent: str | None = None,
        session: str | None = None,
        model: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        isolation: str | None = None,
        writable: bool | None = None,
        label: str = "",
        timeout: float | None = None,  # noqa: ASYNC109  (the run's deadline, not this call's)
        thinking: str | None = None,
        owner: str | None = None,
        key: str = "",
        door: str = "cli",
        trigger: str = COMMAND_TRIGGER,
    ) -> Run:
        """Start a run and return it without waiting for its end.

        Everything that can be wrong is checked before anything is written.

        Args:
            text: The task. None uses the text typed at the end of the session's file.
            agent: The agent; default `general`, or the session's own.
            session: An existing session, `latest`, `latest-or-create`, or None for a new one.
            model: Overrides the agent's model.
            workspace: Folder to work in; default is the current one.
            isolation: Workspace isolation of a new session, instead of the definition's.
            writable: Whether a new session may write to its workspace, instead of the definition's setting.
            label: A name shown in lists.
            timeout: Seconds until the run's deadline.
            thinking: Thinking effort for the model.
            owner: Let another process work on the run.
            key: Idempotency key: the same request with the same key creates one run.
            door: The interface the request came through.
            trigger: What caused the request.

        Returns:
            The new run, or the waiting run of the session that continues with `text`.

        Raises:
            Usage: Options contradict each other or there is no task.
            NotFound: There is no such session or agent.
            Refused: The configuration or the definition forbids it.
        """
        self.agents.ensure_general_agent()
        target = await self._select_session(session, agent)
        if target is not None:
            _check_no_workspace_options(target, isolation, writable)
        agent_definition = await self._agent_definition(target, agent, workspace)
        check_model(self._context.select_model(agent_definition, model), self.config)
        validate_exit_tools(agent_definition, self._context)
        live_runs = [] if target is None else await self._live_runs(target, text)
        if (
            target is not None
            and live_runs
            and (resumed := await self.resume_with_message(target, text, model=model, owner=owner, key=key))
        ):
            return resumed
        is_typed, is_existing = text is None, target is not None
        if target is None:
            if text is None or not text.strip():
                raise UsageError(
                    "The task is missing. Give it as TEXT, or `-` to read it from standard input."
                )
            policy = _workspace_policy(agent_definition, workspace, isolation, writable)
            await self._check_ledger_usable()
            target = await create_session(
                agent_definition.name, _resolve_folder(workspace), self._context, policy=policy
            )
        else:
            text = await self._task_text(target, text, live_runs)
        run_request = RunRequest(
            key=key or f"once:{self._context.clock.new_uuid()}",
            agent=target.agent,
            task=text,
            typed=is_typed,
            session=target.id if is_existing else None,
            door=door,
            label=label,
            model=model,
            thinking=thinking,
            deadline_seconds=timeout,
            role=Role.PRIMARY,
            trigger=trigger,
        )
        return await create_run(run_request, target, self._context, owner=owner)

    async def spawn(  # noqa: PLR0913  (one parameter per option of `retinue spawn`)
        self,
        text: str,
        *,
        parent: str,
        agent: str,
        description: str = "",
        allowed_paths: Sequence[str] | None = None,
        denied_paths: Sequence[str] | None = None,
        workspace: str | os.PathLike[str] | None = None,
        isolation: str | None = None,
        writable: bool | None = None,
        model: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (the run's deadline, not this call's)
        label: str = "",
        trigger: str = COMMAND_TRIGGER,
        key: str = "",
    ) -> Run:
        """Create a child session of `parent`, with its own copy of the definition, and start its first run.

        Args:
            text: The child's task.
            parent: The parent session.
            agent: The agent to create the child from.
            description: What the child is for.
            allowed_paths: Paths the child may use.
            denied_paths: Paths the child may not use.
            workspace: A folder for the child. A person who names one grants read access to it, whatever the
                parent could pass on.
            isolation: Workspace isolation, instead of the definition's.
            writable: Whether the child may write to its workspace.
            model: Overrides the agent's model.
            timeout: Seconds until the run's deadline.
            label: A name shown in lists.
            trigger: What caused the request. Anything but `command` (a slash command or key in a
                conversation) delivers the result to the parent's inbox.
            key: Idempotency key: the same request with the same key creates one run.

        Returns:
            The new run.

        Raises:
            Usage: Options contradict each other or there is no task.
            NotFound: There is no such session or agent.
            Refused: The configuration or the definition forbids it.
        """
        if not text.strip():
            raise UsageError("The task is missing. Give the child's task as TEXT.")
        parent_session = await self.find_session(parent)
        agent_definition = self._child_definition(agent, parent_session)
        check_model(self._context.select_model(agent_definition, model), self.config)
        if workspace is not None:
            isolation = isolation or Isolation.CUSTOM
            if isolation != Isolation.CUSTOM:
                raise UsageError(
                    f"--isolation {isolation} uses the parent's folder. Leave out --workspace, or use --isolation custom."
                )
            allowed_paths = (
                (subtree_pattern(_resolve_folder(workspace)),) if allowed_paths is None else allowed_paths
            )
        policy = _workspace_policy(agent_definition, workspace, isolation, writable)
        await self._check_ledger_usable()
        run_request = RunRequest(
            key=key or f"once:{self._context.clock.new_uuid()}",
            agent=agent,
            task=text,
            requester=parent_session.key,
            door="PersistentAgent",
            source="subagent",
            trigger=trigger,
            inbox="" if trigger == COMMAND_TRIGGER else parent_session.id,
            label=label or description,
            model=model,
            deadline_seconds=timeout,
        )
        child = ChildSpec(
            parent=parent_session,
            description=description or label or " ".join(text.split()[:6]),
            allowed_paths=allowed_paths,
            denied_paths=denied_paths,
            workspace=policy,
            requested_by_person=True,
        )
        return await spawn_child(run_request, child, self._context)

    async def _select_session(self, session: str | None, agent: str | None) -> Session | None:
        """Return the session the run goes into, or None for a new one."""
        if session is None or session == "create":
            return None
        if session in ("latest", "latest-or-create"):
            name = DEFAULT_AGENT if agent is None else agent
            found = await self.store.sessions(agent=name, children=False)
            if not found and session == "latest":
                raise NotFound(f"No existing session for agent {name}. Leave out --session to start one.")
            return await self.store.find(found[0].path) if found else None
        target = await self.find_session(session)
        if agent is not None and target.agent != agent:
            raise Refused(
                f"Session does not belong to this agent: {target.slug} is {target.agent}'s, not {agent}'s"
            )
        return target

    async def _agent_definition(
        self, target: Session | None, agent: str | None, workspace: str | os.PathLike[str] | None
    ) -> Agent:
        name = agent or DEFAULT_AGENT if target is None else target.agent
        self._check_agent_allowed(name)
        if target is not None:
            return await load_definition(target, self._context)
        return self.agents.get(DEFAULT_AGENT if agent is None else agent, _resolve_folder(workspace)).agent

    async def _check_ledger_usable(self) -> None:
        """Check once that the ledger works, before any folder is made.

        A failure then leaves no session behind.
        """
        if not self._ledger_checked:
            await self._ledger.read(lambda tx: tx.count_runs(Status.RUNNING))
            self._ledger_checked = True

    def _child_definition(self, name: str, parent_session: Session) -> Agent:
        """Return the definition for a child; a broken definition raises its own error instead of NotFound."""
        self._check_agent_allowed(name)
        try:
            return self.agents.get(name, parent_session.workspace.intended_folder).agent
        except NotFound as error:
            if isinstance(error.__cause__, BadDefinition):
                raise
            raise NotFound(f"Preset template not found: {name} (checked .md and .org)") from error

    async def _live_runs(self, session: Session, text: str | None) -> list[Run]:
        """Check the text and return the session's live runs.

        Only a session with live runs can wait for a reply.
        """
        check_not_blank(text)
        return await self._ledger.read(lambda tx: tx.find_runs(status=LIVE_STATUSES, session=session.id))

    async def _task_text(self, session: Session, text: str | None, live_runs: Sequence[Run]) -> str:
        """Return the task: the given text, else what a person typed at the end of the file.

        Raises SessionLocked if another process has the session's lock.
        """
        if any(
            run.owner_id in (self._context.owner_id, self._context.new_run_owner_id()) for run in live_runs
        ):
            if text is None:
                raise UsageError(
                    f"{session.slug} has an active run. Give a text to queue a message behind it."
                )
            return text
        if text is not None:
            await self.store.check_unlocked(session)
            return text
        async with self.store.open(session) as conversation:
            if (typed_text := conversation.typed_text()).strip():
                return typed_text
            if (
                conversation.entries
                and isinstance(last_entry := conversation.entries[-1], Message)
                and last_entry.by == "user"
            ):
                return last_entry.text
        path = f"{session.path}/session.md"
        raise UsageError(f"No text at the end of {path}. Write below its last line, or give TEXT.")


def _workspace_policy(
    agent: Agent, workspace: str | os.PathLike[str] | None, isolation: str | None, writable: bool | None
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
            f"{agent.name} cannot write there: its definition says workspace {rule}, which no option overrides. "
            "Leave out --writable, or change the definition."
        )
    return policy


def _check_no_workspace_options(session: Session, isolation: str | None, writable: bool | None) -> None:
    if isolation is not None or writable is not None:
        raise UsageError(
            f"{session.slug} already has a workspace. --isolation, --writable and --read-only are for new sessions."
        )


def _resolve_folder(workspace: str | os.PathLike[str] | None) -> str:
    root = os.path.realpath(Path.cwd() if workspace is None else workspace)
    if not Path(root).is_dir():
        raise UsageError(f"Workspace is not a folder: {workspace}")
    return root
