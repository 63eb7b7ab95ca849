"""The glob language: a table of cases, two reference implementations, and a bound on matching time."""

import re
import string
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wcmatch import glob as reference

from retinue.domain.glob import MAX_COMPILED_CHARS, compile_glob, first_match, matches

YES, NO = True, False

CASES: list[tuple[str, str, bool]] = [
    ("*", "todo_add", YES),
    ("*", "", YES),
    ("*", "a/b", NO),
    ("*", ".env", YES),
    ("**", "a/b/c", YES),
    ("**", "", YES),
    ("**", "/etc/passwd", YES),
    ("todo_*", "todo_x_delete", YES),
    ("todo_*", "todo_", YES),
    ("todo_*", "TODO_x", NO),
    ("todo_*", "xtodo_a", NO),
    ("*_delete", "todo_x_delete", YES),
    ("*_delete", "todo_x_deleted", NO),
    ("reading_list_*", "reading_list_add", YES),
    ("reading_list_*", "reading_lists", NO),
    ("lists.*", "lists.write", YES),
    ("lists.*", "listsxwrite", NO),
    ("?", "a", YES),
    ("?", "", NO),
    ("?", "/", NO),
    ("?", "é", YES),
    ("a?c", "abc", YES),
    ("a?c", "a/c", NO),
    ("[ab]", "a", YES),
    ("[ab]", "c", NO),
    ("[!ab]", "c", YES),
    ("[!ab]", "a", NO),
    ("[!ab]", "/", NO),
    ("[^ab]", "c", YES),
    ("[a-c]x", "bx", YES),
    ("[a-c]x", "dx", NO),
    ("[]a]", "]", YES),
    ("[!]a]", "]", NO),
    ("[!]a]", "b", YES),
    ("[a-]", "-", YES),
    ("[-a]", "-", YES),
    ("[.-0]", "/", NO),
    ("[a--z]", "[a--z]", YES),
    ("[&&~~||]", "&", YES),
    ("[[a]", "[", YES),
    ("[^^]", "^", NO),
    ("[\\]", "\\", YES),
    ("[z-a]", "[z-a]", YES),
    ("[", "[", YES),
    ("[a", "[a", YES),
    ("[]", "[]", YES),
    ("[!]", "[!]", YES),
    ("\\*", "*", YES),
    ("\\*", "a", NO),
    ("\\**", "*abc", YES),
    ("a\\", "a\\", YES),
    ("\\[a]", "[a]", YES),
    ("/w/**", "/w", YES),
    ("/w/**", "/w/a", YES),
    ("/w/**", "/w/a/b", YES),
    ("/w/**", "/w/", YES),
    ("/w/**", "/wx", NO),
    ("/w/**", "/", NO),
    ("/w/**/**", "/w", YES),
    ("/w/*", "/w/a", YES),
    ("/w/*", "/w/a/b", NO),
    ("/w/*", "/w", NO),
    ("/w/*/", "/w/a/", YES),
    ("/w/**/x", "/w/x", YES),
    ("/w/**/x", "/w/a/b/x", YES),
    ("/w/**/x", "/w/ax", NO),
    ("/w/**/**/x", "/w/x", YES),
    ("/w/**/**/x", "/w/a/x", YES),
    ("**/.git/**", "/w/.git", YES),
    ("**/.git/**", "/w/.git/config", YES),
    ("**/.git/**", ".git/hooks/x", YES),
    ("**/.git/**", "/w/.github/x", NO),
    ("**/.git/**", "/w/x.git/x", NO),
    ("**/.env", "/w/.env", YES),
    ("**/.env", ".env", YES),
    ("**/.env", "/w/a.env", NO),
    ("**/.env", "/w/.env.local", NO),
    ("**/*.py", "a.py", YES),
    ("**/*.py", "a/b/.py", YES),
    ("**/*.py", "a/b.pyc", NO),
    ("**/a*/b", "x/ab/b", YES),
    ("**/a*/b", "a/c/b", NO),
    ("**a*b", "a/ab", YES),
    ("**a*b", "a/b", NO),
    ("**a*b**c", "a/ab/c", YES),
    ("*a/**", "aa/x", YES),
    ("*a/**", "ab/x", NO),
    ("*a*b", "aabb", YES),
    ("*a*b", "aab/b", NO),
    ("src/**/test_*.py", "src/test_a.py", YES),
    ("src/**/test_*.py", "src/a/b/test_a.py", YES),
    ("src/**/test_*.py", "src/a/b/test_/a.py", NO),
    ("a/**b", "a/x/yb", YES),
    ("a/**b", "ab", NO),
    ("a**", "a/b/c", YES),
    ("a**/b", "axx/yy/b", YES),
    ("a**/b", "ab", NO),
    ("***", "a/b", YES),
    ("a***b", "a/b", YES),
    ("", "", YES),
    ("", "a", NO),
    ("a", "a\n", NO),
    ("*", "a\nb", YES),
    ("a.c", "abc", NO),
    ("a+", "aa", NO),
    ("(a|b)", "a", NO),
    ("{a,b}", "a", NO),
    ("~/x", "~/x", YES),
    ("$HOME", "$HOME", YES),
    ("../**", "../../etc/passwd", YES),
    ("/w/../**", "/etc", NO),
    ("ÄÖ*", "ÄÖü", YES),
    ("ÄÖ*", "äöü", NO),
    ("\x00*", "\x00a", YES),
]


@pytest.mark.parametrize(("pattern", "value", "expected"), CASES)
def test_patterns_match_as_in_the_table(pattern: str, value: str, expected: bool):
    """Shows: T04."""
    assert matches(pattern, value) is expected


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("**/.GIT/**", "/w/.git/x", YES),
        ("**/.git/**", "/w/.Git/x", YES),
        ("Ä*", "äx", YES),
        ("[a-c]", "B", YES),
        ("[!a]", "A", NO),
        ("x" * (MAX_COMPILED_CHARS + 1), "X" * (MAX_COMPILED_CHARS + 1), YES),
    ],
)
def test_case_is_ignored_only_on_request(pattern: str, value: str, expected: bool):
    """Shows: T04."""
    assert matches(pattern, value, ignore_case=True) is expected
    assert matches(pattern, value) is not expected or not expected


def test_a_pattern_above_the_length_limit_matches_only_itself():
    pattern = "*" + "a" * MAX_COMPILED_CHARS
    assert matches(pattern, pattern)
    assert not matches(pattern, "b" + "a" * MAX_COMPILED_CHARS)


def test_the_longest_possible_path_still_works_as_a_pattern():
    root = "/" + "[/" * 2047 + "x"
    escaped = root.replace("[", "\\[")
    assert matches(escaped + "/**", root + "/file")


def test_first_match_returns_the_first_matching_pattern():
    assert first_match(("b*", "a*", "*"), "abc") == "a*"
    assert first_match(("b*",), "abc") is None
    assert first_match((), "abc") is None


LETTERS = "ab./"
WORDS = st.text(LETTERS, max_size=10)
PIECES = st.lists(
    st.sampled_from(["a", "b", ".", "/", "*", "**", "?", "[ab]", "[!a]", "**/", "/**"]), max_size=8
)


def backtracking_regex(pattern: str) -> str:
    """Translate a pattern into a simple regular expression that may backtrack."""
    regex, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        if re.fullmatch(r"(?:/\*\*+)+", rest):
            return regex + "(?:/.*)?"
        if rest.startswith("**/") and (at == 0 or pattern[at - 1] == "/"):
            regex, at = regex + "(?:.*/)?", at + 3
        elif rest.startswith("**"):
            regex, at = regex + ".*", at + 2
        elif rest[0] == "*":
            regex, at = regex + "[^/]*", at + 1
        elif rest[0] == "?":
            regex, at = regex + "[^/]", at + 1
        elif rest[0] == "[":
            end = rest.index("]")
            inside = rest[1:end].replace("!", "^")
            regex, at = regex + f"(?!/)[{inside}]", at + end + 1
        else:
            regex, at = regex + re.escape(rest[0]), at + 1
    return regex


@settings(max_examples=600, deadline=None)
@given(pieces=PIECES, value=WORDS)
@example(pieces=["**", "a", "*", "b"], value="a/ab")
@example(pieces=["*", "a", "/**"], value="aa/b")
def test_the_matcher_agrees_with_a_backtracking_regex(pieces: list[str], value: str):
    """Shows: T04."""
    pattern = "".join(pieces)
    assert matches(pattern, value) == (
        re.fullmatch(backtracking_regex(pattern), value, re.DOTALL) is not None
    )


PATHS = st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=5).filter(
    lambda parts: not {".", ".."} & set(parts)
)
COMPONENTS = st.one_of(
    st.just("**"), st.text("ab.*?", min_size=1, max_size=5).filter(lambda text: "**" not in text)
)
PLAIN = reference.GLOBSTAR | reference.DOTGLOB | reference.FORCEUNIX


@settings(max_examples=300, deadline=None)
@given(components=st.lists(COMPONENTS, min_size=1, max_size=5), parts=PATHS)
def test_the_matcher_agrees_with_wcmatch_on_whole_components(components: list[str], parts: list[str]):
    """The languages agree if `**` is a whole component and no component is `.` or `..`.

    The only difference is `X/**`, which here also matches X itself.

    Shows: T04.
    """
    pattern, value = "/".join(components), "/".join(parts)
    if any(set(component) <= {"."} for component in components):
        return
    expected = reference.globmatch(value, pattern, flags=PLAIN)
    if pattern.endswith("/**"):
        expected = expected or matches(pattern.removesuffix("/**"), value)
    assert matches(pattern, value) == expected


@given(pattern=st.text(string.printable + "é\x00\ud800", max_size=40), value=st.text(max_size=20))
def test_any_text_compiles_as_a_pattern_without_a_warning(pattern: str, value: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matches(pattern, value)
        matches(pattern, value, ignore_case=True)


@given(path=st.text(st.characters(exclude_characters="/"), min_size=1, max_size=30))
def test_an_escaped_path_matches_itself_and_everything_below_it(path: str):
    escaped = "".join(f"\\{char}" if char in "*?[\\" else char for char in path)
    assert matches(escaped, path)
    assert matches(f"/{escaped}/**", f"/{path}/x")
    assert not matches(escaped, path + "x")


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("*a" * 400 + "*b", "a" * 3000),
        ("**a" * 400 + "**b", "a/" * 1500),
        ("**/a" * 400 + "/**/b", "a/" * 1500),
        ("*?" * 400 + "b", "a" * 3000),
        ("**/*a*" * 200 + "b", "a/" * 1500),
        ("*" * 9000 + "b", "a" * 4000),
        ("[ab]*" * 400 + "c", "ab" * 1500),
        ("**" + "*a" * 60 + "b", "a" * 1000),
    ],
    ids=["stars", "double stars", "folders", "marks", "mixed", "only stars", "classes", "any, then stars"],
)
def test_no_pattern_makes_the_matcher_slow(pattern: str, value: str):
    """Backtracking over these patterns would not end; the time limit of every test is the bound."""
    assert not compile_glob(pattern).match(value)
    assert not compile_glob(pattern, ignore_case=True).match(value)
