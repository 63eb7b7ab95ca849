"""A check that the ledger can be read."""

from retinue.domain.run import Status
from retinue.interfaces import Ledger


class LedgerCheck:
    """Reads the ledger once before any folder is created, so that a broken ledger leaves no session behind."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._passed = False

    async def run(self) -> None:
        """Read the ledger, unless that has succeeded before."""
        if not self._passed:
            await self._ledger.read(lambda tx: tx.count_runs(Status.RUNNING))
            self._passed = True
