"""Strict YAML: accepted and refused input, and agreement of the fast reader with the library."""

import contextlib
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retinue.errors import BadDefinition
from retinue.storage import fast_yaml_reader, strict_yaml, yaml_writer
from retinue.storage.strict_yaml import ParseError

WORDS = st.one_of(
    st.sampled_from(
        [
            "read", "no", "1.10", "012", "0.3", "12", "-3", "1e-07", "true", "False", "~", "null", "2026-11-15", "a b",
            "x: y", "a #b", "a#b", "a:b", "[a, b]", "[]", "[ 'x', \"y z\", 1 ]", "{a: b}", '"q"', "'q'", '"a\\nb"',
            '"a\\x41"', "'it''s'", "*", "&a", "!t", "|", ">", "- x", "-", "a,", "a]", "é", "日本", "0x10", "0o7", "1_000",
            "a*", "**/.git/**", '"**/.git/**"', ".5", "+1", "a'b", 'a"b', "<<", "=", "a\tb", "a\\nb", "x:", "[a, [b]]",
            "-0", "0.0", "9999999999999999999999", "?", "? a", "%x", "@x", "`x", "[a b c]", "[a,b]", "[ ]", "[a,]",
        ]
    ),
    st.text(alphabet="ab 01:#-[]{},'\"\\*&!|>%@~.\t é", max_size=12),
)  # fmt: skip
KEYS = st.sampled_from(["a", "b", "name", "tools", "x-y", "_z", "paths", "null", "no"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    indent = " " * draw(st.sampled_from([0, 0, 0, 2, 2, 4, 1]))
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return draw(st.sampled_from(["", "   ", "# note", "  # note", "---", "..."]))
    if kind == 1:
        return f"{indent}- {draw(WORDS)}"
    if kind == 2:
        return f"{indent}{draw(KEYS)}:" + " " * draw(st.integers(0, 2))
    return f"{indent}{draw(KEYS)}: {draw(WORDS)}"


@settings(max_examples=700, deadline=None)
@given(st.lists(lines(), max_size=9).map("\n".join))
@example("a:\n  - x\n  - y\nb:\n- z\nc: [p, 'q r', 1]")
@example('paths:\n  read:\n    - "/a/**"\n  deny: []\n')
@example("a: b\n  c")
@example("a: ''\nb: \"\"")
def test_the_fast_reader_agrees_with_the_library_or_returns_none(text: str):
    fast_result = fast_yaml_reader.read_plain_yaml(text)
    if fast_result is None:
        return
    document = strict_yaml.parse_full_yaml(text)
    assert repr(fast_result[0]) == repr(document.value)
    assert fast_result[1] == dict(document.lines)


def test_the_fast_reader_reads_a_typical_definition():
    text = (
        "name: researcher\n"
        "description: Finds things; says where (path:line), quickly.\n"
        "# a comment\n"
        "tools: [read, grep, 'web_fetch']\n"
        "temperature: 0.3\n"
        'paths:\n  read:\n    - "/a/**"\n  write: []\n'
        "roles:\n- primary\n- subtask\n"
    )
    assert fast_yaml_reader.read_plain_yaml(text) is not None


def test_reading_a_typical_definition_does_not_import_ruamel():
    """Importing the library would take a fifth of the time to the first reply."""
    code = (
        "import sys; from retinue.agents.definition_file import parse_preset; "
        "parse_preset('---\\nname: a\\ntools: [read]\\n---\\nhello\\n', 'a.md'); "
        "import retinue.config.load; "
        "sys.exit(any(name.split('.')[0] == 'ruamel' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: &x 1\nb: *x", 1, "anchors and aliases"),
        ("a: 1\nb: *x", 2, "anchors and aliases"),
        ("base: &b {x: 1}\nc:\n  <<: *b", 1, "anchors and aliases"),
        ("a:\n  <<: {b: 1}", 2, "merge keys"),
        ("a: !!python/object:os.system {}", 1, "tags"),
        ("a: !x 1", 1, "tags"),
        ('a: ! "x"', 1, "tags"),
        ("tools: [read]\nname: x\ntools: ['*']", 3, "'tools' occurs twice, first on line 1"),
        ("x:\n  - a: 1\n    a: 2", 3, "'a' occurs twice"),
        ("a: 1\n---\nb: 2", 2, "more than one document"),
        ("%YAML 1.1\n---\na: 1", 2, "directives"),
        ("? [a, b]\n: c", 1, "a key must be text"),
        ("a: 'x", 1, ""),
        ("a: b: c", 1, "mapping values are not allowed"),
        ("\ta: b", 1, ""),
        ("a: \x00", 1, "special characters"),
        ('a: "\\UFFFFFFFF"', 1, ""),
    ],
)
def test_unsupported_yaml_is_refused_with_its_line(text: str, line: int, message: str):
    """Shows: D01, D03, D04."""
    with pytest.raises(BadDefinition) as error_info:
        strict_yaml.load_yaml(text, "x.md")
    assert error_info.value.location == f"x.md:{line}"
    assert message in error_info.value.problem


@pytest.mark.parametrize(
    "text",
    ["[" * 60_000, "{a: " * 15_000, "- " * 30_000, "".join(f"{' ' * n}a:\n" for n in range(340)), "[" * 33],
    ids=["brackets", "braces", "dashes", "indents", "just too deep"],
)
def test_too_deep_nesting_is_refused_before_parsing(text: str):
    """Shows: D02."""
    with pytest.raises(BadDefinition, match="nested deeper than 32 levels"):
        strict_yaml.load_yaml(text, "x.md")


def test_thirty_two_levels_of_nesting_are_accepted():
    value = strict_yaml.load_yaml("[" * 32 + "]" * 32, "x.md")
    for _ in range(31):
        value = value[0]
    assert value == []


def test_an_alias_bomb_is_refused_at_its_first_anchor():
    """Shows: D01."""
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
    )
    with pytest.raises(BadDefinition, match=r"x\.md:1: anchors"):
        strict_yaml.load_yaml(bomb, "x.md")


def test_too_much_text_and_too_many_values_are_refused():
    """Shows: D06."""
    with pytest.raises(BadDefinition, match="larger than 64 KiB"):
        strict_yaml.load_yaml("a: " + "é" * 40_000, "x.md")
    with pytest.raises(BadDefinition, match="more than 10000 values"):
        strict_yaml.load_yaml("[" + "1," * 10_001 + "]", "x.md")


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("1.10", "1.10"), ("012", "012"), ("0x1f", "0x1f"), ("1_000", "1_000"),
        ("2026-11-15", "2026-11-15"), ("12:30", "12:30"), (".5", ".5"), (".inf", ".inf"), ("1e5", "1e5"), ("+1", "+1"),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("7", 7), ("-7", -7), ("0.3", 0.3),
        ("'7'", "7"), ('"true"', "true"), ("99999999999999999999", "99999999999999999999"),
    ],
)  # fmt: skip
def test_only_plain_numbers_booleans_and_null_are_converted(scalar: str, expected: object):
    """Shows: D05."""
    document = f"key: {scalar}"
    for value in (
        strict_yaml.load_yaml(document, "x")["key"],
        strict_yaml.parse_full_yaml(document).value["key"],
    ):
        assert (value, type(value)) == (expected, type(expected))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_written_yaml_is_read_back_exactly(value: dict[str, object]):
    assert strict_yaml.parse_yaml(yaml_writer.dump_yaml(value)).value == (value or None)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_parsed_or_raises_a_parse_error(text: str):
    with contextlib.suppress(ParseError):
        strict_yaml.parse_yaml(text)
