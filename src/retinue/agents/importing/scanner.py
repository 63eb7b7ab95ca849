"""Definition files as they are found in the wild, read with patience: what is broken is said, and nothing is raised."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from retinue.agents import definition_file, frontmatter
from retinue.domain.value import value
from retinue.errors import BadDefinition
from retinue.storage import strict_json, strict_yaml
from retinue.storage.strict_yaml import Mistake
from retinue.storage.text_file import read_text

MARKDOWN = (".md", ".markdown", ".mdc")
MODES = ".roomodes"
"""A file without a suffix that holds JSON or YAML."""
SUFFIXES = (*MARKDOWN, ".json", ".yml", ".yaml", ".toml", MODES)
SKIPPED = (".git", "node_modules")
MAX_FILES = 10_000
MAX_ABOVE = 20
"""Lines above a front matter that was pushed down by a licence or a remark."""
_LISTS = ("agents", "agent", "customModes")
"""Keys under which one file keeps several definitions."""
_LATER = re.compile(r"^---[ \t]*\r?\n[A-Za-z_][A-Za-z0-9_-]*[ \t]*:", re.MULTILINE)
_INNER_KEY = re.compile(
    r"[ \t]*(?:<<|tools|disallowedTools|disallowed-tools|tool_allow|tool_deny|model|permissions?|paths|readonly)[ \t]*:[ \t]"
)
_TOP_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)[ \t]*:(?:[ \t]+(.*))?\Z")


@value
class Found:
    """One definition in a file, or the reason why there is none."""

    path: Path
    place: str = ""
    """Where in the file, when it holds several: `agents[2]`."""
    keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: str = ""
    mended: tuple[str, ...] = ()
    """Keys whose value is no YAML as written, and was taken as plain text."""
    problem: str = ""
    other: bool = False
    """Whether nothing in it begins a definition, as in a README; in a folder it is only passed over."""


def files(path: Path) -> Iterator[Path]:
    """The file itself, or every file below a folder that could hold a definition, in a stable order."""
    if not path.is_dir():
        yield path
        return
    count = 0
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(each for each in folders if each not in SKIPPED)
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and count < MAX_FILES:
                count += 1
                yield Path(folder) / name


def read(path: Path) -> list[Found]:
    """Every definition that one file holds."""
    try:
        text = read_text(path).removeprefix("\ufeff")
        definition_file.check_text(text)
        return list(_definitions(path, text))
    except BadDefinition as bad:
        return [Found(path=path, problem=bad.problem)]
    except Mistake as mistake:
        return [Found(path=path, problem=f"line {mistake.line}: {mistake.problem}")]
    except OSError as error:
        return [Found(path=path, problem=f"cannot be read: {error.strerror or error}")]


def _definitions(path: Path, text: str) -> Iterator[Found]:
    suffix = path.suffix.lower()
    modes = path.name.lower().endswith(MODES)
    if suffix == ".json" or (modes and text.lstrip().startswith("{")):
        yield from _several(path, strict_json.read(text))
    elif modes or suffix in (".yml", ".yaml"):
        yield from _several(path, strict_yaml.document(text).value)
    elif suffix == ".toml":
        yield from _several(path, _toml(text))
    else:
        yield _markdown(path, text)


def _toml(text: str) -> Any:
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        say = "is nested too deep" if isinstance(error, RecursionError) else f"is not TOML: {error}"
        raise Mistake(1, " ".join(say.split())[:200]) from error
    level: list[Any] = [found]
    for _ in range(strict_yaml.MAX_DEPTH):
        level = [each for one in level for each in _inside(one)]
        if not level:
            return found
    raise Mistake(1, f"is nested deeper than {strict_yaml.MAX_DEPTH} levels")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []


def _several(path: Path, value: Any) -> Iterator[Found]:
    """One definition, or a configuration that lists them."""
    holder = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    key = next((key for key in _LISTS if isinstance(holder.get(key), list | dict)), "")
    inside: Any = cast("Any", value) if isinstance(value, list) else holder.get(key) if key else None
    if inside is None:
        yield _one(path, "", value)
    elif isinstance(inside, list):
        for at, each in enumerate(cast("list[Any]", inside)):
            yield _one(path, f"{key}[{at}]", each)
    else:
        for name, each in cast("dict[str, Any]", inside).items():
            named = {"name": name, **cast("dict[str, Any]", each)} if isinstance(each, dict) else each
            yield _one(path, f"{key}.{name}", named)


def _one(path: Path, place: str, value: Any) -> Found:
    if not isinstance(value, dict) or not value:
        say = "is not a definition: it must be a map of fields"
        return Found(path=path, place=place, problem=say, other=True)
    return Found(path=path, place=place, keys=cast("dict[str, Any]", value))


def _markdown(path: Path, text: str) -> Found:
    try:
        front, body = frontmatter.split(text, str(path))
    except BadDefinition as bad:
        later = _LATER.search(text)
        above = text.count("\n", 0, later.start()) if later else 0
        # Far below, or in a block of code after some words, it is an example on a page.
        example = above > MAX_ABOVE or (above > 1 and "```" in text[: later.start() if later else 0])
        if later is None or above == 0 or example:
            return Found(path=path, problem=bad.problem, other=not text.startswith("---"))
        raise Mistake(
            above + 1, f"has text above its front matter; delete the lines before it ({above})"
        ) from None
    prompt = definition_file.prompt_of(body)
    try:
        keys = definition_file.written(strict_yaml.document(front.replace("\r\n", "\n")), "", first=2).keys
        return Found(path=path, keys=keys, body=prompt)
    except Mistake as mistake:
        keys, mended = by_lines(front, mistake)
        return Found(path=path, keys=keys, body=prompt, mended=mended)


def by_lines(front: str, mistake: Mistake) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Each top-level key by itself: what is YAML is read as YAML, and what is not is the text its author meant.
    A key said twice, or no keys at all, is beyond mending: then the first mistake stands."""
    found: dict[str, Any] = {}
    mended: list[str] = []
    for key, rest, more in _chunks(front.replace("\r\n", "\n")):
        if key in found:
            raise Mistake(mistake.line + 1, f"'{key}' is said twice")
        try:
            found[key] = strict_yaml.document("\n".join((f"{key}: {rest}".rstrip(), *more))).value[key]
        except (Mistake, KeyError, TypeError):
            if swallowed := _swallowed(more):
                raise Mistake(
                    mistake.line + 1, f"'{swallowed[:60]}' looks like a field and stands inside '{key}'"
                ) from None
            found[key] = _as_text(rest, more)
            mended.append(key)
    if not found:
        raise Mistake(mistake.line + 1, mistake.problem)
    return found, tuple(mended)


def _chunks(front: str) -> Iterator[tuple[str, str, list[str]]]:
    """An example may hold lines that look like keys, and belongs to the text it stands in; a comment to none."""
    key, rest, more = "", "", list[str]()
    example = False
    for line in front.split("\n"):
        match = None if example else _TOP_KEY.match(line)
        example = line.rfind("<example>") > line.rfind("</example>") or (example and "</example>" not in line)
        if line.startswith("#") and not example:
            continue
        if match is None:
            more.append(line)
            continue
        if key:
            yield key, rest, more
        key, rest, more = match.group(1), match.group(2) or "", []
    if key:
        yield key, rest, more


def _swallowed(more: list[str]) -> str:
    """A line of a text that is a field gone astray: taken as words it would take its meaning with it."""
    example = False
    for line in more:
        if not example and _INNER_KEY.match(line):
            return line.strip()
        example = line.rfind("<example>") > line.rfind("</example>") or (example and "</example>" not in line)
    return ""


def _as_text(rest: str, more: list[str]) -> str:
    text = "\n".join((rest.strip(), *(line.strip() for line in more))).strip()
    quotes = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return (text[1:-1] if quotes else text).replace("\\n", "\n")
