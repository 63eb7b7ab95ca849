"""Strict JSON for definitions and settings: no duplicate keys, limited depth, errors with line numbers."""

import json
import re
from typing import Any

from retinue.storage.strict_yaml import MAX_DEPTH, ParseError

_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)
"""A whole string, or a bracket. A quote always starts one of the two, so the scan is linear."""

_MAX_DIGITS = 1000


def parse_json(text: str) -> Any:
    """Parse JSON text. Raises ParseError for invalid JSON, duplicate keys and excessive nesting."""
    text = text.removeprefix("\ufeff")
    if nesting_depth(text) > MAX_DEPTH:
        raise ParseError(1, f"is nested deeper than {MAX_DEPTH} levels")
    try:
        return json.loads(
            text,
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_int=_parse_int,
        )
    except json.JSONDecodeError as error:
        raise ParseError(error.lineno, f"is not valid JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, OverflowError) as error:
        raise ParseError(1, str(error)[:200]) from error


def nesting_depth(text: str) -> int:
    """Return how deep brackets nest outside strings, without recursion.

    A scan, so that no text can exhaust the stack; it stops just past the allowed depth.
    """
    deepest = level = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            level += 1
            deepest = max(deepest, level)
            if level > MAX_DEPTH:
                break
        elif match[0] in "]}":
            level -= 1
    return deepest


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"'{key[:80]}' occurs twice; remove one of the two")
        result[key] = value
    return result


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a valid number")


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits; the maximum is {_MAX_DIGITS}")
    return int(digits)
