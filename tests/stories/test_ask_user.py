"""An agent's question to a person: it waits in the daemon, survives it, and is answered from any surface."""

import json
from pathlib import Path
from typing import Any

from user_machine import UserMachine

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer, Script
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

COLOUR = ("ask_user", {"question": "Which colour?", "options": ["red", "blue"]})
SIZE = ("ask_user", {"question": "How large?"})

CARELESS = '''
from retinue import Call, tool

@tool
async def careless(call: Call) -> str:
    """Asks in the midst of what it does."""
    return await call.ask_user("Really?", [])
'''


def by_turn(*replies: FakeResponse) -> Script:
    def script(asked: CapturedRequest) -> FakeResponse:
        return replies[min(asked.reply_count, len(replies) - 1)]

    return script


def results(server: FakeModelServer) -> list[str]:
    """What the model was told of its calls, in the last request."""
    return [each["content"] for each in server.requests[-1].messages if each["role"] == "tool"]


async def test_a_question_waits_for_a_person_and_the_next_message_answers_it(machine: UserMachine):
    async with (
        machine.serve_models(by_turn(tool_call_reply(COLOUR), text_reply("So be it."))) as server,
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
        assert results(server) == ["green"]
        shown = (await machine("runs", "show", run, "--json")).json
    assert (shown["questions"], shown["attempts"], len(server.requests)) == ([], 1, 2)


async def test_the_question_is_told_as_an_event_and_answered_over_http_by_number(machine: UserMachine):
    async with (
        machine.serve_models(by_turn(tool_call_reply(COLOUR), text_reply("So be it."))) as server,
        machine.daemon(),
    ):
        asked = (await machine("run", "--json", "Paint.")).json
        stream = daemon_client.stream_events(machine.home, after=0, deltas="none")
        told = await anext(each async for each in stream if each.get("question"))
        assert (told["kind"], told["phase"], told["question"]) == ("run.state", "person", "Which colour?")
        place = f"/api/sessions/{asked['session_id']}/messages"
        answer = await daemon_client.request_json(
            machine.home, "POST", place, {"content": "2", "mode": "sync"}
        )
        assert answer is not None
        assert (answer["status"], answer["response"]) == ("complete", "So be it.")
        assert results(server) == ["blue"]


async def test_a_question_outlives_the_daemon_and_every_process(machine: UserMachine):
    async with machine.serve_models(by_turn(tool_call_reply(COLOUR), text_reply("So be it."))) as server:
        async with machine.daemon():
            asked = (await machine("run", "--json", "Paint.")).json
        async with machine.daemon():
            assert (await machine("wait", asked["run_id"])).code == 6
        assert [
            (each["status"], each["waiting_for"]) for each in (await machine("runs", "list", "--json")).json
        ] == [("waiting", "person")]
        assert (await machine("runs", "resume", asked["run_id"])).code == 6
        sent = await machine("send", asked["slug"], "red")
        assert (sent.code, sent.out, results(server)) == (0, "So be it.\n", ["red"])


async def test_several_questions_of_one_reply_are_answered_one_after_the_other(machine: UserMachine):
    async with (
        machine.serve_models(by_turn(tool_call_reply(COLOUR, SIZE), text_reply("So be it."))) as server,
        machine.daemon(),
    ):
        asked = await machine("run", "--json", "Paint.")
        again = await machine("send", asked.json["slug"], "1")
        assert (again.code, "general asks: How large?" in again.err) == (6, True)
        sent = await machine("send", asked.json["slug"], "1 m")
        assert (sent.code, sent.out, results(server)) == (0, "So be it.\n", ["red", "1 m"])
        assert len(server.requests) == 2


async def test_a_childs_question_holds_up_its_parent_until_it_is_answered(machine: UserMachine):
    machine.write_config(approvals="auto")
    machine.write_agent("asker", body="You ask.")
    boss: list[Any] = [
        tool_call_reply(("agent", {"agent_name": "asker", "task_prompt": "Ask."})),
        text_reply("It knows."),
    ]
    asker: list[Any] = [tool_call_reply(SIZE), text_reply("Now I know.")]

    def script(asked: CapturedRequest) -> FakeResponse:
        return (asker if "You ask." in asked.body["messages"][0]["content"] else boss)[asked.reply_count]

    async with machine.serve_models(script), machine.daemon():
        asked = await machine("run", "--json", "Go.")
        assert (asked.code, asked.json["waiting_for"]) == (6, "child")
        assert "asker asks: How large?" in asked.err
        (question,) = (await machine("runs", "show", asked.json["run_id"], "--json")).json["questions"]
        child = (await machine("runs", "show", question["run_id"], "--json")).json
        assert (await machine("send", child["slug"], "2 m")).out == "Now I know.\n"
        assert (await machine("wait", asked.json["run_id"])).out == "It knows.\n"


async def test_a_run_that_asks_can_be_cancelled_and_interrupted(machine: UserMachine):
    def script(asked: CapturedRequest) -> FakeResponse:
        summed = any("interrupted you" in str(each["content"]) for each in asked.messages)
        return text_reply("Nothing yet.") if summed else tool_call_reply(COLOUR)

    async with machine.serve_models(script), machine.daemon():
        asked = [(await machine("run", "--json", "Paint.")).json for _ in range(2)]
        gone = (await machine("runs", "cancel", "--json", asked[0]["run_id"])).json
        assert (gone["status"], gone["reason"]) == ("cancelled", "user_cancel")
        summed = (await machine("runs", "interrupt", "--json", asked[1]["run_id"])).json
        assert (summed["reason"], summed["text"]) == ("interrupted", "Nothing yet.")
        for each in asked:
            assert "No result: " in Path(each["path"]).read_text()


async def test_where_nobody_can_ever_answer_the_agent_is_told_so(machine: UserMachine):
    async with machine.serve_models(by_turn(tool_call_reply(COLOUR), text_reply("Red, then."))) as server:
        ran = await machine("run", "Paint.")
        assert (ran.code, ran.out) == (0, "Red, then.\n")
        assert results(server) == [
            "Nobody is available to answer 'Which colour?'. Continue without an answer, or state what you need to know."
        ]


async def test_a_tool_that_asks_in_the_midst_of_what_it_does_does_not_wait(machine: UserMachine):
    """It may have begun something that must not happen twice."""
    (machine.folder / "ours.py").write_text(CARELESS)
    machine.env["PYTHONPATH"] = str(machine.folder)
    machine.write_config(tools=["ours:careless"], approvals="auto")
    async with (
        machine.serve_models(by_turn(tool_call_reply(("careless", {})), text_reply("Not, then."))) as server,
        machine.daemon(),
    ):
        ran = await machine("run", "--json", "Go.")
        assert (ran.code, ran.json["text"]) == (0, "Not, then.")
        assert "Nobody is available to answer 'Really?' now." in json.dumps(results(server))
