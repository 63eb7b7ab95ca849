"""The context that every route handler receives."""

from collections.abc import Callable
from datetime import datetime

from msgspec import Struct, field

from retinue.app import App
from retinue.server.auth import Authenticator
from retinue.server.event_broadcaster import EventBroadcaster
from retinue.server.session_list_cache import SessionRowCache


class ServerContext(Struct, frozen=True, kw_only=True):
    app: App
    broadcaster: EventBroadcaster
    authenticator: Authenticator
    started_at: datetime
    page_url: str
    """Base URL of the page."""
    bound_address: str = "127.0.0.1"
    """Address that the page's port listens on."""
    allow_home: bool = False
    """Clients may use the user's home folder as the workspace of new sessions."""
    wake: Callable[[], bool]
    """Tell the daemon that work was submitted; False if it is shutting down and accepts none."""
    stop: Callable[[], None]
    session_row_cache: SessionRowCache = field(default_factory=SessionRowCache)
