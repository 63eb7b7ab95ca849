"""The open conversation of a run, locked while the run is executed."""

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from msgspec.structs import replace

from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.errors import NotFound, RetinueError, SessionLocked
from retinue.interfaces import Conversation, RuntimeContext
from retinue.runtime.run_attempt import RunAttempt

LOCK_RETRIES = 20
LOCK_RETRY_SECONDS = 0.05
RUN_LOCK_RETRIES = 1200
"""Retries of a run that was accepted: it fails only if its session stays locked for a minute."""


class OpenConversation:
    """Open the conversation of a run; a session that has moved is looked up again."""

    __slots__ = ("_attempt", "_manager", "_origin_session")

    def __init__(self, attempt: RunAttempt, origin_session: Session | None) -> None:
        self._attempt = attempt
        self._origin_session = origin_session
        self._manager: AbstractAsyncContextManager[Conversation] | None = None

    async def __aenter__(self) -> Conversation:
        if self._origin_session is not None:
            try:
                return await self._open_with_retry(self._origin_session)
            except NotFound:
                pass  # moved since it was looked up
        run = self._attempt.run
        session = await _find_origin_session(run, self._attempt.context)
        self._attempt.run = replace(run, transcript_path=f"{session.path}/session.md")
        return await self._open_with_retry(session)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._manager is None else await self._manager.__aexit__(kind, error, trace)

    async def _open_with_retry(self, session: Session) -> Conversation:
        """Open the conversation.

        The ledger assigned the session to this run, so another holder of the folder's lock releases it soon.
        """
        self._manager, conversation = await enter_with_retry(
            session, self._attempt.context, retries=RUN_LOCK_RETRIES
        )
        return conversation


async def enter_with_retry(
    session: Session, context: RuntimeContext, *, retries: int = LOCK_RETRIES
) -> tuple[AbstractAsyncContextManager[Conversation], Conversation]:
    """Open a conversation, retrying if it is locked; the caller exits the returned context manager."""
    retries_left = retries
    while True:
        manager = context.store.open(session)
        try:
            return manager, await manager.__aenter__()
        except SessionLocked:
            if not retries_left:
                raise
            retries_left -= 1
            await asyncio.sleep(LOCK_RETRY_SECONDS)


async def _find_origin_session(run: Run, context: RuntimeContext) -> Session:
    """Find the session where the run was requested, by path, then by id.

    A copied folder is a separate session, although it has the same id. A folder that was moved is found by
    its id.
    """
    try:
        return await context.store.find(run.transcript_path)
    except RetinueError:
        return await context.store.find(run.session_id)
