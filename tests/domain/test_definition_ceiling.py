"""The operator's ceiling on lists of patterns: the intersection of two lists allows no more than either list."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from retinue.agents.operator_ceiling import apply_operator_ceiling, common_patterns, covers_pattern
from retinue.domain.agent import Agent, PathPatterns
from retinue.domain.glob import first_match

PATTERNS = st.lists(st.text(alphabet="ab*?[]!/", min_size=1, max_size=5), max_size=4).map(tuple)
WORDS = st.text(alphabet="ab/", max_size=5)


@settings(max_examples=600, deadline=None)
@given(PATTERNS, PATTERNS, WORDS)
@example(("a*",), ("a?",), "abb")
@example(("**",), ("*",), "a/b")
@example(("[ab]*",), ("a*",), "bb")
@example(("/**",), ("/***",), "")
def test_the_common_patterns_of_two_lists_allow_only_what_each_list_allows(
    requested: tuple[str, ...], limit: tuple[str, ...], word: str
):
    """Shows: D11."""
    if first_match(common_patterns(requested, limit), word) is not None:
        assert first_match(requested, word) is not None
        assert first_match(limit, word) is not None


@settings(max_examples=300, deadline=None)
@given(PATTERNS)
def test_the_common_patterns_of_a_list_with_itself_are_the_list(patterns: tuple[str, ...]):
    assert common_patterns(patterns, patterns) == tuple(dict.fromkeys(patterns))


def test_a_wider_pattern_covers_a_narrower_pattern_but_not_the_reverse():
    assert covers_pattern("*", "todo_*")
    assert covers_pattern("todo_*", "todo_add")
    assert not covers_pattern("todo_*", "*")
    assert not covers_pattern("?", "*")


def test_without_a_ceiling_nothing_changes_and_an_empty_ceiling_list_removes_every_tool():
    agent = Agent(name="x", tool_allow=("read", "web_fetch"))
    assert apply_operator_ceiling(agent, None) == (agent, ())
    assert apply_operator_ceiling(agent, {"tools": None}) == (agent, ())
    clipped, messages = apply_operator_ceiling(agent, {"tools": ()})
    assert (clipped.tool_allow, messages) == (
        (),
        ("tool_allow: read, web_fetch removed by the operator's ceiling",),
    )


def test_a_ceiling_without_network_denies_web_fetch():
    agent, messages = apply_operator_ceiling(
        Agent(name="x", tool_allow=("read", "web_*")), {"network": False}
    )
    assert (agent.tool_deny, messages) == (
        ("web_fetch",),
        ("tool_allow: web_fetch removed by the operator's ceiling",),
    )


def test_paths_beyond_the_ceiling_are_reported_and_left_in_the_definition():
    """Shows: D11."""
    agent = Agent(name="x", paths=PathPatterns(read=("/**", "/w/sub/a"), write=()))
    clipped, messages = apply_operator_ceiling(
        agent, {"paths": {"read": ("/w/sub/**",), "write": ("/tmp/**",)}}
    )
    assert clipped == agent
    assert messages == ("paths.read: /** restricted to /w/sub/** by the operator's ceiling",)
