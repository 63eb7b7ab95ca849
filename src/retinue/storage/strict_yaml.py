"""Strict YAML for definitions: limited size, no aliases or tags, errors with line numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from retinue.errors import BadDefinition
from retinue.storage import fast_yaml_reader

MAX_YAML_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_NODES = 10_000


class ParseError(Exception):
    """A syntax or structure error, with its 1-based line in the text."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


class YamlDocument(Struct, frozen=True, kw_only=True):
    value: Any
    lines: Mapping[tuple[str | int, ...], int]
    """The 1-based line of each key and item, by its path."""


def load_yaml(text: str, location: str) -> Any:
    """Parse YAML to plain dicts, lists and scalars; BadDefinition names the line."""
    try:
        return parse_yaml(text).value
    except ParseError as error:
        raise BadDefinition(f"{location}:{error.line}", error.problem) from error


def parse_yaml(text: str) -> YamlDocument:
    """Parse YAML to a value with line numbers, using the fast reader where the text is simple enough."""
    if len(text) > MAX_YAML_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_YAML_BYTES:
        raise ParseError(1, f"is larger than {MAX_YAML_BYTES // 1024} KiB")
    plain = fast_yaml_reader.read_plain_yaml(text)
    if plain is not None:
        return YamlDocument(value=plain[0], lines=plain[1])
    return parse_full_yaml(text)


def parse_full_yaml(text: str) -> YamlDocument:
    """Parse any YAML from the library's events, stopping early at the limits on depth and size."""
    # Imported on use: the library takes 100 ms to load, and most definitions need only the fast reader.
    from ruamel.yaml import YAML  # noqa: PLC0415
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    builder = _DocumentBuilder()
    events: Any = YAML(typ="safe", pure=True).parse(text)  # pyright: ignore[reportUnknownMemberType]  (the library is untyped)
    try:
        for event in events:
            builder.add_event(event)
    except MarkedYAMLError as error:
        marked_error: Any = error
        # The library notices an unclosed quote at the end of the text; report where it was opened.
        quote_start = marked_error.context_mark if "quoted scalar" in (marked_error.context or "") else None
        mark = quote_start or marked_error.problem_mark or marked_error.context_mark
        raise ParseError(
            (mark.line if mark else 0) + 1, _one_line(marked_error.problem or str(error))
        ) from error
    except (YAMLError, ValueError, OverflowError, IndexError, AttributeError) as error:
        raise ParseError(1, f"is not valid YAML: {_one_line(str(error))}") from error
    return YamlDocument(value=builder.root, lines=builder.lines)


@dataclass(slots=True, kw_only=True)
class _OpenCollection:
    """A map or list whose end has not been reached yet."""

    items: dict[str, Any] | list[Any]
    path: tuple[str | int, ...]
    key: str | None = None


@dataclass(slots=True)
class _DocumentBuilder:
    root: Any = None
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict[tuple[str | int, ...], int])
    stack: list[_OpenCollection] = field(default_factory=list[_OpenCollection])
    nodes: int = 0
    documents: int = 0

    def add_event(self, event: Any) -> None:
        line = (event.start_mark.line if event.start_mark else 0) + 1
        kind = type(event).__name__.removesuffix("Event")
        if kind in ("MappingEnd", "SequenceEnd"):
            self.stack.pop()
        elif kind == "DocumentStart":
            self._start_document(event, line)
        elif kind in ("Scalar", "MappingStart", "SequenceStart", "Alias"):
            self._add_node(kind, event, line)

    def _start_document(self, event: Any, line: int) -> None:
        self.documents += 1
        if self.documents > 1:
            raise ParseError(line, "contains more than one document")
        if event.version or event.tags:
            raise ParseError(line, "directives (%) are not supported")

    def _add_node(self, kind: str, event: Any, line: int) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ParseError(line, f"has more than {MAX_NODES} values")
        if kind == "Alias" or event.anchor is not None:
            raise ParseError(
                line, "anchors and aliases (& and *) are not supported; write the value out, or quote it"
            )
        if _has_explicit_tag(kind, event):
            raise ParseError(line, "tags (!) are not supported; write the plain value, or quote it")
        if kind == "Scalar":
            self._add_scalar(event, line)
            return
        if len(self.stack) >= MAX_DEPTH:
            raise ParseError(line, f"is nested deeper than {MAX_DEPTH} levels")
        items: dict[str, Any] | list[Any] = {} if kind == "MappingStart" else []
        path = self._insert_value(items, line)
        self.stack.append(_OpenCollection(items=items, path=path))

    def _add_scalar(self, event: Any, line: int) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.items, dict) and top.key is None:
            self._set_key(top, str(event.value), line, plain=event.style is None)
            return
        self._insert_value(
            fast_yaml_reader.resolve_scalar(event.value) if event.style is None else str(event.value), line
        )

    def _set_key(self, top: _OpenCollection, key: str, line: int, *, plain: bool) -> None:
        if plain and key == "<<":
            raise ParseError(line, "merge keys (<<) are not supported; write the values out")
        if key in top.items:
            raise ParseError(line, f"'{key}' occurs twice, first on line {self.lines[*top.path, key]}")
        top.key = key
        self.lines[*top.path, key] = line

    def _insert_value(self, value: Any, line: int) -> tuple[str | int, ...]:
        """Insert a value into the open collection and return its path."""
        if not self.stack:
            self.root = value
            return ()
        top = self.stack[-1]
        if isinstance(top.items, list):
            path = (*top.path, len(top.items))
            top.items.append(value)
            self.lines[path] = line
            return path
        if top.key is None:
            raise ParseError(line, "a key must be text, not a list or a map")
        path = (*top.path, top.key)
        top.items[top.key] = value
        top.key = None
        return path


def _has_explicit_tag(kind: str, event: Any) -> bool:
    """Return True for a tag written by the author; the library tags plain and quoted scalars itself."""
    return (
        event.tag is not None
        and event.tag != ""
        and not (kind == "Scalar" and event.implicit[1] and event.tag == "!")
    )


def _one_line(problem: str) -> str:
    return " ".join(problem.split())[:200]
