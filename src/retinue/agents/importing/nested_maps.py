"""What other programs write inside a map of their own: limits are lifted out, because kept for show they limit nothing."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from retinue.agents import validators
from retinue.agents.fields import ALIASES, KEPT, KNOWN
from retinue.agents.validators import Path
from retinue.domain.value import value

_RIGHTS = frozenset(
    (
        "agent", "capabilities", "config", "configuration", "configuration_fields", "constraints", "restrictions", "security",
        "settings",
    )
)  # fmt: skip
"""Maps that speak of rights: here `tools` are those it may use. Elsewhere they may be what has to be installed."""

_ANYWHERE = frozenset(
    (
        *(key for key, native in ALIASES.items() if native in ("tool_allow", "tool_deny") and key != "tools"),
        "tool_allow", "tool_deny", "allowed_paths", "allowedPaths", "denied_paths", "deniedPaths", "forbidden_paths",
        "blocked_paths", "disallowed_paths", "readonly", "readOnly", "read_only", "read-only", "canEdit", "can_edit",
        "enable_write_tools", "sandbox_mode", "file_access", "network_access",
    )
)  # fmt: skip
"""Words that take rights away wherever they stand."""

_HELPFUL = {"metadata": ("description",)} | dict.fromkeys(_RIGHTS, ("model",))
"""What is lifted where nothing else says it."""


@value
class Lifted:
    """One thing that stood inside a map."""

    key: str
    """What it is called among the keys of the definition: a spelling that was free."""
    holder: str
    inner: str
    value: Any


def lifted(keys: Mapping[str, Any]) -> Iterator[Lifted]:
    """A limit that is also said elsewhere comes out under another spelling, so that both are seen to say the same."""
    taken = set(keys)
    for holder, given in _held(keys):
        if not isinstance(given, dict):
            continue
        for inner, each in cast("dict[Any, Any]", given).items():
            key = _limit(holder, inner, taken) or _help(holder, inner, each, taken)
            if key and each is not None:
                taken.add(key)
                yield Lifted(key=key, holder=holder, inner=inner, value=each)


def _limit(holder: str, inner: Any, taken: set[str]) -> str:
    if inner not in _ANYWHERE and not (inner == "tools" and holder in _RIGHTS):
        return ""
    native = ALIASES.get(inner, inner)
    spellings = (inner, native, *(key for key, meant in ALIASES.items() if meant == native))
    return next((each for each in spellings if each not in taken), inner)


def _help(holder: str, inner: Any, given: Any, taken: set[str]) -> str:
    said = {ALIASES.get(key, key) for key in taken}
    return inner if inner in _HELPFUL.get(holder, ()) and inner not in said and isinstance(given, str) else ""


def doubtful(keys: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about words that would take rights away, were they spelt well or not so deep: kept for show they
    would limit nothing."""
    for holder, given in _held(keys):
        for path, word in _words(given, (holder,)):
            if word in _ANYWHERE:
                if len(path) > _LIFTED:
                    yield f"{validators.shown(path)}: takes rights away and stands too deep; write it at the top"
            elif known := _meant(word):
                yield f"{validators.shown(path)}: is not known; did you mean '{known}'?"


_LIFTED = 2
"""How long the path of a word is that is lifted: the map's key, and its own."""


_ORDERED = sorted(_ANYWHERE)


def _meant(word: str) -> str:
    """Only other capitals come before other letters."""
    near = [each for each in _ORDERED if abs(len(each) - len(word)) <= 1 and validators.misspells(word, each)]
    return min(near, key=lambda each: each.lower() != word.lower(), default="")


def _held(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys that say nothing here by themselves."""
    return ((key, given) for key, given in keys.items() if key not in KNOWN or key in (*KEPT, "capabilities"))


def _words(given: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Every key below a value, with its path; what was read is never deep."""
    if isinstance(given, dict):
        for key, each in cast("dict[Any, Any]", given).items():
            if isinstance(key, str) and each is not None:
                yield (*path, key), key
                yield from _words(each, (*path, key))
    elif isinstance(given, list):
        for at, each in enumerate(cast("list[Any]", given)):
            yield from _words(each, (*path, at))
