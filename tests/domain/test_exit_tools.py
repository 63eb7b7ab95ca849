"""Exit tools: what counts in a transcript, and which agents have which exit tool."""

from msgspec.structs import replace

from retinue.domain import exit_tools
from retinue.domain.agent import Agent
from retinue.domain.ceiling import Ceiling, OperatorPolicy
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult

RUN = "r1"
TASK = Message(id=RUN, role="user", text="Go.", run=RUN)
REPLY = Message(id="a1", role="agent", text="Done.", run=RUN)
NUDGE = Notice(id="n1", topic="nudge", text="Go on.", run=RUN)
WAITING = Notice(id="p1", topic="parked", text="Wait.", run=RUN)
USER_MESSAGE = Message(id="u1", role="user", text="Go on.", run=RUN)
TYPED_MESSAGE = Message(id="u2", role="user", text="Go on.")
OTHER_RUN_NUDGE = Notice(id="n2", topic="nudge", text="Go on.", run="r2")


def make_call(call_id: str, tool: str = "ls", args: str = "{}", *, ok: bool = True) -> list[Entry]:
    return [
        ToolCall(id=call_id, tool=tool, args=args, run=RUN),
        ToolResult(call_id=call_id, text="so", ok=ok, run=RUN),
    ]


def test_nudges_are_counted_in_a_row_and_a_tool_call_or_user_message_resets_the_count():
    assert exit_tools.count_nudges(RUN, []) == 0
    assert exit_tools.count_nudges(RUN, [TASK, REPLY, NUDGE, REPLY, NUDGE, REPLY]) == 2
    assert exit_tools.count_nudges(RUN, [TASK, REPLY, NUDGE, OTHER_RUN_NUDGE, WAITING, REPLY]) == 1
    assert exit_tools.count_nudges(RUN, [TASK, NUDGE, *make_call("c1"), REPLY, NUDGE]) == 1
    for message in (USER_MESSAGE, TYPED_MESSAGE):
        assert exit_tools.count_nudges(RUN, [TASK, NUDGE, NUDGE, message, REPLY]) == 0
    agent_message = replace(TYPED_MESSAGE, origin="agent:main")
    assert exit_tools.count_nudges(RUN, [TASK, NUDGE, NUDGE, agent_message, REPLY]) == 2


def test_a_run_waits_for_the_user_until_a_message_reply_or_nudge_follows():
    assert exit_tools.is_waiting_for_person(RUN, [TASK, REPLY, WAITING])
    assert exit_tools.is_waiting_for_person(RUN, [TASK, REPLY, WAITING, OTHER_RUN_NUDGE])
    assert not exit_tools.is_waiting_for_person(RUN, [])
    for later in (USER_MESSAGE, TYPED_MESSAGE, NUDGE, REPLY):
        assert not exit_tools.is_waiting_for_person(RUN, [TASK, REPLY, WAITING, later])


def test_turns_are_counted_since_the_last_user_message():
    assert exit_tools.count_turns(RUN, [TASK, REPLY, NUDGE, REPLY]) == 2
    assert exit_tools.count_turns(RUN, [TASK, REPLY, USER_MESSAGE, REPLY]) == 1
    assert exit_tools.count_turns(RUN, [TASK, REPLY, TYPED_MESSAGE]) == 0
    assert exit_tools.count_turns(RUN, [TASK, replace(REPLY, run="r2")]) == 0


def test_successful_change_requests_are_counted_until_a_user_message():
    calls = [
        *make_call("c1", exit_tools.REQUEST_CHANGES),
        *make_call("c2", exit_tools.REQUEST_CHANGES, ok=False),
        *make_call("c3"),
    ]
    assert exit_tools.count_change_requests([TASK, *calls]) == 1
    assert (
        exit_tools.count_change_requests(
            [TASK, *calls, replace(TASK, id="r2", run="r2"), *make_call("c4", exit_tools.REQUEST_CHANGES)]
        )
        == 2
    )
    assert exit_tools.count_change_requests([TASK, *calls, USER_MESSAGE]) == 0


def test_the_first_successful_exit_call_ends_the_run():
    failed = make_call("c1", "approve", ok=False)
    first, second = make_call("c2", "approve"), make_call("c3", "request_changes")
    exit_tool_names = ("approve", "request_changes")
    exit_call = exit_tools.find_exit_call(RUN, exit_tool_names, [TASK, *failed, *first, *second])
    assert exit_call is not None
    assert exit_call[0].id == "c2"
    assert exit_tools.find_exit_call(RUN, exit_tool_names, [TASK, *failed, *make_call("c4")]) is None
    assert exit_tools.find_exit_call("r2", exit_tool_names, [TASK, *first]) is None
    assert (
        exit_tools.find_exit_call(
            RUN, exit_tool_names, [ToolCall(id="c5", tool="approve", args="{}", run=RUN)]
        )
        is None
    )


def test_the_text_of_an_exit_comes_from_its_arguments():
    def text_of(tool: str, args: str) -> str:
        return exit_tools.exit_text(
            ToolCall(id="c", tool=tool, args=args), ToolResult(call_id="c", text="brought back")
        )

    assert text_of("approve", '{"summary": "Good."}') == "Good."
    assert text_of("approve", "{}") == ""
    assert text_of("approve", "") == ""
    assert text_of("approve", "[]") == ""
    assert text_of("approve", "no JSON") == ""
    assert text_of("ask_user", '{"question": "Red?", "options": ["a", "b"]}') == "Red?\n- a\n- b"
    assert text_of("deploy", '{"to": "here"}') == "brought back"


def test_an_agent_has_its_named_exits_even_if_tool_lists_and_ceilings_omit_them():
    above = Ceiling(set_by="main", tools=("ls",))
    agent = Agent(name="coder", tool_allow=("ls",), exits=("approve", "ask_user"))
    scope = build_scope(agent, ScopeInputs(root="/w", ceilings=(above,)))
    assert scope.check_tool("approve").ok
    assert scope.check_tool("approve").rule == "an exit tool of this agent"
    assert not scope.check_tool("request_changes").ok
    assert not scope.check_tool("ask_user").ok  # ask_user does more than end a run, so the ceiling applies
    alone = build_scope(agent, ScopeInputs(root="/w"))
    assert (alone.check_tool("ask_user").ok, alone.check_tool("read").ok) == (True, False)


def test_a_tool_list_does_not_give_an_agent_an_exit():
    for agent in (
        Agent(name="a"),
        Agent(name="a", tool_allow=("*",)),
        Agent(name="a", tool_allow=("approve",)),
    ):
        verdict = build_scope(agent, ScopeInputs(root="/w")).check_tool("approve")
        assert (verdict.ok, verdict.rule) == (False, "only for agents whose definition lists it in exits")


def test_a_deny_list_of_the_operator_or_the_definition_removes_an_exit():
    agent = Agent(name="a", exits=("approve", "ask_user"))
    denied = build_scope(agent, ScopeInputs(root="/w"), OperatorPolicy(deny_tools=("appr*", "ask_*")))
    assert [denied.check_tool(name).ok for name in ("approve", "ask_user")] == [False, False]
    denied_by_definition = build_scope(
        replace(agent, tool_deny=("approve", "ask_user")), ScopeInputs(root="/w")
    )
    assert [denied_by_definition.check_tool(name).ok for name in ("approve", "ask_user")] == [False, False]


def test_a_delegation_tool_named_as_an_exit_may_delegate_below_the_top_level():
    assert Scope(depth=1, exit_tools=("request_review",)).can_delegate("request_review")
    assert not Scope(depth=1, exit_tools=("request_review",)).can_delegate("sessions_spawn")
    assert not Scope(depth=1, exit_tools=("request_review",), is_leaf=True).can_delegate("request_review")


def test_the_scope_hash_includes_the_exit_tools():
    assert len({Scope(exit_tools=exit_).hash for exit_ in ((), ("approve",), ("request_changes",))}) == 3
