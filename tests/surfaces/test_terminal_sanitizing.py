"""What reaches a terminal can neither command it nor hide from its reader."""

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

TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("made", [safe_text, safe_name])
def test_no_terminal_sequence_survives(attack: str, made: Callable[[str], str]):
    """Shows: U01, U04."""
    seen = made(attack)
    assert not [char for char in seen if unicodedata.category(char) == "Cc"]
    assert "␛" in seen or "<U+009" in seen or "␍" in seen or "␡" in seen


@pytest.mark.parametrize("made", [safe_text, safe_name])
def test_lines_and_tabs_stay_and_everything_visible_stays(made: Callable[[str], str]):
    """Shows: U02."""
    text = "one\ttwo\nthrée 漢字 👍 [link=x] [/] `code`"
    assert made(text) == text
    assert made("one\r\ntwo") == "one\ntwo"


def test_what_a_reader_cannot_see_is_made_visible_in_names_and_commands():
    """Shows: U03, T10."""
    assert safe_name("rm \u202etxt.exe\u200b \u2066a\u2069") == "rm <U+202E>txt.exe<U+200B> <U+2066>a<U+2069>"
    assert safe_name("a\U000e0041b\ufeffc\u00add") == "a<U+E0041>b<U+FEFF>c<U+00AD>d"
    assert safe_name("lone \udc80 half") == "lone <U+DC80> half"


def test_prose_keeps_what_languages_are_written_with_and_shows_what_none_needs():
    """Shows: U03."""
    persian, hebrew = "\u0645\u06cc\u200c\u062e\u0648", "\u2067\u05e9\u05dc\u2069 \u200fOK"
    assert safe_text(persian + hebrew) == persian + hebrew
    assert safe_text("a\U000e0041\U000e007f\u202eb\ufe01c") == "a<U+E0041><U+E007F><U+202E>b<U+FE01>c"


def test_a_joiner_is_kept_only_between_two_emoji():
    assert safe_name("👩\u200d💻") == "👩\u200d💻"
    assert safe_name("pass\u200dword") == "pass<U+200D>word"


@given(st.text())
def test_pieces_of_a_stream_are_as_safe_as_the_whole(text: str):
    for made in (safe_text, safe_name):
        pieces = "".join(made(char) for char in text)
        assert not [
            char for char in pieces if unicodedata.category(char) in {"Cc", "Cs"} and char not in "\n\t"
        ]
        assert made(pieces) == pieces
    assert not [char for char in safe_name(text) if unicodedata.bidirectional(char) in TURNS]
    assert not {"RLO", "LRO"} & {unicodedata.bidirectional(char) for char in safe_text(text)}


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Z", "C"])))
def test_json_keeps_every_character_and_commands_nothing(text: str):
    shown = json_text({"text": text})
    assert json.loads(shown) == {"text": text}
    assert not [char for char in shown if unicodedata.category(char) == "Cc" and char != "\n"]


def test_a_long_text_is_cut_to_one_line():
    """Shows: U04."""
    line = one_line("word\n" * 300_000, 50)
    assert len(line) == 50
    assert line.endswith("…")
    assert "\n" not in line


def a_terminal(*, json: bool = False) -> tuple[Terminal, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Terminal(json=json, out=out, err=err), out, err


def test_a_table_is_aligned_also_with_wide_characters():
    terminal, out, _ = a_terminal()
    rows = [{"a": "漢字", "b": "x"}, {"a": "abc", "b": "y\x1b[2J"}]
    terminal.print_table(rows, (("A", lambda row: row["a"]), ("B", lambda row: row["b"])), empty_note="")
    assert out.getvalue() == "A     B\n漢字  x\nabc   y␛[2J\n"


def test_the_first_column_of_a_table_is_set_in_where_it_stands_below_another():
    terminal, out, _ = a_terminal()
    rows = [{"a": "one", "b": "  x"}, {"a": "  two", "b": "y"}, {"a": " " * 900 + "far", "b": ""}]
    terminal.print_table(rows, (("A", lambda row: row["a"]), ("B", lambda row: row["b"])), empty_note="")
    indented = [line[:26].rstrip() for line in out.getvalue().splitlines()]
    assert indented == [
        "A                        B",
        "one                      x",
        "  two                    y",
        " " * 20 + "far",
    ]


def test_an_empty_list_says_what_to_do_and_leaves_standard_output_alone():
    terminal, out, err = a_terminal()
    terminal.print_table([], (), empty_note="nothing yet: begin")
    assert (out.getvalue(), err.getvalue()) == ("", "nothing yet: begin\n")


def test_a_failure_with_json_is_one_value_and_a_sentence():
    terminal, out, err = a_terminal(json=True)
    terminal.print_error_message("not_found", "there is no \x1b run")
    assert json.loads(out.getvalue()) == {"error": {"code": "not_found", "message": "there is no \x1b run"}}
    assert err.getvalue() == "retinue: there is no ␛ run\n"


def test_a_stream_that_cannot_hold_a_character_gets_its_escape():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="latin-1")
    terminal = Terminal(json=False, out=out, err=io.StringIO())
    terminal.print_text("naïve 漢")
    terminal.print_json({"a": "漢"})
    assert raw.getvalue() == b'na\xefve \\u6f22{\n  "a": "\\u6f22"\n}\n'
    out.close()


def test_an_error_that_quotes_a_million_characters_has_an_end():
    """Shows: U04."""
    terminal, _, err = a_terminal()
    terminal.print_error_message("usage", "no such thing: " + "x" * 1_000_000)
    assert len(err.getvalue()) < 5_000
    assert err.getvalue().endswith("… (1,000,015 characters)\n")
