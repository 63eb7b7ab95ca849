"""Values that are made often: frozen, slotted, keyword-only dataclasses like all others, made and defined in half the time."""

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast, dataclass_transform

T = TypeVar("T")
Field = dataclasses.Field[Any]
Methods = dict[str, Callable[..., Any]]

_NONE = dataclasses.MISSING
_NEW: Any = object()
"""Stands for a list or another thing of its own that goes without saying."""
_CLASS: Any = object.__dict__["__class__"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def value(kind: type[T]) -> type[T]:
    """The same as `dataclass(frozen=True, slots=True, kw_only=True)`. While one is being made it is a draft, which is
    written to like anything else; and what all kinds have in common is no text that is compiled for each."""
    inherits = any(hasattr(base, "__dataclass_fields__") for base in kind.__bases__)
    made = dataclasses.dataclass(frozen=inherits, slots=True, kw_only=True, init=False, repr=False, eq=False)(
        kind
    )
    params: Any = vars(made)["__dataclass_params__"]
    params.frozen = params.init = params.repr = params.eq = True
    fields = dataclasses.fields(cast("Any", made))
    methods = _STATE | _frozen(made, fields) | _compared(fields) | {"__repr__": _shown(fields)}
    for name, method in methods.items():
        if name not in kind.__dict__:
            setattr(made, name, method)
    setattr(made, "__init__", _init(made, fields))  # noqa: B010  (as an assignment it would be to a method)
    return made


def draft_of(kind: type) -> type:
    """A kind of the same slots that nothing keeps from being written to. Python lets the one become the other."""
    own: dict[str, Any] = {
        "__slots__": kind.__dict__["__slots__"],
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,  # both, or what it inherits makes writing slow again
    }
    if "__orig_bases__" in kind.__dict__:
        own["__orig_bases__"] = kind.__dict__["__orig_bases__"]  # without them no kind is of other kinds
    return type(kind.__name__, kind.__bases__, own)


def written(head: str, lines: Sequence[str], names: dict[str, Any]) -> Callable[..., Any]:
    """A function of one line for each field, as dataclasses do it: a loop over them would take three times as long."""
    exec("\n".join([f"def made{head}:", *(f" {line}" for line in lines)]), names)  # noqa: S102  (of names of fields only)
    return cast("Callable[..., Any]", names["made"])


def _init(kind: type, fields: Sequence[Field]) -> Callable[..., None]:
    """Names of ours are no names of fields: those begin with a letter."""
    names: dict[str, Any] = {"_kind": kind, "_draft": draft_of(kind), "_turned": _CLASS.__set__}
    lines = [each for field in fields if (each := _line(field, names))]
    given = [each for each in fields if each.init]
    names["_by_itself"] = _by_itself(fields)
    said = ", ".join(f"{each.name}={each.name}" for each in given)
    lines = [
        f"if self.__class__ is not _kind: return _by_itself(self, {said})",
        "_turned(self, _draft)",
        *lines,
        "self.__class__ = _kind",
    ]
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    head = ", ".join(["self", *(["*"] if given else []), *(each.name for each in given)])
    init = written(f"({head})", lines, names)
    init.__kwdefaults__ = {each.name: _default(each) for each in given if _default(each) is not _NONE}
    init.__name__, init.__qualname__ = "__init__", f"{kind.__qualname__}.__init__"
    init.__module__ = kind.__module__
    return init


def _by_itself(fields: Sequence[Field]) -> Callable[..., None]:
    """How one of a kind that somebody derived without this decorator is made: it has no draft."""

    def made(self: Any, **given: Any) -> None:
        for each in fields:
            fact = given.get(each.name, _NEW)
            if fact is _NEW and each.default_factory is not _NONE:
                fact = each.default_factory()
            elif fact is _NEW:
                fact = each.default
            if fact is not _NONE:
                object.__setattr__(self, each.name, fact)
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    return made


def _line(field: Field, names: dict[str, Any]) -> str:
    """How one field is set; empty where nobody says what it is before the value looks at itself."""
    name = field.name
    if field.default_factory is not _NONE:
        names[f"_new_{name}"], names["_unsaid"] = field.default_factory, _NEW
        new = f"_new_{name}()"
        return (
            f"self.{name} = {new} if {name} is _unsaid else {name}" if field.init else f"self.{name} = {new}"
        )
    if field.init:
        return f"self.{name} = {name}"
    names[f"_new_{name}"] = field.default
    return "" if field.default is _NONE else f"self.{name} = _new_{name}"


def _default(field: Field) -> Any:
    return field.default if field.default_factory is _NONE else _NEW


def _frozen(kind: type, fields: Sequence[Field]) -> Methods:
    names = frozenset(each.name for each in fields)

    def assigned(self: Any, name: str, new: Any) -> None:
        if type(self) is kind or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(kind, self).__setattr__(name, new)

    def deleted(self: Any, name: str) -> None:
        if type(self) is kind or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(kind, self).__delattr__(name)

    return {"__setattr__": assigned, "__delattr__": deleted}


def _compared(fields: Sequence[Field]) -> Methods:
    names = [each.name for each in fields if each.compare]
    held: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: None

    def equal(self: Any, other: object) -> Any:
        return held(self) == held(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(held(self))

    return {"__eq__": equal, "__hash__": hashed}


def _shown(fields: Sequence[Field]) -> Callable[[Any], str]:
    names = [each.name for each in fields if each.repr]

    def shown(self: Any) -> str:
        facts = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({facts})"

    return shown


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _setstate(self: Any, state: Sequence[Any]) -> None:
    for each, fact in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, fact)


_STATE: Methods = {"__getstate__": _getstate, "__setstate__": _setstate}
"""How one is copied and kept by those who know nothing of it."""
