"""CLI agents: claude, codex and pi next to agents with a model, and messages between them."""

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
OUTPUTS = {
    "claude": claude_output("claude answers", session="c-1", tool_calls=5),
    "codex": codex_output("codex answers", session="x-1"),
    "pi": pi_output("pi answers"),
}

COMMANDS = {
    "claude": ["/clear", "/compact", "-p", "--version"],
    "codex": ["review", "help", "resume", "fork", "-", "--version"],
    "pi": ["@alice", "/export", "-", "--version"],
}
"""Messages that each program would take as a command, an option or a file."""


def install_programs(machine: UserMachine, **options: Any) -> None:
    """Put programs of these names on the PATH; each also records the keys in its environment."""
    keys = "env | grep -E '_(KEY|TOKEN)=' | sort >\"$HOME/keys\""
    folder = machine.folder.parent / "bin"
    for name, lines in OUTPUTS.items():
        write_script(folder / name, lines, **{"before": keys, **options})
    machine.env["PATH"] = f"{folder}:{machine.env['PATH']}"


def agents_of_every_kind(server: FakeModelServer) -> list[dict[str, Any]]:
    own_server = {"provider": "openai-compatible", "model": "own-model", "config": {"base_url": server.url}}
    return [
        {"agentId": "model", "chat": {"provider": "openai"}},
        {"agentId": "own", "chat": own_server},
        {"agentId": "claude", "systemPrompt": "You code.", "chat": {"provider": "claude-cli"}},
        {"agentId": "codex", "chat": {"provider": "codex-cli", "config": {"extraArgs": ["--oss"]}}},
        {"agentId": "pi", "chat": {"provider": "pi-cli", "config": {"extraArgs": ["--tools", "read"]}}},
    ]


def reply_with_model_name(request: CapturedRequest) -> FakeResponse:
    return text_reply(f"{request.body['model']} answers")


def program_home(machine: UserMachine, run: Run) -> Path:
    return machine.home / "programs" / run.session_id / "held"


async def test_an_agent_of_each_kind_replies_to_a_message(machine: UserMachine):
    """A program continues its own conversation with the second message.

    Shows: C005, C049.
    """
    install_programs(machine)
    async with machine.serve_models(reply_with_model_name) as server:
        machine.write_config(agents=agents_of_every_kind(server))
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
        recorded_arguments(program_home(machine, runs[agent])) for agent in ("claude", "codex", "pi")
    )
    assert claude == [
        [*CLAUDE, "--session-id", claude[0][6], "hello"],
        [*CLAUDE, "--resume", "c-1", "and again"],
    ]
    assert codex == [
        ["exec", "--json", "--oss", "hello"],
        ["exec", "--json", "--oss", "resume", "x-1", "and again"],
    ]
    session_options = ["--mode", "json", "--session", pi[0][3]]
    assert pi == [
        [*session_options, "--tools", "read", "-p", "hello"],
        [*session_options, "--continue", "--tools", "read", "-p", "and again"],
    ]
    assert (
        (program_home(machine, runs["claude"]) / ".claude" / "CLAUDE.md").read_text().startswith("You code.")
    )


async def test_an_api_key_is_given_only_to_the_program_it_belongs_to(machine: UserMachine):
    install_programs(machine)
    machine.env["GITHUB_TOKEN"] = "ghp_0123456789abcdef0123456789abcdef0123"
    async with machine.serve_models(reply_with_model_name) as server:
        machine.write_config(agents=agents_of_every_kind(server))
        async with machine.open() as app:
            runs = [
                await app.run("hello", agent=agent, workspace=machine.folder) for agent in ("claude", "codex")
            ]
    claude, codex = ((program_home(machine, run) / "keys").read_text().splitlines() for run in runs)
    assert claude == [f"ANTHROPIC_API_KEY={machine.env['ANTHROPIC_API_KEY']}"]
    assert codex == [f"CODEX_API_KEY={machine.env['OPENAI_API_KEY']}"]
    for run in runs:
        assert "sk-test" not in Path(run.transcript_path).read_text()


async def test_a_response_of_a_claude_agent_names_its_own_tool_calls(machine: UserMachine):
    """Tool calls of claude are in its own transcript; the requester receives its last text and their number.

    Shows: C048.
    """
    install_programs(machine)
    message_call = tool_call_reply(("agents_message", {"agentId": "claude", "content": "Tidy up."}))
    results: list[dict[str, Any]] = []

    def script(request: CapturedRequest) -> FakeResponse:
        tool_texts = [each["content"] for each in request.messages if each["role"] == "tool"]
        results.extend(map(json.loads, tool_texts))
        return text_reply("Claude has tidied up.") if tool_texts else message_call

    events: list[Event] = []
    async with machine.serve_models(script) as server:
        machine.write_config(agents=agents_of_every_kind(server))
        async with machine.open() as app:
            with app.listen(events.append):
                run = await app.run("Have it tidied up", agent="model", workspace=machine.folder)
            (answer,) = results
            entries = await app.sessions.entries(answer["sessionId"])
            assert (await app.runs.to_json(answer["responseId"]))["sandbox"] == "strict"
    assert (run.status, run.text) == (retinue.Status.DONE, "Claude has tidied up.")
    assert (answer["status"], answer["response"]) == ("complete", "claude answers")
    assert (answer["toolCallCount"], [each["name"] for each in answer["toolCalls"]]) == (5, ["Bash"] * 5)
    assert [each.tool for each in entries if isinstance(each, ToolCall)] == ["Bash"] * 5
    messages = [each for each in entries if isinstance(each, Message)]
    assert (messages[0].text, messages[0].origin, messages[-1].text) == (
        "Tidy up.",
        run.session_key,
        "claude answers",
    )
    event_kinds = [each.kind for each in events if each.agent == "claude" and each.kind.startswith("tool.")]
    assert event_kinds == ["tool.started", "tool.ended"] * 5


async def test_a_second_message_is_queued_while_the_program_of_the_session_runs(machine: UserMachine):
    wait_for_file = 'echo $$ >>"$HOME/live"; until [ -e go ]; do sleep 0.02; done; cp "$HOME/live" "$HOME/seen"; : >"$HOME/live"'
    install_programs(machine, before=wait_for_file)
    async with machine.serve_models(reply_with_model_name) as server:
        machine.write_config(agents=agents_of_every_kind(server))
        async with machine.open() as app:
            first = await app.runs.start("one", RunOptions(agent="claude", workspace=machine.folder))
            second = await app.runs.start("two", RunOptions(session=first.session_id))
            (machine.folder / "go").touch()
            assert [(await app.runs.wait(each.id)).text for each in (first, second)] == ["claude answers"] * 2
    folder = program_home(machine, first)
    assert len((folder / "seen").read_text().splitlines()) == 1
    assert [each[-1] for each in recorded_arguments(folder)] == ["one", "two"]


async def test_words_that_are_commands_of_a_program_reach_it_as_a_message(machine: UserMachine):
    install_programs(machine)
    async with machine.serve_models(reply_with_model_name) as server:
        machine.write_config(agents=agents_of_every_kind(server))
        async with machine.open() as app:
            for agent, words in COMMANDS.items():
                for word in [*words, "review this", "email bob@example.org", "a/b"]:
                    run = await app.run(word, agent=agent, workspace=machine.folder)
                    (arguments,) = recorded_arguments(program_home(machine, run))
                    assert arguments[-1] == (f" {word}" if word in words else word)


@pytest.mark.parametrize(
    ("provider", "extra", "reserved"),
    [
        ("claude-cli", ["--model", "m", "--resume=x", "-p"], "--resume, -p"),
        ("codex-cli", ["--json", "resume"], "--json, resume"),
        ("pi-cli", ["--mode", "rpc"], "--mode"),
    ],
)
async def test_reserved_flags_in_extra_args_are_refused(
    machine: UserMachine, provider: str, extra: list[str], reserved: str
):
    config = {"workdir": "sub", "extraArgs": extra, "wrapper": {"path": "/w", "env": {"A": "b"}}}
    machine.write_config(
        agents=[{"agentId": "a"}, {"agentId": "b", "chat": {"provider": provider, "config": config}}]
    )
    with pytest.raises(BadConfig) as error_info:
        async with machine.open():
            pass
    message = f"agents[1].chat.config.extraArgs must not include reserved {provider} flags: {reserved}"
    assert str(error_info.value).endswith(f"config.json: {message}")


async def test_a_program_is_started_with_the_configured_folder_arguments_and_wrapper(machine: UserMachine):
    """Shows: C050."""
    install_programs(machine)
    (machine.folder / "sub").mkdir()
    folder = machine.folder.parent / "bin"
    wrapper = write_script(
        folder / "wrap", [], after='pwd >"$HOME/where"; echo "$A" >>"$HOME/where"; exec "$@"'
    )
    config = {
        "workdir": "sub", "extraArgs": ["--model", "m"], "wrapper": {"path": str(wrapper), "env": {"A": "from the wrapper"}},
    }  # fmt: skip
    coder = {"agentId": "coder", "chat": {"provider": "claude-cli", "config": config}}
    reserved = {"extraArgs": ["--print"]}
    async with machine.serve_models(reply_with_model_name):
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
    wrapper_arguments, arguments = recorded_arguments(program_home(machine, run))
    assert wrapper_arguments == ["claude", *arguments]
    assert arguments == [*CLAUDE, "--model", "m", "--session-id", arguments[8], "hello"]
    recorded = (program_home(machine, run) / "where").read_text().splitlines()
    assert recorded == [str(machine.folder.resolve() / "sub"), "from the wrapper"]


async def test_a_missing_program_is_reported_before_a_session_is_created(machine: UserMachine):
    machine.env["PATH"] = "/usr/bin:/bin"
    machine.write_config(agents=[{"agentId": "coder", "chat": {"provider": "claude-cli"}}])
    async with machine.open() as app:
        with pytest.raises(
            BadConfig, match=r"claude is not installed or not on the PATH. Install it with `npm"
        ):
            await app.run("hello", agent="coder", workspace=machine.folder)
        assert await app.sessions.list() == []
