"""The operator's ceiling over lists of globs: what is common to two lists is never more than either."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from retinue.agents.ceilings import clip_to_ceiling, common_patterns, covers_pattern
from retinue.domain.agent import Agent, PathPatterns
from retinue.domain.glob import first_match

GLOBS = st.lists(st.text(alphabet="ab*?[]!/", min_size=1, max_size=5), max_size=4).map(tuple)
WORDS = st.text(alphabet="ab/", max_size=5)


@settings(max_examples=600, deadline=None)
@given(GLOBS, GLOBS, WORDS)
@example(("a*",), ("a?",), "abb")
@example(("**",), ("*",), "a/b")
@example(("[ab]*",), ("a*",), "bb")
@example(("/**",), ("/***",), "")
def test_what_both_lists_allow_is_allowed_by_each(asked: tuple[str, ...], limit: tuple[str, ...], word: str):
    """Shows: D11."""
    if first_match(common_patterns(asked, limit), word) is not None:
        assert first_match(asked, word) is not None
        assert first_match(limit, word) is not None


@settings(max_examples=300, deadline=None)
@given(GLOBS)
def test_a_list_within_itself_loses_nothing(globs: tuple[str, ...]):
    assert common_patterns(globs, globs) == tuple(dict.fromkeys(globs))


def test_a_wider_pattern_covers_a_narrower_one_and_never_the_other_way():
    assert covers_pattern("*", "todo_*")
    assert covers_pattern("todo_*", "todo_add")
    assert not covers_pattern("todo_*", "*")
    assert not covers_pattern("?", "*")


def test_without_a_ceiling_nothing_changes_and_an_empty_list_takes_everything():
    agent = Agent(name="x", tool_allow=("read", "web_fetch"))
    assert clip_to_ceiling(agent, None) == (agent, ())
    assert clip_to_ceiling(agent, {"tools": None}) == (agent, ())
    nothing, said = clip_to_ceiling(agent, {"tools": ()})
    assert (nothing.tool_allow, said) == (
        (),
        ("tool_allow: read, web_fetch taken away by the operator's ceiling",),
    )


def test_without_the_network_the_tool_that_needs_it_is_denied():
    agent, said = clip_to_ceiling(Agent(name="x", tool_allow=("read", "web_*")), {"network": False})
    assert (agent.tool_deny, said) == (
        ("web_fetch",),
        ("tool_allow: web_fetch taken away by the operator's ceiling",),
    )


def test_paths_that_ask_for_more_are_told_though_they_are_held_elsewhere():
    """Shows: D11."""
    agent = Agent(name="x", paths=PathPatterns(read=("/**", "/w/sub/a"), write=()))
    same, said = clip_to_ceiling(agent, {"paths": {"read": ("/w/sub/**",), "write": ("/tmp/**",)}})
    assert same == agent
    assert said == ("paths.read: /** held to /w/sub/** by the operator's ceiling",)
