"""Front matter: the YAML between two `---` lines at the top of a Markdown file."""

import re
from functools import lru_cache
from typing import Any

from retinue.domain.agent import PathPatterns
from retinue.errors import BadDefinition
from retinue.storage import strict_yaml, yaml_writer

_OPENING = re.compile("\ufeff?---[ \t]*\r?\n")
_PATHS_SECTION = re.compile(
    r"""^(?:paths|"paths"|'paths')[ ]*:.*(?:\n|\Z)"""  # the key's own line
    r"(?:(?:[ \t]*(?:\#.*)?\r?\n)*(?:[ \t]+[^\s\#]|-[ \t]).*(?:\n|\Z))*",  # deeper lines, with blank lines and comments between them
    re.MULTILINE,
)
_PROMPT_FIELD = re.compile(
    r"""^(?P<quote>["']?)(?:prompt|systemPrompt|system_prompt|system|instructions)(?P=quote)[ ]*:.*(?:\n|\Z)"""
    r"(?:(?:[ \t]*(?:\#.*)?\r?\n)*[ \t]+\S.*(?:\n|\Z))*",
    re.MULTILINE,
)
_CLOSING = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)


def split_front_matter(text: str, location: str = "the definition") -> tuple[str, str]:
    """Split a text into front matter and body.

    Missing or unclosed front matter is an error and never treated as body: a truncated file must not widen
    permissions.
    """
    opening = _OPENING.match(text)
    if opening is None:
        raise BadDefinition(
            f"{location}:1",
            "has no front matter; start the file with a line `---`, the fields, and another line `---`",
        )
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise BadDefinition(f"{location}:1", "has front matter without an end; close it with a line `---`")
    body = text[closing.end() :]
    return text[opening.end() : closing.start()], body.removeprefix("\r").removeprefix("\n")


@lru_cache(maxsize=256)
def with_paths(text: str, paths: PathPatterns, location: str = "the definition") -> str:
    """Return the text with its `paths` section replaced or added; everything else stays byte for byte.

    Raises BadDefinition if the new section would have no effect.
    """
    new_text = _replace_paths_section(text, paths, location)
    front, _ = split_front_matter(new_text, location)
    document: Any = strict_yaml.load_yaml(front.replace("\r\n", "\n"), location)
    expected: dict[str, Any] = {name: list(patterns) for name, patterns in _path_lists(paths)}
    if paths.default_deny is not None:
        expected["default_deny"] = paths.default_deny
    if not isinstance(document, dict) or document != document | {"paths": expected}:
        raise BadDefinition(
            location, "has front matter that paths cannot be added to; write one field per line"
        )
    return new_text


def with_prompt(text: str, prompt: str, location: str = "the definition") -> str:
    """Return the same front matter with another system prompt below it; a prompt field is removed."""
    front, body = split_front_matter(text, location)
    head = text.removesuffix(body)
    return f"{head.replace(front, _PROMPT_FIELD.sub('', front), 1) if front else head}{prompt}\n"


def _replace_paths_section(text: str, paths: PathPatterns, location: str) -> str:
    front, _ = split_front_matter(text, location)
    start = text.index("\n") + 1
    end = start + len(front)
    if front.lstrip().startswith("{"):
        raise BadDefinition(f"{location}:2", "has its front matter in braces; write one field per line")
    ending = "\r\n" if text[start - 2 : start] == "\r\n" else "\n"
    section = render_paths_section(paths).replace("\n", ending)
    old_section = _PATHS_SECTION.search(text, start, end)
    if old_section is not None:
        return text[: old_section.start()] + section + text[old_section.end() :]
    separator = "" if front == "" or front.endswith("\n") else ending
    return f"{text[:end]}{separator}{section}{text[end:]}"


def render_paths_section(paths: PathPatterns) -> str:
    """Render the `paths` section: each list by name with quoted patterns. Lists that are None are omitted."""
    rendered = [_render_patterns(name, patterns) for name, patterns in _path_lists(paths)]
    if paths.default_deny is not None:
        rendered.append(f"  default_deny: {'true' if paths.default_deny else 'false'}\n")
    return "paths:\n" + "".join(rendered) if rendered else "paths: {}\n"


def _path_lists(paths: PathPatterns) -> list[tuple[str, tuple[str, ...]]]:
    lists = (("read", paths.read), ("write", paths.write), ("deny", paths.deny))
    return [(name, patterns) for name, patterns in lists if patterns is not None]


def _render_patterns(name: str, patterns: tuple[str, ...]) -> str:
    if not patterns:
        return f"  {name}: []\n"
    return f"  {name}:\n" + "".join(f"    - {yaml_writer.quote_string(each)}\n" for each in patterns)
