"""Make text safe to show: neutralise terminal control sequences and reveal hidden characters."""

import re
from functools import cache

_CONTROL_CHARACTERS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 without tab and line feed, DEL, C1: characters that a terminal acts on."""

_NEVER_IN_PROSE = "\u202d\u202e\ufe00-\ufe0d\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff"
"""Characters that no ordinary prose needs: direction overrides, tags, byte-carrying selectors, lone
surrogates.
"""

_INVISIBLE_CHARACTERS = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\uffff\ud800-\udfff"
    "\U000110bd\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters a reader does not see: bidirectional marks, zero widths, fillers, tags, selectors, lone
surrogates.
"""

_HIDDEN_FROM_READERS = _NEVER_IN_PROSE + "\u2028-\u202c\u2060-\u206f\ufeff"
"""Characters that let a model read something that a person does not see.

In addition to the above, these reorder or hide text. Marks that languages need are not included.
"""

_EMOJI = "\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"

# Compiled on first use: most texts need no expression, and start-up must be fast.


@cache
def _unsafe_in_prose() -> re.Pattern[str]:
    return re.compile(f"\r\n|[{_CONTROL_CHARACTERS}{_NEVER_IN_PROSE}]")


@cache
def _unsafe_in_name() -> re.Pattern[str]:
    """Return the expression for unsafe characters, and for zero-width joiners except between two emoji."""
    return re.compile(
        f"\r\n|[{_CONTROL_CHARACTERS}{_INVISIBLE_CHARACTERS}]|(?<![{_EMOJI}\ufe0f])\u200d|\u200d(?![{_EMOJI}])"
    )


@cache
def _hidden_from_readers() -> re.Pattern[str]:
    """Return the expression for hidden characters, except the word separator of Thai, Lao, Burmese and Khmer."""
    return re.compile(f"[{_HIDDEN_FROM_READERS}]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b")


_BYTE_ORDER_MARK = "\ufeff"
"""At the beginning of a file, it only states the encoding."""


@cache
def _escape_sequences() -> re.Pattern[str]:
    return re.compile(
        r"""
    \x1b\[ [0-?]*+ [ -/]*+ [@-~]?+                      # CSI: colours and movement
  | \x1b[\]PX^_] [^\x07\x1b\x9c]*+ (?:\x07|\x1b\\|\x9c)?+  # OSC, DCS, SOS, PM, APC up to their end
  | \x1b [ -/]*+ [0-~]?+                                # every other escape
  | \x9b [0-?]*+ [ -/]*+ [@-~]?+                        # CSI as one character
  | [\x90\x98\x9d-\x9f] [^\x07\x1b\x9c]*+ (?:\x07|\x1b\\|\x9c)  # DCS, SOS, OSC, PM, APC as one character
  | [\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]                   # the remaining control characters
    """,
        re.VERBOSE,
    )


_CONTROL_BYTES = bytes({*range(0x20), 0x7F, *range(0x80, 0xA0)} - {0x09, 0x0A, 0x0C, 0x0D})


def safe_text(text: str) -> str:
    """Return prose that is safe for a terminal, with symbols for control and hidden characters.

    Each character is replaced independently, so pieces of a stream can be passed one by one.
    """
    return text if text.isascii() and text.isprintable() else _unsafe_in_prose().sub(_visible_symbol, text)


def safe_name(text: str) -> str:
    """Return a name, command or question that is safe for a terminal; invisible characters become symbols
    too.
    """
    return text if text.isascii() and text.isprintable() else _unsafe_in_name().sub(_visible_symbol, text)


def safe_json(text: str) -> str:
    """Return JSON text that is safe for a terminal: the same value, with escapes."""
    return _unsafe_in_name().sub(_json_escape, text)


def strip_escapes(text: str) -> str:
    """Remove everything that controls a terminal, except tabs, line and page breaks."""
    plain = text.encode("latin-1", "replace")
    return (
        text
        if len(plain.translate(None, _CONTROL_BYTES)) == len(plain)
        else _escape_sequences().sub("", text)
    )


def text_for_model(text: str) -> str:
    """Return a tool's output as a model may read it: no escape sequences, hidden characters made visible."""
    text = strip_escapes(text)
    if text.isascii():
        return text
    prefix = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    visible, count = _hidden_from_readers().subn(_visible_symbol, text[len(prefix) :])
    if not count:
        return text
    count_text = "1 invisible character is" if count == 1 else f"{count:,} invisible characters are"
    return f"[{count_text} shown as <U+…>: text may be hidden there]\n{prefix}{visible}"


def count_hidden(text: str) -> int:
    """Return how many characters a reader is not meant to see."""
    return 0 if text.isascii() else len(_hidden_from_readers().findall(text.removeprefix(_BYTE_ORDER_MARK)))


def _visible_symbol(match: re.Match[str]) -> str:
    if match[0] == "\r\n":
        return "\n"
    code = ord(match[0])
    if code < 0x20:  # noqa: PLR2004  (the control pictures of Unicode follow the codes they show)
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"<U+{code:04X}>"  # noqa: PLR2004  (DEL)


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
