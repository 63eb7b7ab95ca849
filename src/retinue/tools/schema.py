"""The schema a model sees: one plain object, with nothing to look up elsewhere."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

_REF = "#/$defs/{name}"
_PREFIX = "#/$defs/"

Node = dict[str, Any]


def schema_of(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Definitions stand where they are used; only a type that holds itself keeps its name."""
    (top,), definitions = msgspec.json.schema_components((struct,), ref_template=_REF)
    kept: dict[str, Node] = {}
    plain = _inlined(top, definitions, (), kept)
    ordered: Node = {
        "type": "object",
        "properties": plain.get("properties", {}),
        "required": plain.get("required", []),
        "additionalProperties": False,
    }
    return ordered | ({"$defs": kept} if kept else {})


def _inlined(
    node: Node, definitions: Mapping[str, Node], around: tuple[str, ...], kept: dict[str, Node]
) -> Node:
    """`around` are the definitions this node stands in: one of them again is a type that holds itself."""
    reference = node.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix(_PREFIX)
        if name in around:
            kept.setdefault(name, {})
            return node
        whole = _inlined(definitions[name], definitions, (*around, name), kept)
        if name in kept:
            kept[name] = whole
            return node
        return whole | {key: value for key, value in node.items() if key != "$ref"}
    out: Node = {}
    for key, value in node.items():
        if key == "title":
            continue
        if key == "properties":
            out[key] = {name: _inlined(each, definitions, around, kept) for name, each in value.items()}
        elif key not in _NOT_SCHEMAS:
            out[key] = _walked(value, definitions, around, kept)
        else:
            out[key] = value
    return _plain(out)


def is_nested(schema: Mapping[str, Any]) -> bool:
    """Whether an argument is, or holds, an object with named properties."""
    return any(
        '"properties"' in msgspec.json.encode(each).decode() for each in schema["properties"].values()
    ) or ("$defs" in schema)


def stranger(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Where the first key stands that the schema does not know: a decoder of plain classes would drop it."""
    todo: list[tuple[Any, list[Node], str]] = [(value, _options(dict(schema), schema), "")]
    while todo:
        given, options, where = todo.pop()
        if isinstance(given, list):
            items = [inner for option in options for inner in _options(option.get("items"), schema)]
            todo += [(each, items, f"{where}[{at}]") for at, each in enumerate(cast("list[Any]", given))]
        elif isinstance(given, dict) and options and all("properties" in option for option in options):
            for key, each in cast("dict[str, Any]", given).items():
                place = f"{where}.{key}" if where else key
                known = [option["properties"][key] for option in options if key in option["properties"]]
                if not known:
                    return place
                todo.append((each, [inner for one in known for inner in _options(one, schema)], place))
    return None


def _options(node: Node | None, schema: Mapping[str, Any]) -> list[Node]:
    """The objects and lists that a value may be; text and numbers have no keys."""
    found: list[Node] = []
    todo = [node] if isinstance(node, dict) else []
    while todo:
        one = todo.pop()
        if "$ref" in one:
            todo.append(schema["$defs"][one["$ref"].removeprefix(_PREFIX)])
        elif "anyOf" in one:
            todo += one["anyOf"]
        elif one.get("type") in ("object", "array") or not one:
            found.append(one)
    return found


_NOT_SCHEMAS = frozenset({"default", "enum", "const", "examples", "required", "description"})
"""Keywords whose values are data, not schemas."""


def _walked(
    value: Any, definitions: Mapping[str, Node], around: tuple[str, ...], kept: dict[str, Node]
) -> Any:
    if isinstance(value, dict):
        return _inlined(cast("Node", value), definitions, around, kept)
    if isinstance(value, list):
        return [_walked(each, definitions, around, kept) for each in cast("list[Any]", value)]
    return value


def _plain(node: Node) -> Node:
    """`X or null, by default null` is shown as an optional X; a choice of words says that it is of strings;
    an object with named properties takes no others."""
    choices = node.get("anyOf")
    if isinstance(choices, list) and node.get("default", 0) is None:
        left = [choice for choice in cast("list[Node]", choices) if choice != {"type": "null"}]
        if len(left) == 1:
            node = left[0] | {key: value for key, value in node.items() if key not in ("anyOf", "default")}
    words = node.get("enum")
    if isinstance(words, list) and all(isinstance(word, str) for word in cast("list[Any]", words)):
        node = {"type": "string"} | node
    if "properties" in node:
        node = node | {"additionalProperties": False}
    return node
