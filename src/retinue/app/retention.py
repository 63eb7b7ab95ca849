"""Prune the ledger as `[retention]` says."""

import asyncio
import threading

from retinue.app.context import AppContext
from retinue.ledger.retention import LedgerPruner, PruneResult

PAUSE_S = 0.005
"""Pause after each batch, so that other work gets the write lock."""


class RetentionService:
    """Removes old rows from the ledger of a home."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def prune(self) -> PruneResult:
        """Prune all ended runs and events that are due, in small batches and in a thread.

        Raises:
            DiskError: The ledger cannot be written.
        """
        context = self._context
        pruner = LedgerPruner(
            context.ledger.path,
            context.config.retention,
            resume_window_s=context.runtime.limits.resume_window_seconds,
        )
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(
                pruner.prune,
                context.clock.now(),
                pause=lambda: cancelled.wait(PAUSE_S),
                is_cancelled=cancelled.is_set,
            )
        except asyncio.CancelledError:
            cancelled.set()
            raise
