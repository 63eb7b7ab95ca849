"""Questions to the user: which tool call of a run asks one, and how an answer is resolved."""

import pytest

from retinue.domain.question import Question, open_question, resolve_answer
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.testing.ledgers import make_run

RUN = make_run("r1", session_id="S", agent="general")
REPLY = Message(id="a1", role="agent", text="I ask.", run="r1")


def make_call(
    call_id: str, args: str = '{"question": "Which?"}', *, tool: str = "ask_user", run: str = "r1"
) -> ToolCall:
    return ToolCall(id=call_id, tool=tool, args=args, run=run)


def find_question(*entries: Entry) -> Question | None:
    return open_question(RUN, entries)


def test_the_first_unanswered_call_of_the_last_reply_is_the_question():
    question = find_question(
        REPLY, make_call("c1"), make_call("c2", '{"question": "How?", "options": ["so", "so not"]}')
    )
    assert question is not None
    assert (question.tool_call.id, question.text, question.options, question.text_with_options()) == (
        "c1",
        "Which?",
        (),
        "Which?",
    )
    question = find_question(
        REPLY,
        make_call("c1"),
        make_call("c2", '{"question": "How?", "options": ["so", "so not"]}'),
        ToolResult(call_id="c1", text="x"),
    )
    assert question is not None
    assert (question.tool_call.id, question.text_with_options()) == ("c2", "How? (so / so not)")


def test_answered_calls_and_calls_of_other_tools_runs_or_earlier_replies_are_no_question():
    assert find_question() is None
    assert find_question(REPLY, make_call("c1", tool="ls"), make_call("c2", run="r2")) is None
    assert find_question(REPLY, make_call("c1"), ToolResult(call_id="c1", text="x")) is None
    assert (
        find_question(REPLY, make_call("c1"), Message(id="a2", role="agent", text="Never mind.", run="r1"))
        is None
    )


@pytest.mark.parametrize("args", ["{", "[]", '"x"', "{}", '{"question": "Which?", "options": 3}'])
def test_a_question_with_invalid_arguments_is_shown_as_raw_text(args: str):
    question = find_question(REPLY, make_call("c1", args))
    assert question is not None
    assert (question.text, question.options) == (args, ())


def test_an_option_number_selects_its_option_and_any_other_text_is_the_answer():
    assert [resolve_answer(answer, ["red", "blue"]) for answer in ("1", "2", "3", "0", "green", "²")] == [
        "red",
        "blue",
        "3",
        "0",
        "green",
        "²",
    ]
