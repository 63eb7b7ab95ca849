"""Validators that turn raw values into typed ones and name a wrong value by its key path."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

KeyPath = tuple[str | int, ...]
Validator = Callable[[Any, KeyPath], Any]

MAX_ITEMS = 1000
MAX_PATTERN_CHARS = 1024
MAX_NAMES_LISTED = 40
"""Maximum number of known names listed in an error message."""
_NUMBER = re.compile(r"[-+]?[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,3})?\Z")


class InvalidValue(Exception):
    """An invalid value and its key path."""

    def __init__(self, path: KeyPath, problem: str, *, separator: str = ": ") -> None:
        """Args:
        separator: Text between path and problem; a space if the problem continues the sentence.
        """
        super().__init__(f"{format_key_path(path)}{separator}{problem}" if path else problem)
        self.path = path
        self.problem = problem


def format_key_path(path: KeyPath) -> str:
    """Format a key path, such as `agents[2].chat.provider`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def nearest_name(word: str, known: Iterable[str]) -> str:
    """Return the known name most likely meant, or an empty string."""
    import difflib  # noqa: PLC0415  (imported on use, for a fast start)

    choices = {choice.lower(): choice for choice in known}
    matches = difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.6)
    return choices[matches[0]] if matches else ""


_SWAPPED_PAIR = 2


def is_misspelling(word: str, known: str) -> bool:
    """Return True if a word is surely a misspelling of the known one.

    That is: different capitals, one letter wrong, missing or added, or two letters swapped. A final `s` more
    or less does not count, because it too often makes another word.
    """
    word_lower, known_lower = word.lower(), known.lower()
    if len(word_lower) != len(known_lower):
        longer, shorter = sorted((word_lower, known_lower), key=len, reverse=True)
        one_off = any(longer[:index] + longer[index + 1 :] == shorter for index in range(len(longer)))
        return one_off and longer != f"{shorter}s"
    wrong = [
        (actual, expected)
        for actual, expected in zip(word_lower, known_lower, strict=True)
        if actual != expected
    ]
    swapped = sorted(actual for actual, _ in wrong) == sorted(expected for _, expected in wrong)
    return len(wrong) <= 1 or (len(wrong) == _SWAPPED_PAIR and swapped)


def known_names_hint(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: a suggestion, or the known names."""
    known = list(known)
    nearest = nearest_name(word, known)
    if nearest:
        return f"; did you mean '{nearest}'?"
    return f"; valid values: {', '.join(sorted(known))}" if len(known) <= MAX_NAMES_LISTED else ""


def slugify(text: str) -> str:
    """Convert text to the nearest valid agent name; empty if nothing of it is allowed."""
    plain = "".join(char if char.isascii() and char.isalnum() else "-" for char in text.lower())
    return "-".join(part for part in plain.split("-") if part)[:64].strip("-")


def text_value(value: Any, path: KeyPath) -> str:
    if isinstance(value, str):
        if "\x00" in value:
            raise InvalidValue(path, "contains a NUL character")
        return value
    raise InvalidValue(
        path, f"must be text, but is {describe_type(value)}; put it in quotes if it is meant as text"
    )


def line_value(value: Any, path: KeyPath) -> str:
    """Validate non-empty text on one line."""
    found = text_value(value, path).strip()
    if not found or "\n" in found:
        raise InvalidValue(path, "must not be empty" if not found else "must be on one line")
    return found


def bool_value(value: Any, path: KeyPath) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidValue(path, f"must be true or false, but is {describe_type(value)}")


def number_between(low: float, high: float) -> Validator:
    """Validate a number in a range; digits that strict YAML kept as text (0.70) count as a number."""

    def validate(value: Any, path: KeyPath) -> float:
        found = float(value) if isinstance(value, str) and _NUMBER.match(value) else value
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise InvalidValue(path, f"must be a number, but is {describe_type(value)}")
        if not low <= found <= high:
            raise InvalidValue(path, f"must be between {low:g} and {high:g}, but is {found:g}")
        return found

    return validate


def integer_between(low: int, high: int) -> Validator:
    def validate(value: Any, path: KeyPath) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidValue(path, f"must be a whole number, but is {describe_type(value)}")
        if not low <= value <= high:
            raise InvalidValue(path, f"must be between {low} and {high}, but is {value}")
        return value

    return validate


def one_of(choices: Sequence[str]) -> Validator:
    def validate(value: Any, path: KeyPath) -> str:
        found = text_value(value, path)
        if found not in choices:
            raise InvalidValue(path, f"must be one of {', '.join(choices)}, but is '{found[:60]}'")
        return found

    return validate


def list_of(validate_item: Validator) -> Validator:
    """Validate a list whose items share a validator."""

    def validate(value: Any, path: KeyPath) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise InvalidValue(path, f"must be a list, but is {describe_type(value)}")
        items = cast("list[Any]", value)
        if len(items) > MAX_ITEMS:
            raise InvalidValue(path, f"has {len(items)} items; the maximum is {MAX_ITEMS}")
        return tuple(validate_item(each, (*path, index)) for index, each in enumerate(items))

    return validate


def name_pattern(value: Any, path: KeyPath) -> str:
    """Validate a name or a name pattern."""
    found = line_value(value, path)
    if len(found) > MAX_PATTERN_CHARS:
        raise InvalidValue(path, f"is longer than {MAX_PATTERN_CHARS} characters")
    return found


def path_glob(value: Any, path: KeyPath) -> str:
    """Validate a path pattern; file names may contain anything but NUL, including surrounding blanks."""
    found = text_value(value, path)
    if not found:
        raise InvalidValue(path, "must not be empty")
    return found


name_patterns = list_of(name_pattern)
path_globs = list_of(path_glob)


def name_list(value: Any, path: KeyPath) -> tuple[str, ...]:
    """Validate a list of names or patterns, or one text that separates them by commas or spaces."""
    if isinstance(value, str):
        return tuple(name_pattern(each, path) for each in re.split(r"[,\s]+", value.strip(", \n\t")) if each)
    return name_patterns(value, path)


def map_with_keys(validators: Mapping[str, Validator]) -> Validator:
    """Validate a map with only these keys; null is kept, because it clears a field."""

    def validate(value: Any, path: KeyPath) -> dict[str, Any]:
        found = string_map(value, path)
        for key in found:
            if key not in validators:
                raise InvalidValue((*path, key), f"is not a known key{known_names_hint(key, validators)}")
        return {
            key: None if each is None else validators[key](each, (*path, key)) for key, each in found.items()
        }

    return validate


def string_map(value: Any, path: KeyPath) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValue(path, f"must be a map, but is {describe_type(value)}")
    found = cast("dict[Any, Any]", value)
    for key in found:
        if not isinstance(key, str):
            raise InvalidValue(path, f"has the key {key!r}; keys must be text")
    return cast("dict[str, Any]", found)


def json_value(value: Any, path: KeyPath) -> Any:
    """Validate any JSON value and return it unchanged."""
    if isinstance(value, dict):
        return {
            key: json_value(each, (*path, key)) for key, each in string_map(cast("Any", value), path).items()
        }
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [json_value(each, (*path, index)) for index, each in enumerate(items)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    # TOML has dates and times; they are kept as their text.
    return str(value)


def json_map(value: Any, path: KeyPath) -> dict[str, Any]:
    return {key: json_value(each, (*path, key)) for key, each in string_map(value, path).items()}


_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (int, "a number"),
    (float, "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "a map"),
)


def describe_type(value: Any) -> str:
    """Describe a value's type for an error message."""
    if value is None:
        return "empty"
    return next((words for each, words in _KINDS if isinstance(value, each)), type(value).__name__)
