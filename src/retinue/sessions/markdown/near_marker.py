"""Recognise lines of session.md that are almost markers: a typo in a marker would attribute one author's text to another."""

import re
from collections.abc import Iterator

from retinue.sessions.markdown.grammar import ANY_KIND, COMMENT_OPEN, ENTRY_KINDS, HEAD, MARKER_KINDS

_HINT = re.compile("<!|!-|<-|-->")
"""Each line that is almost a marker contains one of these."""
_MARKER = re.compile(rf"{COMMENT_OPEN}(?:{ANY_KIND})\b")
_START = re.compile(
    r"[\s\u200b\ufeff]*([^\sA-Za-z0-9]{1,4}(?:\s[^\sA-Za-z0-9]{1,3})?)\s*([A-Za-z]{2,9})\b(.*)"
)
"""Indentation, signs that may be `<!--`, a word that may be the kind, and the rest of the line."""
_DASHES = str.maketrans({" ": "", "\t": "", "\xa0": "", "\u2013": "-", "\u2014": "--"})
"""Editors replace two hyphens by a dash."""
_ATTRIBUTE_NAMES = sorted(
    {each.name for kind in (HEAD, *ENTRY_KINDS) for each in kind.attributes if each.name}
)
_ATTRIBUTE = re.compile(rf"\b(?:{'|'.join(_ATTRIBUTE_NAMES)}|n)\s*=", re.IGNORECASE)
_BARE_END = re.compile(r"\s*[-\u2013\u2014]{0,3}\s*>?\s*")
_IDENTITY = re.compile(r"=\s*[0-9A-HJKMNP-TV-Z]{26}(?![0-9A-Za-z])|\bretinue\s+1\s+session\s*=")
"""An attribute with the id of an entry or a run, or the beginning of the header."""


def _is_marker_like(line: str) -> bool:
    """Return whether a line with a hint begins like a marker or is almost one: as text it needs a backslash."""
    return _MARKER.match(line) is not None or _is_near_marker(line)


def near_marker_offsets(text: str) -> Iterator[int]:
    """Yield the offsets of the lines of a body that are almost markers; each line is looked at once."""
    if not _has_hint(text):
        return
    for start, end in _hinted_lines(text):
        line = text[start:end]
        if not line.startswith("\\") and _is_near_marker(line):
            yield start


def escape_marker_like_lines(text: str) -> str:
    """Put a backslash in front of each line that looks like a marker, also if it has backslashes already."""
    if not _has_hint(text):
        return text
    starts = [start for start, end in _hinted_lines(text) if _is_marker_like(text[start:end].lstrip("\\"))]
    if not starts:
        return text
    pieces = [text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True)]
    return "\\".join(pieces)


def unescape_marker_like_lines(text: str) -> str:
    """Invert escape_marker_like_lines."""
    starts = [
        start
        for start, end in _hinted_lines(text)
        if text.startswith("\\", start) and _is_marker_like(text[start:end].lstrip("\\"))
    ]
    if not starts:
        return text
    ends = [*starts, len(text)]
    return text[: starts[0]] + "".join(
        text[start + 1 : end] for start, end in zip(starts, ends[1:], strict=True)
    )


def _has_hint(text: str) -> bool:
    """Return whether the text may have a line that looks like a marker; a regular expression takes far longer."""
    return "<!" in text or "!-" in text or "<-" in text or "-->" in text


def _hinted_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each line that contains a hint."""
    examined = 0
    for found in _HINT.finditer(text):
        if found.start() < examined:
            continue
        start = text.rfind("\n", examined, found.start()) + 1 or examined
        end = text.find("\n", found.start())
        examined = len(text) if end < 0 else end
        yield start, examined


def _is_near_marker(line: str) -> bool:
    """Return whether a line with a hint is almost a marker."""
    if _IDENTITY.search(line):
        return True
    found = _START.match(line)
    if found is None or not _is_one_slip(found[1].translate(_DASHES), COMMENT_OPEN.strip()):
        return False
    word, rest = found[2].casefold(), found[3]
    if word in MARKER_KINDS and _BARE_END.fullmatch(rest):
        return True
    return _ATTRIBUTE.search(rest) is not None and any(_is_one_slip(word, kind) for kind in MARKER_KINDS)


def _is_one_slip(word: str, kind: str) -> bool:
    """Return whether at most one character is missing, added, replaced, or swapped with its neighbour."""
    start = 0
    while start < min(len(word), len(kind)) and word[start] == kind[start]:
        start += 1
    rest, kind_rest = word[start:], kind[start:]
    return (
        rest[1:] == kind_rest[1:]
        or rest == kind_rest[1:]
        or rest[1:] == kind_rest
        or (rest[:2] == kind_rest[1::-1] and rest[2:] == kind_rest[2:])
    )
