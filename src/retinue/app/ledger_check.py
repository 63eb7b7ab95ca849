"""A check that the ledger can be read."""

from retinue.domain.run import Status
from retinue.interfaces import Ledger


class LedgerCheck:
    """Read the ledger once before any folder is created, so that a broken ledger leaves no session behind."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._has_succeeded = False

    async def run(self) -> None:
        """Read the ledger, unless that has succeeded before."""
        if not self._has_succeeded:
            await self._ledger.read(lambda tx: tx.count_runs(Status.RUNNING))
            self._has_succeeded = True
