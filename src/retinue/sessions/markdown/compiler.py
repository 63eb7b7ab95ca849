"""Compile functions from the grammar of session.md by generating source code, as `dataclasses` does.

A generic loop over the table would build a mapping of arguments for each entry, which is much slower.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from retinue.domain.run import Usage
from retinue.sessions.markdown.grammar import Attribute, MarkerKind

_NESTED: Mapping[str, type[Struct]] = {"usage": Usage}
"""Fields of an entry whose own fields are attributes, all of which may be missing."""
_NESTED_NAMES: Mapping[str, object] = {
    **{nested.__name__: nested for nested in _NESTED.values()},
    **{f"empty_{field}": nested() for field, nested in _NESTED.items()},
}


def compile_function(signature: str, *statements: str, **names: object) -> Callable[..., Any]:
    """Compile a function with this signature from these statements, which may use these names."""
    source = "\n    ".join((f"def {signature}:", *statements))
    namespace: dict[str, Any] = dict(names)
    exec(compile(source, "<grammar of session.md>", "exec"), namespace)  # noqa: S102 - generated from our own table
    return namespace[signature.partition("(")[0]]


def compile_constructor(
    kind: MarkerKind,
    signature: str,
    *statements: str,
    values: Mapping[Attribute, str],
    present: Mapping[Attribute, str],
    **names: object,
) -> Callable[..., Any]:
    """Compile a function that creates an entry from these values and its parameter `body`.

    `present` maps each attribute to an expression that is true if the value exists. If no part of a nested
    value exists, the entry gets a shared empty value.
    """
    constructor = _constructor_source(kind, values, present)
    names = {**names, **_NESTED_NAMES, kind.type.__name__: kind.type}
    return compile_function(signature, *statements, f"return {constructor}", **names)


def _constructor_source(
    kind: MarkerKind, values: Mapping[Attribute, str], present: Mapping[Attribute, str]
) -> str:
    keywords = {"role": repr(kind.role)} if kind.role else {}
    for attribute, value in values.items():
        field, _, nested = attribute.field.partition(".")
        if not nested:
            keywords[field] = value
        elif field not in keywords:
            parts = [each for each in values if each.field.startswith(f"{field}.")]
            nested_source = (
                f"{_NESTED[field].__name__}({_keywords({_leaf(each): values[each] for each in parts})})"
            )
            keywords[field] = (
                f"{nested_source} if {' or '.join(present[each] for each in parts)} else empty_{field}"
            )
    if kind.body:
        keywords[kind.body] = "body"
    return f"{kind.type.__name__}({_keywords(keywords)})"


def _keywords(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _leaf(attribute: Attribute) -> str:
    return attribute.field.partition(".")[2]
