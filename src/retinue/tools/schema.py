"""Build the JSON Schema that a model sees: one plain object without references to resolve."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

_REF_TEMPLATE = "#/$defs/{name}"
_REF_PREFIX = "#/$defs/"

SchemaNode = dict[str, Any]


def tool_schema(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Build the schema of a struct. Definitions are inlined; only a recursive type keeps its name."""
    (top,), definitions = msgspec.json.schema_components((struct,), ref_template=_REF_TEMPLATE)
    recursive: dict[str, SchemaNode] = {}
    inlined = _inline_references(top, definitions, (), recursive)
    ordered: SchemaNode = {
        "type": "object",
        "properties": inlined.get("properties", {}),
        "required": inlined.get("required", []),
        "additionalProperties": False,
    }
    return ordered | ({"$defs": recursive} if recursive else {})


def _inline_references(
    node: SchemaNode,
    definitions: Mapping[str, SchemaNode],
    enclosing: tuple[str, ...],
    recursive: dict[str, SchemaNode],
) -> SchemaNode:
    """Inline the references of a node.

    `enclosing` are the definitions around it: meeting one of them again means a recursive type.
    """
    reference = node.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix(_REF_PREFIX)
        if name in enclosing:
            recursive.setdefault(name, {})
            return node
        inlined = _inline_references(definitions[name], definitions, (*enclosing, name), recursive)
        if name in recursive:
            recursive[name] = inlined
            return node
        return inlined | {key: value for key, value in node.items() if key != "$ref"}
    result: SchemaNode = {}
    for key, value in node.items():
        if key == "title":
            continue
        if key == "properties":
            result[key] = {
                name: _inline_references(each, definitions, enclosing, recursive)
                for name, each in value.items()
            }
        elif key not in _DATA_KEYWORDS:
            result[key] = _inline_value(value, definitions, enclosing, recursive)
        else:
            result[key] = value
    return _simplify_node(result)


def has_nested_objects(schema: Mapping[str, Any]) -> bool:
    """Return whether an argument is, or contains, an object with named properties."""
    return any(
        '"properties"' in msgspec.json.encode(each).decode() for each in schema["properties"].values()
    ) or ("$defs" in schema)


def find_unknown_key(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return the path of the first unknown key: a decoder would drop it silently."""
    pending: list[tuple[Any, list[SchemaNode], str]] = [(value, _container_schemas(dict(schema), schema), "")]
    while pending:
        item, options, path = pending.pop()
        if isinstance(item, list):
            items = [inner for option in options for inner in _container_schemas(option.get("items"), schema)]
            pending += [
                (each, items, f"{path}[{index}]") for index, each in enumerate(cast("list[Any]", item))
            ]
        elif isinstance(item, dict) and options and all("properties" in option for option in options):
            for key, each in cast("dict[str, Any]", item).items():
                key_path = f"{path}.{key}" if path else key
                schemas = [option["properties"][key] for option in options if key in option["properties"]]
                if not schemas:
                    return key_path
                pending.append(
                    (each, [inner for one in schemas for inner in _container_schemas(one, schema)], key_path)
                )
    return None


def _container_schemas(node: SchemaNode | None, schema: Mapping[str, Any]) -> list[SchemaNode]:
    """Return the object and array schemas that a value may have; text and numbers have no keys."""
    found: list[SchemaNode] = []
    pending = [node] if isinstance(node, dict) else []
    while pending:
        one = pending.pop()
        if "$ref" in one:
            pending.append(schema["$defs"][one["$ref"].removeprefix(_REF_PREFIX)])
        elif "anyOf" in one:
            pending += one["anyOf"]
        elif one.get("type") in ("object", "array") or not one:
            found.append(one)
    return found


_DATA_KEYWORDS = frozenset({"default", "enum", "const", "examples", "required", "description"})
"""Keywords whose values are data, not schemas."""


def _inline_value(
    value: Any,
    definitions: Mapping[str, SchemaNode],
    enclosing: tuple[str, ...],
    recursive: dict[str, SchemaNode],
) -> Any:
    if isinstance(value, dict):
        return _inline_references(cast("SchemaNode", value), definitions, enclosing, recursive)
    if isinstance(value, list):
        return [_inline_value(each, definitions, enclosing, recursive) for each in cast("list[Any]", value)]
    return value


def _simplify_node(node: SchemaNode) -> SchemaNode:
    """Simplify a node.

    `X or null, by default null` becomes an optional X; an enum of strings gets its type; an object with named
    properties accepts no others.
    """
    choices = node.get("anyOf")
    if isinstance(choices, list) and node.get("default", 0) is None:
        remaining = [choice for choice in cast("list[SchemaNode]", choices) if choice != {"type": "null"}]
        if len(remaining) == 1:
            node = remaining[0] | {
                key: value for key, value in node.items() if key not in ("anyOf", "default")
            }
    enum_values = node.get("enum")
    if isinstance(enum_values, list) and all(
        isinstance(enum_value, str) for enum_value in cast("list[Any]", enum_values)
    ):
        node = {"type": "string"} | node
    if "properties" in node:
        node = node | {"additionalProperties": False}
    return node
