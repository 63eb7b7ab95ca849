"""Structured output: the final answer is JSON that matches a schema, or the run fails and says why."""

import json
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine, spawn_and_wait

import retinue
from retinue.errors import UsageError
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply
from retinue.testing.strict_servers import STRICT_VENDORS, strict_script

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}}},
    "required": ["words"],
    "additionalProperties": False,
}
ANSWER = {"words": ["a", "b"]}
VALID = text_reply(json.dumps(ANSWER))
FRONT = "output_schema:\n  type: object\n  properties:\n    words: {type: array}\n  required: [words]\ntools: [ls]\n"
KINDS = ("openai-chat", "openai-responses", "anthropic")


def write_schema(machine: UserMachine, schema: Any = SCHEMA) -> str:
    path = machine.folder / "schema.json"
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return str(path)


def use_server(machine: UserMachine, server: FakeModelServer, kind: str) -> None:
    machine.write_config(
        providers={"house": {"kind": kind, "base_url": server.url, "api_key": "sk-test-0123456789"}}
    )
    machine.env["RETINUE_MODEL"] = "house:m"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_with_a_schema_gives_a_validated_value_after_tools(machine: UserMachine, kind: str):
    script = [tool_call_reply(("ls", {})), tool_call_reply(("ls", {"path": "."})), VALID]
    async with FakeModelServer(script) as server:
        use_server(machine, server, kind)
        ran = await machine("run", "--json", "--schema", write_schema(machine), "Which words?")
    assert (ran.code, ran.json["status"], ran.json["output"]) == (0, "done", ANSWER)
    assert json.loads(ran.json["text"]) == ANSWER
    assert all(json.dumps(SCHEMA).replace(" ", "") in each.raw_body.decode() for each in server.requests)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_by_the_tool_is_the_text_of_the_reply_and_is_remembered(
    machine: UserMachine, kind: str
):
    def choose(request: CapturedRequest) -> FakeResponse:
        names = machine.tool_names(request)
        if "final_answer" not in names:
            return http_error(400, "json_schema is not supported with this model")
        has_result = request.reply_count > 0
        return tool_call_reply(("final_answer", ANSWER)) if has_result else tool_call_reply(("ls", {}))

    schema = write_schema(machine)
    async with FakeModelServer(choose) as server:
        use_server(machine, server, kind)
        first = await machine("run", "--json", "--schema", schema, "Which words?")
        refusals = sum("final_answer" not in machine.tool_names(each) for each in server.requests)
        second = await machine("run", "--json", "--schema", schema, "Which words?")
        later = sum("final_answer" not in machine.tool_names(each) for each in server.requests)
    assert (first.code, first.json["output"], second.json["output"]) == (0, ANSWER, ANSWER)
    assert (refusals, later) == (1, 1)
    shown = Path(first.json["path"]).read_text()
    assert "tool=final_answer" not in shown
    assert json.loads(first.json["text"]) == ANSWER


@pytest.mark.parametrize("vendor", sorted(STRICT_VENDORS))
async def test_a_conversation_with_answers_continues_with_each_vendor(machine: UserMachine, vendor: str):
    """With tools, after an edit, in new processes, with and without a schema."""

    def choose(request: CapturedRequest) -> FakeResponse:
        text = json.dumps(request.messages[-1])
        if "Look." in text or "Again." in text:
            return tool_call_reply(("ls", {}), text="I look.")
        return (
            tool_call_reply(("final_answer", ANSWER))
            if "final_answer" in machine.tool_names(request)
            else VALID
        )

    kind, schema = STRICT_VENDORS[vendor].wire, write_schema(machine)
    async with FakeModelServer(strict_script(vendor, choose)) as server:
        machine.env |= {
            f"{kind.upper()}_BASE_URL": server.url,
            f"{kind.upper()}_API_KEY": "sk-test-0123456789",
        }
        machine.env["RETINUE_MODEL"] = f"{kind}:a-model"
        machine.write_agent("careful", "temperature: 0.3\nthinking: high\ntools: [ls]\n")
        first = await machine("run", "--json", "--agent", "careful", "--schema", schema, "Look.")
        assert (first.code, first.json["output"]) == (0, ANSWER), first.err
        path = Path(first.json["path"])
        path.write_text(path.read_text().replace("I look.", "I look well."))
        session = ("--session", first.json["slug"])
        second = await machine("run", "--json", *session, "--schema", schema, "Again.")
        assert (second.code, second.json["output"]) == (0, ANSWER), second.err
        third = await machine("run", "--json", *session, "Again.")
        assert (third.code, third.json["output"]) == (0, None), third.err


async def test_an_invalid_answer_is_sent_back_with_the_error_and_the_schema(machine: UserMachine):
    script = [
        text_reply("a and b"),
        text_reply('{"words": "a"}'),
        text_reply(f"```json\n{json.dumps(ANSWER)}\n```"),
    ]
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "--schema", write_schema(machine), "Which words?")
    assert (ran.code, ran.json["output"], ran.json["turns"]) == (0, ANSWER, 3)
    assert json.loads(ran.json["text"]) == ANSWER
    corrections = [machine.request_texts(each)[-1] for each in server.requests[1:]]
    assert "not one JSON value" in corrections[0]
    assert 'words: "a" is not of type "array"' in corrections[1]
    assert all(json.dumps(SCHEMA) in each for each in corrections)


async def test_a_run_whose_answer_stays_invalid_fails_after_three_corrections(machine: UserMachine):
    async with machine.serve_models([text_reply(f"No {number}.") for number in range(9)]) as server:
        ran = await machine("run", "--json", "--schema", write_schema(machine), "Which words?")
        plain = await machine("run", "--schema", write_schema(machine), "Which words?")
    assert (ran.code, ran.json["status"], ran.json["reason"]) == (1, "failed", "invalid_output")
    assert "does not match the output schema: the answer is not one JSON value" in ran.json["error"]
    assert (ran.json["output"], ran.json["text"], len(server.requests)) == (None, "No 3.", 8)
    assert (plain.code, plain.out) == (1, "")
    assert "failed (invalid_output)" in plain.err


@pytest.mark.parametrize("front", ["", FRONT], ids=["option", "definition"])
@pytest.mark.parametrize("is_refused", [False, True], ids=["native", "tool"])
async def test_standard_output_is_only_the_answer(machine: UserMachine, front: str, is_refused: bool):
    def choose(request: CapturedRequest) -> FakeResponse:
        if is_refused and "response_format" in request.body:
            return http_error(400, "json_schema is not supported with this model")
        if request.reply_count == 0:
            return tool_call_reply(("ls", {}), text="I look.")
        if request.reply_count == 1:
            return text_reply("There is nothing.")
        return tool_call_reply(("final_answer", ANSWER), text="Here it is.") if is_refused else VALID

    machine.write_agent("lister", front)
    option = () if front else ("--schema", write_schema(machine))
    async with machine.serve_models(choose):
        ran = await machine("run", "--agent", "lister", *option, "Which words?")
    assert (ran.code, json.loads(ran.out)) == (0, ANSWER)


async def test_an_answer_that_was_cut_off_or_empty_is_not_an_answer(machine: UserMachine):
    script = [text_reply('{"words": [', stop="length"), text_reply(""), VALID]
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "--schema", write_schema(machine), "Which words?")
    assert (ran.code, ran.json["output"]) == (0, ANSWER)
    corrections = [machine.request_texts(each)[-1] for each in server.requests[1:]]
    assert "cut off at the output limit" in corrections[0]
    assert "the answer is empty" in corrections[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ('{"type": "objekt"}', "is not a valid JSON Schema: type:"),
        ('{"$ref": "https://example.com/x"}', "a schema can only refer to itself"),
        (None, "cannot be read: No such file or directory"),
    ],
)
async def test_a_schema_that_is_none_is_refused_in_one_sentence_before_anything_is_written(
    machine: UserMachine, content: str | None, message: str
):
    path = machine.folder / "schema.json"
    if content is not None:
        path.write_text(content)
    async with machine.serve_models([VALID]) as server:
        ran = await machine("run", "--schema", str(path), "Which words?")
    assert (ran.code, server.requests, [*machine.home.glob("*")]) == (2, [], [])
    assert message in ran.err
    assert str(path) in ran.err
    assert len(ran.err.strip().splitlines()) == 1


async def test_a_killed_run_keeps_its_schema_and_its_count_of_corrections(machine: UserMachine):
    def choose(request: CapturedRequest) -> FakeResponse:
        return text_reply("no", delay=30 if request.reply_count == 2 and len(server.requests) == 3 else 0)

    schema = write_schema(machine)
    async with machine.serve_models(choose) as server:
        process = await machine.start("run", "--schema", schema, "Which words?")
        await machine.wait_for_requests(3)
        await machine.kill(process)
        Path(schema).unlink()
        assert (await machine("runs", "resume")).code in (0, 1)
        (run,) = (await machine("runs", "history", "--json")).json
    assert (run["status"], run["reason"], run["turns"]) == ("failed", "invalid_output", 4)
    assert all(json.dumps(SCHEMA).replace(" ", "") in each.raw_body.decode() for each in server.requests)


async def test_a_person_continues_a_failed_run_with_its_schema(machine: UserMachine):
    script = [*[text_reply("no")] * 4, VALID]
    async with machine.serve_models(script):
        failed = await machine("run", "--json", "--schema", write_schema(machine), "Which words?")
        await machine("runs", "resume", failed.json["run_id"])
        newest = (await machine("runs", "history", "--json")).json[0]
    assert (newest["status"], newest["output"]) == ("done", ANSWER)


async def test_a_definition_has_a_schema_which_an_option_replaces(machine: UserMachine):
    machine.write_agent("lister", FRONT)
    async with machine.serve_models([VALID, text_reply("[1]")]) as server:
        first = await machine("run", "--json", "--agent", "lister", "Which words?")
        other = write_schema(machine, {"type": "array"})
        second = await machine("run", "--json", "--agent", "lister", "--schema", other, "Which numbers?")
        checked = await machine("agents", "show", "lister", "--json")
    assert (first.json["output"], second.json["output"]) == (ANSWER, [1])
    assert server.requests[0].body["response_format"]["json_schema"]["schema"]["required"] == ["words"]
    assert "output_schema" in checked.out


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ("output_schema: {type: objekt}\n", "lister: output_schema is not a valid JSON Schema: type:"),
        ("output_schema: schema.json\n", "output_schema: must be a map, but is text"),
        ("output_schema: {type: object}\nexits: [approve]\n", "output_schema: cannot be combined with exits"),
    ],
)
async def test_a_definition_with_a_wrong_schema_is_named(machine: UserMachine, front: str, message: str):
    machine.write_agent("lister", front)
    ran = await machine(
        "run", "--agent", "lister", "Which words?", RETINUE_MODEL="openai:m", OPENAI_API_KEY="k" * 20
    )
    assert (ran.code, machine.sessions.exists() and any(machine.sessions.iterdir())) == (2, False)
    assert message in ran.err
    checked = await machine("agents", "check", str(machine.agents / "lister.md"))
    assert message.removeprefix("lister: ") in checked.out + checked.err


async def test_a_schema_cannot_be_used_with_exit_tools(machine: UserMachine):
    machine.write_agent("worker", "exits: [approve]\n")
    async with machine.serve_models([VALID]):
        ran = await machine("run", "--agent", "worker", "--schema", write_schema(machine), "Work.")
    assert ran.code == 2
    assert "ends its runs with exit tools (approve)" in ran.err


async def test_a_limit_of_numbers_in_yaml_is_a_number(machine: UserMachine):
    machine.write_agent("scorer", "output_schema:\n  type: number\n  minimum: 0.5\n  maximum: 1\n")
    async with machine.serve_models([text_reply("0.4"), text_reply("0.75")]) as server:
        ran = await machine("run", "--json", "--agent", "scorer", "Score.")
    assert (ran.json["output"], len(server.requests)) == (0.75, 2)


async def test_a_child_with_a_schema_gives_its_json_to_its_parent(machine: UserMachine):
    machine.write_agent("lister", FRONT)

    def choose(request: CapturedRequest) -> FakeResponse:
        if "response_format" in request.body:
            return text_reply("I look at it.") if request.reply_count == 0 else text_reply('{"words": []}')
        if request.reply_count == 0:
            return tool_call_reply(("agent", {"agent_name": "lister", "task_prompt": "List."}))
        return text_reply("Done.")

    async with machine.serve_models(choose) as server:
        ran = await machine("run", "--json", "Delegate.")
    assert (ran.code, ran.json["text"], ran.json["output"]) == (0, "Done.", None)
    (result,) = machine.tool_results(server.requests[-1])
    assert '{"words": []}' in json.loads(result)["result"]
    assert "I look at it" not in result


async def test_an_answer_while_sub_agents_work_may_be_plain(machine: UserMachine):
    """A reply that does not match while a background sub-agent works is not the final answer."""

    def choose(request: CapturedRequest) -> FakeResponse:
        text = request.raw_body.decode()
        if "response_format" not in request.body:
            return text_reply("The sub-agent is done.", delay=0.5)
        if request.reply_count == 0:
            arguments = {"task": "Wait."}
            return tool_call_reply(("sessions_spawn", arguments))
        if "The sub-agent is done." in text:
            return VALID
        return text_reply("I wait for it.")

    async with machine.serve_models(choose) as server:
        ran = await machine("run", "--json", "--schema", write_schema(machine), "Delegate.")
    assert (ran.code, ran.json["output"]) == (0, ANSWER), ran.err
    assert not any("is not valid" in each.raw_body.decode() for each in server.requests)


async def test_a_scripted_model_gets_the_schema_in_its_prompt_and_is_checked(machine: UserMachine):
    script = machine.folder / "script.json"
    script.write_text(json.dumps([{"text": "no"}, {"text": json.dumps(ANSWER)}]))
    ran = await machine(
        "run", "--json", "--model", f"scripted:{script}", "--schema", write_schema(machine), "Words?"
    )
    assert (ran.code, ran.json["output"], ran.json["turns"]) == (0, ANSWER, 2)


async def test_the_python_api_takes_a_schema_and_gives_the_value(machine: UserMachine):
    async with machine.serve_models([VALID]), machine.open() as app:
        run = await app.run("Which words?", workspace=machine.folder, output_schema=SCHEMA)
        assert (run.status, run.output) == (retinue.Status.DONE, ANSWER)
        wrong_schemas: list[Any] = [{"type": "objekt"}, {"enum": {1}}, []]
        for wrong in wrong_schemas:
            with pytest.raises(UsageError, match="output_schema"):
                await app.run("Which?", workspace=machine.folder, output_schema=wrong)


async def test_a_child_that_a_person_spawns_has_the_schema_of_its_definition(machine: UserMachine):
    machine.write_agent("lister", FRONT)
    async with machine.serve_models([text_reply("Hello."), VALID]), machine.open() as app:
        parent = await app.run("Hello.", workspace=machine.folder)
        child = await spawn_and_wait(app, parent.session_id, "lister")
    assert child.output == ANSWER


async def test_an_interrupted_run_gives_a_summary_in_words(machine: UserMachine):
    async with machine.serve_models([text_reply("", delay=60), text_reply("I did nothing yet.")]) as server:
        process = await machine.start("run", "--json", "--schema", write_schema(machine), "Which words?")
        await machine.wait_for_requests(1)
        (run,) = await machine.wait_for_live_runs("running")
        await machine("runs", "interrupt", run["run_id"])
        out, _ = await process.communicate()
    result = json.loads(out)
    assert (result["status"], result["text"], result["output"]) == ("cancelled", "I did nothing yet.", None)
    assert "response_format" not in server.requests[-1].body


async def test_a_reply_to_a_waiting_run_cannot_give_it_a_schema(machine: UserMachine):
    script = [tool_call_reply(("ask_user", {"question": "Which?"})), text_reply("Thanks.")]
    async with machine.serve_models(script), machine.daemon():
        asked = await machine("run", "--json", "Ask.")
        session = ("--session", asked.json["slug"])
        refused = await machine("run", *session, "--schema", write_schema(machine), "The first.")
        answered = await machine("run", "--json", *session, "The first.")
    assert (asked.code, refused.code) == (6, 2)
    assert "waits for your reply and has no such output schema" in refused.err
    assert (answered.code, answered.json["text"]) == (0, "Thanks.")


async def test_the_daemon_keeps_the_schema_of_a_background_run(machine: UserMachine):
    async with machine.serve_models([text_reply("no"), VALID]), machine.daemon():
        started = await machine(
            "run", "--background", "--json", "--schema", write_schema(machine), "Which words?"
        )
        ended = await machine.wait_for_end(started.json["run_id"])
    assert (ended["status"], ended["output"], ended["turns"]) == ("done", ANSWER, 2)
