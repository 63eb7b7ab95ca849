"""CLI agents for tests: simulated in memory, or as shell scripts that print recorded output."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct

from retinue.domain.cli_agent import CliAgentCommand, CliAgentSandbox, ProcessExit
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel

OutputLine = Mapping[str, Any]


class ScriptedProcess(Struct, frozen=True, kw_only=True):
    """The output lines of one process, and how it exits."""

    lines: Sequence[OutputLine] = ()
    exit_code: int | None = 0
    stderr_tail: str = ""


@dataclass(slots=True, kw_only=True)
class FakeCliAgents:
    """Plays one scripted process after another, and records the commands and their scopes."""

    home: str
    processes: list[ScriptedProcess]
    level: SandboxLevel = SandboxLevel.STRICT
    commands: list[CliAgentCommand] = field(default_factory=list[CliAgentCommand])
    scopes: list[Scope] = field(default_factory=list[Scope])

    async def prepare_home(self, session: str) -> CliAgentSandbox:
        return CliAgentSandbox(level=self.level, home=self.home, visible_home=f"/home-of-{session}")

    async def run(
        self,
        program: CliAgentCommand,
        *,
        session: str,  # noqa: ARG002  (part of the protocol)
        scope: Scope,
        agent_sandbox: CliAgentSandbox,  # noqa: ARG002  (part of the protocol)
        on_output: Callable[[bytes], None],
    ) -> ProcessExit:
        self.commands.append(program)
        self.scopes.append(scope)
        process = self.processes[len(self.commands) - 1]
        for line in process.lines:
            on_output(json.dumps(line).encode() + b"\n")
        return ProcessExit(exit_code=process.exit_code, stderr_tail=process.stderr_tail)


def claude_output(text: str, *, tool_calls: int = 0, session: str = "s") -> list[OutputLine]:
    """Return the output of a claude turn: its own tool calls, then the text."""
    call_lines: list[OutputLine] = []
    for number in range(tool_calls):
        use = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": f"ls {number}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"file {number}"}
        call_lines += [
            {"type": "assistant", "message": {"content": [use]}},
            {"type": "user", "message": {"content": [result]}},
        ]
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5}
    return [
        {"type": "system", "subtype": "init", "session_id": session, "model": "claude-played"},
        *call_lines,
        {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}},
        {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": session, "usage": usage},
    ]  # fmt: skip


def codex_output(text: str, *, tool_calls: int = 0, session: str = "s") -> list[OutputLine]:
    call_lines: list[OutputLine] = []
    for number in range(tool_calls):
        item = {"id": f"i{number}", "type": "command_execution", "command": f"ls {number}"}
        done = {**item, "aggregated_output": f"file {number}", "exit_code": 0, "status": "completed"}
        call_lines += [{"type": "item.started", "item": item}, {"type": "item.completed", "item": done}]
    return [
        {"type": "thread.started", "thread_id": session},
        {"type": "turn.started"},
        *call_lines,
        {"type": "item.completed", "item": {"id": "m", "type": "agent_message", "text": text}},
        {"type": "turn.completed", "usage": {"input_tokens": 7, "output_tokens": 5}},
    ]


def pi_output(text: str, *, tool_calls: int = 0) -> list[OutputLine]:
    call_lines: list[OutputLine] = []
    for number in range(tool_calls):
        call = {"toolCallId": f"t{number}", "toolName": "bash"}
        result = {"content": [{"type": "text", "text": f"file {number}"}]}
        call_lines += [
            {"type": "tool_execution_start", **call, "args": {"command": f"ls {number}"}},
            {"type": "tool_execution_end", **call, "result": result, "isError": False},
        ]
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "model": "pi-played",
        "usage": {"input": 3, "cacheRead": 4, "output": 5},
        "stopReason": "stop",
    }
    piece = {"type": "message_update", "assistantMessageEvent": {"type": "text_delta", "delta": text}}
    end = {"type": "message_end", "message": message}
    return [
        {"type": "session", "id": "p"},
        {"type": "agent_start"},
        *call_lines,
        piece,
        end,
        {"type": "agent_end"},
    ]


def write_script(path: Path, lines: Sequence[OutputLine], *, before: str = "", after: str = "") -> Path:
    """Write a shell script that records its arguments and prints these lines.

    The arguments are appended to `argv` in its home, each followed by a NUL and all by a newline. `before`
    and `after` are shell code.
    """
    output = "\n".join(json.dumps(line) for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\n{before}\nprintf \'%s\\0\' "$@" >>"$HOME/argv"; echo >>"$HOME/argv"\n'
        f"cat <<'END-OF-LINES'\n{output}\nEND-OF-LINES\n{after}\n"
    )
    path.chmod(0o755)
    return path


def recorded_arguments(home: Path) -> list[list[str]]:
    """Return the arguments of each start of a script."""
    return [line.split("\0") for line in (home / "argv").read_text().split("\0\n")[:-1]]
