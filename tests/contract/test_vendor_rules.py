"""Conversations with servers that refuse what real vendors refuse: no rule of a vendor ends one."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from model_providers import API_KEY
from msgspec.structs import replace

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.errors import ModelFailed
from retinue.http.network import DIRECT
from retinue.providers.anthropic import MESSAGES
from retinue.providers.http_provider import HttpProvider
from retinue.providers.interface import ServerAccess
from retinue.providers.learned_changes import LearnedChanges
from retinue.providers.openai_chat import CHAT_COMPLETIONS
from retinue.providers.openai_responses import RESPONSES
from retinue.testing.fake_model_server import FakeModelServer
from retinue.testing.fixed_clock import fixed_clock
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply
from retinue.testing.strict_servers import STRICT_VENDORS, IssuedData, refuse_field, strict_script

READ = ToolSpec(
    name="read",
    description="Reads a file.",
    schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
WRITE = ToolSpec(name="write", description="Writes a file.", schema={"type": "object", "properties": {}})
FIRST_SCRIPT = [
    tool_call_reply(("read", {"path": "a"}), ("read", {"path": "b"}), text="I look."),
    tool_call_reply(("read", {"path": "c"})),
    text_reply("Found."),
    tool_call_reply(("read", {"path": "d"})),
    text_reply("Done."),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "high thinking": {"thinking": "high", "temperature": 0.3},
    "thinking off": {"thinking": "off", "temperature": 0.3, "max_tokens": 500},
    "most thinking": {"thinking": "max"},
}


@dataclass(slots=True)
class VendorConversation:
    """A conversation with a strict server, kept as the runtime keeps it."""

    server: FakeModelServer
    issued: IssuedData
    wire: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    entries: list[Entry] = field(default_factory=list[Entry])
    tools: tuple[ToolSpec, ...] = (READ,)
    system: str = "Be brief."
    learned: LearnedChanges = field(default_factory=lambda: LearnedChanges(fixed_clock()))
    notices: list[str] = field(default_factory=list[str])
    provider: HttpProvider | None = None
    cache: dict[str, Any] = field(default_factory=dict[str, Any])

    async def restart(self) -> None:
        """Continue with a new provider and nothing in memory, as after a restart."""
        if self.provider is not None:
            await self.provider.close()
        wires = [MESSAGES] if self.wire == "anthropic" else [CHAT_COMPLETIONS, RESPONSES]
        access = ServerAccess(base_url=self.server.url, api_key=API_KEY, key_variable="KEY", network=DIRECT)
        self.provider = HttpProvider(wires, access, learned=self.learned)
        self.cache = {}

    async def say(self, text: str) -> ModelReply:
        """Add a user message, and request replies until one has no calls; each call gets a result."""
        self.entries.append(Message(id=f"u{len(self.entries)}", role="user", text=text))
        while True:
            reply = await self.request_reply()
            self.add_reply(reply)
            if not reply.tool_calls:
                return reply

    async def request_reply(self) -> ModelReply:
        if self.provider is None:
            await self.restart()
        assert self.provider is not None
        model = Model(provider=self.wire, name="a-model", **self.options)
        request = ModelRequest(
            model=model,
            agent_name="general",
            system=self.system,
            tools=self.tools,
            entries=tuple(self.entries),
            provider_cache=self.cache,
        )
        return await self.provider.request_reply(request, self._on_delta)

    def add_reply(self, reply: ModelReply) -> None:
        number = len(self.entries)
        self.entries.append(
            Message(
                id=f"a{number}",
                role="agent",
                text=reply.text,
                tool_call_count=len(reply.tool_calls),
                provider_data=reply.provider_data,
            )
        )
        calls = [
            ToolCall(id=f"c{number}-{index}", tool=call.tool, args=call.arguments, vendor_id=call.vendor_id)
            for index, call in enumerate(reply.tool_calls)
        ]
        self.entries += calls
        self.entries += [ToolResult(call_id=call.id, text=f"contents {call.args}") for call in calls]

    def edit(self, index: int, text: str) -> None:
        """Change the text of an entry, as a person does in session.md."""
        entry = self.entries[index]
        assert isinstance(entry, Message)
        self.entries[index] = replace(entry, text=text)
        self.cache = {}

    def _on_delta(self, delta: ReplyDelta) -> None:
        if delta.notice:
            self.notices.append(delta.notice)


class VendorHarness:
    """Starts conversations with strict servers, and stops them."""

    def __init__(self) -> None:
        self._servers: list[FakeModelServer] = []
        self._conversations: list[VendorConversation] = []

    async def start(
        self, vendor: str, script: Sequence[FakeResponse] = FIRST_SCRIPT, **options: Any
    ) -> VendorConversation:
        issued = IssuedData(script)
        server = FakeModelServer(strict_script(vendor, script, issued))
        await server.__aenter__()
        self._servers.append(server)
        conversation = VendorConversation(server, issued, STRICT_VENDORS[vendor].wire, options)
        self._conversations.append(conversation)
        return conversation

    async def close(self) -> None:
        for conversation in self._conversations:
            if conversation.provider is not None:
                await conversation.provider.close()
        for server in self._servers:
            await server.__aexit__()


@pytest.fixture
async def vendors():
    harness = VendorHarness()
    yield harness
    await harness.close()


@pytest.fixture(params=sorted(STRICT_VENDORS))
def vendor(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("settings", sorted(SETTINGS))
async def test_two_turns_with_tools_work_with_every_vendor_and_setting(
    vendors: VendorHarness, vendor: str, settings: str
):
    conversation = await vendors.start(vendor, **SETTINGS[settings])
    assert (await conversation.say("Look.")).text == "Found."
    refusals = len(conversation.issued.refusals)
    assert (await conversation.say("Again.")).text == "Done."
    assert (
        conversation.issued.refusals[refusals:] == []
    )  # what was learned in the first turn is not refused again


@pytest.mark.parametrize("index", [0, 1], ids=["message of the user", "reply"])
async def test_a_conversation_continues_after_an_edit_with_every_vendor(
    vendors: VendorHarness, vendor: str, index: int
):
    conversation = await vendors.start(vendor, thinking="high")
    await conversation.say("Look.")
    refusals = len(conversation.issued.refusals)
    conversation.edit(index, "Look well.")
    assert (await conversation.say("Again.")).text == "Done."
    assert conversation.issued.refusals[refusals:] == []


async def test_a_conversation_continues_after_a_change_of_tools_and_of_the_system_message(
    vendors: VendorHarness, vendor: str
):
    conversation = await vendors.start(vendor, thinking="high")
    await conversation.say("Look.")
    refusals = len(conversation.issued.refusals)
    conversation.tools = (READ, WRITE)
    conversation.system = "Be brief. There is a new agent."
    assert (await conversation.say("Again.")).text == "Done."
    assert conversation.issued.refusals[refusals:] == []


async def test_a_conversation_continues_after_a_restart_in_a_tool_loop(vendors: VendorHarness, vendor: str):
    conversation = await vendors.start(vendor, thinking="high")
    conversation.entries.append(Message(id="u", role="user", text="Look."))
    conversation.add_reply(await conversation.request_reply())
    refusals = len(conversation.issued.refusals)
    await conversation.restart()
    while (reply := await conversation.request_reply()).tool_calls:
        conversation.add_reply(reply)
    conversation.add_reply(reply)
    assert (await conversation.say("Again.")).text == "Done."
    assert conversation.issued.refusals[refusals:] == []


@pytest.mark.parametrize("earlier", ["claude-5.1", "gpt-5.6", "gemini-3"])
async def test_a_conversation_begun_with_another_vendor_continues(
    vendors: VendorHarness, vendor: str, earlier: str
):
    first = await vendors.start(earlier, thinking="high")
    await first.say("Look.")
    second = await vendors.start(vendor, FIRST_SCRIPT[3:], thinking="high")
    second.entries = first.entries
    assert (await second.say("Again.")).text == "Done."


async def test_the_prefix_of_requests_stays_the_same_on_every_wire(vendors: VendorHarness, vendor: str):
    conversation = await vendors.start(vendor)
    await conversation.say("Look.")
    refusals = len(conversation.issued.refusals)
    accepted = len(conversation.server.requests)
    await conversation.say("Again.")
    bodies = [
        request.raw_body.removesuffix(b"]}") for request in conversation.server.requests[accepted - 2 :]
    ]
    assert conversation.issued.refusals[refusals:] == []
    for body, following in itertools.pairwise(bodies):
        assert following.startswith(body)


async def test_vendor_call_ids_return_only_to_the_server_that_issued_them(vendors: VendorHarness):
    first = await vendors.start("gemini-3")
    await first.say("Look.")
    sent = json.dumps(first.server.requests[-1].body)
    assert "function-call-10" in sent
    second = await vendors.start("mistral", FIRST_SCRIPT[3:])
    second.entries = first.entries
    await second.say("Again.")
    assert "function-call-" not in json.dumps(second.server.requests[-1].body)


async def test_what_is_not_sent_is_said_once(vendors: VendorHarness):
    conversation = await vendors.start("claude-4.7", temperature=0.3)
    await conversation.say("Look.")
    await conversation.say("Again.")
    assert conversation.notices == ["a-model: temperature is not sent"]
    learned = conversation.learned.learned_about(conversation.server.url, "a-model")
    assert "deprecated" in learned["temperature"].said


async def test_a_new_rule_about_an_optional_field_is_survived(vendors: VendorHarness):
    rule = refuse_field("temperature", "`temperature`: this value is not what we want any more.")
    issued = IssuedData(FIRST_SCRIPT)

    def choose(request: Any) -> FakeResponse:
        return rule(request, issued) or text_reply("Fine.")

    conversation = await vendors.start("claude-4.7", temperature=0.3)
    async with FakeModelServer(choose) as server:
        conversation.server = server
        assert (await conversation.say("Look.")).text == "Fine."


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Invalid 'tools[0].parameters': schema is too deep.", "tools"),
        ("tools.0.custom.name: String should match pattern", None),
        ("Tools are not supported by this model.", None),
        ("messages.3: the text is too long; lower the temperature of your prompts.", "messages"),
    ],
)
async def test_a_refusal_that_names_a_required_field_is_reported_and_nothing_is_changed(
    vendors: VendorHarness, message: str, param: str | None
):
    conversation = await vendors.start("claude-4.7", temperature=0.3, thinking="high")
    refusal = http_error(400, message, kind="invalid_request_error", param=param)
    async with FakeModelServer(lambda _: refusal) as server:
        conversation.server = server
        with pytest.raises(ModelFailed, match=message[:20].replace("[", r"\[").replace("(", r"\(")):
            await conversation.say("Look.")
        assert len(server.requests) == 1


async def test_a_server_that_refuses_everything_is_asked_five_times_at_most(vendors: VendorHarness):
    fields = [
        "temperature",
        "thinking.type",
        "output_config.effort",
        "cache_control",
        "thinking",
        "output_config",
    ]
    refused: list[str] = []

    def choose(_: Any) -> FakeResponse:
        refused.append(fields[len(refused) % len(fields)])
        return http_error(400, f"'{refused[-1]}' is not supported", param=refused[-1])

    conversation = await vendors.start("claude-4.7", temperature=0.3, thinking="high")
    async with FakeModelServer(choose) as server:
        conversation.server = server
        with pytest.raises(ModelFailed):
            await conversation.say("Look.")
        assert len(server.requests) <= 5
    assert conversation.learned.learned_about(server.url, "a-model") == {}
