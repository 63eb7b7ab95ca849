"""The application: the API that the CLI, the server and library users call."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from retinue.app.agents import AgentService
from retinue.app.approvals import ApprovalService
from retinue.app.context import AppContext
from retinue.app.events import EventService
from retinue.app.inbox import InboxService
from retinue.app.messages import MessageService
from retinue.app.permissions import PermissionService
from retinue.app.repair import RepairService
from retinue.app.retention import RetentionService
from retinue.app.run_options import RunOptions
from retinue.app.runs import RunService
from retinue.app.sessions import SessionService
from retinue.app.watchers import WatcherService
from retinue.domain.event import Event
from retinue.domain.run import Run
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import RetinueError
from retinue.runtime.recovery import requeue_own_runs


class App:
    """An open application.

    Attributes:
        sessions: List, read, create and change sessions.
        runs: Start, find, wait for and control runs.
        agents: Agent definitions; `agents.registry` reads and writes their files.
        approvals: Calls that wait for a person's approval.
        permissions: What an agent or a session may do.
        inbox: Status and results of delegated tasks.
        messages: Messages from programs to sessions and agents.
        watchers: Agents that watch sessions.
        events: Durable events of all processes.
        repair: Diagnosis and repair of the home.
        retention: Pruning of old runs and events.
        mcp: MCP servers, and which of their tools are trusted.
        skills: Skills in the home and in projects.
        trust: Projects whose files a person trusts.
        daemon: The connection to the daemon of the home.
    """

    def __init__(self, context: AppContext) -> None:
        self.context = context
        self.config = context.config
        self.live_config = context.live_config
        self.daemon = context.daemon
        self.mcp = context.mcp
        self.skills = context.skills
        self.trust = context.trust
        self.events = EventService(context)
        self.runs = RunService(context)
        self.watchers = WatcherService(context)
        self.sessions = SessionService(context, self.runs, self.watchers)
        self.permissions = PermissionService(context)
        self.approvals = ApprovalService(context)
        self.agents = AgentService(context.agents, self.permissions)
        self.inbox = InboxService(context)
        self.messages = MessageService(context, self.runs, self.approvals)
        self.retention = RetentionService(context)
        self.repair = RepairService(context, self.runs, self.retention)

    @property
    def owner_id(self) -> str:
        """The id under which other processes hand runs to this process."""
        return self.context.owner.id

    async def run(  # noqa: PLR0913  (the options of `retinue run`)
        self,
        text: str | None,
        *,
        agent: str | None = None,
        session: str | None = None,
        model: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        allow_home: bool = False,
        isolation: str | None = None,
        writable: bool | None = None,
        label: str = "",
        timeout: float | None = None,  # noqa: ASYNC109  (the run's deadline, not this call's)
        thinking: str | None = None,
        output_schema: Mapping[str, Any] | None = None,
        key: str = "",
    ) -> Run:
        """Start a run and wait until it ends or needs a person.

        Args:
            text: The task. None uses the text typed at the end of the session's file.
            agent: The agent; default `general`, or the session's own.
            session: An existing session, `latest`, `latest-or-create`, or None for a new one.
            model: Overrides the agent's model.
            workspace: Folder to work in; default is the current one.
            allow_home: Allow the user's home folder as the workspace of a new session.
            isolation: Workspace isolation of a new session, instead of the definition's.
            writable: Whether a new session may write to its workspace, instead of the definition's setting.
            label: A name shown in lists.
            timeout: Seconds until the run's deadline.
            thinking: Thinking effort for the model.
            output_schema: JSON Schema of the final answer, instead of the definition's. The answer is `run.output`.
            key: Idempotency key: the same request with the same key creates one run.

        Returns:
            The run as it is now. A failed run is returned, not raised: see `status`, `reason` and `error`.

        Raises:
            RetinueError: The run could not be started.
        """
        options = RunOptions(
            agent=agent,
            session=session,
            model=model,
            workspace=workspace,
            allow_home=allow_home,
            isolation=isolation,
            writable=writable,
            label=label,
            timeout_s=timeout,
            thinking=thinking,
            output_schema=output_schema,
            key=key,
        )
        return await self.runs.wait_until_idle(await self.runs.start(text, options))

    def listen(self, listener: Callable[[Event], None]) -> AbstractContextManager[None]:
        """Call `listener` with every event while the returned context is open."""
        return self.context.events.listen(listener)

    async def sandbox_level(self) -> SandboxLevel:
        """Return the sandbox level that commands run at on this machine."""
        return await self.context.sandbox.level()

    def log_internal_error(self, error: BaseException, **fields: str) -> None:
        """Write the traceback of an internal error to the log, with secrets redacted.

        The user sees only a short message.
        """
        self.context.internal_errors.record(error, **fields)

    async def close(self) -> None:
        context = self.context
        await context.worker.close()
        with suppress(RetinueError, OSError):  # the next start requeues runs that cannot be written now
            await requeue_own_runs(context.runtime)
        await context.runtime.provider.close()
        await context.mcp.close()
        await context.ledger.close()
        context.store.close()
        context.event_log.close()
        context.owner.close()
