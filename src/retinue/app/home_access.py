"""Access to the data of one home."""

from collections.abc import Callable

from msgspec import Struct, field

from retinue.agents.registry import FileAgentRegistry
from retinue.app.keyed_lock import KeyedLock
from retinue.domain.clock import Clock
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run
from retinue.interfaces import Ledger
from retinue.sessions.store import FileStore


class HomeAccess(Struct, frozen=True, kw_only=True):
    """The session files, the ledger and the agents of a home; all that listing and changing sessions needs."""

    store: FileStore
    ledger: Ledger
    clock: Clock
    agents: FileAgentRegistry
    redact: Redactor
    is_owner_alive: Callable[[str], bool]
    """Return True if the process with this owner id is alive."""
    session_locks: KeyedLock = field(default_factory=KeyedLock)

    def has_live_owner(self, run: Run) -> bool:
        """Return True if the process that works on the run is alive."""
        return bool(run.owner_id) and self.is_owner_alive(run.owner_id)
