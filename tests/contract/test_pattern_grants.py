"""A person's yes written into preset.md: one item more in one list, and every other byte as it was."""

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


def wider(text: str, touch: ToolAccess = "read", pattern: str = "/new", *, top: bool = True) -> str:
    return with_granted_pattern(text, touch, pattern, is_top_level=top, location="preset.md", name="x")


def added(before: str, after: str) -> str:
    """What stands in the new text and not in the old; nothing of the old may be missing."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    pieces = [(tag, before[a:b], after[c:d]) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]
    assert {tag for tag, _, _ in pieces} == {"insert"}, pieces
    return "".join(new for _, _, new in pieces)


ITEMS = [
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


@pytest.mark.parametrize(("section", "item"), ITEMS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_one_item_is_put_at_the_end_of_the_list(section: str, item: str, ending: str):
    text = f"---\nname: x   # paths: no\n{section}tools: [read]\n---\nBody\n  - not a list\n".replace(
        "\n", ending
    )
    found = wider(text)
    assert added(text, found).strip() == item.replace("\n", ending).strip()
    assert found.replace(item.replace("\n", ending), "", 1) == text
    before, after = parse_preset(text, "p"), parse_preset(found, "p")
    assert before.paths is not None
    assert after.paths == PathPatterns(
        read=(*(before.paths.read or ()), "/new"), write=before.paths.write, deny=before.paths.deny
    )
    assert wider(found) == found


@pytest.mark.parametrize(
    ("front", "touch", "after"),
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
def test_a_list_that_is_missing_is_added_and_means_what_its_absence_meant(
    front: str, touch: ToolAccess, after: str
):
    assert wider(f"---\n{front}---\nBody\n", touch) == f"---\n{after}---\nBody\n"


def test_a_child_that_lost_its_paths_gains_nothing_but_the_one():
    for touch, paths in (
        ("read", PathPatterns(read=("/new",), write=())),
        ("write", PathPatterns(read=(), write=("/new",))),
    ):
        found = wider("---\nname: x\n---\nBody\n", touch, top=False)  # pyright: ignore[reportArgumentType]  (the two are touches)
        assert parse_preset(found, "p").paths == paths


def test_what_is_there_already_is_not_added_again():
    text = '---\npaths: {read: ["/new"], write: [/new]}\nshell_commands: {allow: ["/new"]}\n---\nBody\n'
    for touch in ("read", "write", "run", "tool", "scope"):
        assert wider(text, touch) == text


@pytest.mark.parametrize(
    "front", ["allowed_paths: [a]\n", "{name: x}\n", "? paths\n: {read: [a]}\n", '"pa\\x74hs": {read: [a]}\n']
)
def test_where_it_cannot_be_said_there_is_an_error_or_the_right_thing(front: str):
    text = f"---\n{front}---\nBody\n"
    with suppress(BadDefinition):
        agent = parse_preset(wider(text), "p")
        assert agent.paths is not None
        assert agent.paths.read in (("a", "/new"), ("./**", "/new"))


WORDS = st.text("abc*/[]{}#:,'\"- \\\t\u00e9\u4e2d!&?|>%@`~", min_size=1, max_size=12)
PATTERNS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
LISTS = st.lists(WORDS, max_size=4)


def quoted(word: str, how: int) -> str:
    plain = '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'
    return plain if how else "'" + word.replace("'", "''").replace("\t", " ") + "'"


@st.composite
def lists(draw: DrawFn, name: str, indent: str) -> str:
    """A list as somebody may write it: in lines or brackets, with comments and blank lines about."""
    words = [quoted(word, draw(st.integers(0, 1))) for word in draw(LISTS)]
    note = draw(st.sampled_from(["", "  # ] why", "   "]))
    if not words or draw(st.booleans()):
        gap = draw(st.sampled_from([", ", ",", f",\n{indent}    ", f",  # ]\n{indent}    "]))
        return f"{indent}{name}: [{gap.join(words)}]{note}\n"
    deep = indent + draw(st.sampled_from(["  ", "", "    "]))
    between = draw(st.sampled_from(["", "\n", f"{deep}# - no\n", "# out\n"]))
    return f"{indent}{name}:{note}\n" + between.join(f"{deep}- {word}{note}\n" for word in words)


@st.composite
def fronts(draw: DrawFn) -> str:
    indent = draw(st.sampled_from(["  ", "    ", " "]))
    pieces = ["name: x\n", draw(st.sampled_from(["", "# paths:\n", "\n", "notes: {paths: {read: [a]}}\n"]))]
    for section, names in (("paths", ("read", "write", "deny")), ("shell_commands", ("allow", "deny"))):
        chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
        if chosen:
            body = "".join(draw(lists(name, indent)) for name in chosen)
            pieces.append(f"{section}:{draw(st.sampled_from(['', ' # mine']))}\n{body}")
    order = draw(
        st.permutations([*pieces, draw(st.sampled_from(["model: m\n", "description: |\n  a\n  - b\n"]))])
    )
    return "".join(order).replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@settings(max_examples=150, deadline=None)
@given(fronts(), st.sampled_from(["read", "write", "run"]), PATTERNS, st.booleans())
def test_only_that_list_grows_by_only_that_item_and_nothing_is_lost(
    front: str, touch: ToolAccess, pattern: str, last: bool
):
    ending = "\r\n" if "\r\n" in front else "\n"
    text = f"---{ending}{front}---{ending}The words.{ending}"
    before = parse_preset(text, "p")
    found = wider(text, touch, pattern)
    after = parse_preset(found, "p")
    assert lists_of(after) == grown(lists_of(before), touch, pattern)
    assert (after.prompt, after.notes, after.model) == (before.prompt, before.notes, before.model)
    if found != text:
        added(text, found)
    assert wider(found, touch, pattern) == found


def lists_of(agent: Agent) -> dict[str, tuple[str, ...] | None]:
    paths, commands = agent.paths or PathPatterns(), agent.shell_commands or ShellCommands()
    return {
        "read": paths.read,
        "write": paths.write,
        "deny": paths.deny,
        "run": commands.allow,
        "no": commands.deny,
    }


def grown(lists: dict[str, tuple[str, ...] | None], touch: str, pattern: str) -> dict[str, Any]:
    old = lists[touch]
    if old is not None and pattern in old:
        return lists
    implied = {"read": ("./**",), "write": ("/tmp/**",), "run": ()}[touch] if old is None else ()
    return {**lists, touch: (*(old or ()), *implied, pattern)}


def test_the_insertion_alone_never_touches_another_byte():
    text = "---\na:\n  b: [1]\nc: ']'\n---\n"
    with pytest.raises(BadDefinition, match=r"no place where x\.y can be added to|front matter"):
        with_list_items("---\n[x]\n---\n", "x", "y", ["z"], "p")
    found = with_list_items(text, "a", "b", ["z"], "p")
    assert strict_yaml.load_yaml(split_front_matter(found)[0], "p")["a"] == {"b": [1, "z"]}
