"""Granted patterns written into preset.md: one more list item, and every other byte unchanged."""

import difflib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from retinue.agents.definition_file import parse_preset
from retinue.agents.frontmatter import split_front_matter
from retinue.agents.frontmatter_edit import with_list_items
from retinue.agents.pattern_grants import with_granted_pattern
from retinue.domain.agent import Agent, PathPatterns, ShellCommands
from retinue.domain.approval import ToolAccess
from retinue.errors import BadDefinition
from retinue.storage import strict_yaml


def grant_pattern(text: str, access: ToolAccess = "read", pattern: str = "/new", *, top: bool = True) -> str:
    return with_granted_pattern(text, access, pattern, is_top_level=top, location="preset.md", name="x")


def find_insertions(before: str, after: str) -> str:
    """Return the inserted text. Fail if anything was deleted or replaced."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    pieces = [(tag, before[a:b], after[c:d]) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]
    assert {tag for tag, _, _ in pieces} == {"insert"}, pieces
    return "".join(new for _, _, new in pieces)


INSERTED_ITEMS = [
    ("paths:\n  read:\n    - a  # why\n  # after\n  deny: []\n", '    - "/new"\n'),
    ("paths:\n  read:\n  - a\n  - b\n  write: [c]\n", '  - "/new"\n'),
    ("paths:\n   read:\n\n      # first\n      - a\n\n# next\nmodel: m\n", '      - "/new"\n'),
    ("paths:\n  read:\n    - >-\n      long\n      name\n  deny: [x]\n", '    - "/new"\n'),
    ("paths:\n  read: [a, 'b]']  # mine\n", ', "/new"'),
    ("paths:\n  read: []\n", '"/new"'),
    ("paths:\n  read: [a,  # one\n    b]  # two\n  deny: []\n", ', "/new"'),
    ("paths: {deny: [x], read: [a]}\n", ', "/new"'),
    ("paths: {read: [a,]}\n", '"/new"'),
]


@pytest.mark.parametrize(("section", "item"), INSERTED_ITEMS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_granted_pattern_is_appended_to_the_list(section: str, item: str, ending: str):
    text = f"---\nname: x   # paths: no\n{section}tools: [read]\n---\nBody\n  - not a list\n".replace(
        "\n", ending
    )
    result = grant_pattern(text)
    assert find_insertions(text, result).strip() == item.replace("\n", ending).strip()
    assert result.replace(item.replace("\n", ending), "", 1) == text
    before, after = parse_preset(text, "p"), parse_preset(result, "p")
    assert before.paths is not None
    assert after.paths == PathPatterns(
        read=(*(before.paths.read or ()), "/new"), write=before.paths.write, deny=before.paths.deny
    )
    assert grant_pattern(result) == result


@pytest.mark.parametrize(
    ("front", "access", "after"),
    [
        ("name: x\n", "read", 'name: x\npaths:\n  read:\n    - "./**"\n    - "/new"\n'),
        ("name: x\n", "write", 'name: x\npaths:\n  write:\n    - "/tmp/**"\n    - "/new"\n'),
        ("name: x\n", "run", 'name: x\nshell_commands:\n  allow:\n    - "/new"\n'),
        ("", "run", 'shell_commands:\n  allow:\n    - "/new"\n'),
        ("# only this\n", "run", '# only this\nshell_commands:\n  allow:\n    - "/new"\n'),
        (
            "paths:\n    deny:  # never\n    - a\n# end\n",
            "read",
            'paths:\n    deny:  # never\n    - a\n    read:\n      - "./**"\n      - "/new"\n# end\n',
        ),
        ("paths: {deny: [a]}\n", "read", 'paths: {deny: [a], read: ["./**", "/new"]}\n'),
        ("paths: {}\n", "read", 'paths: {read: ["./**", "/new"]}\n'),
        ("paths:\n", "read", 'paths:\n  read:\n    - "./**"\n    - "/new"\n'),
        (
            "paths:\n  read:\n  deny: []\n",
            "read",
            'paths:\n  read:\n    - "./**"\n    - "/new"\n  deny: []\n',
        ),
        ("paths:\n  read: ~  # all\n", "read", 'paths:\n  read: ["./**", "/new"]  # all\n'),
        ("paths: null\n", "read", 'paths: {read: ["./**", "/new"]}\n'),
        ("shellCommands: {allow: [ls]}\n", "run", 'shellCommands: {allow: [ls, "/new"]}\n'),
        ("shell_commands:\n  deny: [rm]\n", "run", 'shell_commands:\n  deny: [rm]\n  allow:\n    - "/new"\n'),
    ],
)
def test_a_missing_list_is_added_with_its_default_patterns(front: str, access: ToolAccess, after: str):
    assert grant_pattern(f"---\n{front}---\nBody\n", access) == f"---\n{after}---\nBody\n"


def test_a_child_without_paths_gains_only_the_granted_pattern():
    for access, paths in (
        ("read", PathPatterns(read=("/new",), write=())),
        ("write", PathPatterns(read=(), write=("/new",))),
    ):
        result = grant_pattern("---\nname: x\n---\nBody\n", access, top=False)  # pyright: ignore[reportArgumentType]  (both are of type ToolAccess)
        assert parse_preset(result, "p").paths == paths


def test_an_existing_pattern_is_not_added_again():
    text = '---\npaths: {read: ["/new"], write: [/new]}\nshell_commands: {allow: ["/new"]}\n---\nBody\n'
    for access in ("read", "write", "run", "tool", "scope"):
        assert grant_pattern(text, access) == text


@pytest.mark.parametrize(
    "front", ["allowed_paths: [a]\n", "{name: x}\n", "? paths\n: {read: [a]}\n", '"pa\\x74hs": {read: [a]}\n']
)
def test_unusual_front_matter_is_edited_correctly_or_refused(front: str):
    text = f"---\n{front}---\nBody\n"
    with suppress(BadDefinition):
        agent = parse_preset(grant_pattern(text), "p")
        assert agent.paths is not None
        assert agent.paths.read in (("a", "/new"), ("./**", "/new"))


LIST_ITEMS = st.text("abc*/[]{}#:,'\"- \\\t\u00e9\u4e2d!&?|>%@`~", min_size=1, max_size=12)
PATTERNS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
ITEM_LISTS = st.lists(LIST_ITEMS, max_size=4)


def quote(item: str, *, double: bool) -> str:
    double_quoted = '"' + item.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'
    return double_quoted if double else "'" + item.replace("'", "''").replace("\t", " ") + "'"


@st.composite
def draw_list(draw: DrawFn, name: str, indent: str) -> str:
    """Draw a YAML list in lines or brackets, with comments and blank lines."""
    items = [quote(item, double=draw(st.booleans())) for item in draw(ITEM_LISTS)]
    comment = draw(st.sampled_from(["", "  # ] why", "   "]))
    if not items or draw(st.booleans()):
        gap = draw(st.sampled_from([", ", ",", f",\n{indent}    ", f",  # ]\n{indent}    "]))
        return f"{indent}{name}: [{gap.join(items)}]{comment}\n"
    item_indent = indent + draw(st.sampled_from(["  ", "", "    "]))
    separator = draw(st.sampled_from(["", "\n", f"{item_indent}# - no\n", "# out\n"]))
    return f"{indent}{name}:{comment}\n" + separator.join(
        f"{item_indent}- {item}{comment}\n" for item in items
    )


@st.composite
def draw_front_matter(draw: DrawFn) -> str:
    indent = draw(st.sampled_from(["  ", "    ", " "]))
    pieces = ["name: x\n", draw(st.sampled_from(["", "# paths:\n", "\n", "notes: {paths: {read: [a]}}\n"]))]
    for section, names in (("paths", ("read", "write", "deny")), ("shell_commands", ("allow", "deny"))):
        chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
        if chosen:
            body = "".join(draw(draw_list(name, indent)) for name in chosen)
            pieces.append(f"{section}:{draw(st.sampled_from(['', ' # mine']))}\n{body}")
    order = draw(
        st.permutations([*pieces, draw(st.sampled_from(["model: m\n", "description: |\n  a\n  - b\n"]))])
    )
    return "".join(order).replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@settings(max_examples=150, deadline=None)
@given(draw_front_matter(), st.sampled_from(["read", "write", "run"]), PATTERNS)
def test_only_the_granted_list_gains_only_the_granted_pattern(front: str, access: ToolAccess, pattern: str):
    ending = "\r\n" if "\r\n" in front else "\n"
    text = f"---{ending}{front}---{ending}The words.{ending}"
    before = parse_preset(text, "p")
    result = grant_pattern(text, access, pattern)
    after = parse_preset(result, "p")
    assert permission_lists(after) == with_pattern(permission_lists(before), access, pattern)
    assert (after.prompt, after.notes, after.model) == (before.prompt, before.notes, before.model)
    if result != text:
        find_insertions(text, result)
    assert grant_pattern(result, access, pattern) == result


def permission_lists(agent: Agent) -> dict[str, tuple[str, ...] | None]:
    paths, commands = agent.paths or PathPatterns(), agent.shell_commands or ShellCommands()
    return {
        "read": paths.read,
        "write": paths.write,
        "deny": paths.deny,
        "run": commands.allow,
        "no": commands.deny,
    }


def with_pattern(lists: dict[str, tuple[str, ...] | None], access: str, pattern: str) -> dict[str, Any]:
    old = lists[access]
    if old is not None and pattern in old:
        return lists
    implied = {"read": ("./**",), "write": ("/tmp/**",), "run": ()}[access] if old is None else ()
    return {**lists, access: (*(old or ()), *implied, pattern)}


def test_list_items_are_inserted_or_refused():
    text = "---\na:\n  b: [1]\nc: ']'\n---\n"
    with pytest.raises(BadDefinition, match=r"that x\.y cannot be added to|front matter"):
        with_list_items("---\n[x]\n---\n", "x", "y", ["z"], "p")
    result = with_list_items(text, "a", "b", ["z"], "p")
    assert strict_yaml.load_yaml(split_front_matter(result)[0], "p")["a"] == {"b": [1, "z"]}
