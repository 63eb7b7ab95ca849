"""A route: what may be asked over HTTP, who may ask it, and what it takes and gives."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any, Generic, TypeVar

import msgspec

from retinue.domain.api_permission import Right
from retinue.domain.value import value
from retinue.server.context import House


class Nothing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A body or a query that says nothing."""


Q = TypeVar("Q")
B = TypeVar("B")


@value
class Wish(Generic[Q, B]):
    """One request, understood: what stood in its path, its query and its body, of the types that its route names."""

    ref: str = ""
    """What the path names: a session, a run, an approval, an agent."""
    query: Q
    body: B
    key: str = ""
    """The Idempotency-Key: asked twice, it is done once."""
    last_event: int | None = None
    """The Last-Event-ID of a stream that is taken up again."""
    rights: frozenset[Right] = frozenset()
    by: str = "person"


Does = Callable[[House, Wish[Any, Any]], Awaitable[Any]]


@value
class Route:
    method: str
    path: str
    """With `{ref}` where it names a thing."""
    right: Right
    does: Does
    says: str
    """One sentence on what it does, for the document."""
    query: type[msgspec.Struct] = Nothing
    takes: type[msgspec.Struct] = Nothing
    gives: Any = None
    """The type of the answer; None: JSON of any shape."""
    status: int = 200
    streams: bool = False
    keyed: bool = False
    """Whether an Idempotency-Key is honoured."""
    errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """What it may answer besides, beyond what every route may."""
    codes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What it calls errors, where it has words of its own for them."""
