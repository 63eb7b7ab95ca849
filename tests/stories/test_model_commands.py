"""`retinue models`: what servers offer, and what is known about a model."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, http_error, raw_stream, text_reply

OFFERED: list[Mapping[str, Any]] = [
    {"id": "gpt-5.6-terra", "object": "model"},
    {"id": "gpt-5-mini"},
    {"id": "house-1", "max_model_len": 32768},
    {"id": 7},
]
KEY = "sk-test-0123456789abcdef"


def serve(offered: list[Mapping[str, Any]] | FakeResponse = OFFERED) -> FakeModelServer:
    return FakeModelServer([text_reply("Hello.")], models=offered)


async def test_a_server_is_asked_for_its_models_with_its_key(machine: UserMachine):
    async with serve() as server:
        machine.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY}
        listed = await machine("models", "list", "openai", "--json")
        table = await machine("models", "list", "openai")
    assert listed.code == 0, listed.err
    rows = {row["model"]: row for row in listed.json}
    assert list(rows) == ["openai:gpt-5-mini", "openai:gpt-5.6-terra", "openai:house-1"]
    assert rows["openai:gpt-5.6-terra"]["default"]
    assert rows["openai:gpt-5-mini"]["ends"] == "2026-12-11"
    assert rows["openai:gpt-5-mini"]["price"]["output"] == 2.0
    assert (rows["openai:house-1"]["context_window"], rows["openai:house-1"]["price"]) == (32768, None)
    assert "$0.25 in, $2 out" in table.out
    assert {request.headers["authorization"] for request in server.list_requests} == {f"Bearer {KEY}"}


async def test_anthropics_server_is_asked_in_its_own_way(machine: UserMachine):
    async with serve() as server:
        listed = await machine(
            "models", "list", "anthropic", "--json", ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY=KEY
        )
    (request,) = server.list_requests
    assert (listed.code, request.path) == (0, "/v1/models?limit=1000")
    assert request.headers["x-api-key"] == KEY
    assert "authorization" not in request.headers
    assert request.headers["anthropic-version"]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (http_error(401, "bad key"), "rejected the API key (HTTP 401). Check OPENAI_API_KEY"),
        (http_error(404, f"no {KEY}"), "answered HTTP 404: no [key]"),
        (raw_stream(b'{"data": 7}'), "sent no list of models"),
        (raw_stream(b"<html>"), "sent no list of models"),
    ],
)
async def test_a_server_without_a_list_is_reported_in_one_sentence(
    machine: UserMachine, answer: FakeResponse, sentence: str
):
    async with serve(answer) as server:
        machine.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY}
        failed = await machine("models", "list", "openai")
        machine.write_config(providers={"openai": {"models": ["one", "two"]}})
        listed = await machine("models", "list", "openai", "--json")
    assert (failed.code, failed.out.strip(), failed.err.strip().count("\n")) == (1, "", 0)
    assert sentence in failed.err
    assert KEY not in failed.err
    assert (listed.code, [row["model"] for row in listed.json]) == (0, ["openai:one", "openai:two"])


async def test_a_missing_key_address_or_provider_is_named(machine: UserMachine):
    for provider, sentence in (
        ("mistral", "Set MISTRAL_API_KEY"),
        ("azure", "Set AZURE_OPENAI_BASE_URL"),
        ("nowhere", "There is no provider 'nowhere'"),
    ):
        failed = await machine("models", "list", provider)
        assert (failed.code, sentence in failed.err) == (2, True), failed.err


async def test_a_model_is_described_without_asking_its_server(machine: UserMachine):
    async with serve() as server:
        machine.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY}
        shown = await machine("models", "show", "gpt-5.6-terra", "--json")
        text = await machine("models", "show")
        assert not server.list_requests
    assert shown.code == 0, shown.err
    facts = shown.json
    assert (facts["model"], facts["api"], facts["key"]) == (
        "openai:gpt-5.6-terra",
        "openai-chat",
        "OPENAI_API_KEY",
    )
    assert (facts["base_url"], facts["context_window"], facts["learned"]) == (server.url, 1_050_000, [])
    assert facts["price"]["long_prompt"]["above_tokens"] == 272_000
    assert facts["price_from"].startswith("list of 20")
    assert "1,050,000 tokens (list of " in text.out
    assert "above 272,000 tokens $4 in" in text.out
    assert KEY not in shown.out + text.out


async def test_a_description_tells_where_a_key_comes_from_or_that_it_is_missing(machine: UserMachine):
    missing = (await machine("models", "show", "anthropic:claude-sonnet-5-5", "--json")).json
    assert (missing["key"], missing["key_missing"]) == (None, "ANTHROPIC_API_KEY")
    other = (await machine("models", "show", "gemini:gemini-3-flash", "--json", GOOGLE_API_KEY=KEY)).json
    assert (other["key"], other["key_missing"]) == ("GOOGLE_API_KEY", None)
    machine.write_config(providers={"mistral": {"api_key": KEY}, "xai": {"api_key_command": "echo key"}})
    configured = await machine("models", "show", "mistral:mistral-large-latest", "--json")
    assert (configured.json["key"], KEY in configured.out) == ("api_key", False)
    assert (await machine("models", "show", "xai:grok-4.7", "--json")).json["key"] == "api_key_command"


async def test_windows_come_from_the_configuration_then_from_the_server_then_from_the_list(
    machine: UserMachine,
):
    async with serve([{"id": "gpt-5.6-terra", "context_length": 9000}]) as server:
        machine.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY}

        async def window() -> tuple[int, str]:
            facts = (await machine("models", "show", "openai:gpt-5.6-terra", "--json")).json
            return facts["context_window"], facts["context_window_from"].partition(" ")[0]

        assert await window() == (1_050_000, "list")
        await machine("models", "list", "openai")
        assert await window() == (9000, "server")
        machine.write_config(context_windows={"gpt-5.6-terra": 5000})
        assert await window() == (5000, "configuration")


async def test_what_was_learned_about_a_model_is_shown(machine: UserMachine):
    refusal = http_error(400, "`temperature` is deprecated for this model.")

    def choose(request: CapturedRequest) -> FakeResponse:
        return refusal if "temperature" in request.body else text_reply("Hello.")

    machine.write_agent("warm", "temperature: 0.9\n")
    async with machine.serve_models(choose):
        await machine("run", "--agent", "warm", "Hello")
        shown = await machine("models", "show", "--json")
        text = await machine("models", "show")
    (learned,) = json.loads(shown.out)["learned"]
    assert (learned["change"], learned["said"]) == ("temperature", refusal.error and refusal.error["message"])
    assert "temperature" in text.out


async def test_doctor_warns_of_models_that_are_shut_down(machine: UserMachine):
    machine.env |= {"OPENAI_API_KEY": KEY, "RETINUE_MODEL": "openai:gpt-5-mini"}
    machine.write_agent("old", "model: anthropic:claude-sonnet-4-5-20250929\n")
    machine.write_agent("new", "model: anthropic:claude-sonnet-5-5\n")
    findings = (await machine("doctor", "--json")).json
    warnings = [each["message"] for each in findings if "shut down" in each["message"]]
    assert len(warnings) == 2
    assert any("default model: openai:gpt-5-mini" in each and "2026-12-11" in each for each in warnings)
    assert any("model of old: " in each and "2026-11-30" in each for each in warnings)


async def test_doctor_accepts_a_default_model_of_a_server_that_the_user_named(machine: UserMachine):
    machine.env["RETINUE_MODEL"] = "house:some-model"
    machine.write_config(providers={"house": {"kind": "openai-chat", "base_url": "http://127.0.0.1:9/v1"}})
    findings = (await machine("doctor", "--json")).json
    (finding,) = [each for each in findings if each["message"].startswith("default model")]
    assert (finding["level"], finding["message"]) == ("ok", "default model: house:some-model")


async def test_the_default_model_is_one_that_the_server_is_known_to_offer(machine: UserMachine):
    async def default() -> str:
        return (await machine("models", "show", "--json")).json["model"]

    machine.env.pop("RETINUE_MODEL", None)
    async with serve([{"id": "gpt-5.4"}, {"id": "gpt-5.5"}, {"id": "other"}]) as server:
        machine.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY}
        assert await default() == "openai:gpt-5.6-terra"
        rows = (await machine("models", "list", "openai", "--json")).json
        assert [row["model"] for row in rows if row["default"]] == ["openai:gpt-5.5"]
        assert await default() == "openai:gpt-5.5"
        ran = await machine("run", "--json", "Hello.")
        assert (ran.code, server.requests[0].body["model"], len(server.list_requests)) == (0, "gpt-5.5", 1)
    async with serve([{"id": "only-mine"}]) as server:
        machine.env["OPENAI_BASE_URL"] = server.url
        await machine("models", "list", "openai")
        assert await default() == "openai:gpt-5.6-terra"


@pytest.mark.parametrize(
    ("variable", "provider"),
    [
        ("OPENROUTER_API_KEY", "openrouter"),
        ("GEMINI_API_KEY", "gemini"),
        ("MISTRAL_API_KEY", "mistral"),
        ("DEEPSEEK_API_KEY", "deepseek"),
        ("GROQ_API_KEY", "groq"),
        ("XAI_API_KEY", "xai"),
        ("TOGETHER_API_KEY", "together"),
    ],
)
async def test_one_key_of_a_known_vendor_is_enough_for_a_default_model(
    machine: UserMachine, variable: str, provider: str
):
    machine.env.pop("RETINUE_MODEL", None)
    async with serve() as server:
        machine.env |= {variable: KEY, variable.replace("API_KEY", "BASE_URL"): server.url}
        ran = await machine("run", "--json", "Hello.")
    assert (ran.code, ran.json["text"]) == (0, "Hello."), ran.err
    assert ran.json["cost"] is not None
    (request,) = server.requests
    assert f"{provider}:{request.body['model']}" == (await machine("models", "show", "--json")).json["model"]
