"""Agents that are programs: claude, codex and pi beside agents that are models, and one of them asked by another."""

import json
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

import retinue
from retinue.app.run_options import RunOptions
from retinue.domain.event import Event
from retinue.domain.run import Run
from retinue.domain.transcript import Message, ToolCall
from retinue.errors import BadConfig
from retinue.testing.cli_agents import (
    claude_output,
    codex_output,
    pi_output,
    recorded_arguments,
    write_script,
)
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

CLAUDE = ["-p", "--verbose", "--output-format", "stream-json", "--include-partial-messages"]
LINES = {
    "claude": claude_output("claude answers", session="c-1", tool_calls=5),
    "codex": codex_output("codex answers", session="x-1"),
    "pi": pi_output("pi answers"),
}


def installed(machine: UserMachine, **how: Any) -> None:
    """Programs of these names on the PATH; each also writes down the keys that it was given."""
    keys = "env | grep -E '_(KEY|TOKEN)=' | sort >\"$HOME/keys\""
    place = machine.folder.parent / "bin"
    for name, lines in LINES.items():
        write_script(place / name, lines, **{"before": keys, **how})
    machine.env["PATH"] = f"{place}:{machine.env['PATH']}"


def kinds(server: FakeModelServer) -> list[dict[str, Any]]:
    own = {"provider": "openai-compatible", "model": "own-model", "config": {"base_url": server.url}}
    return [
        {"agentId": "model", "chat": {"provider": "openai"}},
        {"agentId": "own", "chat": own},
        {"agentId": "claude", "systemPrompt": "You code.", "chat": {"provider": "claude-cli"}},
        {"agentId": "codex", "chat": {"provider": "codex-cli", "config": {"extraArgs": ["--oss"]}}},
        {"agentId": "pi", "chat": {"provider": "pi-cli", "config": {"extraArgs": ["--tools", "read"]}}},
    ]


def named(request: CapturedRequest) -> FakeResponse:
    return text_reply(f"{request.body['model']} answers")


def home(machine: UserMachine, run: Run) -> Path:
    return machine.home / "programs" / run.session_id / "held"


async def test_one_agent_of_each_kind_answers_a_message(machine: UserMachine):
    """Each program is started with its own words the first time and goes on with its own conversation the second.

    Shows: C005, C049."""
    installed(machine)
    async with machine.serve_models(named) as server:
        machine.write_config(agents=kinds(server))
        async with machine.open() as app:
            runs = {
                agent: await app.run("hello", agent=agent, workspace=machine.folder)
                for agent in ("model", "own", "claude", "codex", "pi")
            }
            for agent in ("claude", "codex", "pi"):
                await app.run("and again", session=runs[agent].session_id)
    assert {agent: run.text for agent, run in runs.items()} == {
        "model": "test-model answers",
        "own": "own-model answers",
        "claude": "claude answers",
        "codex": "codex answers",
        "pi": "pi answers",
    }
    claude, codex, pi = (
        recorded_arguments(home(machine, runs[agent])) for agent in ("claude", "codex", "pi")
    )
    assert claude == [
        [*CLAUDE, "--session-id", claude[0][6], "hello"],
        [*CLAUDE, "--resume", "c-1", "and again"],
    ]
    assert codex == [
        ["exec", "--json", "--oss", "hello"],
        ["exec", "--json", "--oss", "resume", "x-1", "and again"],
    ]
    file = ["--mode", "json", "--session", pi[0][3]]
    assert pi == [
        [*file, "--tools", "read", "-p", "hello"],
        [*file, "--continue", "--tools", "read", "-p", "and again"],
    ]
    assert (home(machine, runs["claude"]) / ".claude" / "CLAUDE.md").read_text().startswith("You code.")


async def test_keys_reach_only_the_program_that_they_are_for(machine: UserMachine):
    installed(machine)
    machine.env["GITHUB_TOKEN"] = "ghp_0123456789abcdef0123456789abcdef0123"
    async with machine.serve_models(named) as server:
        machine.write_config(agents=kinds(server))
        async with machine.open() as app:
            runs = [
                await app.run("hello", agent=agent, workspace=machine.folder) for agent in ("claude", "codex")
            ]
    claude, codex = ((home(machine, run) / "keys").read_text().splitlines() for run in runs)
    assert claude == [f"ANTHROPIC_API_KEY={machine.env['ANTHROPIC_API_KEY']}"]
    assert codex == [f"CODEX_API_KEY={machine.env['OPENAI_API_KEY']}"]
    for run in runs:
        assert "sk-test" not in Path(run.transcript_path).read_text()


async def test_an_agent_hands_a_task_to_claude_and_hears_how_many_calls_it_took(machine: UserMachine):
    """What claude did by itself stands in its conversation; whoever asked gets its last word and a count.

    Shows: C048."""
    installed(machine)
    asks = tool_call_reply(("agents_message", {"agentId": "claude", "content": "Tidy up."}))
    heard: list[dict[str, Any]] = []

    def played(request: CapturedRequest) -> FakeResponse:
        results = [each["content"] for each in request.messages if each["role"] == "tool"]
        heard.extend(map(json.loads, results))
        return text_reply("Claude has tidied up.") if results else asks

    events: list[Event] = []
    async with machine.serve_models(played) as server:
        machine.write_config(agents=kinds(server))
        async with machine.open() as app:
            with app.listen(events.append):
                run = await app.run("Have it tidied up", agent="model", workspace=machine.folder)
            (answer,) = heard
            entries = await app.sessions.entries(answer["sessionId"])
            assert (await app.runs.to_json(answer["responseId"]))["sandbox"] == "strict"
    assert (run.status, run.text) == (retinue.Status.DONE, "Claude has tidied up.")
    assert (answer["status"], answer["response"]) == ("complete", "claude answers")
    assert (answer["toolCallCount"], [each["name"] for each in answer["toolCalls"]]) == (5, ["Bash"] * 5)
    assert [each.tool for each in entries if isinstance(each, ToolCall)] == ["Bash"] * 5
    said = [each for each in entries if isinstance(each, Message)]
    assert (said[0].text, said[0].origin, said[-1].text) == ("Tidy up.", run.session_key, "claude answers")
    told = [each.kind for each in events if each.agent == "claude" and each.kind.startswith("tool.")]
    assert told == ["tool.started", "tool.ended"] * 5


async def test_a_second_message_while_a_program_works_starts_no_second_process(machine: UserMachine):
    live = 'echo $$ >>"$HOME/live"; until [ -e go ]; do sleep 0.02; done; cp "$HOME/live" "$HOME/seen"; : >"$HOME/live"'
    installed(machine, before=live)
    async with machine.serve_models(named) as server:
        machine.write_config(agents=kinds(server))
        async with machine.open() as app:
            first = await app.runs.start("one", RunOptions(agent="claude", workspace=machine.folder))
            second = await app.runs.start("two", RunOptions(session=first.session_id))
            (machine.folder / "go").touch()
            assert [(await app.runs.wait(each.id)).text for each in (first, second)] == ["claude answers"] * 2
    place = home(machine, first)
    assert len((place / "seen").read_text().splitlines()) == 1
    assert [each[-1] for each in recorded_arguments(place)] == ["one", "two"]


@pytest.mark.parametrize(
    ("provider", "extra", "flags"),
    [
        ("claude-cli", ["--model", "m", "--resume=x", "-p"], "--resume, -p"),
        ("codex-cli", ["--json", "resume"], "--json, resume"),
        ("pi-cli", ["--mode", "rpc"], "--mode"),
    ],
)
async def test_words_that_are_said_to_a_program_already_are_refused(
    machine: UserMachine, provider: str, extra: list[str], flags: str
):
    config = {"workdir": "sub", "extraArgs": extra, "wrapper": {"path": "/w", "env": {"A": "b"}}}
    machine.write_config(
        agents=[{"agentId": "a"}, {"agentId": "b", "chat": {"provider": provider, "config": config}}]
    )
    with pytest.raises(BadConfig) as wrong:
        async with machine.open():
            pass
    said = f"agents[1].chat.config.extraArgs must not include reserved {provider} flags: {flags}"
    assert str(wrong.value).endswith(f"config.json: {said}")


async def test_settings_of_a_program_decide_where_and_how_it_is_started(machine: UserMachine):
    """The working folder, more words, and another program that starts it.

    Shows: C050."""
    installed(machine)
    (machine.folder / "sub").mkdir()
    place = machine.folder.parent / "bin"
    wrapper = write_script(
        place / "wrap", [], after='pwd >"$HOME/where"; echo "$A" >>"$HOME/where"; exec "$@"'
    )
    config = {
        "workdir": "sub", "extraArgs": ["--model", "m"], "wrapper": {"path": str(wrapper), "env": {"A": "from the wrapper"}},
    }  # fmt: skip
    coder = {"agentId": "coder", "chat": {"provider": "claude-cli", "config": config}}
    reserved = {"extraArgs": ["--print"]}
    async with machine.serve_models(named):
        machine.write_config(agents=[coder])
        async with machine.open() as app:
            run = await app.run("hello", agent="coder", workspace=machine.folder)
        machine.write_config(
            agents=[{"agentId": "b", "chat": {"provider": "claude-cli", "config": reserved}}]
        )
        with pytest.raises(
            BadConfig, match=r"agents\[0\]\.chat\.config\.extraArgs must not include reserved"
        ):
            async with machine.open():
                pass
    assert run.text == "claude answers"
    own, inner = recorded_arguments(home(machine, run))
    assert own == ["claude", *inner]
    assert inner == [*CLAUDE, "--model", "m", "--session-id", inner[8], "hello"]
    told = (home(machine, run) / "where").read_text().splitlines()
    assert told == [str(machine.folder.resolve() / "sub"), "from the wrapper"]


async def test_a_program_that_is_not_installed_is_told_before_a_session_is_made(machine: UserMachine):
    machine.env["PATH"] = "/usr/bin:/bin"
    machine.write_config(agents=[{"agentId": "coder", "chat": {"provider": "claude-cli"}}])
    async with machine.open() as app:
        with pytest.raises(
            BadConfig, match=r"claude is not installed or not on the PATH. Install it with `npm"
        ):
            await app.run("hello", agent="coder", workspace=machine.folder)
        assert await app.sessions.list() == []
