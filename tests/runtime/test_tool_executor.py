"""The tool executor: only offered tools run, and every call gets a result."""

import asyncio
import json
import sys
from collections.abc import Sequence

import pytest
from runtime_fixture import RuntimeFixture

from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_BAD_REPLIES, MAX_TOOL_RESULT_CHARS, Limits
from retinue.domain.model_turn import ModelReply
from retinue.domain.run import Reason, Status
from retinue.errors import OutOfScope
from retinue.interfaces import Call, Tool
from retinue.runtime.tool_executor import truncate_tool_result
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

executed: list[str] = []


@pytest.fixture(autouse=True)
def clear_executed() -> None:
    executed.clear()


def make_recording_tool(name: str, *capabilities: str) -> Tool:
    """Make a tool that records its execution."""

    @tool(name=name, capabilities=capabilities)
    def mark() -> str:
        """Records its execution."""
        executed.append(name)
        return f"{name} ran"

    return mark


TOOLS = [
    make_recording_tool("lists_read", "lists.read"),
    make_recording_tool("lists_both", "lists.read", "lists.write"),
    make_recording_tool("todo_add"),
    make_recording_tool("reading_list_add"),
    make_recording_tool("reading_list_delete"),
]

DEFINITIONS = {
    "nothing-set": (
        "",
        {"lists_read", "lists_both", "todo_add", "reading_list_add", "reading_list_delete"},
    ),
    "null-is-missing": (
        "tool_allow: null\n",
        {"lists_read", "lists_both", "todo_add", "reading_list_add", "reading_list_delete"},
    ),
    "empty-is-none": ("tool_allow: []\n", set[str]()),
    "allowed-by-glob": ('tool_allow: ["reading_list_*"]\n', {"reading_list_add", "reading_list_delete"}),
    "denied-after-allowed": (
        'tool_allow: ["reading_list_*"]\ntool_deny: ["*_delete"]\n',
        {"reading_list_add"},
    ),
    "every-capability-allowed": (
        'capability_allow: ["lists.read"]\n',
        {"lists_read", "todo_add", "reading_list_add", "reading_list_delete"},
    ),
    "any-capability-denied": (
        'capability_deny: ["lists.write"]\n',
        {"lists_read", "todo_add", "reading_list_add", "reading_list_delete"},
    ),
}


@pytest.mark.parametrize("case", DEFINITIONS)
async def test_tools_that_a_definition_does_not_allow_are_neither_offered_nor_executed(
    runtime: RuntimeFixture, case: str
):
    """The same rule decides which tools are offered and which calls are executed.

    Shows: C055, C056, C057, C058, C060, C061, C062, T01, T03, T05.
    """
    front, allowed = DEFINITIONS[case]
    runtime.write_agent(case, front=front)
    names = {each.spec.name for each in TOOLS}
    calls = tool_call_reply(*((name, "{}") for name in sorted(names)))
    async with runtime.open(calls, text_reply("Done."), tools=TOOLS) as process:
        run = await process.run("Try everything.", agent=case)
        offered = {each.name for each in process.provider.requests[0].request.tools} & names
        assert offered == allowed
        assert set(executed) == allowed
        refused = [json.loads(each.text) for each in await process.tool_results(run) if not each.ok]
        assert {each["tool"] for each in refused} == names - allowed
        assert all(each["error"] == "tool_not_allowed" and not each["success"] for each in refused)
        if "lists_both" not in allowed:
            assert 'Tool "lists_both" is not allowed for this agent' in str(refused)


async def test_a_definition_cannot_allow_a_tool_that_the_configuration_denies(runtime: RuntimeFixture):
    runtime.write_agent("greedy", front='tool_allow: ["*", "todo_add"]\n')
    calls = tool_call_reply(("todo_add", "{}"), ("lists_read", "{}"))
    deny = ("todo_*",)
    async with runtime.open(
        calls, text_reply("Done."), tools=TOOLS, operator_policy=lambda: OperatorPolicy(deny_tools=deny)
    ) as process:
        run = await process.run("Try.", agent="greedy")
        assert executed == ["lists_read"]
        assert "todo_add" not in {each.name for each in process.provider.requests[0].request.tools}
        refused = next(each for each in await process.tool_results(run) if not each.ok)
        assert "operator deny todo_*" in refused.text


async def test_system_tools_are_always_available_unless_the_configuration_denies_them(
    runtime: RuntimeFixture,
):
    """Shows: C059."""
    plain_tool = make_recording_tool("lists_read")
    system = Tool(
        spec=type(plain_tool.spec)(name="system_note", description="Notes.", schema=plain_tool.spec.schema),
        parse_arguments=plain_tool.parse_arguments,
        function=plain_tool.function,
    )
    runtime.write_agent("narrow", front='tool_allow: ["todo_*"]\ncapability_allow: []\n')
    async with runtime.open(text_reply("a"), text_reply("b"), tools=[system]) as process:
        await process.run("List.", agent="narrow")
        request = process.provider.requests[0].request
        assert [each.name for each in request.tools] == ["system_note"]
        assert "system_note" not in request.system
    async with runtime.open(
        text_reply("a"), tools=[system], operator_policy=lambda: OperatorPolicy(deny_tools=("system_*",))
    ) as process:
        await process.run("List.", agent="narrow")
        assert process.provider.requests[0].request.tools == ()


@pytest.mark.parametrize(
    "name", ["todo_ad", "Todo_add", "todo_add ", "t\u043edo_add", "todo_add\n", "", "TODO_ADD"]
)
async def test_a_misspelled_tool_name_is_an_unknown_tool(runtime: RuntimeFixture, name: str):
    """Shows: M11, M12."""
    async with runtime.open(tool_call_reply((name, "{}")), text_reply("Sorry."), tools=TOOLS) as process:
        run = await process.run("Call it.")
        result = (await process.tool_results(run))[0]
        error = json.loads(result.text)
        assert (executed, result.ok, error["error"], error["tool"]) == ([], False, "unknown_tool", name)
        assert "todo_add" in error["message"]
        assert run.status is Status.DONE


async def test_invalid_arguments_get_an_error_result_and_the_tool_does_not_run(runtime: RuntimeFixture):
    """Shows: M10, M13."""
    bad = ['{"extra": 1}', "[]", "{", '"text"', '{"a": 1, "a": 2}', '{"x": ' + "[" * 500 + "]" * 500 + "}"]
    bad.append(json.dumps({"x": "y" * MAX_ARGUMENT_BYTES}))
    async with runtime.open(
        tool_call_reply(*(("todo_add", args) for args in bad)), text_reply("Sorry."), tools=TOOLS
    ) as process:
        run = await process.run("Call it.")
        results = await process.tool_results(run)
        assert executed == []
        assert [each.ok for each in results] == [False] * len(bad)
        assert all("\n" not in each.text and len(each.text) < 500 for each in results)


async def test_a_run_with_too_many_replies_of_invalid_calls_fails_as_stuck(runtime: RuntimeFixture):
    """Shows: M10, M11."""
    replies = [tool_call_reply((f"no_such_{n}", "{}")) for n in range(MAX_BAD_REPLIES + 1)]
    async with runtime.open(*replies, text_reply("never")) as process:
        run = await process.run("Guess.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
        assert len(await process.tool_results(run)) == MAX_BAD_REPLIES + 1


async def test_many_invalid_calls_in_one_reply_count_as_one_bad_reply(
    runtime: RuntimeFixture,
):
    """Shows: M10."""
    replies = tool_call_reply(*((f"no_such_{n}", "{}") for n in range(2 * MAX_BAD_REPLIES)))
    async with runtime.open(replies, text_reply("Without them, then.")) as process:
        run = await process.run("Guess.")
        assert (run.status, run.text) == (Status.DONE, "Without them, then.")
        results = await process.tool_results(run)
        assert [each.ok for each in results] == [False] * 2 * MAX_BAD_REPLIES


async def test_a_repeated_identical_call_gets_an_error_result_and_then_the_run_fails_as_stuck(
    runtime: RuntimeFixture,
):
    """Shows: M16."""
    repeated_call = tool_call_reply(("todo_add", "{}"))
    async with runtime.open(*[repeated_call] * 20, tools=TOOLS, limits=Limits(identical_calls=3)) as process:
        run = await process.run("Loop.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
        assert len(executed) == 3
        texts = [each.text for each in await process.tool_results(run)]
        assert sum("this same call" in text for text in texts) == 3
        assert len(process.provider.requests) == 7


async def test_a_different_call_resets_the_count_of_identical_calls(runtime: RuntimeFixture):
    turns = [
        tool_call_reply((tool, "{}"))
        for tool in ("todo_add", "lists_read", "todo_add", "todo_add", "lists_read", "lists_read", "todo_add")
    ]
    async with runtime.open(
        *turns, text_reply("Done."), tools=TOOLS, limits=Limits(identical_calls=2)
    ) as process:
        run = await process.run("Alternate.")
        assert (run.status, len(executed)) == (Status.DONE, 7)


async def test_calls_beyond_the_limit_per_turn_are_refused_with_the_reason(runtime: RuntimeFixture):
    """Shows: M15."""
    replies = tool_call_reply(*(("todo_add", "{}") for _ in range(2000)))
    limits = Limits(max_calls_per_turn=50, identical_calls=10_000)
    async with runtime.open(replies, text_reply("Enough."), tools=TOOLS, limits=limits) as process:
        run = await process.run("Flood.")
        results = await process.tool_results(run)
        assert (run.status, len(executed), len(results)) == (Status.DONE, 50, 2000)
        assert sum("the limit is 50 calls per turn" in each.text for each in results) == 1950


async def test_an_exception_of_a_tool_is_an_error_result_and_the_run_continues(runtime: RuntimeFixture):
    @tool
    def fail() -> str:
        """Fails."""
        raise LookupError("nothing\nthere")

    async with runtime.open(tool_call_reply(("fail", "{}")), text_reply("Noted."), tools=[fail]) as process:
        run = await process.run("Break.")
        result = (await process.tool_results(run))[0]
        assert (result.ok, result.text) == (False, "fail failed: LookupError: nothing\nthere")
        assert (run.status, process.crashes) == (Status.DONE, [])


async def test_the_result_of_a_refusal_lists_what_is_allowed(runtime: RuntimeFixture):
    @tool
    def refuse() -> str:
        """Refuses."""
        raise OutOfScope("no", resource="/etc/shadow", allowed=("/work/**",), denied=("**/.env",))

    async with runtime.open(
        tool_call_reply(("refuse", "{}")), text_reply("Noted."), tools=[refuse]
    ) as process:
        run = await process.run("Try.")
        error = json.loads((await process.tool_results(run))[0].text)
        assert list(error) == [
            "success", "error", "tool", "resource", "allowed_patterns", "deny_patterns", "message",
        ]  # fmt: skip
        assert (error["resource"], error["allowed_patterns"]) == ("/etc/shadow", ["/work/**"])


async def test_a_custom_tool_receives_the_run_and_session_of_its_call(runtime: RuntimeFixture):
    """Shows: A037."""
    calls: list[Call] = []

    @tool(effect="once", capabilities=["mail.write"])
    async def send_mail(call: Call, to: str, body: str = "empty") -> str:
        """Sends mail."""
        calls.append(call)
        return f"sent {body} to {to}"

    async with runtime.open(
        tool_call_reply(("send_mail", '{"to": "a@b.c"}')), text_reply("Sent."), tools=[send_mail]
    ) as process:
        run = await process.run("Send.")
        assert [each.text for each in await process.tool_results(run)] == ["sent empty to a@b.c"]
        assert (calls[0].run.id, calls[0].session.id, calls[0].session.branch) == (
            run.id,
            run.session_id,
            "main",
        )
        schema = next(s.schema for s in process.provider.requests[0].request.tools if s.name == "send_mail")
        assert set(schema["properties"]) == {"to", "body"}


async def test_terminal_escapes_are_removed_from_a_result_and_a_long_one_is_shortened_in_the_middle(
    runtime: RuntimeFixture,
):
    @tool(effect="read")
    def print_much() -> str:
        """Prints a long line."""
        return "\x1b[31mred\x1b[0m" + "x" * MAX_TOOL_RESULT_CHARS + "end"

    async with runtime.open(
        tool_call_reply(("print_much", "{}")), text_reply("Loud."), tools=[print_much]
    ) as process:
        run = await process.run("Shout.")
        text = (await process.tool_results(run))[0].text
        assert text.startswith("redxxx")
        assert text.endswith("xxxend")
        assert "characters omitted" in text
        assert len(text) < MAX_TOOL_RESULT_CHARS + 100


def test_a_result_within_the_limit_is_not_shortened():
    assert truncate_tool_result("x" * 10, 10) == "x" * 10
    assert truncate_tool_result("abcdefghij", 4) == "ab\n[… 6 characters omitted …]\nij"


async def test_a_secret_at_the_cut_of_a_shortened_result_is_redacted_as_a_whole(runtime: RuntimeFixture):
    secret = "sk-test-0123456789abcdef"
    half = MAX_TOOL_RESULT_CHARS // 2

    @tool(effect="read")
    def print_secret() -> str:
        """Prints a long line with a secret in the middle."""
        return "x" * (half - 12) + secret + "y" * half

    async with runtime.open(
        tool_call_reply(("print_secret", "{}")), text_reply("Ok."), tools=[print_secret], secrets=[secret]
    ) as process:
        run = await process.run("Go.")
        assert "sk-test" not in (await process.tool_results(run))[0].text


async def test_calls_of_a_refused_reply_are_not_executed(runtime: RuntimeFixture):
    """Shows: M19."""
    refused = tool_call_reply(("todo_add", "{}"))
    async with runtime.open(
        ModelReply(
            text="No.", tool_calls=refused.tool_calls, stop_reason=type(refused.stop_reason)("refused")
        ),
        tools=TOOLS,
    ) as process:
        run = await process.run("Try.")
        assert (run.reason, executed) == (Reason.REFUSED, [])
        assert [each.ok for each in await process.tool_results(run)] == [False]


async def test_a_question_without_a_person_gets_an_error_result(runtime: RuntimeFixture):
    ask = tool_call_reply(("ask_user", '{"question": "Which one?"}'))
    async with runtime.open(ask, text_reply("I took the first.")) as process:
        run = await process.run("Choose.")
        assert run.status is Status.DONE
        assert "No user is available" in (await process.tool_results(run))[0].text


async def test_a_question_is_answered_by_the_person_who_is_present(runtime: RuntimeFixture):
    async def person(question: str, options: Sequence[str]) -> str:
        await asyncio.sleep(0)
        return f"{question} {list(options)[1]}"

    ask = tool_call_reply(("ask_user", '{"question": "Which one?", "options": ["a", "b"]}'))
    async with runtime.open(ask, text_reply("b it is."), ask_user=person) as process:
        run = await process.run("Choose.")
        assert [each.text for each in await process.tool_results(run)] == ["Which one? b"]


@tool
async def exit_process() -> str:
    """Ends the program."""
    sys.exit(3)


@tool
def exit_process_in_thread() -> str:
    """Ends the program from a thread."""
    sys.exit(3)


@tool
async def await_cancelled_future() -> str:
    """Awaits a future that is cancelled."""
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled
    return "unreachable"


@pytest.mark.parametrize("bad", [exit_process, exit_process_in_thread, await_cancelled_future])
async def test_a_tool_that_exits_or_cancels_itself_gets_an_error_result_and_the_run_continues(
    runtime: RuntimeFixture, bad: Tool
):
    """Alone or beside another call, every call gets a result, and the worker survives."""
    name = bad.spec.name
    async with runtime.open(
        tool_call_reply((name, "{}")),
        tool_call_reply((name, "{}"), ("ls", "{}")),
        text_reply("Done."),
        tools=[bad],
    ) as process:
        run = await process.run("Try.")
        assert run.status is Status.DONE
        results = await process.tool_results(run)
        assert [each.ok for each in sorted(results, key=lambda each: each.ok)] == [False, False, True]
        assert sum(each.text.startswith(f"{name} failed") for each in results) == 2
        assert process.crashes == []


async def test_a_path_outside_the_scope_gets_the_standard_refusal(runtime: RuntimeFixture):
    """Shows: A090."""
    async with runtime.open(
        tool_call_reply(("read", '{"path": "/etc/passwd"}')), text_reply("Refused.")
    ) as process:
        run = await process.run("Try.")
        [result] = await process.tool_results(run)
    refused = json.loads(result.text)
    assert list(refused) == [
        "success", "error", "tool", "resource", "allowed_patterns", "deny_patterns", "message"
    ]  # fmt: skip
    assert (refused["success"], refused["error"], refused["resource"]) == (
        False,
        "out_of_scope",
        "/etc/passwd",
    )
    assert "/etc/passwd is not in your scope" in refused["message"]
