"""Output schemas in requests: native where the server takes one, else as a tool that only the request has."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from model_providers import API_KEY, WIRES

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, StopReason
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Message
from retinue.errors import ModelFailed
from retinue.http.network import DIRECT
from retinue.providers.http_provider import HttpProvider
from retinue.providers.interface import ServerAccess
from retinue.providers.learned_changes import LearnedChanges
from retinue.providers.structured_output import is_strict_schema
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.fixed_clock import fixed_clock
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply
from retinue.testing.strict_servers import STRICT_VENDORS, IssuedData, strict_script

NUMBER = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}
LIST = {"$defs": {"word": {"type": "string"}}, "type": "array", "items": {"$ref": "#/$defs/word"}}
READ = ToolSpec(name="read", description="Reads a file.", schema={"type": "object", "properties": {}})


def native_schema(request: CapturedRequest) -> Any:
    """Return the schema in the field of the request's API."""
    body = request.body
    if "input" in body:
        return body.get("text", {}).get("format", {}).get("schema")
    if "response_format" in body:
        return body["response_format"]["json_schema"]["schema"]
    return body.get("output_config", {}).get("format", {}).get("schema")


def tool_schemas(request: CapturedRequest) -> dict[str, Any]:
    """Return the schemas of a request's tools by name."""
    found: dict[str, Any] = {}
    for tool in request.body.get("tools", []):
        function = tool.get("function", tool)
        found[function["name"]] = function.get("parameters") or function.get("input_schema")
    return found


def refuse_native(message: str, *, kind: str = "invalid_request_error") -> Any:
    """Return a script that refuses a native schema, and answers by the tool otherwise."""

    def choose(request: CapturedRequest) -> FakeResponse:
        if native_schema(request) is not None:
            return http_error(400, message, kind=kind)
        return tool_call_reply(("final_answer", {"number": 4}), text="Here it is.")

    return choose


class Client:
    """One provider that asks a server for answers with a schema."""

    def __init__(self, wire: str, server: FakeModelServer, **access: Any) -> None:
        self.learned = LearnedChanges(fixed_clock())
        self.provider = HttpProvider(
            [WIRES[wire]],
            ServerAccess(base_url=server.url, api_key=API_KEY, key_variable="KEY", **access, network=DIRECT),
            learned=self.learned,
        )

    async def ask(
        self,
        schema: Mapping[str, Any] | None = NUMBER,
        tools: tuple[ToolSpec, ...] = (READ,),
        **model: Any,
    ) -> ModelReply:
        request = ModelRequest(
            model=Model(provider="p", name="m", **model),
            agent_name="general",
            system="Be brief.",
            tools=tools,
            output_schema=schema,
            entries=(Message(id="u1", role="user", text="How many?"),),
            provider_cache={},
        )
        return await self.provider.request_reply(request, lambda _: None)


@pytest.fixture(params=sorted(WIRES))
def wire(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_a_schema_is_sent_in_the_field_of_the_api_together_with_the_tools(wire: str):
    async with FakeModelServer([text_reply('{"number": 4}')]) as server:
        client = Client(wire, server)
        reply = await client.ask(thinking="high")
        await client.provider.close()
    (request,) = server.requests
    assert (reply.text, reply.tool_calls) == ('{"number": 4}', ())
    assert native_schema(request) == NUMBER
    assert set(tool_schemas(request)) == {"read"}
    if wire == "anthropic":
        assert request.body["output_config"]["effort"] == "high"


async def test_a_request_without_a_schema_has_no_such_field(wire: str):
    async with FakeModelServer([text_reply("four")] * 2) as server:
        client = Client(wire, server)
        await client.ask()
        await client.ask(None)
        await client.provider.close()
    assert not {"text", "response_format", "output_config"} & server.requests[1].body.keys()


@pytest.mark.parametrize(
    "message",
    [
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        "This response_format type is unavailable now",
        "json mode cannot be combined with tool/function calling",
        "Function calling with a response mime type: 'application/json' is unsupported",
        "output_config.format: Extra inputs are not permitted",
        "output_config: Extra inputs are not permitted",
        "Unknown parameter: 'text.format'.",
        "Structured outputs are not available on this model.",
    ],
)
async def test_a_server_that_refuses_schemas_gets_a_tool_and_is_asked_so_from_then_on(
    wire: str, message: str
):
    async with FakeModelServer(refuse_native(message)) as server:
        client = Client(wire, server)
        replies = [await client.ask(), await client.ask({**NUMBER, "title": "Another"})]
        await client.provider.close()
    assert [json.loads(reply.text) for reply in replies] == [{"number": 4}] * 2
    assert [(reply.tool_calls, reply.stop_reason) for reply in replies] == [((), StopReason.END)] * 2
    assert [native_schema(each) is not None for each in server.requests] == [True, False, False]
    assert tool_schemas(server.requests[1]) == {"read": READ.schema, "final_answer": NUMBER}
    learned = client.learned.learned_about(server.url, "m")
    assert {name: each.treatment for name, each in learned.items()} == {"schema": "as a tool"}


@pytest.mark.parametrize(
    "message",
    [
        "Invalid schema for response_format 'answer': In context=(), 'additionalProperties' is required to be supplied and to be false.",
        "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
        "invalid_json_schema: text.format.schema uses the unsupported keyword minLength",
    ],
)
async def test_a_server_that_refuses_one_schema_is_still_sent_others(wire: str, message: str):
    def choose(request: CapturedRequest) -> FakeResponse:
        if native_schema(request) == NUMBER:
            return http_error(400, message, kind="invalid_request_error")
        is_native = native_schema(request) is not None
        return text_reply("[]") if is_native else tool_call_reply(("final_answer", {"number": 4}))

    async with FakeModelServer(choose) as server:
        client = Client(wire, server)
        texts = [(await client.ask(schema)).text for schema in (NUMBER, LIST, NUMBER)]
        await client.provider.close()
    assert [json.loads(text) for text in texts] == [{"number": 4}, [], {"number": 4}]
    assert [native_schema(each) for each in server.requests] == [NUMBER, None, LIST, None]


async def test_a_refusal_that_is_about_the_tools_is_reported(wire: str):
    message = "Invalid schema for function 'read': In context=(), object schema missing properties"
    async with FakeModelServer([http_error(400, message, kind="invalid_request_error")]) as server:
        client = Client(wire, server)
        with pytest.raises(ModelFailed, match="Invalid schema for function"):
            await client.ask()
        await client.provider.close()
    assert len(server.requests) == 1


async def test_an_answer_that_is_not_an_object_is_an_argument_of_the_tool(wire: str):
    script = [
        http_error(400, "json_schema is not supported"),
        tool_call_reply(("final_answer", {"answer": ["a"]})),
    ]
    async with FakeModelServer(script) as server:
        client = Client(wire, server)
        reply = await client.ask(LIST)
        await client.provider.close()
    assert json.loads(reply.text) == ["a"]
    schema = tool_schemas(server.requests[1])["final_answer"]
    assert schema["properties"]["answer"] == LIST
    assert schema["$defs"] == LIST["$defs"]


async def test_an_answer_among_other_calls_is_left_out_with_its_data(wire: str):
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read", {}),
        ("final_answer", {"number": 1}),
        ("read", {"a": 1}),
    ]
    script = [
        http_error(400, "json_schema is not supported"),
        tool_call_reply(
            *calls,
            thinking="I think.",
            call_fields=(
                {"extra_content": {"n": 1}},
                {"extra_content": {"n": 2}},
                {"extra_content": {"n": 3}},
            ),
        ),
    ]
    async with FakeModelServer(script) as server:
        client = Client(wire, server)
        reply = await client.ask()
        await client.provider.close()
    assert [json.loads(call.arguments) for call in reply.tool_calls] == [{}, {"a": 1}]
    assert sum("retinue.call" in each for each in reply.provider_data) in (0, 2)
    assert not any('"n":2' in each for each in reply.provider_data)


async def test_a_tool_of_the_same_name_is_not_taken_for_the_answer(wire: str):
    own = ToolSpec(name="final_answer", description="Mine.", schema={"type": "object"})
    script = [
        http_error(400, "json_schema is not supported"),
        tool_call_reply(("final_answer", {"number": 1})),
        tool_call_reply(("final_answer_", {"number": 2})),
    ]
    async with FakeModelServer(script) as server:
        client = Client(wire, server)
        first, second = await client.ask(tools=(own,)), await client.ask(tools=(own,))
        await client.provider.close()
    assert [call.tool for call in first.tool_calls] == ["final_answer"]
    assert json.loads(second.text) == {"number": 2}


async def test_arguments_that_are_cut_off_are_the_text_as_they_are(wire: str):
    script = [
        http_error(400, "json_schema is not supported"),
        tool_call_reply(("final_answer", '{"number": '), stop="length"),
    ]
    async with FakeModelServer(script) as server:
        client = Client(wire, server)
        reply = await client.ask()
        await client.provider.close()
    assert (reply.text, reply.tool_calls) == ('{"number": ', ())


async def test_a_server_that_would_call_no_tool_with_a_schema_gets_one_as_a_tool_if_there_are_others():
    script = [tool_call_reply(("final_answer", {"number": 4})), text_reply('{"number": 4}')]
    async with FakeModelServer(script) as server:
        client = Client("openai", server, schema_disables_tools=True)
        await client.ask()
        await client.ask(tools=())
        await client.provider.close()
    assert [native_schema(each) is not None for each in server.requests] == [False, True]


async def test_fields_of_the_user_do_not_replace_the_schema():
    body = {"text": {"verbosity": "low"}}
    async with FakeModelServer([text_reply('{"number": 4}')]) as server:
        client = Client("openai-responses", server, body=body)
        await client.ask()
        await client.provider.close()
    (request,) = server.requests
    assert native_schema(request) == NUMBER
    assert request.body["text"]["verbosity"] == "low"


@pytest.mark.parametrize("schema", [NUMBER, {"type": "object"}], ids=["closed", "open"])
@pytest.mark.parametrize("vendor", sorted(STRICT_VENDORS))
async def test_every_strict_vendor_answers_with_a_schema(vendor: str, schema: dict[str, Any]):
    issued = IssuedData([])

    def choose(request: CapturedRequest) -> FakeResponse:
        if native_schema(request) is not None:
            return text_reply('{"number": 4}')
        return tool_call_reply(("final_answer", {"number": 4}))

    async with FakeModelServer(strict_script(vendor, choose, issued)) as server:
        kind = STRICT_VENDORS[vendor].wire
        wires = [WIRES["anthropic"]] if kind == "anthropic" else [WIRES["openai"], WIRES["openai-responses"]]
        access = ServerAccess(base_url=server.url, api_key=API_KEY, key_variable="KEY", network=DIRECT)
        client = Client("openai", server)
        client.provider = HttpProvider(wires, access, learned=client.learned)
        for _ in range(2):
            reply = await client.ask(schema, thinking="high", temperature=0.3)
            assert json.loads(reply.text) == {"number": 4}
        refusals = len(issued.refusals)
        await client.ask(schema, thinking="high", temperature=0.3)
        await client.provider.close()
    assert len(issued.refusals) == refusals


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NUMBER, True),
        (LIST, False),
        ({"type": "object"}, False),
        ({**NUMBER, "required": []}, False),
        ({**NUMBER, "additionalProperties": True}, False),
        ({**NUMBER, "allOf": []}, False),
        ({**NUMBER, "properties": {"number": {"type": "object", "properties": {}}}}, False),
        ({**NUMBER, "properties": {"number": {"type": ["object", "null"]}}}, False),
        ({**NUMBER, "properties": {"number": {"type": "array", "items": NUMBER}}}, True),
        ({**NUMBER, "properties": {"number": {"anyOf": [NUMBER, {"type": "null"}]}}}, True),
        ({**NUMBER, "properties": {"number": {"anyOf": [{"type": "object"}]}}}, False),
        ({**NUMBER, "properties": {"number": True}}, False),
        ({**NUMBER, "$defs": {"open": {"type": "object"}}}, False),
    ],
)
def test_only_a_closed_schema_is_declared_strict(schema: dict[str, Any], expected: bool):
    assert is_strict_schema(schema) is expected
