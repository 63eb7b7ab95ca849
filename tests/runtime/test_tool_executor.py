"""The gate: what the list hides the call refuses, and every wish gets an answer."""

import asyncio
import json
import sys
from collections.abc import Sequence

import pytest
from runtime_fixture import RuntimeFixture

from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_BAD_REPLIES, MAX_TOOL_RESULT_CHARS, Limits
from retinue.domain.model_turn import Reply
from retinue.domain.run import Reason, Status
from retinue.errors import OutOfScope
from retinue.interfaces import Call, Tool
from retinue.runtime.tool_executor import truncate_tool_result
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_was_made() -> None:
    made.clear()


def marks(name: str, *capabilities: str) -> Tool:
    """A tool whose running leaves a mark."""

    @tool(name=name, capabilities=capabilities)
    def mark() -> str:
        """Leaves a mark."""
        made.append(name)
        return f"{name} ran"

    return mark


LISTS = [
    marks("lists_read", "lists.read"),
    marks("lists_both", "lists.read", "lists.write"),
    marks("todo_add"),
    marks("reading_list_add"),
    marks("reading_list_delete"),
]

FRONTS = {
    "nobody-says-anything": (
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


@pytest.mark.parametrize("case", FRONTS)
async def test_what_the_list_hides_the_call_refuses(runtime: RuntimeFixture, case: str):
    """The same question is asked of every tool, in the list and at the call.

    Shows: C055, C056, C057, C058, C060, C061, C062, T01, T03, T05."""
    front, allowed = FRONTS[case]
    runtime.write_agent(case, front=front)
    names = {each.spec.name for each in LISTS}
    every = tool_call_reply(*((name, "{}") for name in sorted(names)))
    async with runtime.open(every, text_reply("Done."), tools=LISTS) as process:
        run = await process.run("Try everything.", agent=case)
        offered = {each.name for each in process.provider.requests[0].request.tools} & names
        assert offered == allowed
        assert set(made) == allowed
        refused = [json.loads(each.text) for each in await process.tool_results(run) if not each.ok]
        assert {each["tool"] for each in refused} == names - allowed
        assert all(each["error"] == "tool_not_allowed" and not each["success"] for each in refused)
        if "lists_both" not in allowed:
            assert 'Tool "lists_both" is not allowed for this agent' in str(refused)


async def test_what_the_operator_denies_no_definition_gives_back(runtime: RuntimeFixture):
    runtime.write_agent("greedy", front='tool_allow: ["*", "todo_add"]\n')
    wish = tool_call_reply(("todo_add", "{}"), ("lists_read", "{}"))
    deny = ("todo_*",)
    async with runtime.open(
        wish, text_reply("Done."), tools=LISTS, operator_policy=lambda: OperatorPolicy(deny_tools=deny)
    ) as process:
        run = await process.run("Try.", agent="greedy")
        assert made == ["lists_read"]
        assert "todo_add" not in {each.name for each in process.provider.requests[0].request.tools}
        refused = next(each for each in await process.tool_results(run) if not each.ok)
        assert "operator deny todo_*" in refused.text


async def test_the_runtimes_own_tools_are_always_there_unless_the_operator_says_no(runtime: RuntimeFixture):
    """Shows: C059."""
    own = marks("lists_read")
    system = Tool(
        spec=type(own.spec)(name="system_note", description="Notes.", schema=own.spec.schema),
        parse_arguments=own.parse_arguments,
        function=own.function,
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
async def test_nearly_a_tools_name_is_no_tools_name(runtime: RuntimeFixture, name: str):
    """Shows: M11, M12."""
    async with runtime.open(tool_call_reply((name, "{}")), text_reply("Sorry."), tools=LISTS) as process:
        run = await process.run("Call it.")
        result = (await process.tool_results(run))[0]
        told = json.loads(result.text)
        assert (made, result.ok, told["error"], told["tool"]) == ([], False, "unknown_tool", name)
        assert "todo_add" in told["message"]
        assert run.status is Status.DONE


async def test_arguments_that_do_not_fit_are_told_and_nothing_runs(runtime: RuntimeFixture):
    """Shows: M10, M13."""
    bad = ['{"extra": 1}', "[]", "{", '"text"', '{"a": 1, "a": 2}', '{"x": ' + "[" * 500 + "]" * 500 + "}"]
    bad.append(json.dumps({"x": "y" * MAX_ARGUMENT_BYTES}))
    async with runtime.open(
        tool_call_reply(*(("todo_add", args) for args in bad)), text_reply("Sorry."), tools=LISTS
    ) as process:
        run = await process.run("Call it.")
        results = await process.tool_results(run)
        assert made == []
        assert [each.ok for each in results] == [False] * len(bad)
        assert all("\n" not in each.text and len(each.text) < 500 for each in results)


async def test_replies_whose_calls_cannot_run_end_in_a_stuck_run(runtime: RuntimeFixture):
    """Shows: M10, M11."""
    many = [tool_call_reply((f"no_such_{n}", "{}")) for n in range(MAX_BAD_REPLIES + 1)]
    async with runtime.open(*many, text_reply("never")) as process:
        run = await process.run("Guess.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
        assert len(await process.tool_results(run)) == MAX_BAD_REPLIES + 1


async def test_a_model_hears_of_all_impossible_calls_of_a_reply_before_it_counts_as_stuck(
    runtime: RuntimeFixture,
):
    """Shows: M10."""
    many = tool_call_reply(*((f"no_such_{n}", "{}") for n in range(2 * MAX_BAD_REPLIES)))
    async with runtime.open(many, text_reply("Without them, then.")) as process:
        run = await process.run("Guess.")
        assert (run.status, run.text) == (Status.DONE, "Without them, then.")
        results = await process.tool_results(run)
        assert [each.ok for each in results] == [False] * 2 * MAX_BAD_REPLIES


async def test_the_same_call_for_ever_is_answered_with_a_word_and_then_ended(runtime: RuntimeFixture):
    """Shows: M16."""
    again = tool_call_reply(("todo_add", "{}"))
    async with runtime.open(*[again] * 20, tools=LISTS, limits=Limits(identical_calls=3)) as process:
        run = await process.run("Loop.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
        assert len(made) == 3
        texts = [each.text for each in await process.tool_results(run)]
        assert sum("this same call" in text for text in texts) == 3
        assert len(process.provider.requests) == 7


async def test_another_call_between_begins_the_count_anew(runtime: RuntimeFixture):
    turns = [tool_call_reply(("todo_add", "{}")), tool_call_reply(("lists_read", "{}"))] * 5
    async with runtime.open(
        *turns, text_reply("Done."), tools=LISTS, limits=Limits(identical_calls=1)
    ) as process:
        run = await process.run("Alternate.")
        assert (run.status, len(made)) == (Status.DONE, 10)


async def test_of_too_many_calls_in_a_turn_the_rest_is_refused_with_the_reason(runtime: RuntimeFixture):
    """Shows: M15."""
    many = tool_call_reply(*(("todo_add", "{}") for _ in range(2000)))
    limits = Limits(max_calls_per_turn=50, identical_calls=10_000)
    async with runtime.open(many, text_reply("Enough."), tools=LISTS, limits=limits) as process:
        run = await process.run("Flood.")
        results = await process.tool_results(run)
        assert (run.status, len(made), len(results)) == (Status.DONE, 50, 2000)
        assert sum("the limit is 50 calls per turn" in each.text for each in results) == 1950


async def test_a_tool_that_breaks_is_an_answer_and_the_run_goes_on(runtime: RuntimeFixture):
    @tool
    def breaks() -> str:
        """Breaks."""
        raise LookupError("nothing\nthere")

    async with runtime.open(
        tool_call_reply(("breaks", "{}")), text_reply("Noted."), tools=[breaks]
    ) as process:
        run = await process.run("Break.")
        result = (await process.tool_results(run))[0]
        assert (result.ok, result.text) == (False, "breaks failed: LookupError: nothing\nthere")
        assert (run.status, process.crashes) == (Status.DONE, [])


async def test_a_tool_that_refuses_says_what_would_be_allowed(runtime: RuntimeFixture):
    @tool
    def closed() -> str:
        """Refuses."""
        raise OutOfScope("no", resource="/etc/shadow", allowed=("/work/**",), denied=("**/.env",))

    async with runtime.open(
        tool_call_reply(("closed", "{}")), text_reply("Noted."), tools=[closed]
    ) as process:
        run = await process.run("Try.")
        told = json.loads((await process.tool_results(run))[0].text)
        assert list(told) == [
            "success", "error", "tool", "resource", "allowed_patterns", "deny_patterns", "message",
        ]  # fmt: skip
        assert (told["resource"], told["allowed_patterns"]) == ("/etc/shadow", ["/work/**"])


async def test_a_persons_tool_knows_who_calls_it(runtime: RuntimeFixture):
    """Shows: A037."""
    seen: list[Call] = []

    @tool(effect="once", capabilities=["mail.write"])
    async def send_mail(call: Call, to: str, body: str = "empty") -> str:
        """Sends mail."""
        seen.append(call)
        return f"sent {body} to {to}"

    async with runtime.open(
        tool_call_reply(("send_mail", '{"to": "a@b.c"}')), text_reply("Sent."), tools=[send_mail]
    ) as process:
        run = await process.run("Send.")
        assert [each.text for each in await process.tool_results(run)] == ["sent empty to a@b.c"]
        assert (seen[0].run.id, seen[0].session.id, seen[0].session.branch) == (
            run.id,
            run.session_id,
            "main",
        )
        schema = next(s.schema for s in process.provider.requests[0].request.tools if s.name == "send_mail")
        assert set(schema["properties"]) == {"to", "body"}


async def test_a_result_loses_terminal_codes_and_is_cut_in_its_middle(runtime: RuntimeFixture):
    @tool(effect="read")
    def shout() -> str:
        """Shouts."""
        return "\x1b[31mred\x1b[0m" + "x" * MAX_TOOL_RESULT_CHARS + "end"

    async with runtime.open(tool_call_reply(("shout", "{}")), text_reply("Loud."), tools=[shout]) as process:
        run = await process.run("Shout.")
        text = (await process.tool_results(run))[0].text
        assert text.startswith("redxxx")
        assert text.endswith("xxxend")
        assert "characters omitted" in text
        assert len(text) < MAX_TOOL_RESULT_CHARS + 100


def test_what_fits_is_not_cut():
    assert truncate_tool_result("x" * 10, 10) == "x" * 10
    assert truncate_tool_result("abcdefghij", 4) == "ab\n[… 6 characters omitted …]\nij"


async def test_a_secret_across_the_cut_does_not_show_its_halves(runtime: RuntimeFixture):
    secret = "sk-test-0123456789abcdef"
    half = MAX_TOOL_RESULT_CHARS // 2

    @tool(effect="read")
    def long() -> str:
        """Says much."""
        return "x" * (half - 12) + secret + "y" * half

    async with runtime.open(
        tool_call_reply(("long", "{}")), text_reply("Ok."), tools=[long], secrets=[secret]
    ) as process:
        run = await process.run("Go.")
        assert "sk-test" not in (await process.tool_results(run))[0].text


async def test_a_refused_reply_makes_none_of_its_calls(runtime: RuntimeFixture):
    """Shows: M19."""
    refused = tool_call_reply(("todo_add", "{}"))
    async with runtime.open(
        Reply(text="No.", tool_calls=refused.tool_calls, stop_reason=type(refused.stop_reason)("refused")),
        tools=LISTS,
    ) as process:
        run = await process.run("Try.")
        assert (run.reason, made) == (Reason.REFUSED, [])
        assert [each.ok for each in await process.tool_results(run)] == [False]


async def test_a_question_with_nobody_there_is_an_answer(runtime: RuntimeFixture):
    ask = tool_call_reply(("ask_user", '{"question": "Which one?"}'))
    async with runtime.open(ask, text_reply("I took the first.")) as process:
        run = await process.run("Choose.")
        assert run.status is Status.DONE
        assert "Nobody is available" in (await process.tool_results(run))[0].text


async def test_a_question_is_put_to_the_person_who_is_there(runtime: RuntimeFixture):
    async def person(question: str, options: Sequence[str]) -> str:
        await asyncio.sleep(0)
        return f"{question} {list(options)[1]}"

    ask = tool_call_reply(("ask_user", '{"question": "Which one?", "options": ["a", "b"]}'))
    async with runtime.open(ask, text_reply("b it is."), ask_user=person) as process:
        run = await process.run("Choose.")
        assert [each.text for each in await process.tool_results(run)] == ["Which one? b"]


@tool(name="quits")
async def quits() -> str:
    """Ends the program."""
    sys.exit(3)


@tool(name="quits_aside")
def quits_aside() -> str:
    """Ends the program from a thread."""
    sys.exit(3)


@tool(name="waits_in_vain")
async def waits_in_vain() -> str:
    """Waits for something of its own that is cancelled."""
    never = asyncio.get_running_loop().create_future()
    never.cancel()
    await never
    return "never"


@pytest.mark.parametrize("bad", [quits, quits_aside, waits_in_vain])
async def test_a_tool_that_quits_or_cancels_itself_answers_and_the_run_goes_on(
    runtime: RuntimeFixture, bad: Tool
):
    """Alone or beside another call: every call has its result, and the engine lives."""
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


async def test_a_refused_path_is_answered_in_the_one_shape(runtime: RuntimeFixture):
    """Shows: A090."""
    async with runtime.open(
        tool_call_reply(("read", '{"path": "/etc/passwd"}')), text_reply("Refused.")
    ) as process:
        run = await process.run("Try.")
        [returned] = await process.tool_results(run)
    refused = json.loads(returned.text)
    assert list(refused) == [
        "success", "error", "tool", "resource", "allowed_patterns", "deny_patterns", "message"
    ]  # fmt: skip
    assert (refused["success"], refused["error"], refused["resource"]) == (
        False,
        "out_of_scope",
        "/etc/passwd",
    )
    assert "/etc/passwd is not in your scope" in refused["message"]
