"""Arguments for a chosen tool, generated under a grammar made from the tool's schema.

File names are taken from the conversation, because a model this small invents others. Tasks for other agents
are given in the words of the request.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from retinue.domain.tool import ToolSpec

MAX_CALLS = 6
MAX_TASK_WORDS = 24
MAX_STRING_CHARS = 400
MAX_FILE_NAMES = 40
MAX_TOKENS = 320
"""Limit for all calls of one reply."""

CURRENT_FOLDER = "./"
"""The current folder, always allowed as an argument of `ls`."""

_FILE_PATTERN = re.compile(r"(?:[\w.~-]*/)+[\w.-]*|[\w-][\w.-]*\.[A-Za-z]\w{0,7}\b")
_WORD_PATTERN = re.compile(r"[\w./~@#:'-]*[\w/~]")
_PATH_ARGUMENTS = frozenset({"path", "file", "file_path", "folder", "glob"})
_TASK_ARGUMENTS = frozenset({"task_prompt", "prompt", "message", "task", "content_for_agent"})


class Example(Struct, frozen=True, kw_only=True):
    """A request, and the tool calls it should lead to."""

    request: str
    calls: tuple[Mapping[str, Any], ...]


def _delegation_examples(task_key: str, agent_key: str) -> tuple[Example, ...]:
    def make_calls(agent_name: str, *tasks: str) -> tuple[dict[str, str], ...]:
        return tuple({**({agent_key: agent_name} if agent_key else {}), task_key: each} for each in tasks)

    return (
        Example(request="Ask a pair to look at z.md", calls=make_calls("pair", "look at z.md")),
        Example(
            request="Ask a builder about kites.md, a builder about coins.md and a builder about wool.md.",
            calls=make_calls("builder", "about kites.md", "about coins.md", "about wool.md"),
        ),
    )


EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    "read": (
        Example(request="Show me notes.txt", calls=({"path": "notes.txt"},)),
        Example(request="Compare cats.md and dogs.md", calls=({"path": "cats.md"}, {"path": "dogs.md"})),
        Example(request="Read docs/plan.rst and tell me what it says", calls=({"path": "docs/plan.rst"},)),
    ),
    "ls": (
        Example(request="Which files are there?", calls=({"path": CURRENT_FOLDER},)),
        Example(request="What is in docs/?", calls=({"path": "docs/"},)),
    ),
    "grep": (
        Example(request="Find the word error", calls=({"pattern": "error"},)),
        Example(request="Where does price occur?", calls=({"pattern": "price"},)),
    ),
    "bash": (
        Example(request="Run the tests", calls=({"command": "make test"},)),
        Example(request="Start the program main.py", calls=({"command": "python main.py"},)),
    ),
    "write": (
        Example(request="Save hello to a.txt", calls=({"path": "a.txt", "content": "hello"},)),
        Example(
            request="Make a file b.md with a greeting", calls=({"path": "b.md", "content": "Good morning!"},)
        ),
    ),
    "agent": _delegation_examples("task_prompt", "agent_name"),
    "spawn_subagent": _delegation_examples("prompt", "agentId"),
    "agents_message": _delegation_examples("message", "agent"),
    "sessions_spawn": _delegation_examples("task", ""),
}


class ArgumentPrompt(Struct, frozen=True, kw_only=True):
    """A prompt for the arguments of a call, and the grammar that restricts them."""

    shared_prefix: str
    """The beginning of the prompt, independent of the request."""
    text: str
    grammar: str


def build_argument_prompt(tool: ToolSpec, request: str, full_text: str) -> ArgumentPrompt:
    """Build the prompt and grammar for a tool's arguments.

    `full_text` is the conversation so far, which file names are taken from.
    """
    examples = EXAMPLES.get(tool.name, ())
    full_text = f"{full_text} {CURRENT_FOLDER}" if tool.name == "ls" else full_text
    example_text = "".join(_format_example(example, tool.schema) for example in examples)
    head = example_text or f"{tool.name}: {' '.join(tool.description.split())[:160]}\n\n"
    return ArgumentPrompt(
        shared_prefix=head,
        text=f"{head}Request: {' '.join(request.split())}\nArguments:",
        grammar=build_grammar(tool.schema, _argument_names(tool, examples), request, full_text),
    )


def parse_calls(text: str) -> list[str]:
    """Return the arguments of each call as JSON texts, without duplicates."""
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        return []
    return list(dict.fromkeys(json.dumps(each, ensure_ascii=False) for each in parsed))


def build_grammar(
    schema: Mapping[str, Any], argument_names: Sequence[str], request: str, full_text: str
) -> str:
    """Return a llama.cpp grammar for a list of argument objects.

    Each has exactly these properties, in this order, without blanks.
    """
    properties: Mapping[str, Any] = schema.get("properties") or {}
    parts = [
        f"{_quote_literal(json.dumps(name) + ':')} {_value_rule(name, properties.get(name) or {}, request, full_text)}"
        for name in argument_names
    ]
    item = ' "," '.join(parts)
    items = f'item ("," item){{0,{MAX_CALLS - 1}}}' if parts else "item"
    return "\n".join((f'root ::= " [" {items} "]"', f'item ::= "{{" {item} "}}"', *_COMMON_RULES))


_COMMON_RULES = (
    f'text ::= "\\"" char{{1,{MAX_STRING_CHARS}}} "\\""',
    r'char ::= [^"\\\x00-\x1f\x7f] | "\\" ["\\nt]',
    'whole ::= "-"? [0-9]{1,9}',
    "",
)


def _argument_names(tool: ToolSpec, examples: Sequence[Example]) -> list[str]:
    """Return the required arguments and those used in the examples; the rest keep their defaults."""
    properties: Mapping[str, Any] = tool.schema.get("properties") or {}
    needed_names = {
        *tool.schema.get("required", ()),
        *(name for each in examples for call in each.calls for name in call),
    }
    return [name for name in properties if name in needed_names]


def _value_rule(name: str, schema: Mapping[str, Any], request: str, full_text: str) -> str:
    if schema.get("enum"):
        return _choice_rule(schema["enum"])
    if schema.get("type") == "boolean":
        return '"true" | "false"'.join("()")
    if schema.get("type") in ("integer", "number"):
        return "whole"
    if schema.get("type") == "array":
        return '"[" (text ("," text){0,7})? "]"'
    if schema.get("type") == "object":
        return '"{}"'
    if name in _PATH_ARGUMENTS:
        return _choice_rule(find_file_names(full_text) or [CURRENT_FOLDER])
    if name in _TASK_ARGUMENTS and (words := _unique_words(request)):
        word = _word_alternatives(words)
        return f'"\\"" ({word}) (" " ({word})){{1,{MAX_TASK_WORDS}}} "\\""'
    return "text"


def find_file_names(full_text: str) -> list[str]:
    """Return file and folder names found in a text, the newest last.

    A final dot belongs to the sentence and is dropped.
    """
    matches = [each.rstrip(".") for each in _FILE_PATTERN.findall(full_text)]
    return list(dict.fromkeys(each for each in reversed(matches) if each))[:MAX_FILE_NAMES][::-1]


def _unique_words(request: str) -> list[str]:
    return list(dict.fromkeys(_WORD_PATTERN.findall(request)))[: MAX_FILE_NAMES * 4]


def _choice_rule(values: Iterable[Any]) -> str:
    return f"({' | '.join(_quote_literal(json.dumps(each, ensure_ascii=False)) for each in values)})"


def _word_alternatives(words: Iterable[str]) -> str:
    return " | ".join(_quote_literal(json.dumps(word, ensure_ascii=False)[1:-1]) for word in words)


def _quote_literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _format_example(example: Example, schema: Mapping[str, Any]) -> str:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    arguments = [{name: call[name] for name in properties if name in call} for call in example.calls]
    arguments_json = json.dumps(arguments, separators=(",", ":"))
    return f"Request: {example.request}\nArguments: {arguments_json}\n\n"
