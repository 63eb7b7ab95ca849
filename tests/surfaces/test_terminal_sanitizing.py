"""Text for terminals can neither control the terminal nor hide anything from its reader."""

import io
import json
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.cli.ui.terminal import Terminal, json_text, one_line
from retinue.domain.sanitize import safe_name, safe_text

ATTACKS = (
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[6n",
    "\x1bP+q544e\x1b\\",
    "\x9b2J\x9d0;t\x9c",
    "good\rbad",
    "\x7f\x08\x08",
)

DIRECTION_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("sanitize", [safe_text, safe_name])
def test_no_control_sequence_survives(attack: str, sanitize: Callable[[str], str]):
    """Shows: U01, U04."""
    safe = sanitize(attack)
    assert not [char for char in safe if unicodedata.category(char) == "Cc"]
    assert "␛" in safe or "<U+009" in safe or "␍" in safe or "␡" in safe


@pytest.mark.parametrize("sanitize", [safe_text, safe_name])
def test_newlines_tabs_and_visible_characters_are_kept(sanitize: Callable[[str], str]):
    """Shows: U02."""
    text = "one\ttwo\nthrée 漢字 👍 [link=x] [/] `code`"
    assert sanitize(text) == text
    assert sanitize("one\r\ntwo") == "one\ntwo"


def test_invisible_characters_in_names_and_commands_are_made_visible():
    """Shows: U03, T10."""
    assert safe_name("rm \u202etxt.exe\u200b \u2066a\u2069") == "rm <U+202E>txt.exe<U+200B> <U+2066>a<U+2069>"
    assert safe_name("a\U000e0041b\ufeffc\u00add") == "a<U+E0041>b<U+FEFF>c<U+00AD>d"
    assert safe_name("lone \udc80 half") == "lone <U+DC80> half"


def test_text_keeps_the_format_characters_of_languages_and_shows_the_others():
    """Shows: U03."""
    persian, hebrew = "\u0645\u06cc\u200c\u062e\u0648", "\u2067\u05e9\u05dc\u2069 \u200fOK"
    assert safe_text(persian + hebrew) == persian + hebrew
    assert safe_text("a\U000e0041\U000e007f\u202eb\ufe01c") == "a<U+E0041><U+E007F><U+202E>b<U+FE01>c"


def test_a_zero_width_joiner_is_kept_only_between_emoji():
    assert safe_name("👩\u200d💻") == "👩\u200d💻"
    assert safe_name("pass\u200dword") == "pass<U+200D>word"


@given(st.text())
def test_sanitized_pieces_of_a_stream_are_as_safe_as_the_whole_text(text: str):
    for sanitize in (safe_text, safe_name):
        pieces = "".join(sanitize(char) for char in text)
        assert not [
            char for char in pieces if unicodedata.category(char) in {"Cc", "Cs"} and char not in "\n\t"
        ]
        assert sanitize(pieces) == pieces
    assert not [char for char in safe_name(text) if unicodedata.bidirectional(char) in DIRECTION_CONTROLS]
    assert not {"RLO", "LRO"} & {unicodedata.bidirectional(char) for char in safe_text(text)}


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Z", "C"])))
def test_json_keeps_every_character_without_control_characters(text: str):
    output = json_text({"text": text})
    assert json.loads(output) == {"text": text}
    assert not [char for char in output if unicodedata.category(char) == "Cc" and char != "\n"]


def test_one_line_shortens_a_long_text():
    """Shows: U04."""
    line = one_line("word\n" * 300_000, 50)
    assert len(line) == 50
    assert line.endswith("…")
    assert "\n" not in line


def make_terminal(*, json: bool = False) -> tuple[Terminal, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Terminal(json=json, out=out, err=err), out, err


def test_a_table_with_wide_characters_is_aligned():
    terminal, out, _ = make_terminal()
    rows = [{"a": "漢字", "b": "x"}, {"a": "abc", "b": "y\x1b[2J"}]
    terminal.print_table(rows, (("A", lambda row: row["a"]), ("B", lambda row: row["b"])), empty_note="")
    assert out.getvalue() == "A     B\n漢字  x\nabc   y␛[2J\n"


def test_the_indent_of_the_first_column_is_kept_and_limited():
    terminal, out, _ = make_terminal()
    rows = [{"a": "one", "b": "  x"}, {"a": "  two", "b": "y"}, {"a": " " * 900 + "far", "b": ""}]
    terminal.print_table(rows, (("A", lambda row: row["a"]), ("B", lambda row: row["b"])), empty_note="")
    indented = [line[:26].rstrip() for line in out.getvalue().splitlines()]
    assert indented == [
        "A                        B",
        "one                      x",
        "  two                    y",
        " " * 20 + "far",
    ]


def test_an_empty_table_prints_only_its_note_to_standard_error():
    terminal, out, err = make_terminal()
    terminal.print_table([], (), empty_note="nothing yet: begin")
    assert (out.getvalue(), err.getvalue()) == ("", "nothing yet: begin\n")


def test_an_error_with_json_is_one_object_and_a_sentence():
    terminal, out, err = make_terminal(json=True)
    terminal.print_error_message("not_found", "there is no \x1b run")
    assert json.loads(out.getvalue()) == {"error": {"code": "not_found", "message": "there is no \x1b run"}}
    assert err.getvalue() == "retinue: there is no ␛ run\n"


def test_characters_that_an_output_cannot_encode_are_escaped():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="latin-1")
    terminal = Terminal(json=False, out=out, err=io.StringIO())
    terminal.print_text("naïve 漢")
    terminal.print_json({"a": "漢"})
    assert raw.getvalue() == b'na\xefve \\u6f22{\n  "a": "\\u6f22"\n}\n'
    out.close()


def test_an_error_with_a_million_characters_is_shortened():
    """Shows: U04."""
    terminal, _, err = make_terminal()
    terminal.print_error_message("usage", "no such thing: " + "x" * 1_000_000)
    assert len(err.getvalue()) < 5_000
    assert err.getvalue().endswith("… (1,000,015 characters)\n")
