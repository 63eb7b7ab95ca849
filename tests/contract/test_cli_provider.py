"""The provider for claude, codex and pi: their arguments, the parsing of their output, and resumed sessions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta
from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Reason, Usage
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.transcript import Entry, Message, Notice
from retinue.errors import BadConfig, ModelFailed
from retinue.providers.cli.claude import CLAUDE_PROTOCOL
from retinue.providers.cli.codex import CODEX_PROTOCOL
from retinue.providers.cli.credentials import CliCredentials, resolve_credentials
from retinue.providers.cli.pi import PI_PROTOCOL
from retinue.providers.cli.provider import CliProvider
from retinue.testing.cli_agents import (
    FakeCliAgents,
    OutputLine,
    ScriptedProcess,
    claude_output,
    codex_output,
    pi_output,
)

pytestmark = pytest.mark.anyio

ROOT = "/work"
OUTPUTS: dict[str, Callable[..., Sequence[OutputLine]]] = {
    "claude-cli": claude_output,
    "codex-cli": codex_output,
    "pi-cli": pi_output,
}
PROTOCOLS = {"claude-cli": CLAUDE_PROTOCOL, "codex-cli": CODEX_PROTOCOL, "pi-cli": PI_PROTOCOL}
CLAUDE_ARGS = ["-p", "--verbose", "--output-format", "stream-json", "--include-partial-messages"]


class ConversationFixture:
    """A conversation with one fake CLI agent, with the entries kept in memory."""

    def __init__(
        self, home: Path, name: str, *processes: ScriptedProcess, model: str = "default", **settings: Any
    ) -> None:
        self.agents = FakeCliAgents(home=str(home), processes=list(processes))
        self.provider = CliProvider(
            PROTOCOLS[name],
            Model(provider=name, name=model, settings=settings),
            self.agents,
            CliCredentials(env={"KEY": "k"}, hosts=("a:1",)),
            lambda text: text.replace("sekrit", "[redacted]"),
        )
        self.entries: list[Entry] = []
        self.deltas: list[ReplyDelta] = []
        self.scope = Scope(root=ROOT)

    async def send(self, text: str) -> ModelReply:
        self.entries.append(Message(id=f"u{len(self.entries)}", role="user", text=text))
        request = ModelRequest(
            model=Model(provider="x", name="y"),
            agent_name="a",
            system="You help.",
            tools=(),
            entries=self.entries,
            provider_cache={},
            session_id="one",
            scope=self.scope,
        )
        reply = await self.provider.request_reply(request, self.deltas.append)
        for step in reply.steps:
            self.entries.append(Message(id=f"s{len(self.entries)}", role="agent", text=step.text))
        text = reply.text.replace("sekrit", "[redacted]")
        self.entries.append(
            Message(id=f"a{len(self.entries)}", role="agent", text=text, provider_data=reply.provider_data)
        )
        return reply

    @property
    def argv(self) -> list[list[str]]:
        return [list(command.args) for command in self.agents.commands]


def make_processes(name: str, count: int = 2, **options: Any) -> list[ScriptedProcess]:
    return [ScriptedProcess(lines=OUTPUTS[name](f"answer {number}", **options)) for number in range(count)]


@pytest.mark.parametrize("name", OUTPUTS)
async def test_text_and_tool_calls_of_a_cli_agent_become_a_reply(tmp_path: Path, name: str):
    conversation = ConversationFixture(tmp_path, name, *make_processes(name, tool_calls=2))
    reply = await conversation.send("hello")
    cached = 4 if name == "claude-cli" else 0
    assert (reply.text, reply.usage) == ("answer 0", Usage(input=7, output=5, cached=cached))
    (step,) = reply.steps
    assert [(call.result.partition("\n")[0], call.ok, call.is_finished) for call in step.tool_calls] == [
        ("file 0", True, True),
        ("file 1", True, True),
    ]
    assert all("ls" in call.arguments for call in step.tool_calls)
    reported_calls = [
        delta.provider_tool_call for delta in conversation.deltas if delta.provider_tool_call is not None
    ]
    assert [(call.id, call.is_finished) for call in reported_calls] == [
        (step.tool_calls[0].id, False), (step.tool_calls[0].id, True), (step.tool_calls[1].id, False), (step.tool_calls[1].id, True),
    ]  # fmt: skip
    assert "".join(delta.text for delta in conversation.deltas) == "answer 0"


def with_counts(value: Any, count: object, *, in_usage: bool = False) -> Any:
    """Return a copy in which each number of a `usage` object is replaced."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: with_counts(each, count, in_usage=in_usage or key == "usage") for key, each in items}
    if isinstance(value, list):
        return [with_counts(each, count, in_usage=in_usage) for each in cast("list[Any]", value)]
    return count if in_usage and isinstance(value, int | float) else value


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -float("inf"), -3, "12", None, True, [], {}])
@pytest.mark.parametrize("name", OUTPUTS)
async def test_token_counts_of_a_cli_agent_that_are_no_counts_do_not_spoil_its_reply(
    tmp_path: Path, name: str, count: object
):
    lines = [with_counts(line, count) for line in OUTPUTS[name]("whole")]
    assert lines != [*OUTPUTS[name]("whole")]
    reply = await ConversationFixture(tmp_path, name, ScriptedProcess(lines=lines)).send("hello")
    assert (reply.text, reply.usage) == ("whole", Usage())


async def test_each_cli_agent_is_started_and_resumed_with_exactly_these_arguments(tmp_path: Path):
    claude = ConversationFixture(
        tmp_path, "claude-cli", *make_processes("claude-cli", session="c-1"), extraArgs=["--model", "m"]
    )
    codex = ConversationFixture(
        tmp_path, "codex-cli", *make_processes("codex-cli", session="x-1"), extraArgs=["--oss"]
    )
    pi = ConversationFixture(tmp_path, "pi-cli", *make_processes("pi-cli"), extraArgs=["--tools", "read"])
    for conversation in (claude, codex, pi):
        await conversation.send("one")
        await conversation.send("two")
    session_id = claude.argv[0][8]
    assert claude.argv == [
        [*CLAUDE_ARGS, "--model", "m", "--session-id", session_id, "one"],
        [*CLAUDE_ARGS, "--model", "m", "--resume", "c-1", "two"],
    ]
    assert codex.argv == [
        ["exec", "--json", "--oss", "one"],
        ["exec", "--json", "--oss", "resume", "x-1", "two"],
    ]
    file = pi.argv[0][3]
    assert file.startswith("/home-of-one/")
    assert file.endswith(".jsonl")
    assert pi.argv == [
        ["--mode", "json", "--session", file, "--tools", "read", "-p", "one"],
        ["--mode", "json", "--session", file, "--continue", "--tools", "read", "-p", "two"],
    ]


async def test_model_and_thinking_are_arguments_and_a_message_is_never_an_option(tmp_path: Path):
    codex = ConversationFixture(tmp_path, "codex-cli", *make_processes("codex-cli"), model="gpt-x")
    codex.provider = CliProvider(
        CODEX_PROTOCOL,
        Model(provider="codex-cli", name="gpt-x", thinking="high"),
        codex.agents,
        CliCredentials(),
        lambda text: text,
    )
    await codex.send("--help")
    await codex.send("nul \0 and a lone \ud800 one")
    thinking_args = ["-c", "model_reasoning_effort=high"]
    assert codex.argv[0] == ["exec", "--json", "--model", "gpt-x", *thinking_args, " --help"]
    assert codex.argv[1][-1] == "nul \ufffd and a lone ? one"
    with pytest.raises(ModelFailed, match="Put it into a file"):
        await codex.send("x" * 130_000)


CHANGES: dict[str, Callable[[ConversationFixture], None]] = {
    "a reply was changed": lambda conversation: conversation.entries.__setitem__(
        1, replace(conversation.entries[1], text="something else")
    ),
    "a message was removed": lambda conversation: conversation.entries.pop(0) and None,
    "a reply of another provider was added": lambda conversation: conversation.entries.append(
        Message(id="new", role="agent", text="by another provider")
    ),
    "the workspace was changed": lambda conversation: setattr(
        conversation, "scope", Scope(root="/elsewhere")
    ),
    "the sandbox level was changed": lambda conversation: setattr(
        conversation.agents, "level", SandboxLevel.NONE
    ),
    "the home folder was deleted": lambda conversation: setattr(
        conversation.agents, "home", "/nowhere/at/all"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_cli_agent_starts_a_new_session_with_the_transcript_when_the_conversation_changed(
    tmp_path: Path, change: str
):
    conversation = ConversationFixture(tmp_path, "claude-cli", *make_processes("claude-cli"))
    await conversation.send("first question")
    CHANGES[change](conversation)
    await conversation.send("second question")
    second = conversation.argv[1]
    assert "--resume" not in second
    assert second[-3] == "--session-id"
    assert second[-2] != conversation.argv[0][-2]
    prompt = second[-1]
    assert prompt.endswith("second question")
    for entry in conversation.entries[:-2]:
        assert isinstance(entry, Message)
        assert entry.text in prompt


async def test_a_redacted_reply_does_not_prevent_resuming_the_session(tmp_path: Path):
    conversation = ConversationFixture(
        tmp_path,
        "claude-cli",
        ScriptedProcess(lines=claude_output("it is sekrit")),
        ScriptedProcess(lines=claude_output("yes")),
    )
    await conversation.send("what is it?")
    conversation.entries.append(Notice(id="n", topic="announcement", text="news came"))
    await conversation.send("sure?")
    assert conversation.argv[1][-3:] == ["--resume", "s", "news came\n\nsure?"]


@pytest.mark.parametrize(
    ("name", "stderr"),
    [
        ("claude-cli", "No conversation found with session ID: s"),
        ("codex-cli", "Error: thread/resume failed: no rollout found for thread id s"),
    ],
)
async def test_a_cli_agent_that_lost_its_session_gets_the_transcript_in_a_new_one(
    tmp_path: Path, name: str, stderr: str
):
    session_not_found = ScriptedProcess(exit_code=1, stderr_tail=stderr)
    conversation = ConversationFixture(
        tmp_path,
        name,
        make_processes(name)[0],
        session_not_found,
        ScriptedProcess(lines=OUTPUTS[name]("again")),
    )
    await conversation.send("one")
    assert (await conversation.send("two")).text == "again"
    assert "one" in conversation.argv[2][-1]
    assert "resume" not in " ".join(conversation.argv[2][:-1])


async def test_codex_is_started_again_with_skip_git_repo_check_outside_a_repository(tmp_path: Path):
    no_repository = ScriptedProcess(
        exit_code=1, stderr_tail="Not inside a trusted directory and --skip-git-repo-check was not specified."
    )
    conversation = ConversationFixture(tmp_path, "codex-cli", no_repository, *make_processes("codex-cli"))
    await conversation.send("one")
    await conversation.send("two")
    assert conversation.argv[1] == ["exec", "--json", "--skip-git-repo-check", "one"]
    assert conversation.argv[2] == ["exec", "--json", "--skip-git-repo-check", "resume", "s", "two"]


NOT_LOGGED_IN = {
    "type": "result",
    "subtype": "success",
    "is_error": True,
    "result": "Not logged in · Please run /login",
}
FAILURES: dict[str, tuple[str, ScriptedProcess, Reason, str]] = {
    "a failed login with the subtype success": (
        "claude-cli", ScriptedProcess(lines=[NOT_LOGGED_IN], exit_code=1), Reason.AUTH, "claude failed: Not logged in.*CLAUDE_CODE_OAUTH_TOKEN",
    ),
    "the maximum number of turns": (
        "claude-cli", ScriptedProcess(lines=[{"type": "result", "subtype": "error_max_turns"}]), Reason.PROVIDER, "error_max_turns",
    ),
    "no final line": (
        "claude-cli", ScriptedProcess(lines=claude_output("half")[:-1], exit_code=0), Reason.INCOMPLETE, "before its turn was complete",
    ),
    "a crash with a message on stderr": (
        "codex-cli", ScriptedProcess(exit_code=101, stderr_tail="thread 'main' panicked"), Reason.INCOMPLETE, "exited with code 101.*panicked",
    ),
    "killed by a signal": ("pi-cli", ScriptedProcess(exit_code=None), Reason.INCOMPLETE, "was killed"),
    "a failed turn": (
        "codex-cli", ScriptedProcess(lines=[{"type": "turn.failed", "error": {"message": "429 Too Many Requests"}}], exit_code=1),
        Reason.RATE_LIMITED, "429",
    ),
    "an error of the model server": (
        "pi-cli",
        ScriptedProcess(lines=[{"type": "message_end", "message": {"role": "assistant", "stopReason": "error", "errorMessage": "401 no"}},
                    {"type": "agent_end"}]),
        Reason.AUTH, "401 no",
    ),
}  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failed_cli_agent_is_not_retried_and_the_error_names_the_reason(tmp_path: Path, failure: str):
    name, process, reason, message = FAILURES[failure]
    conversation = ConversationFixture(tmp_path, name, process)
    with pytest.raises(ModelFailed, match=f"(?s){message}") as failed:
        await conversation.send("hello")
    assert failed.value.reason == reason
    assert getattr(failed.value, "retry", False) is False
    assert len(conversation.agents.commands) == 1


async def test_unexpected_output_lines_are_skipped(tmp_path: Path):
    unexpected_lines: list[Any] = [
        {"type": "assistant", "message": "not an object"},
        {"type": "assistant", "message": {"content": [7, {"type": "tool_use", "id": None, "input": []}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "never begun"}]}},
        {"type": "assistant", "parent_tool_use_id": "t", "message": {"content": [{"type": "text", "text": "inner"}]}},
        {"type": "stream_event", "event": {"delta": {"type": "thinking_delta", "thinking": "hm"}}},
        {"type": ["what"]},
    ]  # fmt: skip
    conversation = ConversationFixture(
        tmp_path, "claude-cli", ScriptedProcess(lines=[*unexpected_lines, *claude_output("fine")])
    )
    reply = await conversation.send("hello")
    assert reply.text == "fine"
    assert [call.result for step in reply.steps for call in step.tool_calls] == [
        "No result: the program ended before it reported one."
    ]
    assert "".join(delta.thinking for delta in conversation.deltas) == "hm"


def test_api_keys_reach_a_cli_agent_only_together_with_their_hosts():
    env = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "CODEX_API_KEY": "o", "OTHER": "x"}
    claude, codex, pi = (PROTOCOLS[name] for name in OUTPUTS)
    assert resolve_credentials(claude, {}, env, {}) == CliCredentials(
        env={"ANTHROPIC_API_KEY": "a"}, hosts=("api.anthropic.com:443",)
    )
    local = resolve_credentials(claude, {}, env, {"anthropic": "http://127.0.0.1:8080/x"})
    assert local.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080/x"
    assert (local.hosts, local.forwards) == ((), (8080,))
    custom = resolve_credentials(
        codex, {"base_url": "https://own.example:8443/v1", "api_key_env": "OTHER"}, env, {}
    )
    assert custom == CliCredentials(
        env={"CODEX_API_KEY": "x"},
        vendor_urls={"openai": "https://own.example:8443/v1"},
        hosts=("own.example:8443",),
    )
    assert resolve_credentials(codex, {}, env, {}).hosts == ("api.openai.com:443", "chatgpt.com:443")
    both = resolve_credentials(pi, {"hosts": ["more.example"]}, env, {})
    assert both.env == {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}
    assert both.hosts == ("api.anthropic.com:443", "api.openai.com:443", "more.example:443")
    with pytest.raises(BadConfig, match="hosts"):
        resolve_credentials(pi, {"base_url": "https://own.example"}, env, {})


async def test_the_sandbox_of_a_cli_agent_is_disabled_only_in_our_strict_sandbox(tmp_path: Path):
    for name, settings_file, setting in (
        ("claude-cli", ".claude/settings.json", "bypassPermissions"),
        ("codex-cli", ".codex/config.toml", "danger-full-access"),
    ):
        for level in (SandboxLevel.STRICT, SandboxLevel.NONE):
            conversation = ConversationFixture(
                tmp_path, name, *make_processes(name), wrapper={"path": "/w", "env": {"A": "b"}}
            )
            conversation.agents.level = level
            await conversation.send("hello")
            (command,) = conversation.agents.commands
            assert (setting in command.files[settings_file]) == (level is SandboxLevel.STRICT)
            assert any(text == "You help." for text in command.files.values())
            assert (command.wrapper, command.env["A"], command.env["KEY"]) == ("/w", "b", "k")
            assert command.hosts == ("a:1",)
