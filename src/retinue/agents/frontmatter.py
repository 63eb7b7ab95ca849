"""Front matter: the YAML between two lines of three dashes at the top of a Markdown file, found without a YAML reader."""

import re
from functools import lru_cache
from typing import Any

from retinue.domain.agent import Paths
from retinue.errors import BadDefinition
from retinue.storage import strict_yaml, yaml_writer

_OPENING = re.compile("\ufeff?---[ \t]*\r?\n")
_PATHS = re.compile(
    r"""^(?:paths|"paths"|'paths')[ ]*:.*(?:\n|\Z)"""  # the key's own line
    r"(?:(?:[ \t]*(?:\#.*)?\r?\n)*(?:[ \t]+[^\s\#]|-[ \t]).*(?:\n|\Z))*",  # deeper lines, with what stands between them
    re.MULTILINE,
)
_PROMPT = re.compile(
    r"""^(?P<quote>["']?)(?:prompt|systemPrompt|system_prompt|system|instructions)(?P=quote)[ ]*:.*(?:\n|\Z)"""
    r"(?:(?:[ \t]*(?:\#.*)?\r?\n)*[ \t]+\S.*(?:\n|\Z))*",
    re.MULTILINE,
)
_CLOSING = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)


def split(text: str, where: str = "the definition") -> tuple[str, str]:
    """The front matter's text and the body. A file without it, or with half of it, is an error and never all body:
    what a torn file no longer says must not become a wider right."""
    opening = _OPENING.match(text)
    if opening is None:
        raise BadDefinition(
            f"{where}:1", "has no front matter; start the file with a line ---, the fields, and a line ---"
        )
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise BadDefinition(f"{where}:1", "has front matter that does not end; close it with a line ---")
    body = text[closing.end() :]
    return text[opening.end() : closing.start()], body.removeprefix("\r").removeprefix("\n")


@lru_cache(maxsize=256)
def with_paths(text: str, paths: Paths, where: str = "the definition") -> str:
    """The same text with this `paths` section in its front matter, in place of the old one or at the end;
    everything else stays byte for byte. A text in which the section would not count is an error."""
    spliced = _spliced(text, paths, where)
    front, _ = split(spliced, where)
    found: Any = strict_yaml.load(front.replace("\r\n", "\n"), where)
    said = {name: list(patterns) for name, patterns in _lists(paths)}
    if not isinstance(found, dict) or found != found | {"paths": said}:
        raise BadDefinition(
            where, "has front matter into which no paths can be written; write one field to a line"
        )
    return spliced


def with_prompt(text: str, prompt: str, where: str = "the definition") -> str:
    """The same front matter to the letter, and another system message below it; one that stands in a field goes."""
    front, body = split(text, where)
    head = text.removesuffix(body)
    return f"{head.replace(front, _PROMPT.sub('', front), 1) if front else head}{prompt}\n"


def _spliced(text: str, paths: Paths, where: str) -> str:
    front, _ = split(text, where)
    start = text.index("\n") + 1
    end = start + len(front)
    if front.lstrip().startswith("{"):
        raise BadDefinition(f"{where}:2", "has its front matter in braces; write one field to a line")
    ending = "\r\n" if text[start - 2 : start] == "\r\n" else "\n"
    section = paths_section(paths).replace("\n", ending)
    old = _PATHS.search(text, start, end)
    if old is not None:
        return text[: old.start()] + section + text[old.end() :]
    gap = "" if front == "" or front.endswith("\n") else ending
    return f"{text[:end]}{gap}{section}{text[end:]}"


def paths_section(paths: Paths) -> str:
    """Seed 000's shape: each list by name, its patterns in double quotes. A list nobody gave is left out."""
    said = [_patterns(name, patterns) for name, patterns in _lists(paths)]
    return "paths:\n" + "".join(said) if said else "paths: {}\n"


def _lists(paths: Paths) -> list[tuple[str, tuple[str, ...]]]:
    lists = (("read", paths.read), ("write", paths.write), ("deny", paths.deny))
    return [(name, patterns) for name, patterns in lists if patterns is not None]


def _patterns(name: str, patterns: tuple[str, ...]) -> str:
    if not patterns:
        return f"  {name}: []\n"
    return f"  {name}:\n" + "".join(f"    - {yaml_writer.quoted(each)}\n" for each in patterns)
