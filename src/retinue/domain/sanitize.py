"""Text before an eye or a model: nothing in it commands a terminal, and nothing in it hides."""

import re
from functools import cache

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 without tab and line feed, DEL, C1: what a terminal obeys."""

_SMUGGLED = "\u202d\u202e\ufe00-\ufe0d\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff"
"""What no honest prose needs: text turned round, tags, selectors that carry bytes, halves of characters."""

_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\uffff\ud800-\udfff"
    "\U000110bd\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""What a reader does not see: bidirectional marks, zero widths, fillers, tags, selectors, lone surrogates."""

_DECEIVING = _SMUGGLED + "\u2028-\u202c\u2060-\u206f\ufeff"
"""What tells a model something else than a reader: the smuggled, and what turns or hides text around it. Marks that
languages are written with stay."""

_EMOJI = "\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"

# Compiled on first use: most texts hold nothing that needs an expression, and start-up is a promise.


@cache
def _prose() -> re.Pattern[str]:
    return re.compile(f"\r\n|[{_CONTROL}{_SMUGGLED}]")


@cache
def _name() -> re.Pattern[str]:
    """A joiner between two emoji only makes one picture of them; anywhere else it hides."""
    return re.compile(f"\r\n|[{_CONTROL}{_HIDDEN}]|(?<![{_EMOJI}\ufe0f])\u200d|\u200d(?![{_EMOJI}])")


@cache
def _model() -> re.Pattern[str]:
    """Thai, Lao, Burmese and Khmer part words with a space of no width."""
    return re.compile(f"[{_DECEIVING}]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b")


_MARK = "\ufeff"
"""Where a file begins with it, it only tells the encoding."""


@cache
def _escapes() -> re.Pattern[str]:
    return re.compile(
        r"""
    \x1b\[ [0-?]*+ [ -/]*+ [@-~]?+                      # CSI: colours and movement
  | \x1b[\]PX^_] [^\x07\x1b\x9c]*+ (?:\x07|\x1b\\|\x9c)?+  # OSC, DCS, SOS, PM, APC up to their end
  | \x1b [ -/]*+ [0-~]?+                                # every other escape
  | \x9b [0-?]*+ [ -/]*+ [@-~]?+                        # CSI as one character
  | [\x90\x98\x9d-\x9f] [^\x07\x1b\x9c]*+ (?:\x07|\x1b\\|\x9c)  # DCS, SOS, OSC, PM, APC as one character
  | [\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]                   # what is left of the controls
    """,
        re.VERBOSE,
    )


_OBEYED = bytes({*range(0x20), 0x7F, *range(0x80, 0xA0)} - {0x09, 0x0A, 0x0C, 0x0D})


def safe_text(text: str) -> str:
    """Prose for a terminal: what it would obey, and what no prose needs, is shown as a mark. Each character is
    replaced singly, so pieces of a stream may be passed one by one."""
    return text if text.isascii() and text.isprintable() else _prose().sub(_visible, text)


def shown(text: str) -> str:
    """A name, a command or a question for a terminal: here also what a reader would not see is shown."""
    return text if text.isascii() and text.isprintable() else _name().sub(_visible, text)


def json_safe(text: str) -> str:
    """JSON text for a terminal: the same value, with escapes for what would be obeyed or hidden."""
    return _name().sub(_escaped, text)


def without_escapes(text: str) -> str:
    """Tabs, line and page ends stay; nothing else that steers a terminal does."""
    plain = text.encode("latin-1", "replace")
    return text if len(plain.translate(None, _OBEYED)) == len(plain) else _escapes().sub("", text)


def for_model(text: str) -> str:
    """What a tool brought, as a model may read it: no escape sequences, and hidden characters in the open."""
    text = without_escapes(text)
    if text.isascii():
        return text
    begins = _MARK if text.startswith(_MARK) else ""
    clear, count = _model().subn(_visible, text[len(begins) :])
    if not count:
        return text
    many = "1 invisible character is" if count == 1 else f"{count:,} invisible characters are"
    return f"[{many} shown as <U+…>: text may be hidden there]\n{begins}{clear}"


def hidden(text: str) -> int:
    """How many characters of a text a reader is not meant to see."""
    return 0 if text.isascii() else len(_model().findall(text.removeprefix(_MARK)))


def _visible(found: re.Match[str]) -> str:
    if found[0] == "\r\n":
        return "\n"
    code = ord(found[0])
    if code < 0x20:  # noqa: PLR2004  (the control pictures of Unicode follow the codes they show)
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"<U+{code:04X}>"  # noqa: PLR2004  (DEL)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
