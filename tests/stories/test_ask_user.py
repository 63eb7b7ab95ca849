"""Questions of an agent to a person: they wait in the daemon, survive a crash, and can be answered by command or HTTP."""

import json
from pathlib import Path
from typing import Any

from user_machine import UserMachine

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer, Script
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

COLOUR = ("ask_user", {"question": "Which colour?", "options": ["red", "blue"]})
SIZE = ("ask_user", {"question": "How large?"})

ASKING_TOOL = '''
from retinue import Call, tool

@tool
async def ask_and_return(call: Call) -> str:
    """Asks while it runs."""
    return await call.ask_user("Really?", [])
'''


def reply_by_turn(*replies: FakeResponse) -> Script:
    def script(request: CapturedRequest) -> FakeResponse:
        return replies[min(request.reply_count, len(replies) - 1)]

    return script


def last_tool_results(server: FakeModelServer) -> list[str]:
    """Return the tool results in the last request."""
    return [each["content"] for each in server.requests[-1].messages if each["role"] == "tool"]


async def test_a_question_waits_for_a_person_and_the_next_message_answers_it(machine: UserMachine):
    async with (
        machine.serve_models(reply_by_turn(tool_call_reply(COLOUR), text_reply("So be it."))) as server,
        machine.daemon(),
    ):
        asked = await machine("run", "--json", "Paint.")
        assert (asked.code, asked.json["status"], asked.json["waiting_for"]) == (6, "waiting", "person")
        assert "general asks: Which colour? (red / blue)" in asked.err
        run, slug = asked.json["run_id"], asked.json["slug"]
        (question,) = (await machine("runs", "show", run, "--json")).json["questions"]
        assert (question["question"], question["options"]) == ("Which colour?", ["red", "blue"])
        assert "general asks: Which colour? (red / blue)" in (await machine("runs", "show", run)).out
        assert (await machine("sessions", "show", slug, "--json")).json["questions"] == [question]
        assert "general asks: Which colour?" in (await machine("sessions", "show", slug)).out
        sent = await machine("send", "--json", slug, "green")
        assert (sent.code, sent.json["run_id"], sent.json["text"]) == (0, run, "So be it.")
        assert last_tool_results(server) == ["green"]
        shown = (await machine("runs", "show", run, "--json")).json
    assert (shown["questions"], shown["attempts"], len(server.requests)) == ([], 1, 2)


async def test_a_question_is_an_event_and_can_be_answered_over_http_by_option_number(machine: UserMachine):
    async with (
        machine.serve_models(reply_by_turn(tool_call_reply(COLOUR), text_reply("So be it."))) as server,
        machine.daemon(),
    ):
        asked = (await machine("run", "--json", "Paint.")).json
        stream = daemon_client.stream_events(machine.home, after=0, deltas="none")
        event = await anext(each async for each in stream if each.get("question"))
        assert (event["kind"], event["phase"], event["question"]) == ("run.state", "person", "Which colour?")
        path = f"/api/sessions/{asked['session_id']}/messages"
        answer = await daemon_client.request_json(
            machine.home, "POST", path, {"content": "2", "mode": "sync"}
        )
        assert answer is not None
        assert (answer["status"], answer["response"]) == ("complete", "So be it.")
        assert last_tool_results(server) == ["blue"]


async def test_a_question_can_be_answered_after_its_daemon_was_killed(machine: UserMachine):
    async with machine.serve_models(
        reply_by_turn(tool_call_reply(COLOUR), text_reply("So be it."))
    ) as server:
        async with machine.daemon():
            asked = (await machine("run", "--json", "Paint.")).json
        async with machine.daemon():
            assert (await machine("wait", asked["run_id"])).code == 6
        assert [
            (each["status"], each["waiting_for"]) for each in (await machine("runs", "list", "--json")).json
        ] == [("waiting", "person")]
        assert (await machine("runs", "resume", asked["run_id"])).code == 6
        sent = await machine("send", asked["slug"], "red")
        assert (sent.code, sent.out, last_tool_results(server)) == (0, "So be it.\n", ["red"])


async def test_several_questions_of_one_reply_are_answered_in_order(machine: UserMachine):
    async with (
        machine.serve_models(reply_by_turn(tool_call_reply(COLOUR, SIZE), text_reply("So be it."))) as server,
        machine.daemon(),
    ):
        asked = await machine("run", "--json", "Paint.")
        second = await machine("send", asked.json["slug"], "1")
        assert (second.code, "general asks: How large?" in second.err) == (6, True)
        sent = await machine("send", asked.json["slug"], "1 m")
        assert (sent.code, sent.out, last_tool_results(server)) == (0, "So be it.\n", ["red", "1 m"])
        assert len(server.requests) == 2


async def test_a_parent_waits_until_the_question_of_its_child_is_answered(machine: UserMachine):
    machine.write_config(approvals="auto")
    machine.write_agent("asker", body="You ask.")
    parent_replies: list[Any] = [
        tool_call_reply(("agent", {"agent_name": "asker", "task_prompt": "Ask."})),
        text_reply("It knows."),
    ]
    child_replies: list[Any] = [tool_call_reply(SIZE), text_reply("Now I know.")]

    def script(request: CapturedRequest) -> FakeResponse:
        is_child = "You ask." in request.body["messages"][0]["content"]
        return (child_replies if is_child else parent_replies)[request.reply_count]

    async with machine.serve_models(script), machine.daemon():
        asked = await machine("run", "--json", "Go.")
        assert (asked.code, asked.json["waiting_for"]) == (6, "child")
        assert "asker asks: How large?" in asked.err
        (question,) = (await machine("runs", "show", asked.json["run_id"], "--json")).json["questions"]
        child = (await machine("runs", "show", question["run_id"], "--json")).json
        assert (await machine("send", child["slug"], "2 m")).out == "Now I know.\n"
        assert (await machine("wait", asked.json["run_id"])).out == "It knows.\n"


async def test_a_run_that_waits_for_an_answer_can_be_cancelled_and_interrupted(machine: UserMachine):
    def script(request: CapturedRequest) -> FakeResponse:
        is_interrupted = any("interrupted you" in str(each["content"]) for each in request.messages)
        return text_reply("Nothing yet.") if is_interrupted else tool_call_reply(COLOUR)

    async with machine.serve_models(script), machine.daemon():
        asked = [(await machine("run", "--json", "Paint.")).json for _ in range(2)]
        cancelled = (await machine("runs", "cancel", "--json", asked[0]["run_id"])).json
        assert (cancelled["status"], cancelled["reason"]) == ("cancelled", "user_cancel")
        interrupted = (await machine("runs", "interrupt", "--json", asked[1]["run_id"])).json
        assert (interrupted["reason"], interrupted["text"]) == ("interrupted", "Nothing yet.")
        for each in asked:
            assert "No result: " in Path(each["path"]).read_text()


async def test_without_a_person_or_a_daemon_the_question_gets_an_error_result(machine: UserMachine):
    async with machine.serve_models(
        reply_by_turn(tool_call_reply(COLOUR), text_reply("Red, then."))
    ) as server:
        ran = await machine("run", "Paint.")
        assert (ran.code, ran.out) == (0, "Red, then.\n")
        assert last_tool_results(server) == [
            "No user is available to answer 'Which colour?'. Continue without an answer, or state what you need to know."
        ]


async def test_a_question_of_a_custom_tool_is_not_suspended(machine: UserMachine):
    """The tool may have started a side effect that must not be repeated."""
    (machine.folder / "ours.py").write_text(ASKING_TOOL)
    machine.env["PYTHONPATH"] = str(machine.folder)
    machine.write_config(tools=["ours:ask_and_return"], approvals="auto")
    async with (
        machine.serve_models(
            reply_by_turn(tool_call_reply(("ask_and_return", {})), text_reply("Not, then."))
        ) as server,
        machine.daemon(),
    ):
        ran = await machine("run", "--json", "Go.")
        assert (ran.code, ran.json["text"]) == (0, "Not, then.")
        assert "No user is available to answer 'Really?' now." in json.dumps(last_tool_results(server))
