"""Definitions: agents as people write them, in Markdown with front matter or in JSON, and as we write them back."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any

from retinue.agents import frontmatter, validators
from retinue.agents.dialects import key_aliases, tool_names
from retinue.agents.fields import Partial, Reading, interpret
from retinue.agents.validators import Wrong
from retinue.domain.agent import (
    Agent,
    Exposure,
    Kind,
    Paths,
    Role,
    ShellCommands,
    Thinking,
    Triggers,
    WorkspacePolicy,
)
from retinue.domain.change import replace
from retinue.domain.rules import Rule
from retinue.domain.value import value
from retinue.domain.workspace import Isolation
from retinue.errors import BadDefinition
from retinue.storage import strict_json, strict_yaml, yaml_writer
from retinue.storage.strict_yaml import Document, Mistake
from retinue.storage.text_file import MAX_BYTES as MAX_FILE_BYTES

_TWICE = "has a prompt both in a field and below the front matter; keep one of the two"


@value
class Written:
    """A source as it was read: its keys with their lines, and the text below the front matter."""

    keys: Mapping[str, Any]
    lines: Mapping[tuple[str | int, ...], int]
    body: str


def parse_preset(text: str, where: str, *, name: str = "preset") -> Agent:
    """The definition in a preset's text. `name` counts where the text has none of its own."""
    try:
        return _preset(text, name)
    except Wrong as wrong:
        raise BadDefinition(where, str(wrong)) from wrong
    except Mistake as mistake:
        raise BadDefinition(f"{where}:{mistake.line}", mistake.problem) from mistake


@lru_cache(maxsize=1024)
def _preset(text: str, name: str) -> Agent:
    front, body = halves(text)
    (silent, elsewhere), prompt = _silent(front, name), prompt_of(body)
    if prompt and (silent.prompt or elsewhere):
        raise Mistake(1, _TWICE)
    if elsewhere:
        raise Wrong(("promptPath",), "a preset holds its prompt itself; put the text below the front matter")
    return replace(silent, prompt=prompt) if prompt else silent


@lru_cache(maxsize=256)
def _silent(front: str, name: str) -> tuple[Agent, bool]:
    """What the fields say, and whether one of them says that the prompt is in another file. Children of one agent differ
    in their system message; their fields are read once."""
    partial = partial_of(fielded(front, ""))
    return build(partial, partial.get("name") or name), "prompt_path" in partial


def markdown(text: str) -> Written:
    """Raises Mistake, with the line of the file."""
    return fielded(*halves(text))


def halves(text: str) -> tuple[str, str]:
    """The front matter and the body of a text that may be a definition."""
    check_text(text)
    try:
        return frontmatter.split(text)
    except BadDefinition as bad:
        raise Mistake(1, bad.problem) from bad


def fielded(front: str, body: str) -> Written:
    try:
        document = strict_yaml.document(front.replace("\r\n", "\n"))
    except Mistake as mistake:
        raise Mistake(mistake.line + 1, mistake.problem) from mistake
    return written(document, body, first=2)


def written(document: Document, body: str, *, first: int) -> Written:
    """`first` is the line of the file on which the document starts."""
    keys: Any = {} if document.value is None else document.value
    if not isinstance(keys, dict):
        raise Mistake(first, f"the front matter must be fields (name: value), and is {validators.kind(keys)}")
    lines = {path: line + first - 1 for path, line in document.lines.items()}
    return Written(keys=keys, lines=lines, body=prompt_of(body))  # pyright: ignore[reportUnknownArgumentType]  (strict YAML has text keys only)


def json_text(text: str) -> Written:
    """A definition in JSON, as strict as the other: one map, no key twice, not deep."""
    check_text(text)
    keys = strict_json.read(text)
    if not isinstance(keys, dict):
        raise Mistake(1, f"a definition must be one JSON object, and is {validators.kind(keys)}")
    return Written(keys=keys, lines={}, body="")  # pyright: ignore[reportUnknownArgumentType]  (JSON has text keys only)


def check_text(text: str) -> None:
    if len(text) > MAX_FILE_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
        raise Mistake(1, f"is larger than {MAX_FILE_BYTES // 1024} KiB")
    if "\x00" in text:
        raise Mistake(
            text.count("\n", 0, text.index("\x00")) + 1, "holds a NUL character: it is not a text file"
        )


def prompt_of(body: str) -> str:
    """The words of the body, without the blank lines around them."""
    text = body.replace("\r\n", "\n").strip("\n")
    return text if text.strip() else ""


def partial_of(source: Written) -> Partial:
    """What a source says; the first key that is wrong, unknown or refused is a Mistake on its line."""
    partial, readings = interpret(source.keys)
    for reading in readings:
        if reading.wrong is not None:
            raise Mistake(line_of(source, reading), str(reading.wrong))
    if not source.body:
        return partial
    for key in ("prompt", "prompt_path"):
        if partial.get(key):
            raise Mistake(1, _TWICE)
    return partial | {"prompt": source.body}


def line_of(source: Written, reading: Reading) -> int:
    path = reading.wrong.path if reading.wrong is not None else (reading.key,)
    while path and path not in source.lines:
        path = path[:-1]
    return source.lines.get(path, 1)


_ENUMS = {"type": Kind, "thinking": Thinking, "tool_exposure": Exposure}
_PARTS = {"paths": Paths, "shell_commands": ShellCommands, "triggers": Triggers}


def build(partial: Mapping[str, Any], name: str) -> Agent:
    """The agent of merged fields; raises Wrong where the fields do not fit each other."""
    facts: dict[str, Any] = {key: value for key, value in partial.items() if value is not None}
    facts.pop("prompt_path", None)
    facts["name"] = name
    for key, enum in _ENUMS.items():
        if key in facts:
            facts[key] = enum(facts[key])
    if "roles" in facts:
        facts["roles"] = tuple(Role(each) for each in facts["roles"])
    for key, part in _PARTS.items():
        if key in facts:
            facts[key] = part(**_present(facts[key]))
    for key in ("driver_settings", "limits", "notes", "ceiling", "external"):
        if key in facts:
            facts[key] = _present(facts[key])
    key_aliases.program_settings(facts.get("driver"), facts.get("driver_settings"), ("driver_settings",))
    facts["workspace"] = _workspace(_present(facts.get("workspace", {})))
    return _watchable(Agent(**facts))


def _present(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if value is not None}


def _workspace(found: dict[str, Any]) -> WorkspacePolicy:
    path = found.get("path")
    isolation = Isolation(found.get("isolation") or ("custom" if path else "shared"))
    if isolation is Isolation.CUSTOM and not path:
        raise Wrong(("workspace", "path"), "is missing; a custom workspace must say where it is")
    if isolation is not Isolation.CUSTOM and path:
        raise Wrong(("workspace", "path"), f"is only for a custom workspace, and this one is {isolation}")
    return WorkspacePolicy(isolation=isolation, path=path, writable=found.get("writable"))


def _watchable(agent: Agent) -> Agent:
    """A watcher changes nothing: what it hears must not make it act."""
    if Role.WATCHER not in agent.roles:
        return agent
    if agent.workspace.writable:
        raise Wrong(
            ("workspace", "writable"), f"the watcher '{agent.name}' must be read-only; set it to false"
        )
    tools = Rule(allow=agent.tool_allow, deny=agent.tool_deny or ())
    details: Mapping[str, Any] = agent.notes.get("tools") or {}
    for tool in tool_names.WRITING:
        harmless = tool == "bash" and details.get("bash", {}).get("mode") == "read"
        if tools.permits(tool) and not harmless:
            raise Wrong(
                ("tools",),
                f"the watcher '{agent.name}' must be read-only, and may use {tool}; list only tools that read",
            )
    return _with(
        agent,
        workspace=WorkspacePolicy(
            isolation=agent.workspace.isolation, path=agent.workspace.path, writable=False
        ),
    )


def _with(agent: Agent, **facts: Any) -> Agent:
    return Agent(**{each.name: getattr(agent, each.name) for each in fields(Agent)} | facts)


def render(agent: Agent) -> str:
    """A preset that says all of it, in our own spelling."""
    facts = native(agent)
    prompt = facts.pop("prompt", "")
    if prompt_of(f"{prompt}\n") != prompt:
        return f"---\n{yaml_writer.dump(facts | {'prompt': prompt})}---\n"
    return f"---\n{yaml_writer.dump(facts)}---\n" + (f"\n{prompt}\n" if prompt else "")


def native(agent: Agent, *, whole: bool = False) -> dict[str, Any]:
    """Fields by name, as they are written; `whole` includes those that nobody set."""
    facts: dict[str, Any] = {}
    for each in fields(agent):
        value = getattr(agent, each.name)
        if whole or each.name == "name" or value != _default(each):
            facts[each.name] = _written_value(value, whole=whole)
    return facts


def _default(each: "Field[Any]") -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _written_value(value: Any, *, whole: bool) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Paths | ShellCommands | Triggers | WorkspacePolicy):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        kept = {key: part for key, part in parts.items() if whole or (part is not None and part != ())}
        if not isinstance(value, Triggers):
            kept = {key: part for key, part in parts.items() if whole or part is not None}
        return {key: _written_value(part, whole=whole) for key, part in kept.items()}
    if isinstance(value, tuple):
        return [_written_value(each, whole=whole) for each in value]  # pyright: ignore[reportUnknownVariableType]  (fields hold tuples of text)
    return value
