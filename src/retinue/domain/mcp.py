"""MCP tools: the descriptions sent by servers, and those that a person has trusted."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

from msgspec import Struct, field

from retinue.domain.sanitize import safe_name, text_for_model
from retinue.domain.secret_fields import SecretFieldsStruct
from retinue.domain.system_prompt import SYSTEM_PREFIX

SERVER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
TOOL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")

HINT_NAMES = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""Hints of a server about a tool, used only if the operator sets `believe_hints`."""

MAX_DESCRIPTION_CHARS = 16_000
MAX_SCHEMA_CHARS = 64_000
"""In characters; the model reads the schema on every turn."""
MAX_SCHEMA_DEPTH = 32

_CHOICE_KEYS = ("anyOf", "oneOf", "allOf", "not", "enum")
_ARGUMENT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROSE_KEYS = ("description", "title", "$comment")
"""Schema keys whose values are prose."""


class McpServerConfig(SecretFieldsStruct, frozen=True, kw_only=True):
    """Configuration of an MCP server: started by a command or reached by a URL."""

    secret_fields = frozenset({"env", "headers"})

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Often holds keys, so it is never shown."""
    inherit: tuple[str, ...] = ()
    """Environment variables passed on unchanged."""
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    bearer_env: str = ""
    """The variable that holds the bearer token for the URL."""
    timeout_seconds: float = 60.0
    """For the start, and for each call."""
    believe_hints: bool = False


class McpTool(Struct, frozen=True, kw_only=True):
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    hints: Mapping[str, bool] = field(default_factory=dict[str, bool])

    @property
    def hash(self) -> str:
        """Return the hash of everything the model reads and permission checks use."""
        content = [self.name, self.description, self.schema, dict(self.hints)]
        text = json.dumps(content, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def problem(self) -> str:
        """Return why the tool cannot be used here; empty if it can."""
        if not TOOL_NAME.fullmatch(self.name):
            return f"the name {safe_name(self.name[:100])!r} is invalid: use letters, digits, _ . and -, at most 96"
        if len(self.description) > MAX_DESCRIPTION_CHARS:
            return f"its description has {len(self.description):,} characters; the maximum is {MAX_DESCRIPTION_CHARS:,}"
        if self.schema.get("type") != "object" or any(key in self.schema for key in _CHOICE_KEYS):
            return "its schema is not that of one object, which model APIs require"
        if nesting_depth(self.schema) > MAX_SCHEMA_DEPTH:
            return f"its schema is nested deeper than {MAX_SCHEMA_DEPTH} levels"
        if len(json.dumps(self.schema)) > MAX_SCHEMA_CHARS:
            return f"its schema is longer than {MAX_SCHEMA_CHARS:,} characters"
        if invalid_names := [
            key for key in _argument_names(self.schema) if not _ARGUMENT_NAME.fullmatch(key)
        ]:
            return f"model APIs do not accept the argument name {safe_name(invalid_names[0][:100])!r}"
        if any(
            not _is_printable_ascii(each) and text_for_model(each) != each
            for each in _non_prose_texts(self.schema)
        ):
            return "its schema contains hidden characters in names or values"
        return ""

    def with_visible_text(self) -> "McpTool":
        """Return the tool with hidden characters made visible in all prose."""
        schema: dict[str, Any] = {"properties": {}, **_reveal_hidden_text(self.schema)}
        return McpTool(
            name=self.name, description=text_for_model(self.description), schema=schema, hints=self.hints
        )


class PinnedTool(Struct, frozen=True, kw_only=True):
    """A tool description that a person has trusted."""

    tool: McpTool
    changed_hash: str = ""
    """Hash of the server's current, different description, which makes the tool refused; empty if unchanged.
    """


class TrustState(StrEnum):
    """Whether a person has trusted the current description of a tool."""

    TRUSTED = "trusted"
    CHANGED = "changed"
    NEW = "not trusted"
    GONE = "gone"
    """Trusted, but the server no longer offers it."""
    UNFIT = "unfit"
    """Unusable here, trusted or not."""


class ToolComparison(Struct, frozen=True, kw_only=True):
    """A tool of a server: its current and its trusted description."""

    name: str
    trust_state: TrustState
    current: McpTool | None
    pinned: McpTool | None
    problem: str = ""


def compare_with_pins(current: Sequence[McpTool], pins: Mapping[str, PinnedTool]) -> list[ToolComparison]:
    """Compare every offered or trusted tool, by name; of two tools with one name, neither is usable."""
    tools_by_name = {tool.name: tool for tool in current}
    duplicates = {tool.name for tool in current if tools_by_name[tool.name] is not tool}
    comparisons: list[ToolComparison] = []
    for name in sorted({*tools_by_name, *pins}):
        tool, pin = tools_by_name.get(name), pins.get(name)
        problem = "" if tool is None else tool.problem()
        if name in duplicates:
            problem = "its server offers two tools with this name"
        trust_state = _trust_state(tool, pin, problem)
        pinned = None if pin is None else pin.tool
        comparisons.append(
            ToolComparison(name=name, trust_state=trust_state, current=tool, pinned=pinned, problem=problem)
        )
    return comparisons


def _trust_state(tool: McpTool | None, pin: PinnedTool | None, problem: str) -> TrustState:
    if tool is None:
        return TrustState.GONE
    if problem:
        return TrustState.UNFIT
    if pin is None:
        return TrustState.NEW
    return TrustState.TRUSTED if not pin.changed_hash and pin.tool.hash == tool.hash else TrustState.CHANGED


def qualified_tool_name(server: str, tool: str) -> str:
    """Return the full name of a tool of a server."""
    return f"{server}.{tool}"


def server_name_problem(name: str) -> str:
    """Return why a server cannot have this name; empty if it can."""
    if not SERVER_NAME.fullmatch(name):
        return "is not a valid server name: use lowercase letters, digits, _ and -, at most 32, starting with a letter"
    if name.startswith(SYSTEM_PREFIX):
        return f"is not a valid server name: names that start with {SYSTEM_PREFIX} are reserved"
    return ""


def nesting_depth(value: Any) -> int:
    """Return the number of nested levels, counted without recursion."""
    levels, level = 0, [value]
    while level and levels <= MAX_SCHEMA_DEPTH:
        levels += 1
        level = [inner for each in level for inner in _child_values(each)]
    return levels


def _is_printable_ascii(text: str) -> bool:
    """Return True for printable ASCII: a fast check that most texts pass."""
    return text.isascii() and text.isprintable()


def _argument_names(schema: Mapping[str, Any]) -> Sequence[str]:
    properties: Any = schema.get("properties")
    return tuple(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else ()


def _child_values(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return tuple(cast("Mapping[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _non_prose_texts(value: Any, *, keys_are_names: bool = False) -> Iterator[str]:
    """Yield every text of a schema that is not prose: names, choices, patterns.

    `keys_are_names` means that the keys are argument names, whatever they are.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _non_prose_texts(each)
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[str, Any]", value).items():
            yield key
            if keys_are_names or key not in _PROSE_KEYS or not isinstance(each, str):
                yield from _non_prose_texts(
                    each, keys_are_names=not keys_are_names and key in ("properties", "$defs")
                )


def _reveal_hidden_text(value: Any, *, keys_are_names: bool = False) -> Any:
    if isinstance(value, list):
        return [_reveal_hidden_text(each) for each in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    cleaned: dict[str, Any] = {}
    for key, each in cast("Mapping[str, Any]", value).items():
        if not keys_are_names and key in _PROSE_KEYS and isinstance(each, str):
            cleaned[key] = each if _is_printable_ascii(each) else text_for_model(each)
        else:
            cleaned[key] = _reveal_hidden_text(
                each, keys_are_names=not keys_are_names and key in ("properties", "$defs")
            )
    return cleaned
