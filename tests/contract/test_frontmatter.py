"""Front matter as text: where it ends, and edits that change no other byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.agents.definition_file import parse_preset
from retinue.agents.frontmatter import split_front_matter, with_paths, with_prompt
from retinue.domain.agent import PathPatterns
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, DEFAULT_WRITABLE_PATHS
from retinue.errors import BadDefinition
from retinue.storage import strict_yaml

SEED_PATHS = PathPatterns(
    read=("/path/to/project/**",), write=DEFAULT_WRITABLE_PATHS, deny=DEFAULT_DENIED_PATHS
)
SEED_SECTION = """\
paths:
  read:
    - "/path/to/project/**"
  write:
    - "/tmp/**"
  deny:
    - "**/.git/**"
    - "**/runtime/**"
    - "**/.env"
    - "**/node_modules/**"
"""


def test_a_missing_paths_section_is_added_at_the_end_in_the_format_of_the_seed():
    """Shows: A026."""
    text = "---\nbackend: Claude   # mine\n\nmodel:  claude-3-7-sonnet-20250219\n---\n\nBody ---\n---\nrest\n"
    result = with_paths(text, SEED_PATHS)
    assert result == text.replace("20250219\n---", f"20250219\n{SEED_SECTION}---")
    assert parse_preset(result, "preset.md").paths == SEED_PATHS


@pytest.mark.parametrize(
    "old_section",
    [
        "paths:\n  read:\n    - a\n",
        "paths:\n  read:\n\n    # why\n    - a\n  deny: []\n",
        "paths: {read: [a]}\n",
        "paths: null\n",
        "paths:\n",
        '"paths":\n    read:\n    - a\n',
        "paths:   # mine\n  read: [a,\n    b]\n",
    ],
)
def test_an_existing_paths_section_is_replaced_and_the_rest_is_unchanged(old_section: str):
    """Shows: A026."""
    before, after = "name: x   # paths: no\ntools: [read]\n", "\n# about the model\nmodel: m\n"
    result = with_paths(f"---\n{before}{old_section}{after}---\nBody\n", SEED_PATHS)
    assert result == f"---\n{before}{SEED_SECTION}{after}---\nBody\n"
    assert parse_preset(result, "preset.md").paths == SEED_PATHS


def test_replacing_the_last_section_keeps_windows_line_endings():
    result = with_paths("---\r\nname: x\r\npaths:\r\n  read: [a]\r\n---\r\nBody\r\n", SEED_PATHS)
    assert result == f"---\nname: x\n{SEED_SECTION}---\nBody\n".replace("\n", "\r\n")


def test_a_missing_list_is_omitted_and_an_empty_list_is_written():
    paths = PathPatterns(read=(), deny=('a "quoted" \\ pattern', "new\nline"))
    assert parse_preset(with_paths("---\n---\n", paths), "x").paths == paths
    assert parse_preset(with_paths("---\nname: x\n---\n", PathPatterns()), "x").paths == PathPatterns()


PATTERNS = st.none() | st.lists(st.text(st.characters(exclude_characters="\x00"), min_size=1, max_size=12), max_size=3).map(tuple)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.builds(PathPatterns, read=PATTERNS, write=PATTERNS, deny=PATTERNS),
    st.builds(PathPatterns, read=PATTERNS),
)
def test_any_patterns_are_read_back_and_a_second_write_replaces_the_first(
    first: PathPatterns, second: PathPatterns
):
    text = "---\nname: x\ntools: [read]\n---\n\npaths:\n  not these\n"
    result = with_paths(text, first)
    assert parse_preset(result, "x").paths == first
    assert with_paths(result, second) == with_paths(text, second)


@pytest.mark.parametrize(
    "front",
    [
        "{name: x}",
        'description: "words\npaths:\n  go on"',
        "description: 'a\npaths: b'\nname: x",
        "- a",
        "words",
    ],
)
def test_paths_are_not_written_into_front_matter_that_cannot_hold_them(front: str):
    with pytest.raises(BadDefinition):
        with_paths(f"---\n{front}\n---\nBody\n", SEED_PATHS)


@pytest.mark.parametrize("text", ["", "-", "--", "---", "---\n", "---\nname: x\n", "---\nname: x\n--", "name: x\n", " ---\na: b\n---\n"])  # fmt: skip
def test_incomplete_front_matter_is_an_error(text: str):
    """Shows: P13."""
    with pytest.raises(BadDefinition):
        split_front_matter(text, "preset.md")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("---\na: b\n---\nbody", ("a: b\n", "body")),
        ("\ufeff---\r\na: b\r\n---\r\nbody\r\n", ("a: b\r\n", "body\r\n")),
        ("---  \na: |\n  ---\n---\t\n---\n", ("a: |\n  ---\n", "---\n")),
        ("---\n---\n", ("", "")),
        ("---\na: b\n---", ("a: b\n", "")),
    ],
)
def test_front_matter_ends_at_the_first_line_of_dashes(text: str, parts: tuple[str, str]):
    assert split_front_matter(text, "x") == parts


@pytest.mark.parametrize(
    "front",
    [
        "name: a\nsystem_prompt: Old words.\nmodel: x\n",
        "name: a\nprompt: |\n  Old words.\n\n  More of them.\nmodel: x\n",
        "name: a\n'systemPrompt': >-\n  Old\n  words.\nmodel: x\n",
        "name: a\r\ninstructions: Old words.\r\nmodel: x\r\n",
        "name: a\nmodel: x\n",
    ],
)
def test_a_new_prompt_replaces_the_prompt_in_front_matter_or_body(front: str):
    """Shows: B014, E008."""
    result = with_prompt(f"---\n{front}---\n", "New words.")
    fields, body = split_front_matter(result)
    assert (body, "Old" in result, "More" in result) == ("New words.\n", False, False)
    assert strict_yaml.load_yaml(fields.replace("\r\n", "\n"), "x") == {"name": "a", "model": "x"}
