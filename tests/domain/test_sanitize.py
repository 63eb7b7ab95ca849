"""Text for models: it contains no terminal control sequences and no invisible characters."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.sanitize import count_hidden, strip_escapes, text_for_model


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[01;34mdir\x1b[0m", "dir"),
        ("\x1b]52;c;ZXZpbA==\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "click"),
        ("\x1bP+q544e\x1b\\x\x9b2Jy\x9d0;title\x9cz", "xyz"),
        ("bell\x07 back\x08 null\x00 \x7fdel \x85next", "bell back null del next"),
        ("a\tb\nc\r\nd\x0ce", "a\tb\nc\r\nd\x0ce"),
    ],
)
def test_escape_sequences_are_removed_and_line_breaks_stay(text: str, plain: str):
    """Shows: U05, U01."""
    assert strip_escapes(text) == plain


@given(st.text(st.one_of(st.characters(), st.sampled_from("\x1b\x9b\x9d\x07[];m\\"))))
def test_text_for_a_model_has_no_control_characters(text: str):
    """Shows: U05."""
    sanitized = text_for_model(text)
    assert not [char for char in sanitized if unicodedata.category(char) == "Cc" and char not in "\t\n\r\x0c"]


def test_text_hidden_in_unicode_tags_is_made_visible_and_counted():
    """Shows: X07."""
    hidden = "".join(chr(0xE0000 + ord(char)) for char in "hi")
    assert text_for_model(f"harmless{hidden}\u202e\n") == (
        "[3 invisible characters are shown as <U+…>: text may be hidden there]\nharmless<U+E0068><U+E0069><U+202E>\n"
    )
    assert count_hidden(f"harmless{hidden}") == 2


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "\u0645\u06cc\u200c\u062e\u0648",
        "👩\u200d💻 ❤\ufe0f",
        "ខ្មែរ\u200bភាសា",
        "\ufeffbegins with a mark\n",
        "\u05e9\u05dc\u200f",
    ],
)
def test_characters_that_languages_need_are_kept(text: str):
    assert text_for_model(text) == text
    assert count_hidden(text) == 0
