"""Control live runs: cancel, interrupt, detach, and reply to a waiting run."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable

from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.errors import UsageError
from retinue.interfaces import RuntimeContext
from retinue.runtime import run_control
from retinue.runtime.interrupts import interrupt_run


class RunControlService(ABC):
    """Control of live runs by a person."""

    def __init__(self, context: RuntimeContext, is_owner_alive: Callable[[str], bool]) -> None:
        self._context = context
        self._is_owner_alive = is_owner_alive

    @abstractmethod
    async def find_run(self, ref: str) -> Run:
        """Find a run by id or unambiguous prefix, or by any name of its session."""

    async def cancel(self, ref: str) -> Run:
        """Cancel a run and return it as it is then.

        Raises:
            NotFound: There is no such run.
        """
        run = await self.find_run(ref)
        return await run_control.cancel_run(run.id, self._context, is_alive=self._is_owner_alive)

    async def interrupt(self, ref: str) -> Run:
        """Ask a run and its children to end with a summary of what they have so far.

        Returns:
            The run as it is now: `wait` for it to get the summary.
        """
        run = await self.find_run(ref)
        return await interrupt_run(run.id, self._context)

    async def detach(self, ref: str) -> Run:
        """Let a run that a tool call waits for continue in the background.

        Its requester continues too.

        Raises:
            NotFound: There is no such run.
        """
        run = await self.find_run(ref)
        return await run_control.detach_run(run.id, self._context)

    async def resume_with_message(
        self,
        session: Session,
        text: str | None,
        *,
        model: str | None = None,
        owner: str | None = None,
        key: str = "",
    ) -> Run | None:
        """Resume the run of a session that waits for a person's reply.

        Args:
            session: The session.
            text: The reply; None uses the text typed in the file.
            model: Overrides the run's model.
            owner: Let another process continue the run.
            key: Idempotency key.

        Returns:
            The resumed run, or None if no run of the session waits.
        """
        check_not_blank(text)
        entry_id = keyed_entry_id(key) if key else ""
        return await run_control.answer_waiting_run(
            session, text, self._context, model=model, owner=owner, entry=entry_id
        )


def check_not_blank(text: str | None) -> None:
    """Raise Usage for a blank text; None is allowed, because then the text typed in the file counts."""
    if text is not None and not text.strip():
        raise UsageError("The text is empty. Send a text.")


def keyed_entry_id(key: str) -> str:
    """Return the entry id for a message with an idempotency key.

    Used where the message resumes a run, so that no new run carries the key.
    """
    return f"said-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
