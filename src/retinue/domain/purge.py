"""Purge: remove every word of a session from a home, not only from its lists."""

from msgspec import Struct


class PurgeTarget(Struct, frozen=True, kw_only=True):
    """The sessions to purge, and where they are or were."""

    session: str
    """The session that a person named."""
    session_ids: frozenset[str]
    """Its id and those of its branches, children and deleted children."""
    removed_ids: frozenset[str]
    """The sessions that are gone afterwards; a cleared session stays."""
    folders: tuple[str, ...]
    """Folders of the purged sessions below `sessions`, as they were before a deletion."""
