"""Extract limits that other programs write inside nested maps, where they would otherwise be ignored."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

from retinue.agents import validators
from retinue.agents.fields import DISPLAY_ONLY_KEYS, KEY_ALIASES, KNOWN_KEYS
from retinue.agents.validators import KeyPath

_PERMISSION_MAPS = frozenset(
    (
        "agent", "capabilities", "config", "configuration", "configuration_fields", "constraints", "restrictions", "security",
        "settings",
    )
)  # fmt: skip
"""Maps about permissions: `tools` in them are the tools an agent may use.

In other maps `tools` may be things to install.
"""

_LIMIT_KEYS = frozenset(
    (
        *(key for key, native in KEY_ALIASES.items() if native in ("tool_allow", "tool_deny") and key != "tools"),
        "tool_allow", "tool_deny", "allowed_paths", "allowedPaths", "denied_paths", "deniedPaths", "forbidden_paths",
        "blocked_paths", "disallowed_paths", "readonly", "readOnly", "read_only", "read-only", "canEdit", "can_edit",
        "enable_write_tools", "sandbox_mode", "file_access", "network_access",
    )
)  # fmt: skip
"""Keys that limit permissions at any level of nesting."""

_PROMOTED_KEYS = {"metadata": ("description",)} | dict.fromkeys(_PERMISSION_MAPS, ("model",))
"""Keys that are extracted only if nothing else sets them."""


class ExtractedKey(Struct, frozen=True, kw_only=True):
    """A key extracted from a nested map."""

    key: str
    """Name of the key among the definition's keys: a spelling that is not used yet."""
    parent_key: str
    inner_key: str
    value: Any


def extract_limits(keys: Mapping[str, Any]) -> Iterator[ExtractedKey]:
    """Yield limits from nested maps.

    A limit that the definition also sets elsewhere gets another spelling, so that the duplicate is detected.
    """
    taken = set(keys)
    for parent_key, raw_value in _unknown_items(keys):
        if not isinstance(raw_value, dict):
            continue
        for inner_key, each in cast("dict[Any, Any]", raw_value).items():
            key = _limit_key(parent_key, inner_key, taken) or _promoted_key(
                parent_key, inner_key, each, taken
            )
            if key and each is not None:
                taken.add(key)
                yield ExtractedKey(key=key, parent_key=parent_key, inner_key=inner_key, value=each)


def _limit_key(parent_key: str, inner_key: Any, taken: set[str]) -> str:
    if inner_key not in _LIMIT_KEYS and not (inner_key == "tools" and parent_key in _PERMISSION_MAPS):
        return ""
    native = KEY_ALIASES.get(inner_key, inner_key)
    spellings = (inner_key, native, *(key for key, target in KEY_ALIASES.items() if target == native))
    return next((each for each in spellings if each not in taken), inner_key)


def _promoted_key(parent_key: str, inner_key: Any, raw_value: Any, taken: set[str]) -> str:
    known_fields = {KEY_ALIASES.get(key, key) for key in taken}
    return (
        inner_key
        if inner_key in _PROMOTED_KEYS.get(parent_key, ())
        and inner_key not in known_fields
        and isinstance(raw_value, str)
        else ""
    )


def suspicious_keys(keys: Mapping[str, Any]) -> Iterator[str]:
    """Yield problems about keys that would limit permissions if spelled correctly or nested less deeply.

    Stored as mere notes they would limit nothing.
    """
    for parent_key, raw_value in _unknown_items(keys):
        for path, word in _nested_keys(raw_value, (parent_key,)):
            if word in _LIMIT_KEYS:
                if len(path) > _EXTRACTED_DEPTH:
                    yield f"{validators.format_key_path(path)}: limits permissions, but is nested too deeply; move it to the top level"
            elif limit := _closest_limit(word):
                yield f"{validators.format_key_path(path)}: is not a known key; did you mean '{limit}'?"


_EXTRACTED_DEPTH = 2
"""Path length of an extracted key: the map's key and its own."""


_SORTED_LIMIT_KEYS = sorted(_LIMIT_KEYS)


def _closest_limit(word: str) -> str:
    """Return the limit key most likely meant; a difference in capitals counts as nearest."""
    candidates = [
        each
        for each in _SORTED_LIMIT_KEYS
        if abs(len(each) - len(word)) <= 1 and validators.is_misspelling(word, each)
    ]
    return min(candidates, key=lambda each: each.lower() != word.lower(), default="")


def _unknown_items(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys that are not native fields."""
    return (
        (key, raw_value)
        for key, raw_value in keys.items()
        if key not in KNOWN_KEYS or key in (*DISPLAY_ONLY_KEYS, "capabilities")
    )


def _nested_keys(raw_value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield every key below a value with its path; the depth was limited when parsing."""
    if isinstance(raw_value, dict):
        for key, each in cast("dict[Any, Any]", raw_value).items():
            if isinstance(key, str) and each is not None:
                yield (*path, key), key
                yield from _nested_keys(each, (*path, key))
    elif isinstance(raw_value, list):
        for index, each in enumerate(cast("list[Any]", raw_value)):
            yield from _nested_keys(each, (*path, index))
