"""Exits as rules on values: what counts in a transcript, and who has which."""

from msgspec.structs import replace

from retinue.domain import exit_tools
from retinue.domain.agent import Agent
from retinue.domain.ceiling import Ceiling, OperatorPolicy
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult

RUN = "r1"
TASK = Message(id=RUN, role="user", text="Go.", run=RUN)
WORDS = Message(id="a1", role="agent", text="Done.", run=RUN)
NUDGE = Notice(id="n1", topic="nudge", text="Go on.", run=RUN)
PARKED = Notice(id="p1", topic="parked", text="Wait.", run=RUN)
PERSON = Message(id="u1", role="user", text="Go on.", run=RUN)
TYPED = Message(id="u2", role="user", text="Go on.")
OTHER = Notice(id="n2", topic="nudge", text="Go on.", run="r2")


def call(of: str, tool: str = "ls", args: str = "{}", *, ok: bool = True) -> list[Entry]:
    return [ToolCall(id=of, tool=tool, args=args, run=RUN), ToolResult(call_id=of, text="so", ok=ok, run=RUN)]


def test_nudges_count_in_a_row_and_a_call_or_a_person_begins_anew():
    assert exit_tools.count_nudges(RUN, []) == 0
    assert exit_tools.count_nudges(RUN, [TASK, WORDS, NUDGE, WORDS, NUDGE, WORDS]) == 2
    assert exit_tools.count_nudges(RUN, [TASK, WORDS, NUDGE, OTHER, PARKED, WORDS]) == 1
    assert exit_tools.count_nudges(RUN, [TASK, NUDGE, *call("c1"), WORDS, NUDGE]) == 1
    for said in (PERSON, TYPED):
        assert exit_tools.count_nudges(RUN, [TASK, NUDGE, NUDGE, said, WORDS]) == 0
    by_agent = replace(TYPED, origin="agent:main")
    assert exit_tools.count_nudges(RUN, [TASK, NUDGE, NUDGE, by_agent, WORDS]) == 2


def test_a_run_is_parked_until_anything_comes():
    assert exit_tools.is_waiting_for_person(RUN, [TASK, WORDS, PARKED])
    assert exit_tools.is_waiting_for_person(RUN, [TASK, WORDS, PARKED, OTHER])
    assert not exit_tools.is_waiting_for_person(RUN, [])
    for later in (PERSON, TYPED, NUDGE, WORDS):
        assert not exit_tools.is_waiting_for_person(RUN, [TASK, WORDS, PARKED, later])


def test_turns_count_since_a_person_last_spoke():
    assert exit_tools.count_turns(RUN, [TASK, WORDS, NUDGE, WORDS]) == 2
    assert exit_tools.count_turns(RUN, [TASK, WORDS, PERSON, WORDS]) == 1
    assert exit_tools.count_turns(RUN, [TASK, WORDS, TYPED]) == 0
    assert exit_tools.count_turns(RUN, [TASK, replace(WORDS, run="r2")]) == 0


def test_changes_count_in_a_conversation_those_that_were_taken():
    asked = [
        *call("c1", exit_tools.REQUEST_CHANGES),
        *call("c2", exit_tools.REQUEST_CHANGES, ok=False),
        *call("c3"),
    ]
    assert exit_tools.count_change_requests([TASK, *asked]) == 1
    assert (
        exit_tools.count_change_requests(
            [TASK, *asked, replace(TASK, id="r2", run="r2"), *call("c4", exit_tools.REQUEST_CHANGES)]
        )
        == 2
    )
    assert exit_tools.count_change_requests([TASK, *asked, PERSON]) == 0


def test_the_first_exit_that_was_answered_well_is_the_one():
    wrong = call("c1", "approve", ok=False)
    first, second = call("c2", "approve"), call("c3", "request_changes")
    named = ("approve", "request_changes")
    found = exit_tools.find_exit_call(RUN, named, [TASK, *wrong, *first, *second])
    assert found is not None
    assert found[0].id == "c2"
    assert exit_tools.find_exit_call(RUN, named, [TASK, *wrong, *call("c4")]) is None
    assert exit_tools.find_exit_call("r2", named, [TASK, *first]) is None
    assert (
        exit_tools.find_exit_call(RUN, named, [ToolCall(id="c5", tool="approve", args="{}", run=RUN)]) is None
    )


def test_the_words_of_an_exit_are_what_it_was_called_with():
    def said(tool: str, args: str) -> str:
        return exit_tools.exit_text(
            ToolCall(id="c", tool=tool, args=args), ToolResult(call_id="c", text="brought back")
        )

    assert said("approve", '{"summary": "Good."}') == "Good."
    assert said("approve", "{}") == ""
    assert said("approve", "") == ""
    assert said("approve", "[]") == ""
    assert said("approve", "no JSON") == ""
    assert said("ask_user", '{"question": "Red?", "options": ["a", "b"]}') == "Red?\n- a\n- b"
    assert said("deploy", '{"to": "here"}') == "brought back"


def test_an_exit_is_there_for_those_who_name_it_whatever_their_list_and_those_above_say():
    above = Ceiling(set_by="main", tools=("ls",))
    agent = Agent(name="coder", tool_allow=("ls",), exits=("approve", "ask_user"))
    scope = build_scope(agent, ScopeInputs(root="/w", ceilings=(above,)))
    assert scope.check_tool("approve").ok
    assert scope.check_tool("approve").rule == "an exit of this agent"
    assert not scope.check_tool("request_changes").ok
    assert not scope.check_tool("ask_user").ok  # it does more than end a run, so those above have a say
    alone = build_scope(agent, ScopeInputs(root="/w"))
    assert (alone.check_tool("ask_user").ok, alone.check_tool("read").ok) == (True, False)


def test_nobody_has_an_exit_by_a_list_of_tools():
    for agent in (
        Agent(name="a"),
        Agent(name="a", tool_allow=("*",)),
        Agent(name="a", tool_allow=("approve",)),
    ):
        verdict = build_scope(agent, ScopeInputs(root="/w")).check_tool("approve")
        assert (verdict.ok, verdict.rule) == (False, "only for agents whose exits name it")


def test_a_deny_takes_an_exit_away_the_operators_and_the_definitions_own():
    agent = Agent(name="a", exits=("approve", "ask_user"))
    denied = build_scope(agent, ScopeInputs(root="/w"), OperatorPolicy(deny_tools=("appr*", "ask_*")))
    assert [denied.check_tool(name).ok for name in ("approve", "ask_user")] == [False, False]
    own = build_scope(replace(agent, tool_deny=("approve", "ask_user")), ScopeInputs(root="/w"))
    assert [own.check_tool(name).ok for name in ("approve", "ask_user")] == [False, False]


def test_a_door_that_is_named_as_an_exit_is_named():
    assert Scope(depth=1, exit_tools=("request_review",)).can_delegate("request_review")
    assert not Scope(depth=1, exit_tools=("request_review",)).can_delegate("sessions_spawn")
    assert not Scope(depth=1, exit_tools=("request_review",), is_leaf=True).can_delegate("request_review")


def test_exits_are_part_of_what_a_scope_is():
    assert len({Scope(exit_tools=exit_).hash for exit_ in ((), ("approve",), ("request_changes",))}) == 3
