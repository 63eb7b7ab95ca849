"""One more item in a list of front matter, put in as text: every byte that was there stays."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from retinue.agents import frontmatter
from retinue.domain.value import value
from retinue.errors import BadDefinition
from retinue.storage import strict_yaml, yaml_writer
from retinue.storage.strict_yaml import Document, Mistake

_NOTHING = re.compile(r"(?<=:)([ ]+)(?:null|Null|NULL|~)(?=[ ]*(?:#.*)?\r?$)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_FURTHEST = 200
"""Lines or brackets that are tried: a list of people's patterns is short."""


def with_items(text: str, section: str, name: str, items: Sequence[str], where: str) -> str:
    """The same text with these items at the end of a list of its front matter, such as `paths` `read`. A list or a
    section that is not there is added. BadDefinition where that cannot be done by adding text alone."""
    front, _ = frontmatter.split(text, where)
    start = text.index("\n") + 1
    before = _read(front)
    wanted = _grown(before.value, section, name, items)
    if wanted is not None:
        place = _Place(front=front, section=section, name=name, items=items, found=before)
        for changed in place.tries():
            if _says(changed, wanted):
                return text[:start] + changed + text[start + len(front) :]
    raise BadDefinition(
        where, f"has no place where {section}.{name} can be added to; write one field to a line"
    )


def _read(front: str) -> Document:
    try:
        return strict_yaml.document(front.replace("\r\n", "\n"))
    except Mistake as mistake:
        raise BadDefinition("the front matter", mistake.problem) from mistake


def _says(front: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return _read(front).value == wanted
    except BadDefinition:
        return False


def _grown(found: Any, section: str, name: str, items: Sequence[str]) -> dict[str, Any] | None:
    """What the front matter must say afterwards; None where something else than a list is in the way."""
    whole: Any = {} if found is None else found
    inner: Any = (whole.get(section) or {}) if isinstance(whole, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  (strict YAML has text keys only)
    if not isinstance(inner, dict):
        return None
    old: Any = cast("dict[str, Any]", inner).get(name) or []
    if not isinstance(old, list):
        return None
    return {**whole, section: {**inner, name: [*old, *items]}}


@value
class _Place:
    """Where an item may go. Which of the tries is right, reading the result tells."""

    front: str
    section: str
    name: str
    items: Sequence[str]
    found: Document

    def tries(self) -> Iterator[str]:
        lines = _LINE.findall(self.front)
        yield from self._items(lines)
        yield from self._brackets(lines)
        yield from self._lists(lines)
        yield from self._nothings(lines)
        if (self.section,) not in self.found.lines:
            yield self._put(lines, len(lines), [f"{self.section}:", *self._list("  ")])

    def _items(self, lines: list[str]) -> Iterator[str]:
        """Below the last item of a block list, or below the bare name of one."""
        key = (self.section, self.name)
        if key not in self.found.lines:
            return
        own = lines[self.found.lines[key] - 1]
        last = lines[self._last(key) - 1]
        deeper = (f"{_indent(own)}  ", _indent(own))
        indents = deeper if last is own else (_indent(last), *deeper)
        for at in self._below(self._last(key), lines):
            for indent in dict.fromkeys(indents):
                yield self._put(lines, at, [f"{indent}- {item}" for item in self._quoted()])

    def _lists(self, lines: list[str]) -> Iterator[str]:
        """A new list, below what stands in the section already."""
        if (self.section,) not in self.found.lines:
            return
        children = [
            line for path, line in self.found.lines.items() if path[:1] == (self.section,) and len(path) > 1
        ]
        indent = _indent(lines[min(children) - 1]) if children else "  "
        for at in self._below(self._last((self.section,)), lines):
            yield self._put(lines, at, self._list(indent))

    def _brackets(self, lines: list[str]) -> Iterator[str]:
        """Before the end of a list or map in brackets."""
        key = (self.section, self.name)
        whole = key if key in self.found.lines else (self.section,)
        if whole not in self.found.lines:
            return
        inside = ", ".join(self._quoted())
        end, said = ("]", inside) if whole == key else ("}", f"{self.name}: [{inside}]")
        at = sum(len(line) for line in lines[: self.found.lines[whole] - 1])
        for _ in range(_FURTHEST):
            at = self.front.find(end, at)
            if at < 0:
                return
            for piece in (said, f", {said}", f" {said}"):
                yield self.front[:at] + piece + self.front[at:]
            at += 1

    def _nothings(self, lines: list[str]) -> Iterator[str]:
        """In place of a null, which says nothing."""
        inside = f"[{', '.join(self._quoted())}]"
        for key, said in (
            ((self.section, self.name), inside),
            ((self.section,), f"{{{self.name}: {inside}}}"),
        ):
            if key in self.found.lines:
                at = self.found.lines[key] - 1
                line = _NOTHING.sub(lambda match, said=said: f"{match[1]}{said}", lines[at])
                yield "".join((*lines[:at], line, *lines[at + 1 :]))

    def _last(self, key: tuple[str | int, ...]) -> int:
        """The last line on which something of it begins."""
        return max(line for path, line in self.found.lines.items() if path[: len(key)] == key)

    def _below(self, line: int, lines: list[str]) -> range:
        """The places below a line at which a further one may stand: what begins there may go on for several."""
        return range(line, min(len(lines), line + _FURTHEST) + 1)

    def _list(self, indent: str) -> list[str]:
        return [f"{indent}{self.name}:", *(f"{indent}  - {item}" for item in self._quoted())]

    def _quoted(self) -> list[str]:
        return [yaml_writer.quoted(item) for item in self.items]

    def _put(self, lines: list[str], at: int, new: Sequence[str]) -> str:
        ending = "\r\n" if any(line.endswith("\r\n") for line in lines) else "\n"
        gap = ending if at and at == len(lines) and not lines[-1].endswith("\n") else ""
        return "".join((*lines[:at], gap, *(f"{line}{ending}" for line in new), *lines[at:]))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]
