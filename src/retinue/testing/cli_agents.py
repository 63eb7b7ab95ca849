"""Programs for tests: played in memory, or small scripts that stand on a PATH and speak like the real ones."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinue.domain.cli_agent import Gone, Program, Seat
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import Level
from retinue.domain.value import value

Line = Mapping[str, Any]


@value
class Turn:
    """What one process says, and how it ends."""

    lines: Sequence[Line] = ()
    exit: int | None = 0
    complaint: str = ""


@dataclass(slots=True, kw_only=True)
class PlayedPrograms:
    """Plays one turn after another, and keeps what was started under which scope."""

    home: str
    turns: list[Turn]
    level: Level = Level.STRICT
    ran: list[Program] = field(default_factory=list[Program])
    scopes: list[Scope] = field(default_factory=list[Scope])

    async def seat(self, session: str) -> Seat:
        return Seat(level=self.level, home=self.home, seen=f"/home-of-{session}")

    async def run(
        self,
        program: Program,
        *,
        session: str,  # noqa: ARG002  (the port's)
        scope: Scope,
        seat: Seat,  # noqa: ARG002  (the same)
        said: Callable[[bytes], None],
    ) -> Gone:
        self.ran.append(program)
        self.scopes.append(scope)
        turn = self.turns[len(self.ran) - 1]
        for line in turn.lines:
            said(json.dumps(line).encode() + b"\n")
        return Gone(exit=turn.exit, complaint=turn.complaint)


def claude_says(text: str, *, acts: int = 0, session: str = "s") -> list[Line]:
    """A turn of claude: words, some calls of its own, and more words."""
    calls: list[Line] = []
    for at in range(acts):
        use = {"type": "tool_use", "id": f"t{at}", "name": "Bash", "input": {"command": f"ls {at}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{at}", "content": f"file {at}"}
        calls += [
            {"type": "assistant", "message": {"content": [use]}},
            {"type": "user", "message": {"content": [result]}},
        ]
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5}
    return [
        {"type": "system", "subtype": "init", "session_id": session, "model": "claude-played"},
        *calls,
        {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}},
        {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": session, "usage": usage},
    ]  # fmt: skip


def codex_says(text: str, *, acts: int = 0, session: str = "s") -> list[Line]:
    calls: list[Line] = []
    for at in range(acts):
        item = {"id": f"i{at}", "type": "command_execution", "command": f"ls {at}"}
        done = {**item, "aggregated_output": f"file {at}", "exit_code": 0, "status": "completed"}
        calls += [{"type": "item.started", "item": item}, {"type": "item.completed", "item": done}]
    return [
        {"type": "thread.started", "thread_id": session},
        {"type": "turn.started"},
        *calls,
        {"type": "item.completed", "item": {"id": "m", "type": "agent_message", "text": text}},
        {"type": "turn.completed", "usage": {"input_tokens": 7, "output_tokens": 5}},
    ]


def pi_says(text: str, *, acts: int = 0) -> list[Line]:
    calls: list[Line] = []
    for at in range(acts):
        call = {"toolCallId": f"t{at}", "toolName": "bash"}
        result = {"content": [{"type": "text", "text": f"file {at}"}]}
        calls += [
            {"type": "tool_execution_start", **call, "args": {"command": f"ls {at}"}},
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
        *calls,
        piece,
        end,
        {"type": "agent_end"},
    ]


def script(path: Path, lines: Sequence[Line], *, before: str = "", after: str = "") -> Path:
    """A program that adds its words to `argv` in its home, each followed by a NUL and all by a newline, and then says
    these lines. `before` and `after` are of the shell."""
    said = "\n".join(json.dumps(line) for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\n{before}\nprintf \'%s\\0\' "$@" >>"$HOME/argv"; echo >>"$HOME/argv"\n'
        f"cat <<'END-OF-LINES'\n{said}\nEND-OF-LINES\n{after}\n"
    )
    path.chmod(0o755)
    return path


def words(home: Path) -> list[list[str]]:
    """What a script was started with, each time."""
    return [line.split("\0") for line in (home / "argv").read_text().split("\0\n")[:-1]]
