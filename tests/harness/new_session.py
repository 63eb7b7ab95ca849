"""Describe sessions to create, for tests of the session store."""

from typing import Any

from msgspec.structs import replace

from retinue.domain.session import NewSession
from retinue.domain.workspace import Workspace

_NEW_SESSION = NewSession(
    agent="general", preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root="/")
)


def new_session(agent: str = "general", **fields: Any) -> NewSession:
    """Describe a session with a minimal preset; `fields` are fields of `NewSession`."""
    return replace(_NEW_SESSION, agent=agent, **fields)
