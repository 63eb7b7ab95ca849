"""Raw values become typed ones here, and a wrong one is named by the path of its key."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

Path = tuple[str | int, ...]
Reader = Callable[[Any, Path], Any]

MAX_ITEMS = 1000
MAX_PATTERN = 1024
MAX_TOLD = 40
"""How many known words a sentence lists."""
_NUMBER = re.compile(r"[-+]?[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,3})?\Z")


class Wrong(Exception):
    """A value that cannot be used, and where it stands."""

    def __init__(self, path: Path, problem: str, *, of: str = ": ") -> None:
        """`of` stands between the two: a problem that begins with a verb is one sentence with the path."""
        super().__init__(f"{shown(path)}{of}{problem}" if path else problem)
        self.path = path
        self.problem = problem


def shown(path: Path) -> str:
    """`agents[2].chat.provider`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """A known word that may have been meant, or nothing."""
    import difflib  # noqa: PLC0415  (only a mistake needs it, and start-up is a promise)

    choices = {choice.lower(): choice for choice in known}
    close = difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.6)
    return choices[close[0]] if close else ""


_A_PAIR = 2


def misspells(word: str, known: str) -> bool:
    """Whether a word is surely meant as the known one: other capitals, one letter wrong, missing or too many, or two
    letters swapped. One `s` more or less at the end makes another word too often."""
    ours, theirs = word.lower(), known.lower()
    if len(ours) != len(theirs):
        longer, shorter = sorted((ours, theirs), key=len, reverse=True)
        one_off = any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))
        return one_off and longer != f"{shorter}s"
    wrong = [(mine, meant) for mine, meant in zip(ours, theirs, strict=True) if mine != meant]
    swapped = sorted(mine for mine, _ in wrong) == sorted(meant for _, meant in wrong)
    return len(wrong) <= 1 or (len(wrong) == _A_PAIR and swapped)


def hint(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word."""
    known = list(known)
    close = nearest(word, known)
    if close:
        return f"; did you mean '{close}'?"
    return f"; known are {', '.join(sorted(known))}" if len(known) <= MAX_TOLD else ""


def slugged(words: str) -> str:
    """The nearest name to some words, empty when nothing of them can stand in one."""
    plain = "".join(char if char.isascii() and char.isalnum() else "-" for char in words.lower())
    return "-".join(part for part in plain.split("-") if part)[:64].strip("-")


def text(value: Any, path: Path) -> str:
    if isinstance(value, str):
        if "\x00" in value:
            raise Wrong(path, "holds a NUL character")
        return value
    raise Wrong(path, f"must be text, and is {kind(value)}; put it in quotes if it is meant as text")


def word(value: Any, path: Path) -> str:
    """Text with something in it, on one line."""
    found = text(value, path).strip()
    if not found or "\n" in found:
        raise Wrong(path, "must be a word, and is empty" if not found else "must be on one line")
    return found


def flag(value: Any, path: Path) -> bool:
    if isinstance(value, bool):
        return value
    raise Wrong(path, f"must be true or false, and is {kind(value)}")


def number(low: float, high: float) -> Reader:
    """A number in a range. Digits that strict YAML left as text (0.70) count where a number is asked for."""

    def read(value: Any, path: Path) -> float:
        found = float(value) if isinstance(value, str) and _NUMBER.match(value) else value
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise Wrong(path, f"must be a number, and is {kind(value)}")
        if not low <= found <= high:
            raise Wrong(path, f"must be between {low:g} and {high:g}, and is {found:g}")
        return found

    return read


def whole(low: int, high: int) -> Reader:
    def read(value: Any, path: Path) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Wrong(path, f"must be a whole number, and is {kind(value)}")
        if not low <= value <= high:
            raise Wrong(path, f"must be between {low} and {high}, and is {value}")
        return value

    return read


def one_of(choices: Sequence[str]) -> Reader:
    def read(value: Any, path: Path) -> str:
        found = text(value, path)
        if found not in choices:
            raise Wrong(path, f"must be one of {', '.join(choices)}, and is '{found[:60]}'")
        return found

    return read


def listed(item: Reader) -> Reader:
    """A list whose items are all read alike."""

    def read(value: Any, path: Path) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Wrong(path, f"must be a list, and is {kind(value)}")
        items = cast("list[Any]", value)
        if len(items) > MAX_ITEMS:
            raise Wrong(path, f"has {len(items)} items; {MAX_ITEMS} are the most")
        return tuple(item(each, (*path, at)) for at, each in enumerate(items))

    return read


def pattern(value: Any, path: Path) -> str:
    """A name or glob."""
    found = word(value, path)
    if len(found) > MAX_PATTERN:
        raise Wrong(path, f"is longer than {MAX_PATTERN} characters")
    return found


def glob(value: Any, path: Path) -> str:
    """A pattern of paths: file names may hold anything but NUL, blanks at their ends included."""
    found = text(value, path)
    if not found:
        raise Wrong(path, "is empty; a pattern of nothing matches nothing")
    return found


patterns = listed(pattern)
globs = listed(glob)


def names(value: Any, path: Path) -> tuple[str, ...]:
    """A list of names or globs, or one text that separates them by commas or spaces."""
    if isinstance(value, str):
        return tuple(pattern(each, path) for each in re.split(r"[,\s]+", value.strip(", \n\t")) if each)
    return patterns(value, path)


def table(readers: Mapping[str, Reader]) -> Reader:
    """A map with these keys and no others; null is kept, because it clears."""

    def read(value: Any, path: Path) -> dict[str, Any]:
        found = mapping(value, path)
        for key in found:
            if key not in readers:
                raise Wrong((*path, key), f"is not a known key{hint(key, readers)}")
        return {
            key: None if each is None else readers[key](each, (*path, key)) for key, each in found.items()
        }

    return read


def mapping(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Wrong(path, f"must be a map, and is {kind(value)}")
    found = cast("dict[Any, Any]", value)
    for key in found:
        if not isinstance(key, str):
            raise Wrong(path, f"has the key {key!r}; keys must be text")
    return cast("dict[str, Any]", found)


def anything(value: Any, path: Path) -> Any:
    """Whatever JSON can say; kept as it is."""
    if isinstance(value, dict):
        return {key: anything(each, (*path, key)) for key, each in mapping(cast("Any", value), path).items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [anything(each, (*path, at)) for at, each in enumerate(items)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    # TOML has dates and times of its own; they are kept as the words they are.
    return str(value)


def open_map(value: Any, path: Path) -> dict[str, Any]:
    return {key: anything(each, (*path, key)) for key, each in mapping(value, path).items()}


_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (int, "a number"),
    (float, "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "a map"),
)


def kind(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "empty"
    return next((words for each, words in _KINDS if isinstance(value, each)), type(value).__name__)
