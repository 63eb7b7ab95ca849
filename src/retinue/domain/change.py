"""Change is a new value: `replace` as dataclasses have it, many times as fast for the values that are changed often."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from retinue.domain.value import draft_of, written

T = TypeVar("T")

Known = tuple[frozenset[str], Callable[[Any], Any]]

_copiers: dict[type, Known | None] = {}


def replace(value: T, /, **changes: Any) -> T:
    """A copy with these fields instead. What checks itself when it is made is made the long way."""
    kind = type(value)
    known = _copiers[kind] if kind in _copiers else _copiers.setdefault(kind, _copier(kind))
    if known is None:
        return dataclasses.replace(cast("Any", value), **changes)
    names, copied = known
    new = copied(value)
    for name, change in changes.items():
        if name not in names:
            raise TypeError(f"{kind.__name__} has no field {name!r}")
        setattr(new, name, change)
    new.__class__ = kind
    return new


def maker(kind: type[T]) -> Callable[[Sequence[Any]], T]:
    """What makes a value of all its fields, given in their order: as fast, for kinds that are read by the thousand."""
    names = [each.name for each in dataclasses.fields(cast("Any", kind))]
    if (draft := _draft(kind)) is None:
        raise TypeError(f"{kind.__name__} is made the long way")
    lines = [
        "new = _made(_draft)",
        f"{', '.join(f'new.{name}' for name in names)}, = facts",
        "new.__class__ = _kind",
        "return new",
    ]
    return written("(facts)", lines, {"_made": object.__new__, "_draft": draft, "_kind": kind})


def _copier(kind: type) -> Known | None:
    """The names of the fields, and what copies them all into a draft; None for what has none."""
    if (draft := _draft(kind)) is None:
        return None
    fields = dataclasses.fields(kind)
    lines = ["new = _made(_draft)", *(f"new.{each.name} = old.{each.name}" for each in fields), "return new"]
    copied = written("(old)", lines, {"_made": object.__new__, "_draft": draft})
    return frozenset(each.name for each in fields), copied


def _draft(kind: type) -> type | None:
    """None for what has no slots, or has something to say while it is made."""
    plain = all(each.init for each in dataclasses.fields(kind)) and not hasattr(kind, "__post_init__")
    return draft_of(kind) if plain and "__slots__" in kind.__dict__ else None
