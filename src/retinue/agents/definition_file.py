"""Parse and render agent definitions: Markdown with front matter, or JSON."""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields, replace

from retinue.agents import frontmatter, validators
from retinue.agents.dialects import key_translators, tool_names
from retinue.agents.fields import FieldResult, PartialDefinition, interpret_fields
from retinue.agents.validators import InvalidValue
from retinue.domain.agent import (
    Agent,
    AgentType,
    PathPatterns,
    Role,
    ShellCommands,
    Thinking,
    ToolExposure,
    Triggers,
    WorkspacePolicy,
)
from retinue.domain.providers import CLI_AGENTS
from retinue.domain.rules import Rule
from retinue.domain.workspace import Isolation
from retinue.errors import BadDefinition
from retinue.storage import strict_json, strict_yaml, yaml_writer
from retinue.storage.strict_yaml import ParseError, YamlDocument
from retinue.storage.text_file import MAX_TEXT_FILE_BYTES as MAX_FILE_BYTES

_DUPLICATE_PROMPT = "has a prompt both in a field and below the front matter; remove one of the two"


class DefinitionSource(Struct, frozen=True, kw_only=True):
    """A definition source: its keys with their lines, and the text below the front matter."""

    keys: Mapping[str, Any]
    lines: Mapping[tuple[str | int, ...], int]
    body: str


def parse_preset(text: str, location: str, *, name: str = "preset") -> Agent:
    """Parse a preset's text; `name` is used if the text does not name the agent."""
    try:
        return _parse_preset_cached(text, name)
    except InvalidValue as error:
        raise BadDefinition(location, str(error)) from error
    except ParseError as parse_error:
        raise BadDefinition(f"{location}:{parse_error.line}", parse_error.problem) from parse_error


@lru_cache(maxsize=1024)
def _parse_preset_cached(text: str, name: str) -> Agent:
    front, body = split_definition(text)
    (agent, has_prompt_file), prompt = _agent_without_prompt(front, name), strip_prompt(body)
    if prompt and (agent.prompt or has_prompt_file):
        raise ParseError(1, _DUPLICATE_PROMPT)
    if has_prompt_file:
        raise InvalidValue(
            ("promptPath",), "is not allowed in a preset; put the prompt below the front matter"
        )
    return replace(agent, prompt=prompt) if prompt else agent


@lru_cache(maxsize=256)
def _agent_without_prompt(front: str, name: str) -> tuple[Agent, bool]:
    """Return the agent without its prompt, and whether a field names a prompt file.

    Cached because children of one agent differ only in their system prompt, so their fields are parsed once.
    """
    partial = partial_definition(parse_front_matter(front, ""))
    return build_agent(partial, partial.get("name") or name), "prompt_path" in partial


def parse_markdown_definition(text: str) -> DefinitionSource:
    """Parse a Markdown definition. Raises ParseError with the line in the file."""
    return parse_front_matter(*split_definition(text))


def split_definition(text: str) -> tuple[str, str]:
    """Split a definition into front matter and body."""
    check_text(text)
    try:
        return frontmatter.split_front_matter(text)
    except BadDefinition as error:
        raise ParseError(1, error.problem) from error


def parse_front_matter(front: str, body: str) -> DefinitionSource:
    try:
        document = strict_yaml.parse_yaml(front.replace("\r\n", "\n"))
    except ParseError as error:
        raise ParseError(error.line + 1, error.problem) from error
    return source_from_yaml(document, body, first_line=2)


def source_from_yaml(document: YamlDocument, body: str, *, first_line: int) -> DefinitionSource:
    """Return the source for parsed YAML; `first_line` is the line of the file where the YAML starts."""
    keys: Any = {} if document.value is None else document.value
    if not isinstance(keys, dict):
        raise ParseError(
            first_line,
            f"the front matter must be fields (name: value), but is {validators.describe_type(keys)}",
        )
    lines = {path: line + first_line - 1 for path, line in document.lines.items()}
    return DefinitionSource(keys=keys, lines=lines, body=strip_prompt(body))  # pyright: ignore[reportUnknownArgumentType]  (strict YAML has text keys only)


def parse_json_definition(text: str) -> DefinitionSource:
    """Parse a JSON definition as strictly as YAML: one map, no duplicate keys, limited depth."""
    check_text(text)
    keys = strict_json.parse_json(text)
    if not isinstance(keys, dict):
        raise ParseError(1, f"a definition must be one JSON object, but is {validators.describe_type(keys)}")
    return DefinitionSource(keys=keys, lines={}, body="")  # pyright: ignore[reportUnknownArgumentType]  (JSON has text keys only)


def check_text(text: str) -> None:
    if len(text) > MAX_FILE_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
        raise ParseError(1, f"is larger than {MAX_FILE_BYTES // 1024} KiB")
    if "\x00" in text:
        raise ParseError(
            text.count("\n", 0, text.index("\x00")) + 1, "contains a NUL character, so it is not a text file"
        )


def strip_prompt(body: str) -> str:
    """Return the body without surrounding blank lines."""
    text = body.replace("\r\n", "\n").strip("\n")
    return text if text.strip() else ""


def partial_definition(source: DefinitionSource) -> PartialDefinition:
    """Return the fields of a source. Raises ParseError at the line of the first invalid or unknown key."""
    partial, results = interpret_fields(source.keys)
    for result in results:
        if result.error is not None:
            raise ParseError(error_line(source, result), str(result.error))
    if not source.body:
        return partial
    for key in ("prompt", "prompt_path"):
        if partial.get(key):
            raise ParseError(1, _DUPLICATE_PROMPT)
    return partial | {"prompt": source.body}


def error_line(source: DefinitionSource, result: FieldResult) -> int:
    path = result.error.path if result.error is not None else (result.key,)
    while path and path not in source.lines:
        path = path[:-1]
    return source.lines.get(path, 1)


_ENUMS = {"type": AgentType, "thinking": Thinking, "tool_exposure": ToolExposure}
_SECTIONS = {"paths": PathPatterns, "shell_commands": ShellCommands, "triggers": Triggers}


def build_agent(partial: Mapping[str, Any], name: str) -> Agent:
    """Build the agent from merged fields. Raises InvalidValue if fields contradict each other."""
    agent_fields: dict[str, Any] = {key: value for key, value in partial.items() if value is not None}
    agent_fields.pop("prompt_path", None)
    agent_fields["name"] = name
    for key, enum in _ENUMS.items():
        if key in agent_fields:
            agent_fields[key] = enum(agent_fields[key])
    if "roles" in agent_fields:
        agent_fields["roles"] = tuple(Role(each) for each in agent_fields["roles"])
    for key, section in _SECTIONS.items():
        if key in agent_fields:
            agent_fields[key] = section(**_without_nulls(agent_fields[key]))
    for key in ("driver_settings", "limits", "notes", "ceiling", "external"):
        if key in agent_fields:
            agent_fields[key] = _without_nulls(agent_fields[key])
    key_translators.check_cli_agent_settings(
        agent_fields.get("driver"), agent_fields.get("driver_settings"), ("driver_settings",)
    )
    _check_fallbacks_possible(agent_fields)
    if agent_fields.get("output_schema") is not None and agent_fields.get("exits"):
        raise InvalidValue(
            ("output_schema",), "cannot be combined with exits, which end a run without a final answer"
        )
    agent_fields["workspace"] = _build_workspace_policy(_without_nulls(agent_fields.get("workspace", {})))
    return _restrict_watcher(Agent(**agent_fields))


def _check_fallbacks_possible(agent_fields: Mapping[str, Any]) -> None:
    """Raise InvalidValue for fallbacks of a CLI agent, which acts by itself: another model cannot take over."""
    names = (agent_fields.get("driver") or "", (agent_fields.get("model") or "").partition(":")[0])
    cli_agent = next((name for name in names if name in CLI_AGENTS), None)
    if agent_fields.get("fallback_models") and cli_agent is not None:
        raise InvalidValue(("fallback_models",), f"cannot be combined with {cli_agent}; remove it")


def _without_nulls(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value is not None}


def _build_workspace_policy(found: dict[str, Any]) -> WorkspacePolicy:
    path = found.get("path")
    isolation = Isolation(found.get("isolation") or ("custom" if path else "shared"))
    if isolation is Isolation.CUSTOM and not path:
        raise InvalidValue(("workspace", "path"), "is missing; a custom workspace requires a path")
    if isolation is not Isolation.CUSTOM and path:
        raise InvalidValue(
            ("workspace", "path"), f"is only for a custom workspace, but this one is {isolation}"
        )
    return WorkspacePolicy(isolation=isolation, path=path, writable=found.get("writable"))


def _restrict_watcher(agent: Agent) -> Agent:
    """Make a watcher read-only: the messages it reads must not make it change anything."""
    if Role.WATCHER not in agent.roles:
        return agent
    if agent.workspace.writable:
        raise InvalidValue(
            ("workspace", "writable"), f"the watcher '{agent.name}' must be read-only; set it to false"
        )
    tools = Rule(allow=agent.tool_allow, deny=agent.tool_deny or ())
    tool_details: Mapping[str, Any] = agent.notes.get("tools") or {}
    for tool in tool_names.WRITING_TOOLS:
        is_read_only = tool == "bash" and tool_details.get("bash", {}).get("mode") == "read"
        if tools.allows(tool) and not is_read_only:
            raise InvalidValue(
                ("tools",),
                f"the watcher '{agent.name}' must be read-only, but may use {tool}; list only tools that read",
            )
    return _copy_agent(
        agent,
        workspace=WorkspacePolicy(
            isolation=agent.workspace.isolation, path=agent.workspace.path, writable=False
        ),
    )


def _copy_agent(agent: Agent, **agent_fields: Any) -> Agent:
    return Agent(**{each.name: getattr(agent, each.name) for each in fields(Agent)} | agent_fields)


def render_definition(agent: Agent) -> str:
    """Render a complete preset in native spelling."""
    agent_fields = definition_fields(agent)
    prompt = agent_fields.pop("prompt", "")
    if strip_prompt(f"{prompt}\n") != prompt:
        return f"---\n{yaml_writer.dump_yaml(agent_fields | {'prompt': prompt})}---\n"
    return f"---\n{yaml_writer.dump_yaml(agent_fields)}---\n" + (f"\n{prompt}\n" if prompt else "")


def definition_fields(agent: Agent, *, include_defaults: bool = False) -> dict[str, Any]:
    """Return an agent's fields by name as written; `include_defaults` adds unset ones."""
    agent_fields: dict[str, Any] = {}
    for each in fields(agent):
        value = getattr(agent, each.name)
        if include_defaults or each.name == "name" or value != _field_default(each):
            agent_fields[each.name] = _plain_value(value, include_defaults=include_defaults)
    return agent_fields


def _field_default(each: FieldInfo) -> Any:
    return each.default if each.default_factory is NODEFAULT else each.default_factory()


def _plain_value(value: Any, *, include_defaults: bool) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, PathPatterns | ShellCommands | Triggers | WorkspacePolicy):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        included = {
            key: part for key, part in parts.items() if include_defaults or (part is not None and part != ())
        }
        if not isinstance(value, Triggers):
            included = {key: part for key, part in parts.items() if include_defaults or part is not None}
        return {key: _plain_value(part, include_defaults=include_defaults) for key, part in included.items()}
    if isinstance(value, tuple):
        return [_plain_value(each, include_defaults=include_defaults) for each in value]  # pyright: ignore[reportUnknownVariableType]  (fields hold tuples of text)
    return value
