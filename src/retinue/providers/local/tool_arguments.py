"""A chosen tool's arguments: spoken by the model under a grammar made of the tool's own schema.

Names of files are taken from what was said, because a model this small makes up others; and what it hands on to
another agent it says in the words it was asked with.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from retinue.domain.tool import ToolSpec
from retinue.domain.value import value

MOST_CALLS = 6
MOST_WORDS = 24
MOST_CHARACTERS = 400
MOST_NAMES = 40
TOKENS = 320
"""For all calls of one reply."""

HERE = "./"
"""The folder one is in: always worth listing."""

_FILE = re.compile(r"(?:[\w.~-]*/)+[\w.-]*|[\w-][\w.-]*\.[A-Za-z]\w{0,7}\b")
_WORD = re.compile(r"[\w./~@#:'-]*[\w/~]")
_PLACES = frozenset({"path", "file", "file_path", "folder", "glob"})
_TASKS = frozenset({"task_prompt", "prompt", "message", "task", "content_for_agent"})


@value
class Example:
    """A request, and the calls that it asks for."""

    request: str
    calls: tuple[Mapping[str, Any], ...]


def _handing_on(task: str, agent: str) -> tuple[Example, ...]:
    def calls(who: str, *tasks: str) -> tuple[dict[str, str], ...]:
        return tuple({**({agent: who} if agent else {}), task: each} for each in tasks)

    return (
        Example(request="Ask a pair to look at z.md", calls=calls("pair", "look at z.md")),
        Example(
            request="Ask a builder about kites.md, a builder about coins.md and a builder about wool.md.",
            calls=calls("builder", "about kites.md", "about coins.md", "about wool.md"),
        ),
    )


EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    "read": (
        Example(request="Show me notes.txt", calls=({"path": "notes.txt"},)),
        Example(request="Compare cats.md and dogs.md", calls=({"path": "cats.md"}, {"path": "dogs.md"})),
        Example(request="Read docs/plan.rst and tell me what it says", calls=({"path": "docs/plan.rst"},)),
    ),
    "ls": (
        Example(request="Which files are there?", calls=({"path": HERE},)),
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
    "agent": _handing_on("task_prompt", "agent_name"),
    "spawn_subagent": _handing_on("prompt", "agentId"),
    "agents_message": _handing_on("message", "agent"),
    "sessions_spawn": _handing_on("task", ""),
}


@value
class Form:
    """What the model is shown, and what it cannot say otherwise."""

    examples: str
    """How the prompt begins, whatever is asked."""
    prompt: str
    grammar: str


def form(tool: ToolSpec, request: str, heard: str) -> Form:
    """`heard`: all that was said and found, where names may come from."""
    examples = EXAMPLES.get(tool.name, ())
    heard = f"{heard} {HERE}" if tool.name == "ls" else heard
    shown = "".join(_shown(example, tool.schema) for example in examples)
    head = shown or f"{tool.name}: {' '.join(tool.description.split())[:160]}\n\n"
    return Form(
        examples=head,
        prompt=f"{head}Request: {' '.join(request.split())}\nArguments:",
        grammar=grammar(tool.schema, _wanted(tool, examples), request, heard),
    )


def calls(text: str) -> list[str]:
    """The arguments of each call, as JSON texts; the same call twice is one."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return []
    return list(dict.fromkeys(json.dumps(each, ensure_ascii=False) for each in found))


def grammar(schema: Mapping[str, Any], wanted: Sequence[str], request: str, heard: str) -> str:
    """In the notation of llama.cpp: a list of objects with just these properties, in this order, without a blank."""
    known: Mapping[str, Any] = schema.get("properties") or {}
    parts = [
        f"{_literal(json.dumps(name) + ':')} {_value(name, known.get(name) or {}, request, heard)}"
        for name in wanted
    ]
    item = ' "," '.join(parts)
    several = f'item ("," item){{0,{MOST_CALLS - 1}}}' if parts else "item"
    return "\n".join((f'root ::= " [" {several} "]"', f'item ::= "{{" {item} "}}"', *_COMMON))


_COMMON = (
    f'text ::= "\\"" char{{1,{MOST_CHARACTERS}}} "\\""',
    r'char ::= [^"\\\x00-\x1f\x7f] | "\\" ["\\nt]',
    'whole ::= "-"? [0-9]{1,9}',
    "",
)


def _wanted(tool: ToolSpec, examples: Sequence[Example]) -> list[str]:
    """What must be said, and what the examples say; the rest has its defaults."""
    known: Mapping[str, Any] = tool.schema.get("properties") or {}
    needed = {
        *tool.schema.get("required", ()),
        *(name for each in examples for one in each.calls for name in one),
    }
    return [name for name in known if name in needed]


def _value(name: str, schema: Mapping[str, Any], request: str, heard: str) -> str:
    if schema.get("enum"):
        return _one_of(schema["enum"])
    if schema.get("type") == "boolean":
        return '"true" | "false"'.join("()")
    if schema.get("type") in ("integer", "number"):
        return "whole"
    if schema.get("type") == "array":
        return '"[" (text ("," text){0,7})? "]"'
    if schema.get("type") == "object":
        return '"{}"'
    if name in _PLACES:
        return _one_of(names(heard) or [HERE])
    if name in _TASKS and (words := _words(request)):
        word = _alternatives(words)
        return f'"\\"" ({word}) (" " ({word})){{1,{MOST_WORDS}}} "\\""'
    return "text"


def names(heard: str) -> list[str]:
    """What reads like a file or a folder, the newest last; a dot at the end is the sentence's."""
    found = [each.rstrip(".") for each in _FILE.findall(heard)]
    return list(dict.fromkeys(each for each in reversed(found) if each))[:MOST_NAMES][::-1]


def _words(request: str) -> list[str]:
    return list(dict.fromkeys(_WORD.findall(request)))[: MOST_NAMES * 4]


def _one_of(values: Iterable[Any]) -> str:
    return f"({' | '.join(_literal(json.dumps(each, ensure_ascii=False)) for each in values)})"


def _alternatives(words: Iterable[str]) -> str:
    return " | ".join(_literal(json.dumps(word, ensure_ascii=False)[1:-1]) for word in words)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _shown(example: Example, schema: Mapping[str, Any]) -> str:
    known: Mapping[str, Any] = schema.get("properties") or {}
    calls = [{name: one[name] for name in known if name in one} for one in example.calls]
    said = json.dumps(calls, separators=(",", ":"))
    return f"Request: {example.request}\nArguments: {said}\n\n"
