"""claude, codex and pi behind the driver's port: what they are told, what is understood, and what they remember."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.model_turn import Model, Reply, ReplyDelta, Request
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
SAYS: dict[str, Callable[..., Sequence[OutputLine]]] = {
    "claude-cli": claude_output,
    "codex-cli": codex_output,
    "pi-cli": pi_output,
}
PROTOCOLS = {"claude-cli": CLAUDE_PROTOCOL, "codex-cli": CODEX_PROTOCOL, "pi-cli": PI_PROTOCOL}
CLAUDE = ["-p", "--verbose", "--output-format", "stream-json", "--include-partial-messages"]


class Talk:
    """One conversation with one program, its file kept in memory."""

    def __init__(
        self, home: Path, name: str, *turns: ScriptedProcess, model: str = "default", **settings: Any
    ) -> None:
        self.programs = FakeCliAgents(home=str(home), processes=list(turns))
        self.driver = CliProvider(
            PROTOCOLS[name],
            Model(provider=name, name=model, settings=settings),
            self.programs,
            CliCredentials(env={"KEY": "k"}, hosts=("a:1",)),
            lambda text: text.replace("sekrit", "[gone]"),
        )
        self.entries: list[Entry] = []
        self.heard: list[ReplyDelta] = []
        self.scope = Scope(root=ROOT)

    async def say(self, text: str) -> Reply:
        self.entries.append(Message(id=f"u{len(self.entries)}", role="user", text=text))
        request = Request(
            model=Model(provider="x", name="y"),
            agent_name="a",
            system="You help.",
            tools=(),
            entries=self.entries,
            provider_cache={},
            session_id="one",
            scope=self.scope,
        )
        reply = await self.driver.request_reply(request, self.heard.append)
        for step in reply.steps:
            self.entries.append(Message(id=f"s{len(self.entries)}", role="agent", text=step.text))
        text = reply.text.replace("sekrit", "[gone]")
        said = Message(id=f"a{len(self.entries)}", role="agent", text=text, thoughts=reply.thinking_blocks)
        self.entries.append(said)
        return reply

    @property
    def argv(self) -> list[list[str]]:
        return [list(each.args) for each in self.programs.commands]


def turns(name: str, count: int = 2, **more: Any) -> list[ScriptedProcess]:
    return [ScriptedProcess(lines=SAYS[name](f"answer {at}", **more)) for at in range(count)]


@pytest.mark.parametrize("name", SAYS)
async def test_what_a_program_says_and_does_becomes_a_reply(tmp_path: Path, name: str):
    talk = Talk(tmp_path, name, *turns(name, tool_calls=2))
    reply = await talk.say("hello")
    assert (reply.text, reply.usage) == ("answer 0", Usage(input=7, output=5))
    (step,) = reply.steps
    assert [(act.result.partition("\n")[0], act.ok, act.is_finished) for act in step.tool_calls] == [
        ("file 0", True, True),
        ("file 1", True, True),
    ]
    assert all("ls" in act.arguments for act in step.tool_calls)
    told = [delta.provider_tool_call for delta in talk.heard if delta.provider_tool_call is not None]
    assert [(act.id, act.is_finished) for act in told] == [
        (step.tool_calls[0].id, False), (step.tool_calls[0].id, True), (step.tool_calls[1].id, False), (step.tool_calls[1].id, True),
    ]  # fmt: skip
    assert "".join(delta.text for delta in talk.heard) == "answer 0"


async def test_each_program_is_started_with_just_these_words_and_resumed_with_those(tmp_path: Path):
    claude = Talk(tmp_path, "claude-cli", *turns("claude-cli", session="c-1"), extraArgs=["--model", "m"])
    codex = Talk(tmp_path, "codex-cli", *turns("codex-cli", session="x-1"), extraArgs=["--oss"])
    pi = Talk(tmp_path, "pi-cli", *turns("pi-cli"), extraArgs=["--tools", "read"])
    for talk in (claude, codex, pi):
        await talk.say("one")
        await talk.say("two")
    minted = claude.argv[0][8]
    assert claude.argv == [
        [*CLAUDE, "--model", "m", "--session-id", minted, "one"],
        [*CLAUDE, "--model", "m", "--resume", "c-1", "two"],
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


async def test_a_model_and_its_thinking_are_told_and_a_message_is_never_an_option(tmp_path: Path):
    codex = Talk(tmp_path, "codex-cli", *turns("codex-cli"), model="gpt-x")
    codex.driver = CliProvider(
        CODEX_PROTOCOL,
        Model(provider="codex-cli", name="gpt-x", thinking="high"),
        codex.programs,
        CliCredentials(),
        lambda text: text,
    )
    await codex.say("--help")
    await codex.say("nul \0 and a lone \ud800 one")
    thinks = ["-c", "model_reasoning_effort=high"]
    assert codex.argv[0] == ["exec", "--json", "--model", "gpt-x", *thinks, " --help"]
    assert codex.argv[1][-1] == "nul \ufffd and a lone ? one"
    with pytest.raises(ModelFailed, match="put it into a file"):
        await codex.say("x" * 130_000)


EDITS: dict[str, Callable[[Talk], None]] = {
    "a reply was changed": lambda talk: talk.entries.__setitem__(
        1, replace(talk.entries[1], text="something else")
    ),
    "a question was taken out": lambda talk: talk.entries.pop(0) and None,
    "a reply without a memory was added": lambda talk: talk.entries.append(
        Message(id="new", role="agent", text="by another driver")
    ),
    "it works in another folder": lambda talk: setattr(talk, "scope", Scope(root="/elsewhere")),
    "it is held in another way": lambda talk: setattr(talk.programs, "level", SandboxLevel.NONE),
    "its home is gone": lambda talk: setattr(talk.programs, "home", "/nowhere/at/all"),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_a_program_whose_memory_is_not_what_the_file_says_is_told_from_the_file(
    tmp_path: Path, edit: str
):
    talk = Talk(tmp_path, "claude-cli", *turns("claude-cli"))
    await talk.say("first question")
    EDITS[edit](talk)
    await talk.say("second question")
    second = talk.argv[1]
    assert "--resume" not in second
    assert second[-3] == "--session-id"
    assert second[-2] != talk.argv[0][-2]
    told = second[-1]
    assert told.endswith("second question")
    for entry in talk.entries[:-2]:
        assert isinstance(entry, Message)
        assert entry.text in told


async def test_what_was_redacted_in_the_file_is_still_the_same_conversation(tmp_path: Path):
    talk = Talk(
        tmp_path,
        "claude-cli",
        ScriptedProcess(lines=claude_output("it is sekrit")),
        ScriptedProcess(lines=claude_output("yes")),
    )
    await talk.say("what is it?")
    talk.entries.append(Notice(id="n", topic="announcement", text="news came"))
    await talk.say("sure?")
    assert talk.argv[1][-3:] == ["--resume", "s", "news came\n\nsure?"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("claude-cli", "No conversation found with session ID: s"),
        ("codex-cli", "Error: thread/resume failed: no rollout found for thread id s"),
    ],
)
async def test_a_program_that_lost_its_memory_is_told_from_the_file(
    tmp_path: Path, name: str, complaint: str
):
    lost = ScriptedProcess(exit_code=1, stderr_tail=complaint)
    talk = Talk(tmp_path, name, turns(name)[0], lost, ScriptedProcess(lines=SAYS[name]("again")))
    await talk.say("one")
    assert (await talk.say("two")).text == "again"
    assert "one" in talk.argv[2][-1]
    assert "resume" not in " ".join(talk.argv[2][:-1])


async def test_codex_is_told_the_word_it_misses_where_there_is_no_repository(tmp_path: Path):
    missing = ScriptedProcess(
        exit_code=1, stderr_tail="Not inside a trusted directory and --skip-git-repo-check was not specified."
    )
    talk = Talk(tmp_path, "codex-cli", missing, *turns("codex-cli"))
    await talk.say("one")
    await talk.say("two")
    assert talk.argv[1] == ["exec", "--json", "--skip-git-repo-check", "one"]
    assert talk.argv[2] == ["exec", "--json", "--skip-git-repo-check", "resume", "s", "two"]


LOGIN = {
    "type": "result",
    "subtype": "success",
    "is_error": True,
    "result": "Not logged in · Please run /login",
}
FAILURES: dict[str, tuple[str, ScriptedProcess, Reason, str]] = {
    "a login that failed and calls itself a success": (
        "claude-cli", ScriptedProcess(lines=[LOGIN], exit_code=1), Reason.AUTH, "claude failed: Not logged in.*CLAUDE_CODE_OAUTH_TOKEN",
    ),
    "a limit of turns": (
        "claude-cli", ScriptedProcess(lines=[{"type": "result", "subtype": "error_max_turns"}]), Reason.PROVIDER, "error_max_turns",
    ),
    "an end without an end": (
        "claude-cli", ScriptedProcess(lines=claude_output("half")[:-1], exit_code=0), Reason.INCOMPLETE, "before its turn was over",
    ),
    "a crash, told by what it complained of": (
        "codex-cli", ScriptedProcess(exit_code=101, stderr_tail="thread 'main' panicked"), Reason.INCOMPLETE, "exit code 101.*panicked",
    ),
    "a kill": ("pi-cli", ScriptedProcess(exit_code=None), Reason.INCOMPLETE, "ended from outside"),
    "a turn that failed": (
        "codex-cli", ScriptedProcess(lines=[{"type": "turn.failed", "error": {"message": "429 Too Many Requests"}}], exit_code=1),
        Reason.RATE_LIMITED, "429",
    ),
    "an error of the model's server": (
        "pi-cli",
        ScriptedProcess(lines=[{"type": "message_end", "message": {"role": "assistant", "stopReason": "error", "errorMessage": "401 no"}},
                    {"type": "agent_end"}]),
        Reason.AUTH, "401 no",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", FAILURES)
async def test_a_program_that_failed_is_not_asked_twice_and_says_why(tmp_path: Path, which: str):
    name, turn, reason, said = FAILURES[which]
    talk = Talk(tmp_path, name, turn)
    with pytest.raises(ModelFailed, match=f"(?s){said}") as failed:
        await talk.say("hello")
    assert failed.value.reason == reason
    assert getattr(failed.value, "retry", False) is False
    assert len(talk.programs.commands) == 1


async def test_what_is_no_line_of_json_is_passed_over_and_a_lie_is_only_data(tmp_path: Path):
    odd: list[Any] = [
        {"type": "assistant", "message": "not an object"},
        {"type": "assistant", "message": {"content": [7, {"type": "tool_use", "id": None, "input": []}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "never begun"}]}},
        {"type": "assistant", "parent_tool_use_id": "t", "message": {"content": [{"type": "text", "text": "inner"}]}},
        {"type": "stream_event", "event": {"delta": {"type": "thinking_delta", "thinking": "hm"}}},
        {"type": ["what"]},
    ]  # fmt: skip
    talk = Talk(tmp_path, "claude-cli", ScriptedProcess(lines=[*odd, *claude_output("fine")]))
    reply = await talk.say("hello")
    assert reply.text == "fine"
    assert [act.result for step in reply.steps for act in step.tool_calls] == [
        "No result: the program ended before it told one."
    ]
    assert "".join(delta.thinking for delta in talk.heard) == "hm"


def test_keys_reach_a_program_only_with_the_hosts_that_they_are_for():
    known = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "CODEX_API_KEY": "o", "OTHER": "x"}
    claude, codex, pi = (PROTOCOLS[name] for name in SAYS)
    assert resolve_credentials(claude, {}, known, {}) == CliCredentials(
        env={"ANTHROPIC_API_KEY": "a"}, hosts=("api.anthropic.com:443",)
    )
    here = resolve_credentials(claude, {}, known, {"anthropic": "http://127.0.0.1:8080/x"})
    assert here.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080/x"
    assert (here.hosts, here.forwards) == ((), (8080,))
    own = resolve_credentials(
        codex, {"base_url": "https://own.example:8443/v1", "api_key_env": "OTHER"}, known, {}
    )
    assert own == CliCredentials(
        env={"CODEX_API_KEY": "x"},
        vendor_urls={"openai": "https://own.example:8443/v1"},
        hosts=("own.example:8443",),
    )
    assert resolve_credentials(codex, {}, known, {}).hosts == ("api.openai.com:443", "chatgpt.com:443")
    both = resolve_credentials(pi, {"hosts": ["more.example"]}, known, {})
    assert both.env == {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}
    assert both.hosts == ("api.anthropic.com:443", "api.openai.com:443", "more.example:443")
    with pytest.raises(BadConfig, match="hosts"):
        resolve_credentials(pi, {"base_url": "https://own.example"}, known, {})


async def test_where_the_cell_holds_it_a_program_is_not_to_hold_itself(tmp_path: Path):
    for name, file, word in (
        ("claude-cli", ".claude/settings.json", "bypassPermissions"),
        ("codex-cli", ".codex/config.toml", "danger-full-access"),
    ):
        for level in (SandboxLevel.STRICT, SandboxLevel.NONE):
            talk = Talk(tmp_path, name, *turns(name), wrapper={"path": "/w", "env": {"A": "b"}})
            talk.programs.level = level
            await talk.say("hello")
            (program,) = talk.programs.commands
            assert (word in program.files[file]) == (level is SandboxLevel.STRICT)
            assert any(text == "You help." for text in program.files.values())
            assert (program.wrapper, program.env["A"], program.env["KEY"]) == ("/w", "b", "k")
            assert program.hosts == ("a:1",)
