"""Model servers by name: their keys, headers and fields, and what Retinue learns from their refusals."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply
from retinue.testing.strict_servers import STRICT_VENDORS, strict_script

SCRIPT = [
    tool_call_reply(("ls", {}), ("ls", {"path": "."}), text="I look."),
    tool_call_reply(("ls", {})),
    text_reply("Found."),
    tool_call_reply(("ls", {})),
    text_reply("Done."),
]


def configure_server(machine: UserMachine, server: FakeModelServer, **settings: Any) -> None:
    settings = {"kind": "openai-chat", "base_url": server.url} | settings
    machine.write_config(providers={"house": settings})


async def test_a_server_of_the_users_own_gets_its_headers_fields_and_key(machine: UserMachine):
    async with FakeModelServer([text_reply("Hello.")]) as server:
        configure_server(
            machine,
            server,
            api_key_env="HOUSE_KEY",
            headers={"X-Team": "search"},
            body={"seed": 7, "provider": {"order": ["a"]}},
        )
        machine.env["HOUSE_KEY"] = "house-key-0123456789abcdef"
        ran = await machine("run", "--json", "--model", "house:some/model:free", "Hello")
    assert (ran.code, ran.json["text"]) == (0, "Hello.")
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer house-key-0123456789abcdef"
    assert request.headers["x-team"] == "search"
    assert (request.body["model"], request.body["seed"]) == ("some/model:free", 7)
    assert request.body["provider"] == {"order": ["a"]}


@pytest.mark.parametrize("vendor", sorted(STRICT_VENDORS))
async def test_a_conversation_with_each_vendor_survives_an_edit_and_a_new_process(
    machine: UserMachine, vendor: str
):
    kind = STRICT_VENDORS[vendor].wire
    async with FakeModelServer(strict_script(vendor, SCRIPT)) as server:
        machine.env |= {
            f"{kind.upper()}_BASE_URL": server.url,
            f"{kind.upper()}_API_KEY": "sk-test-0123456789",
        }
        machine.env["RETINUE_MODEL"] = f"{kind}:a-model"
        machine.write_agent("careful", "temperature: 0.3\nthinking: high\ntools: [ls]\n")
        first = await machine("run", "--json", "--agent", "careful", "Look.")
        assert (first.code, first.json["text"]) == (0, "Found."), first.err
        path = Path(first.json["path"])
        path.write_text(path.read_text().replace("Look.", "Look well.").replace("I look.", "I look well."))
        machine.write_agent("another", "description: Helps.\n")
        second = await machine("run", "--json", "--session", first.json["slug"], "Again.")
        assert (second.code, second.json["text"]) == (0, "Done."), second.err


async def test_what_a_server_refused_is_remembered_by_the_next_process(machine: UserMachine):
    refusal = http_error(400, "`temperature` is deprecated for this model.")

    def choose(request: CapturedRequest) -> FakeResponse:
        return refusal if "temperature" in request.body else text_reply("Hello.")

    machine.write_agent("warm", "temperature: 0.9\n")
    async with machine.serve_models(choose) as server:
        first = await machine("run", "--agent", "warm", "Hello")
        second = await machine("run", "--agent", "warm", "Hello")
    assert (first.code, second.code, len(server.requests)) == (0, 0, 3)
    learned = json.loads((machine.home / "learned.json").read_text())["learned"]
    ((key, changes),) = learned.items()
    assert key == f"{server.url} test-model"
    assert changes["temperature"]["treatment"] == "drop"
    assert "deprecated" in changes["temperature"]["said"]


@pytest.mark.parametrize("damage", ["{", '{"version": 1, "learned": 3}', "[]", "\0"])
async def test_a_damaged_file_of_learned_changes_is_replaced(machine: UserMachine, damage: str):
    refusal = http_error(400, "Unsupported parameter: 'temperature'", param="temperature")

    def choose(request: CapturedRequest) -> FakeResponse:
        return refusal if "temperature" in request.body else text_reply("Hello.")

    machine.write_agent("warm", "temperature: 0.9\n")
    machine.home.mkdir(parents=True, exist_ok=True)
    (machine.home / "learned.json").write_text(damage)
    async with machine.serve_models(choose):
        assert (await machine("run", "--agent", "warm", "Hello")).code == 0
    assert json.loads((machine.home / "learned.json").read_text())["learned"]


def write_key_command(machine: UserMachine, text: str) -> str:
    path = machine.folder / "print-key"
    path.write_text(f"#!/bin/sh\necho called >> {machine.folder}/calls\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_a_key_from_a_command_is_fetched_again_when_the_server_rejects_it(machine: UserMachine):
    def choose(request: CapturedRequest) -> FakeResponse:
        is_new = request.headers["authorization"] == "Bearer token-number-2-0123456789"
        return text_reply("Hello.") if is_new else http_error(401, "expired")

    async with FakeModelServer(choose) as server:
        command = write_key_command(
            machine, f'echo "token-number-$(wc -l < {machine.folder}/calls)-0123456789"'
        )
        configure_server(machine, server, api_key_command=command)
        ran = await machine("run", "--json", "--model", "house:m", "Hello")
    assert (ran.code, ran.json["text"]) == (0, "Hello.")
    assert (machine.folder / "calls").read_text().count("called") == 2
    for folder, _, names in os.walk(machine.home):
        for name in names:
            assert b"token-number" not in Path(folder, name).read_bytes()


async def test_a_key_from_a_command_is_kept_until_it_expires(machine: UserMachine):
    script = [tool_call_reply(("ls", {})), tool_call_reply(("ls", {})), text_reply("Done.")]
    async with FakeModelServer(script) as server:
        command = write_key_command(
            machine, """echo '{"access_token": "token-0123456789", "expires_in": 3600}'"""
        )
        configure_server(machine, server, api_key_command=command)
        assert (await machine("run", "--model", "house:m", "Hello")).code == 0
    assert {each.headers["authorization"] for each in server.requests} == {"Bearer token-0123456789"}
    assert (machine.folder / "calls").read_text().count("called") == 1


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no account >&2; exit 3", "failed with exit code 3: no account"),
        ("true", "printed no key"),
        ("echo '{}'; true", "printed no key"),
        ("printf 'two\\nlines'", "the API key contains invalid characters"),
    ],
)
async def test_a_failing_key_command_ends_the_run_with_one_sentence(
    machine: UserMachine, script: str, message: str
):
    async with FakeModelServer([]) as server:
        configure_server(machine, server, api_key_command=write_key_command(machine, script))
        ran = await machine("run", "--model", "house:m", "Hello")
    assert (ran.code, server.requests) == (1, [])
    assert message in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"house": {"base_url": "https://x"}}, "providers.house: has no kind; add one of openai-responses, openai-chat, anthropic"),
        ({"house": {"kind": "openai-chat"}}, "providers.house: has no base_url"),
        ({"house": {"kind": "grpc", "base_url": "https://x"}}, "providers.house.kind"),
        ({"openai": {"api_key": "a", "api_key_env": "B"}}, "providers.openai: has api_key and api_key_env; keep one of them"),
        ({"opneai": {"api_key": "a"}}, "did you mean 'openai'"),
        ({"claude-cli": {"base_url": "https://x", "kind": "anthropic"}}, "providers.claude-cli: is not a name for a model server"),
        ({"openai": {"headers": {"Host": "x"}}}, "providers.openai.headers.Host: is not a header that can be set"),
    ],
)  # fmt: skip
async def test_a_wrong_setting_of_a_server_is_an_error_that_names_the_key(
    machine: UserMachine, settings: Any, message: str
):
    machine.write_config(providers=settings)
    ran = await machine("run", "Hello")
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mistral:m", "No API key for mistral:m. Set MISTRAL_API_KEY."),
        ("azure:m", "No address for azure:m. Set AZURE_OPENAI_BASE_URL, or base_url in [providers.azure]."),
        ("nowhere:m", "unknown provider in the model 'nowhere:m'"),
    ],
)
async def test_a_missing_key_or_address_is_named_before_anything_is_written(
    machine: UserMachine, model: str, message: str
):
    ran = await machine("run", "--model", model, "Hello")
    assert ran.code == 2
    assert message in ran.err
    assert not list(machine.home.rglob("session.md"))
