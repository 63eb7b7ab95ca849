"""Words of other programs that only an import understands: names in two parts, tools and models by other names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from retinue.agents import validators
from retinue.agents.dialects import path_patterns, tool_names
from retinue.agents.dialects.key_aliases import CLAUDE_MODELS, Verdict
from retinue.agents.fields import ALIASES
from retinue.agents.importing import nested_maps
from retinue.domain.agent import NAME

TOOL = re.compile(r"[^,\s()]+(?:\([^)]*\))?")
_EVERY = ("all", "all tools", "*", "['*']", '["*"]')
_UNIQUE = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9]+")
"""What only a database calls somebody."""
_SERVED = re.compile(r"(anthropic|openai)/([^/\s]+)")
_FILE = re.compile(r"\{file:([^{}\n]+)\}|(\S+\.(?:md|txt))")
"""A prompt that is the text of another file."""
_ANY_MODEL = ("default", "auto", "fast", "any")


@dataclass(slots=True, kw_only=True)
class Prepared:
    """The keys of a source, put the way ours must be."""

    keys: dict[str, Any]
    notes: dict[str, str]
    """What was done to a key."""
    settled: dict[str, tuple[Verdict, str]] = field(default_factory=dict[str, tuple[Verdict, str]])
    """Keys that were taken in with another, with what became of them."""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """What goes among the notes."""
    lifted: dict[str, nested_maps.Lifted] = field(default_factory=dict[str, nested_maps.Lifted])
    """Keys that stood inside a map of the source."""


def prepared(source: Mapping[str, Any], mended: tuple[str, ...], stem: str) -> Prepared:
    """`stem` names the agent where nothing else does."""
    found = Prepared(
        keys=dict(source), notes=dict.fromkeys(mended, "is no YAML as written; taken as plain text")
    )
    _lift(found)
    _identity(found)
    _description(found)
    _prompt(found)
    for key, value in list(found.keys.items()):
        if value is None:
            _note(found, key, "empty, so it says nothing")
            continue
        native = ALIASES.get(key, key)
        if native == "name":
            _name(found, key, value, stem)
        elif native in ("tool_allow", "tool_deny"):
            _tools(found, key, value, denied=native == "tool_deny")
        elif native == "model":
            _model(found, key, value)
        elif native == "paths" and (wide := path_patterns.beyond(value)):
            _note(
                found, key, f"reaches beyond the workspace: {', '.join(wide)}; take it out unless you mean it"
            )
        elif native == "extends":
            _note(found, key, "loads only where there is an agent of that name")
    return found


def _note(found: Prepared, key: str, *said: str) -> None:
    found.notes[key] = "; ".join(each for each in (found.notes.get(key, ""), *said) if each)


def _lift(found: Prepared) -> None:
    """The map itself is kept, with all that it says besides."""
    for each in nested_maps.lifted(dict(found.keys)):
        found.lifted[each.key] = each
        found.keys[each.key] = each.value
        if each.holder in found.keys:
            found.kept[each.holder] = validators.anything(found.keys.pop(each.holder), ())


def _identity(found: Prepared) -> None:
    """Where there is both an id and a name, the name is for people."""
    ids = [key for key in found.keys if ALIASES.get(key) == "name" and isinstance(found.keys[key], str)]
    if "name" not in found.keys or not ids or not isinstance(found.keys["name"], str):
        return
    best, *others = ids
    if _UNIQUE.fullmatch(found.keys[best].lower()) or not validators.slugged(found.keys[best]):
        best, others = "name", ids
    for key in (*others, *(("name",) if best != "name" else ())):
        value = found.keys.pop(key)
        titled = any(ALIASES.get(each, each) == "display_name" for each in found.keys)
        if key == "name" and value.strip() and not titled:
            found.keys["display_name"] = " ".join(value.split())
            found.settled[key] = (Verdict.MAPPED, f"as display_name; '{best}' is the name")
        else:
            found.kept[key] = value
            found.settled[key] = (Verdict.KEPT, f"says the same as '{best}'; kept among the notes")


def _description(found: Prepared) -> None:
    """A second text about when to use it is kept, not lost."""
    if not found.keys.get("description"):
        return
    for key in [each for each in found.keys if ALIASES.get(each) == "description"]:
        found.kept[key] = validators.anything(found.keys.pop(key), ())
        found.settled[key] = (Verdict.KEPT, "says the same as 'description'; kept among the notes")


def _prompt(found: Prepared) -> None:
    """Some write the prompt in two parts: who one is, and what else to mind; and some name the file it is in."""
    prompt = found.keys.get("prompt")
    if (
        isinstance(prompt, str)
        and "promptPath" not in found.keys
        and (file := _FILE.fullmatch(prompt.strip()))
    ):
        del found.keys["prompt"]
        found.keys["promptPath"] = (file[1] or file[2]).strip()
        found.settled["prompt"] = (Verdict.MAPPED, "the file's text is the prompt")
    first, second = found.keys.get("roleDefinition"), found.keys.get("customInstructions")
    if isinstance(first, str) and isinstance(second, str):
        found.keys["roleDefinition"] = f"{first.rstrip()}\n\n{second.strip()}\n"
        found.settled["customInstructions"] = (Verdict.MAPPED, "the end of the prompt")
        del found.keys["customInstructions"]


def _name(found: Prepared, key: str, value: Any, stem: str) -> None:
    if isinstance(value, dict | list):
        return
    written = str(value)
    named = (
        written
        if NAME.fullmatch(written)
        else validators.slugged(written) or validators.slugged(stem) or "agent"
    )
    if named == value:
        return
    found.keys[key] = named
    _note(found, key, f"'{named}'")
    if not any(ALIASES.get(each, each) == "display_name" for each in found.keys) and written.strip():
        found.keys["display_name"] = " ".join(written.split())


def _tools(found: Prepared, key: str, value: Any, *, denied: bool) -> None:
    if isinstance(value, dict):
        found.keys[key] = _switched(cast("dict[Any, Any]", value))
    elif not denied and _every(value):
        found.keys[key] = None
        _note(found, key, "every tool")
    elif isinstance(value, str | list):
        found.keys[key], said = _listed(cast("str | list[Any]", value), denied=denied)
        _note(found, key, said)
        # There are several ways to other agents here; the list of agents closes all of them.
        closed = denied and any(
            tool_names.ours(each) == "agent" for each in found.keys[key] if isinstance(each, str)
        )
        if closed and "agent_deny" not in (ALIASES.get(each, each) for each in found.keys):
            found.keys["agent_deny"] = ["*"]
            _note(found, key, "agent_deny: *")


def _switched(value: dict[Any, Any]) -> dict[Any, Any]:
    """By our names; where two of theirs are one of ours, switched off wins."""
    found: dict[Any, Any] = {}
    for name, each in value.items():
        for ours in tool_names.borrowed(name) if isinstance(name, str) else (name,):
            found[ours] = False if found.get(ours) is False else each
    return found


def _every(value: Any) -> bool:
    if isinstance(value, list):
        return value == ["*"]
    return isinstance(value, str) and value.strip().lower() in _EVERY


def _listed(value: str | list[Any], *, denied: bool) -> tuple[list[Any], str]:
    """Tools limited to certain calls (`Bash(git *)`) are left out of what is allowed, and denied as a whole."""
    written: list[Any] = TOOL.findall(value) if isinstance(value, str) else value
    kept: list[Any] = []
    limited: list[str] = []
    changed: list[str] = []
    # Whoever says `search` has no `write`: there `edit` also makes files.
    edits = any(
        isinstance(each, str) and each.partition("/")[0] in ("search", "codebase") for each in written
    )
    for each in written:
        if not isinstance(each, str):
            kept.append(each)
            continue
        name = each.strip()
        if "(" in name:
            limited.append(name)
            kept += tool_names.borrowed(name.partition("(")[0]) if denied else ()
            continue
        ours = ("edit", "write") if edits and name == "edit" else tool_names.borrowed(name)
        if name in tool_names.OURS or ours == (name,):
            kept.append(name)
        else:
            changed.append(f"{name} is {', '.join(ours)}")
            kept += ours
    words = [tool_names.ours(each) for each in kept if isinstance(each, str)]
    unknown = [
        each for each in words if each not in tool_names.BUILT_IN and not any(char in each for char in "*?[")
    ]
    say = f"{'denied as a whole' if denied else 'left out'}: {', '.join(limited)}" if limited else ""
    names_none = f"naming no built-in tool: {', '.join(dict.fromkeys(unknown))}" if unknown else ""
    parts = (", ".join(dict.fromkeys(changed)), say, names_none)
    return list(_once(kept)), "; ".join(each for each in parts if each)


def _once(kept: list[Any]) -> list[Any]:
    return [each for at, each in enumerate(kept) if each not in kept[:at]]


def _model(found: Prepared, key: str, value: Any) -> None:
    written = value
    if isinstance(value, list) and value and isinstance(value[0], str):
        several = cast("list[Any]", value)
        written = several[0]
        _note(found, key, "the first of several" if len(several) > 1 else "")
    if not isinstance(written, str) or not written.strip() or "\n" in written.strip():
        return
    named, said = _served(written.strip())
    found.keys[key] = named
    _note(found, key, said)


def _served(written: str) -> tuple[str | None, str]:
    """The model for a name, None for the default one, and what to say of it."""
    small = written.lower()
    if served := _SERVED.fullmatch(written):
        named = f"{served[1]}:{served[2]}"
        return named, f"'{written}' is {named}"
    if small in CLAUDE_MODELS:
        return small, ""
    if small in _ANY_MODEL:
        return None, f"'{written}' is the default model"
    if small.startswith("gpt-") and " " not in written and small != written:
        return small, f"'{written}' is {small}"
    if " " in written:
        word = next((each for each in CLAUDE_MODELS if each in small), None)
        if word is not None:
            return CLAUDE_MODELS[word], f"'{written}' is {CLAUDE_MODELS[word]}"
        return None, f"'{written}' is a title, not the name of a model: the default model is used"
    maker, slash, _ = written.partition("/")
    return written, f"served by '{maker}' there, and by the default driver here" if slash else ""
