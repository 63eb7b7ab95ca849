"""A question: which call of a run asks it, and what the words of an answer say."""

import pytest

from retinue.domain.question import Question, open_question, resolve_answer
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.testing.ledgers import make_run

RUN = make_run("r1", session_id="S", agent="general")
WORDS = Message(id="a1", role="agent", text="I ask.", run="r1")


def call(
    of: str, args: str = '{"question": "Which?"}', *, tool: str = "ask_user", run: str = "r1"
) -> ToolCall:
    return ToolCall(id=of, tool=tool, args=args, run=run)


def question(*entries: Entry) -> Question | None:
    return open_question(RUN, entries)


def test_the_first_open_call_since_the_model_spoke_is_the_question():
    found = question(WORDS, call("c1"), call("c2", '{"question": "How?", "options": ["so", "so not"]}'))
    assert found is not None
    assert (found.tool_call.id, found.text, found.options, found.text_with_options()) == (
        "c1",
        "Which?",
        (),
        "Which?",
    )
    found = question(
        WORDS,
        call("c1"),
        call("c2", '{"question": "How?", "options": ["so", "so not"]}'),
        ToolResult(call_id="c1", text="x"),
    )
    assert found is not None
    assert (found.tool_call.id, found.text_with_options()) == ("c2", "How? (so / so not)")


def test_what_was_answered_or_asked_by_others_or_long_ago_is_none():
    assert question() is None
    assert question(WORDS, call("c1", tool="ls"), call("c2", run="r2")) is None
    assert question(WORDS, call("c1"), ToolResult(call_id="c1", text="x")) is None
    assert question(WORDS, call("c1"), Message(id="a2", role="agent", text="Never mind.", run="r1")) is None


@pytest.mark.parametrize("args", ["{", "[]", '"x"', "{}", '{"question": "Which?", "options": 3}'])
def test_a_call_that_a_person_broke_is_shown_as_it_stands(args: str):
    found = question(WORDS, call("c1", args))
    assert found is not None
    assert (found.text, found.options) == (args, ())


def test_a_number_picks_its_option_and_other_words_stand_for_themselves():
    assert [resolve_answer(words, ["red", "blue"]) for words in ("1", "2", "3", "0", "green", "²")] == [
        "red",
        "blue",
        "3",
        "0",
        "green",
        "²",
    ]
