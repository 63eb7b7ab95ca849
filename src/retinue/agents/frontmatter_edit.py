"""Add items to a list in front matter by inserting text; every existing byte stays."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from retinue.agents import frontmatter
from retinue.errors import BadDefinition
from retinue.storage import strict_yaml, yaml_writer
from retinue.storage.strict_yaml import ParseError, YamlDocument

_NULL_VALUE = re.compile(r"(?<=:)([ ]+)(?:null|Null|NULL|~)(?=[ ]*(?:#.*)?\r?$)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_MAX_TRIES = 200
"""Maximum lines or brackets to try; lists of patterns written by people are short."""


def with_list_items(text: str, section: str, name: str, items: Sequence[str], location: str) -> str:
    """Return the text with items appended to a list of its front matter, such as `paths` `read`.

    A missing list or section is added. Raises BadDefinition if that is impossible by inserting text alone.
    """
    front, _ = frontmatter.split_front_matter(text, location)
    start = text.index("\n") + 1
    document = _parse_front_matter(front)
    expected = _expected_content(document.value, section, name, items)
    if expected is not None:
        points = _InsertionPoints(front=front, section=section, name=name, items=items, document=document)
        for new_front in points.candidates():
            if _has_content(new_front, expected):
                return text[:start] + new_front + text[start + len(front) :]
    raise BadDefinition(
        location, f"has front matter that {section}.{name} cannot be added to; write one field per line"
    )


def _parse_front_matter(front: str) -> YamlDocument:
    try:
        return strict_yaml.parse_yaml(front.replace("\r\n", "\n"))
    except ParseError as error:
        raise BadDefinition("the front matter", error.problem) from error


def _has_content(front: str, expected: Mapping[str, Any]) -> bool:
    try:
        return _parse_front_matter(front).value == expected
    except BadDefinition:
        return False


def _expected_content(content: Any, section: str, name: str, items: Sequence[str]) -> dict[str, Any] | None:
    """Return the expected front matter, or None if something other than a list is in the way."""
    fields: Any = {} if content is None else content
    section_fields: Any = (fields.get(section) or {}) if isinstance(fields, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  (strict YAML has text keys only)
    if not isinstance(section_fields, dict):
        return None
    old_items: Any = cast("dict[str, Any]", section_fields).get(name) or []
    if not isinstance(old_items, list):
        return None
    return {**fields, section: {**section_fields, name: [*old_items, *items]}}


class _InsertionPoints(Struct, frozen=True, kw_only=True):
    """Candidate texts with the items inserted; parsing each result shows which one is right."""

    front: str
    section: str
    name: str
    items: Sequence[str]
    document: YamlDocument

    def candidates(self) -> Iterator[str]:
        lines = _LINE.findall(self.front)
        yield from self._block_list_candidates(lines)
        yield from self._flow_candidates(lines)
        yield from self._new_list_candidates(lines)
        yield from self._null_candidates(lines)
        if (self.section,) not in self.document.lines:
            yield self._insert_lines(lines, len(lines), [f"{self.section}:", *self._render_list("  ")])

    def _block_list_candidates(self, lines: list[str]) -> Iterator[str]:
        """Insert below the last item of a block list, or below the list's bare key."""
        key = (self.section, self.name)
        if key not in self.document.lines:
            return
        key_line = lines[self.document.lines[key] - 1]
        last_line = lines[self._last_line(key) - 1]
        key_indents = (f"{_indentation(key_line)}  ", _indentation(key_line))
        indents = key_indents if last_line is key_line else (_indentation(last_line), *key_indents)
        for position in self._positions_below(self._last_line(key), lines):
            for indent in dict.fromkeys(indents):
                yield self._insert_lines(
                    lines, position, [f"{indent}- {item}" for item in self._quoted_items()]
                )

    def _new_list_candidates(self, lines: list[str]) -> Iterator[str]:
        """Insert a new list below the section's other keys."""
        if (self.section,) not in self.document.lines:
            return
        children = [
            line
            for path, line in self.document.lines.items()
            if path[:1] == (self.section,) and len(path) > 1
        ]
        indent = _indentation(lines[min(children) - 1]) if children else "  "
        for position in self._positions_below(self._last_line((self.section,)), lines):
            yield self._insert_lines(lines, position, self._render_list(indent))

    def _flow_candidates(self, lines: list[str]) -> Iterator[str]:
        """Insert before the closing bracket of a list or map in flow style."""
        key = (self.section, self.name)
        target_key = key if key in self.document.lines else (self.section,)
        if target_key not in self.document.lines:
            return
        quoted_items = ", ".join(self._quoted_items())
        bracket, new_text = (
            ("]", quoted_items) if target_key == key else ("}", f"{self.name}: [{quoted_items}]")
        )
        position = sum(len(line) for line in lines[: self.document.lines[target_key] - 1])
        for _ in range(_MAX_TRIES):
            position = self.front.find(bracket, position)
            if position < 0:
                return
            for inserted in (new_text, f", {new_text}", f" {new_text}"):
                yield self.front[:position] + inserted + self.front[position:]
            position += 1

    def _null_candidates(self, lines: list[str]) -> Iterator[str]:
        """Replace a null value."""
        quoted_items = f"[{', '.join(self._quoted_items())}]"
        for key, new_text in (
            ((self.section, self.name), quoted_items),
            ((self.section,), f"{{{self.name}: {quoted_items}}}"),
        ):
            if key in self.document.lines:
                position = self.document.lines[key] - 1
                line = _NULL_VALUE.sub(
                    lambda match, new_text=new_text: f"{match[1]}{new_text}", lines[position]
                )
                yield "".join((*lines[:position], line, *lines[position + 1 :]))

    def _last_line(self, key: tuple[str | int, ...]) -> int:
        """Return the last line on which a part of the value starts."""
        return max(line for path, line in self.document.lines.items() if path[: len(key)] == key)

    def _positions_below(self, line: int, lines: list[str]) -> range:
        """Return the positions below a line to try, because its content may continue over several lines."""
        return range(line, min(len(lines), line + _MAX_TRIES) + 1)

    def _render_list(self, indent: str) -> list[str]:
        return [f"{indent}{self.name}:", *(f"{indent}  - {item}" for item in self._quoted_items())]

    def _quoted_items(self) -> list[str]:
        return [yaml_writer.quote_string(item) for item in self.items]

    def _insert_lines(self, lines: list[str], position: int, new_lines: Sequence[str]) -> str:
        ending = "\r\n" if any(line.endswith("\r\n") for line in lines) else "\n"
        separator = ending if position and position == len(lines) and not lines[-1].endswith("\n") else ""
        return "".join(
            (*lines[:position], separator, *(f"{line}{ending}" for line in new_lines), *lines[position:])
        )


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]
