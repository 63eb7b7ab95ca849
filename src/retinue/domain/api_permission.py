"""Rights over HTTP: what the bearer of a token may do. Who has which is the daemon's knowledge, never the request's."""

from enum import StrEnum


class Right(StrEnum):
    """What a token lets its bearer do. Each is its own: none includes another."""

    READ = "read"
    RUN = "run"
    APPROVE = "approve"
    ADMIN = "admin"


EVERY = frozenset(Right)
PERSON = frozenset({Right.READ, Right.RUN, Right.APPROVE})
"""What somebody at the page may do: everything but what changes the daemon itself."""
