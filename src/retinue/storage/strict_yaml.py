"""YAML as definitions may use it: small, without aliases or tags, and with every mistake on its line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.domain.value import value
from retinue.errors import BadDefinition
from retinue.storage import fast_yaml_reader

MAX_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_NODES = 10_000


class Mistake(Exception):
    """What is wrong, and on which line of the text, counted from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


@value
class Document:
    value: Any
    lines: Mapping[tuple[str | int, ...], int]
    """Where each key and item stands, by its path."""


def load(text: str, where: str) -> Any:
    """Plain dicts, lists and scalars; BadDefinition names the line."""
    try:
        return document(text).value
    except Mistake as mistake:
        raise BadDefinition(f"{where}:{mistake.line}", mistake.problem) from mistake


def document(text: str) -> Document:
    """The value with its lines. The plain subset is read by our own reader, which agrees with the library."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise Mistake(1, f"is larger than {MAX_BYTES // 1024} KiB")
    plain = fast_yaml_reader.read(text)
    if plain is not None:
        return Document(value=plain[0], lines=plain[1])
    return composed(text)


def composed(text: str) -> Document:
    """The whole language, from the library's events: counted one by one, so that depth and size end the reading early."""
    # Imported on use: the library takes 100 ms to load, and most definitions are plain.
    from ruamel.yaml import YAML  # noqa: PLC0415
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    building = _Building()
    events: Any = YAML(typ="safe", pure=True).parse(text)  # pyright: ignore[reportUnknownMemberType]  (the library is untyped)
    try:
        for event in events:
            building.take(event)
    except MarkedYAMLError as error:
        marked: Any = error
        # An open quote is noticed at the end of the text; its author looks for where it began.
        opened = marked.context_mark if "quoted scalar" in (marked.context or "") else None
        mark = opened or marked.problem_mark or marked.context_mark
        raise Mistake((mark.line if mark else 0) + 1, _sentence(marked.problem or str(error))) from error
    except (YAMLError, ValueError, OverflowError, IndexError, AttributeError) as error:
        raise Mistake(1, f"is not YAML: {_sentence(str(error))}") from error
    return Document(value=building.root, lines=building.lines)


@dataclass(slots=True, kw_only=True)
class _Open:
    """A map or list whose end has not come yet."""

    items: dict[str, Any] | list[Any]
    path: tuple[str | int, ...]
    key: str | None = None


@dataclass(slots=True)
class _Building:
    root: Any = None
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict[tuple[str | int, ...], int])
    stack: list[_Open] = field(default_factory=list[_Open])
    nodes: int = 0
    documents: int = 0

    def take(self, event: Any) -> None:
        line = (event.start_mark.line if event.start_mark else 0) + 1
        kind = type(event).__name__.removesuffix("Event")
        if kind in ("MappingEnd", "SequenceEnd"):
            self.stack.pop()
        elif kind == "DocumentStart":
            self._document(event, line)
        elif kind in ("Scalar", "MappingStart", "SequenceStart", "Alias"):
            self._node(kind, event, line)

    def _document(self, event: Any, line: int) -> None:
        self.documents += 1
        if self.documents > 1:
            raise Mistake(line, "holds more than one document")
        if event.version or event.tags:
            raise Mistake(line, "directives (%) are not used here")

    def _node(self, kind: str, event: Any, line: int) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise Mistake(line, f"has more than {MAX_NODES} values")
        if kind == "Alias" or event.anchor is not None:
            raise Mistake(
                line, "anchors and aliases (& and *) are not used here: write the value out, or quote it"
            )
        if _tagged(kind, event):
            raise Mistake(line, "tags (!) are not used here: write the plain value, or quote it")
        if kind == "Scalar":
            self._scalar(event, line)
            return
        if len(self.stack) >= MAX_DEPTH:
            raise Mistake(line, f"is nested deeper than {MAX_DEPTH} levels")
        items: dict[str, Any] | list[Any] = {} if kind == "MappingStart" else []
        path = self._place(items, line)
        self.stack.append(_Open(items=items, path=path))

    def _scalar(self, event: Any, line: int) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.items, dict) and top.key is None:
            self._key(top, str(event.value), line, plain=event.style is None)
            return
        self._place(fast_yaml_reader.resolve(event.value) if event.style is None else str(event.value), line)

    def _key(self, top: _Open, key: str, line: int, *, plain: bool) -> None:
        if plain and key == "<<":
            raise Mistake(line, "merge keys (<<) are not used here: write the values out")
        if key in top.items:
            raise Mistake(line, f"'{key}' is said twice; the first time on line {self.lines[*top.path, key]}")
        top.key = key
        self.lines[*top.path, key] = line

    def _place(self, value: Any, line: int) -> tuple[str | int, ...]:
        """Puts a value where it belongs, and says where that is."""
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
            raise Mistake(line, "a key must be a word, not a list or a map")
        path = (*top.path, top.key)
        top.items[top.key] = value
        top.key = None
        return path


def _tagged(kind: str, event: Any) -> bool:
    """Only a tag that somebody wrote counts: the library marks plain and quoted scalars itself."""
    return (
        event.tag is not None
        and event.tag != ""
        and not (kind == "Scalar" and event.implicit[1] and event.tag == "!")
    )


def _sentence(problem: str) -> str:
    return " ".join(problem.split())[:200]
