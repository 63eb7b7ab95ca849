"""Scan files for agent definitions of any program; broken ones are reported, never raised."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, field

from retinue.agents import definition_file, frontmatter
from retinue.errors import BadDefinition
from retinue.storage import strict_json, strict_yaml
from retinue.storage.strict_yaml import ParseError
from retinue.storage.text_file import read_text_file

MARKDOWN = (".md", ".markdown", ".mdc")
MODES_SUFFIX = ".roomodes"
"""Name of a file without a suffix that contains JSON or YAML."""
SUFFIXES = (*MARKDOWN, ".json", ".yml", ".yaml", ".toml", MODES_SUFFIX)
SKIPPED_FOLDERS = (".git", "node_modules", ".claude/worktrees")
"""Folders that are not scanned; a worktree repeats the project's own files."""
MAX_FILES = 10_000
MAX_PREAMBLE_LINES = 20
"""Lines allowed above the front matter, such as a licence or a comment."""
_COLLECTION_KEYS = ("agents", "agent", "customModes")
"""Keys under which one file stores several definitions."""
_SKILL_FILE = "SKILL.md"
_PLUGIN_FOLDER = ".claude-plugin"
"""The folder in a plugin that describes it."""
_INSTALLED_PLUGINS = ".claude/plugins"
_FOLDER_KINDS = {
    "agents": "",
    "agent": "",
    "skills": "skill",
    "commands": "command",
    ".opencode/command": "command",
    ".github/prompts": "command",
    ".codex/prompts": "command",
    ".pi/prompts": "command",
    ".windsurf/workflows": "command",
    "rules": "rule",
    ".github/instructions": "rule",
    ".kiro/steering": "rule",
    "output-styles": "output style",
    ".github/issue_template": "issue template",
    _PLUGIN_FOLDER: "plugin",
}
"""Folders of other programs' files → what such a file is; empty for agents. The innermost folder decides."""
_FILE_KINDS = (
    ("/skill.md", "skill"),
    ("/settings.json", "settings file"),
    ("/settings.local.json", "settings file"),
    ("/.codex/config.toml", "settings file"),
    (".prompt.md", "command"),
    (".instructions.md", "rule"),
    (".mdc", "rule"),
    ("/plugin.json", "plugin"),
    ("/marketplace.json", "plugin"),
)
"""Ends of paths, in lower case → what such a file is."""
_LATER_FRONT_MATTER = re.compile(r"^---[ \t]*\r?\n[A-Za-z_][A-Za-z0-9_-]*[ \t]*:", re.MULTILINE)
_INNER_KEY = re.compile(
    r"[ \t]*(?:<<|tools|disallowedTools|disallowed-tools|tool_allow|tool_deny|model|permissions?|paths|readonly)[ \t]*:[ \t]"
)
_TOP_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)[ \t]*:(?:[ \t]+(.*))?\Z")


class FoundDefinition(Struct, frozen=True, kw_only=True):
    """A definition in a file, or the reason why there is none."""

    path: Path
    location: str = ""
    """Location within a file of several definitions, such as `agents[2]`."""
    keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: str = ""
    repaired_keys: tuple[str, ...] = ()
    """Keys whose value is not valid YAML and was taken as plain text."""
    problem: str = ""
    is_other_file: bool = False
    """True if the file does not start like a definition, as a README; skipped when scanning a folder."""


def definition_files(path: Path) -> Iterator[Path]:
    """Yield the file itself, or every file below a folder that could hold a definition, in stable order."""
    if not path.is_dir():
        yield path
        return
    count = 0
    for folder, folders, file_names in os.walk(path):
        folders[:] = sorted(
            each
            for each in folders
            if not {each, f"{os.path.basename(folder)}/{each}"} & {*SKIPPED_FOLDERS}  # noqa: PTH119  (a name, no file)
        )
        for name in sorted(file_names):
            if name.lower().endswith(SUFFIXES) and count < MAX_FILES:
                count += 1
                yield Path(folder) / name


class OtherFile(Struct, frozen=True, kw_only=True):
    """What a file is that defines no agent, such as `skill`, and the path of the whole: the folder of a skill or a plugin."""

    kind: str
    owner: Path


def identify_other_file(path: Path, root: Path) -> OtherFile | None:
    """Return what a file below a scanned folder is, if not an agent: a skill, command, rule, plugin and so on."""
    folders = [each for each in path.parents if each.is_relative_to(root)]
    plugin = next((each for each in folders if (each / _PLUGIN_FOLDER).is_dir()), None)
    if any(each != root and _folder_name(each, 2) == _INSTALLED_PLUGINS for each in folders):
        return OtherFile(kind="plugin", owner=plugin or path)
    if skill := next((each for each in folders if (each / _SKILL_FILE).exists()), None):
        return OtherFile(kind="skill", owner=skill)
    name = f"/{path.parent.name}/{path.name}".lower()
    kind = next((kind for end, kind in _FILE_KINDS if name.endswith(end)), None)
    if kind is None:
        names = (_folder_name(each, count) for each in folders for count in (2, 1))
        kind = next((_FOLDER_KINDS[each] for each in names if each in _FOLDER_KINDS), "")
    owner = plugin if plugin and kind == "plugin" else path
    return OtherFile(kind=kind, owner=owner) if kind else None


def _folder_name(folder: Path, count: int) -> str:
    """Return the last names of a folder's path, in lower case."""
    return "/".join(folder.parts[-count:]).lower()


def read_definitions(path: Path) -> list[FoundDefinition]:
    """Return every definition in a file."""
    try:
        text = read_text_file(path).removeprefix("\ufeff")
        definition_file.check_text(text)
        return list(_parse_file(path, text))
    except BadDefinition as bad:
        return [FoundDefinition(path=path, problem=bad.problem)]
    except ParseError as parse_error:
        return [FoundDefinition(path=path, problem=f"line {parse_error.line}: {parse_error.problem}")]
    except OSError as error:
        return [FoundDefinition(path=path, problem=f"cannot be read: {error.strerror or error}")]


def _parse_file(path: Path, text: str) -> Iterator[FoundDefinition]:
    suffix = path.suffix.lower()
    modes = path.name.lower().endswith(MODES_SUFFIX)
    if suffix == ".json" or (modes and text.lstrip().startswith("{")):
        yield from _split_collection(path, strict_json.parse_json(text))
    elif modes or suffix in (".yml", ".yaml"):
        yield from _split_collection(path, strict_yaml.parse_yaml(text).value)
    elif suffix == ".toml":
        yield from _split_collection(path, _parse_toml(text))
    else:
        yield _parse_markdown(path, text)


def _parse_toml(text: str) -> Any:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problem = (
            "is nested too deeply" if isinstance(error, RecursionError) else f"is not valid TOML: {error}"
        )
        raise ParseError(1, " ".join(problem.split())[:200]) from error
    level: list[Any] = [document]
    for _ in range(strict_yaml.MAX_DEPTH):
        level = [each for one in level for each in _child_values(one)]
        if not level:
            return document
    raise ParseError(1, f"is nested deeper than {strict_yaml.MAX_DEPTH} levels")


def _child_values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []


def _split_collection(path: Path, value: Any) -> Iterator[FoundDefinition]:
    """Yield a single definition, or each of a configuration that lists them."""
    document = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    key = next((key for key in _COLLECTION_KEYS if isinstance(document.get(key), list | dict)), "")
    collection: Any = cast("Any", value) if isinstance(value, list) else document.get(key) if key else None
    if collection is None:
        yield _single_definition(path, "", value)
    elif isinstance(collection, list):
        for index, each in enumerate(cast("list[Any]", collection)):
            yield _single_definition(path, f"{key}[{index}]", each)
    else:
        for name, each in cast("dict[str, Any]", collection).items():
            named = {"name": name, **cast("dict[str, Any]", each)} if isinstance(each, dict) else each
            yield _single_definition(path, f"{key}.{name}", named)


def _single_definition(path: Path, location: str, value: Any) -> FoundDefinition:
    if not isinstance(value, dict) or not value:
        problem = "is not a definition: it must be a map of fields"
        return FoundDefinition(path=path, location=location, problem=problem, is_other_file=True)
    return FoundDefinition(path=path, location=location, keys=cast("dict[str, Any]", value))


def _parse_markdown(path: Path, text: str) -> FoundDefinition:
    try:
        front, body = frontmatter.split_front_matter(text, str(path))
    except BadDefinition as bad:
        later_match = _LATER_FRONT_MATTER.search(text)
        preamble_lines = text.count("\n", 0, later_match.start()) if later_match else 0
        # Far below, or in a code block after some text, it is an example in a document.
        is_example = preamble_lines > MAX_PREAMBLE_LINES or (
            preamble_lines > 1 and "```" in text[: later_match.start() if later_match else 0]
        )
        if later_match is None or preamble_lines == 0 or is_example:
            return FoundDefinition(path=path, problem=bad.problem, is_other_file=not text.startswith("---"))
        raise ParseError(
            preamble_lines + 1,
            f"has text above its front matter; delete the lines before it ({preamble_lines})",
        ) from None
    prompt = definition_file.strip_prompt(body)
    try:
        keys = definition_file.source_from_yaml(
            strict_yaml.parse_yaml(front.replace("\r\n", "\n")), "", first_line=2
        ).keys
        return FoundDefinition(path=path, keys=keys, body=prompt)
    except ParseError as parse_error:
        keys, repaired_keys = parse_key_by_key(front, parse_error)
        return FoundDefinition(path=path, keys=keys, body=prompt, repaired_keys=repaired_keys)


def parse_key_by_key(front: str, first_error: ParseError) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parse each top-level key separately; a value that is not valid YAML is taken as text.

    Duplicate keys, or no keys at all, cannot be repaired: then the first error is raised.
    """
    found: dict[str, Any] = {}
    repaired_keys: list[str] = []
    for key, rest, more_lines in _key_chunks(front.replace("\r\n", "\n")):
        if key in found:
            raise ParseError(first_error.line + 1, f"'{key}' occurs twice")
        try:
            found[key] = strict_yaml.parse_yaml("\n".join((f"{key}: {rest}".rstrip(), *more_lines))).value[
                key
            ]
        except (ParseError, KeyError, TypeError):
            if swallowed_line := _find_swallowed_field(more_lines):
                raise ParseError(
                    first_error.line + 1,
                    f"'{swallowed_line[:60]}' looks like a field, but is inside '{key}'",
                ) from None
            found[key] = _plain_text(rest, more_lines)
            repaired_keys.append(key)
    if not found:
        raise ParseError(first_error.line + 1, first_error.problem)
    return found, tuple(repaired_keys)


def _key_chunks(front: str) -> Iterator[tuple[str, str, list[str]]]:
    """Split front matter at its top-level keys.

    Examples may contain lines that look like keys and belong to their text; comments belong to no key.
    """
    key, rest, more_lines = "", "", list[str]()
    in_example = False
    for line in front.split("\n"):
        match = None if in_example else _TOP_KEY.match(line)
        in_example = line.rfind("<example>") > line.rfind("</example>") or (
            in_example and "</example>" not in line
        )
        if line.startswith("#") and not in_example:
            continue
        if match is None:
            more_lines.append(line)
            continue
        if key:
            yield key, rest, more_lines
        key, rest, more_lines = match.group(1), match.group(2) or "", []
    if key:
        yield key, rest, more_lines


def _find_swallowed_field(lines: list[str]) -> str:
    """Return a line of a text value that is really a field; as text it would lose its meaning."""
    in_example = False
    for line in lines:
        if not in_example and _INNER_KEY.match(line):
            return line.strip()
        in_example = line.rfind("<example>") > line.rfind("</example>") or (
            in_example and "</example>" not in line
        )
    return ""


def _plain_text(rest: str, more_lines: list[str]) -> str:
    text = "\n".join((rest.strip(), *(line.strip() for line in more_lines))).strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return (text[1:-1] if is_quoted else text).replace("\\n", "\n")
