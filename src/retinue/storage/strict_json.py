"""JSON as definitions and settings may use it: no key twice, not deep, every mistake on its line."""

import json
import re
from typing import Any

from retinue.storage.strict_yaml import MAX_DEPTH, Mistake

_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)
"""A string whole, or a bracket. A quote always begins one of the two, so nothing is looked at twice."""

_MOST_DIGITS = 1000


def read(text: str) -> Any:
    """Raises Mistake for what is no JSON, for a key said twice and for depth."""
    text = text.removeprefix("\ufeff")
    if depth(text) > MAX_DEPTH:
        raise Mistake(1, f"is nested deeper than {MAX_DEPTH} levels")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise Mistake(error.lineno, f"is not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, OverflowError) as error:
        raise Mistake(1, str(error)[:200]) from error


def depth(text: str) -> int:
    """How deep brackets nest outside of double quotes; a scan, so that no text can exhaust the stack. Past what is
    allowed it looks no further."""
    deepest = level = 0
    for found in _BRACKETS.finditer(text):
        if found[0] in "[{":
            level += 1
            deepest = max(deepest, level)
            if level > MAX_DEPTH:
                break
        elif found[0] in "]}":
            level -= 1
    return deepest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"'{key[:80]}' is said twice; keep one of the two")
        found[key] = value
    return found


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number that can be used")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits; {_MOST_DIGITS} are the most")
    return int(digits)
