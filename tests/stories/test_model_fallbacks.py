"""Fallback models: other models answer if the first one fails, and every surface says which one did."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine, wait_until

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer, Script
from retinue.testing.replies import (
    FakeResponse,
    http_error,
    stream_error,
    text_reply,
    tool_call_reply,
    unfinished_stream,
)
from retinue.testing.strict_servers import STRICT_VENDORS, strict_script

RETRY_S = 0.2


def configure_servers(machine: UserMachine, servers: dict[str, tuple[str, str]], **settings: Any) -> None:
    """Configure model servers by name: kind and address."""
    providers = {
        name: {
            "kind": kind,
            "base_url": url,
            "api_key": f"key-of-{name}-0123456789",
            "retry_seconds": RETRY_S,
        }
        for name, (kind, url) in servers.items()
    }
    machine.write_config(providers=providers | settings.pop("providers", {}), approvals="auto", **settings)


async def run_with_fallback(
    machine: UserMachine, first: Script, second: Script, *args: str
) -> tuple[dict[str, Any], str, FakeModelServer, FakeModelServer]:
    """Run an agent with one fallback; return the run's details, what the command printed, and the servers."""
    async with FakeModelServer(first) as one, FakeModelServer(second) as two:
        configure_servers(machine, {"one": ("openai-chat", one.url), "two": ("anthropic", two.url)})
        machine.write_agent("careful", "model: one:a\nfallback_models: [two:b]\ntools: [ls]\n")
        ran = await machine("run", "--json", "--agent", "careful", *args, "Look.")
    shown = (await machine("runs", "show", ran.json["run_id"], "--json")).json
    return shown | {"exit_code": ran.code}, ran.err, one, two


@pytest.mark.parametrize(
    "failure",
    [
        http_error(503, "down for maintenance"),
        http_error(429, "too many requests"),
        http_error(529, "overloaded"),
        unfinished_stream("I thi"),
        stream_error(text="I thi"),
        http_error(401, "invalid key"),
        http_error(403, "not allowed"),
        http_error(404, "no such model"),
        http_error(400, "the request is refused"),
    ],
)
async def test_a_fallback_answers_if_the_first_model_fails_in_any_way(
    machine: UserMachine, failure: FakeResponse
):
    run, err, one, two = await run_with_fallback(machine, lambda _: failure, [text_reply("Found.")])
    assert (run["exit_code"], run["status"], run["text"], run["reason"]) == (0, "done", "Found.", None)
    assert len(one.requests) >= 1
    assert len(two.requests) == 1
    assert (run["model"], run["fallback_models"]) == ("two:b", ["two:b"])
    assert "model=two:b" in Path(run["path"]).read_text()
    assert "I thi" not in Path(run["path"]).read_text()
    assert "one:a is not used: " in err
    assert "Asking two:b" in err
    shown = await machine("runs", "show", run["run_id"])
    assert "Answered by fallbacks: two:b" in shown.out
    logged = [json.loads(line) for line in (machine.home / "logs" / "retinue.jsonl").read_text().splitlines()]
    (warning,) = [line for line in logged if line["level"] == "warn"]
    assert "Asking two:b" in warning["event"]


async def test_a_run_stays_with_the_fallback_and_the_next_run_tries_the_first_model_again(
    machine: UserMachine,
):
    is_down = True

    def choose(_: CapturedRequest) -> FakeResponse:
        return http_error(503, "down") if is_down else text_reply("First again.")

    script = [tool_call_reply(("ls", {})), tool_call_reply(("ls", {})), text_reply("Found.")]
    async with FakeModelServer(choose) as one, FakeModelServer(script) as two:
        configure_servers(machine, {"one": ("openai-chat", one.url), "two": ("anthropic", two.url)})
        machine.write_agent("careful", "model: one:a\nfallback_models: two:b\ntools: [ls]\n")
        async with machine.open() as app:
            first = await app.run("Look.", agent="careful", workspace=machine.folder)
            asked = len(one.requests)
            is_down = False
            again = await app.run("Again.", session=first.session_id)
    assert (first.text, first.model, len(two.requests)) == ("Found.", "two:b", 3)
    assert (again.text, again.model, again.report.fallback_models) == ("First again.", "one:a", ())
    assert len(one.requests) == asked + 1
    # The fallback's calls and results are part of the conversation that the first model continues.
    assert [message["role"] for message in one.requests[-1].messages].count("tool") == 2


@pytest.mark.parametrize("vendor", sorted(STRICT_VENDORS))
async def test_a_fallback_of_another_vendor_continues_a_conversation_with_tool_calls(
    machine: UserMachine, vendor: str
):
    """The first server fails in the middle of the run, after calls of its own."""
    first = [tool_call_reply(("ls", {}), text="I look."), *[http_error(503, "down")] * 500]
    then = [tool_call_reply(("ls", {}), ("ls", {"path": "."})), text_reply("Found.")]
    async with FakeModelServer(first) as one, FakeModelServer(strict_script(vendor, then)) as two:
        kind = STRICT_VENDORS[vendor].wire
        wire = "openai-responses" if vendor == "responses only" else {"openai": "openai-chat"}.get(kind, kind)
        configure_servers(machine, {"one": ("openai-chat", one.url), "two": (wire, two.url)})
        machine.write_agent(
            "careful", "model: one:a\nfallback_models: [two:b]\ntools: [ls]\nthinking: high\n"
        )
        ran = await machine("run", "--json", "--agent", "careful", "Look.")
    assert (ran.code, ran.json["text"]) == (0, "Found."), ran.err
    shown = (await machine("runs", "show", ran.json["run_id"], "--json")).json
    assert shown["turns"] == 3
    markers = [line for line in Path(ran.json["path"]).read_text().splitlines() if "<!-- agent" in line]
    assert ["model=two:" in marker for marker in markers] == [False, True, True]


async def test_fallbacks_are_asked_in_order_and_those_without_a_key_are_skipped(machine: UserMachine):
    async with (
        FakeModelServer(lambda _: http_error(500, "broken")) as one,
        FakeModelServer([]) as never,
        FakeModelServer(lambda _: http_error(404, "no such model")) as two,
        FakeModelServer([text_reply("Third.")]) as three,
    ):
        configure_servers(
            machine,
            {
                "one": ("openai-chat", one.url),
                "two": ("openai-chat", two.url),
                "three": ("openai-responses", three.url),
            },
            providers={
                "keyless": {"kind": "openai-chat", "base_url": never.url, "api_key_env": "NO_SUCH_KEY"}
            },
            model="one:a",
            fallback_models=["keyless:x", "two:b", "three:c"],
        )
        ran = await machine("run", "--json", "Hello")
        assert (ran.code, ran.json["text"]) == (0, "Third.")
        assert (len(never.requests), len(two.requests), len(three.requests)) == (0, 1, 1)
    assert "keyless:x is not used: No API key for keyless:x. Set NO_SUCH_KEY. Asking two:b" in ran.err
    assert "two:b is not used: " in ran.err


async def test_a_first_model_without_a_key_leaves_the_run_to_its_fallbacks(machine: UserMachine):
    async with FakeModelServer([text_reply("Second.")]) as two:
        configure_servers(machine, {"two": ("openai-chat", two.url)})
        machine.write_agent("careful", "model: mistral:a\nfallback_models: [two:b]\n")
        ran = await machine("run", "--json", "--agent", "careful", "Hello")
        assert (ran.code, ran.json["text"]) == (0, "Second.")
        assert "Set MISTRAL_API_KEY. Asking two:b" in ran.err
    machine.write_agent("careful", "model: mistral:a\nfallback_models: [deepseek:b]\n")
    refused = await machine("run", "--agent", "careful", "Hello")
    assert (refused.code, "MISTRAL_API_KEY" in refused.err) == (2, True)


async def test_a_run_waits_for_its_model_if_no_fallback_answers(machine: UserMachine):
    down = True

    def choose(_: CapturedRequest) -> FakeResponse:
        return http_error(503, "down for maintenance") if down else text_reply("Back.")

    async with FakeModelServer(choose) as one, FakeModelServer(lambda _: http_error(401, "no")) as two:
        configure_servers(
            machine, {"one": ("openai-chat", one.url), "two": ("openai-chat", two.url)}, model="one:a"
        )
        machine.write_agent("careful", "fallback_models: [two:b]\n")
        process = await machine.start("run", "--json", "--agent", "careful", "Hello")
        (run,) = await machine.wait_for_live_runs("waiting")
        assert run["waiting_for"] in ("model", None)
        down = False
        out, err = await process.communicate()
    ended = json.loads(out)
    assert (process.returncode, ended["text"]) == (0, "Back.")
    assert "one:a: " in err.decode()
    assert "two:b: " in err.decode()


async def test_a_run_fails_with_every_reason_if_all_models_refuse(machine: UserMachine):
    run, _, one, two = await run_with_fallback(
        machine, lambda _: http_error(401, "wrong key"), lambda _: http_error(404, "no such model")
    )
    assert (run["exit_code"], run["status"], run["reason"]) == (1, "failed", "auth")
    assert "one:a: " in run["error"]
    assert "two:b: " in run["error"]
    assert (len(one.requests), len(two.requests)) == (1, 1)
    assert run["fallback_models"] == []


async def test_an_empty_list_in_a_definition_switches_the_configured_fallbacks_off(machine: UserMachine):
    async with FakeModelServer([]) as two:
        configure_servers(machine, {"two": ("openai-chat", two.url)}, fallback_models=["two:b"])
        async with FakeModelServer(lambda _: http_error(401, "wrong key")) as server:
            machine.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test-0123456789"}
            machine.write_agent("alone", "model: openai:gpt-x\nfallback_models: []\n")
            ran = await machine("run", "--agent", "alone", "Hello")
        assert (ran.code, two.requests) == (1, [])


async def test_sub_agents_continue_with_their_own_fallbacks(machine: UserMachine):
    delegation = tool_call_reply(
        *[("agent", {"agent_name": "helper", "task_prompt": f"Part {number}."}) for number in range(4)]
    )

    def choose(request: CapturedRequest) -> FakeResponse:
        return delegation if request.reply_count == 0 else text_reply("All done.")

    async with (
        FakeModelServer(choose) as good,
        FakeModelServer(lambda _: http_error(503, "down")) as broken,
        FakeModelServer(lambda _: text_reply("Part done.")) as spare,
    ):
        configure_servers(
            machine,
            {
                "good": ("openai-chat", good.url),
                "broken": ("openai-chat", broken.url),
                "spare": ("openai-chat", spare.url),
            },
        )
        machine.write_agent("helper", "model: broken:a\nfallback_models: [spare:b]\n")
        ran = await machine("run", "--json", "--model", "good:m", "Delegate.")
        assert (ran.code, ran.json["text"], len(ran.json["children"])) == (0, "All done.", 4)
        assert len(spare.requests) == 4
    for child in ran.json["children"]:
        assert (await machine("runs", "show", child, "--json")).json["fallback_models"] == ["spare:b"]


@pytest.mark.parametrize(
    ("front", "code", "message"),
    [
        ("model: openai:a\nfallback_models: [nowhere:b]", 2, "fallback_models: unknown provider"),
        (
            "model: openai:a\nfallback_models: [claude-cli:x]",
            2,
            "fallback_models: claude-cli:x is a CLI agent",
        ),
        ("model: openai:a\nfallback_models: [inherit]", 2, "must name a model"),
        ("model: openai:a\nfallback_models: {a: b}", 2, "must be a list"),
        ("driver: claude-cli\nfallback_models: [openai:a]", 2, "cannot be combined with claude-cli"),
        ("model: [openai:a, openai:b]\nfallbacks: [openai:c]", 2, "is the same setting as"),
    ],
)
async def test_a_fallback_that_cannot_be_used_is_one_sentence(
    machine: UserMachine, front: str, code: int, message: str
):
    machine.env["OPENAI_API_KEY"] = "sk-test-0123456789"
    machine.write_agent("careful", f"{front}\n")
    ran = await machine("run", "--agent", "careful", "Hello")
    assert (ran.code, message in ran.err, "Traceback" in ran.err) == (code, True, False), ran.err


async def test_agents_show_and_check_know_the_fallbacks(machine: UserMachine):
    machine.write_agent("careful", "model: [sonnet, haiku, 'openai:gpt-x']\n")
    shown = (await machine("agents", "show", "careful", "--json")).json
    assert shown["model"] == "anthropic:claude-sonnet-5-5"
    assert shown["fallback_models"] == ["anthropic:claude-haiku-5-5", "openai:gpt-x"]
    foreign = machine.folder / "other.agent.md"
    foreign.write_text(
        "---\nname: other\ndescription: x\nmodel: {primary: opus, fallbacks: [haiku]}\n---\nHi.\n"
    )
    checked = await machine("agents", "check", str(foreign))
    assert checked.code == 0
    assert "the others are fallback_models" in checked.out


async def test_runs_that_wait_for_all_their_models_continue_with_the_first_that_answers(machine: UserMachine):
    """Only the fallback comes back. All waiting runs are resumed, and the first model is asked once by each."""
    down = True

    def choose(request: CapturedRequest) -> FakeResponse:
        return http_error(503, "also down") if down else text_reply("The fallback is back.")

    async with FakeModelServer(lambda _: http_error(503, "down")) as one, FakeModelServer(choose) as two:
        configure_servers(
            machine,
            {"one": ("openai-chat", one.url), "two": ("openai-chat", two.url)},
            model="one:a",
            fallback_models=["two:b"],
        )
        async with machine.daemon():
            ids = [
                (await machine("run", "--background", "--json", f"Task {number}.")).json["run_id"]
                for number in range(3)
            ]
            await machine.wait_for_live_runs("waiting", "waiting", "waiting")
            down = False
            ended = [await machine.wait_for_end(each) for each in ids]
    assert {(run["status"], run["text"]) for run in ended} == {("done", "The fallback is back.")}
    assert {run["model"] for run in ended} == {"two:b"}


async def test_a_killed_run_continues_with_the_first_model_that_answers(machine: UserMachine):
    killed = asyncio.Event()

    async def choose(request: CapturedRequest) -> FakeResponse:
        if request.reply_count == 0:
            return tool_call_reply(("ls", {}))
        await killed.wait()
        return text_reply("Found.")

    async with FakeModelServer(lambda _: http_error(401, "no")) as one, FakeModelServer(choose) as two:
        configure_servers(machine, {"one": ("openai-chat", one.url), "two": ("anthropic", two.url)})
        machine.write_agent("careful", "model: one:a\nfallback_models: [two:b]\ntools: [ls]\n")
        process = await machine.start("run", "--agent", "careful", "Look.")
        await wait_until(lambda: len(two.requests) == 2)
        await machine.kill(process)
        killed.set()
        resumed = await machine("runs", "resume", "--json")
        assert resumed.code == 0, resumed.err
        (run,) = (await machine("runs", "history", "--json")).json
        assert (run["status"], run["text"]) == ("done", "Found.")


async def test_doctor_checks_the_configured_fallbacks(machine: UserMachine):
    configure_servers(
        machine,
        {"one": ("openai-chat", "http://127.0.0.1:9"), "two": ("anthropic", "http://127.0.0.1:9")},
        model="one:a",
        fallback_models=["two:b"],
    )
    assert "default model: one:a, fallbacks: two:b" in (await machine("doctor")).out
    configure_servers(
        machine, {"one": ("openai-chat", "http://127.0.0.1:9")}, model="one:a", fallback_models=["mistral:b"]
    )
    out = (await machine("doctor")).out
    assert "No API key for mistral:b. Set MISTRAL_API_KEY." in out
