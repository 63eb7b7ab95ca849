"""The house: what every route acts through."""

from collections.abc import Callable
from dataclasses import field
from datetime import datetime

from retinue.app import App
from retinue.domain.value import value
from retinue.server.auth import Keys
from retinue.server.event_broadcaster import Hub
from retinue.server.session_list_cache import Rows


@value
class House:
    app: App
    hub: Hub
    keys: Keys
    started_at: datetime
    url: str
    """Where the page is."""
    bound: str = "127.0.0.1"
    """What the page's port listens on."""
    look: Callable[[], bool]
    """Something was left for this process. False: it is about to leave, and takes nothing more."""
    stop: Callable[[], None]
    rows: Rows = field(default_factory=Rows)
