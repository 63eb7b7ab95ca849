"""bash: run a command in the sandbox."""

import re
from typing import Annotated

from msgspec import Meta

from retinue.domain.io_results import CommandResult
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.sanitize import strip_escapes
from retinue.domain.tool import Effect
from retinue.interfaces import Call
from retinue.tools.define import tool

TimeoutSeconds = Annotated[int, Meta(ge=1, le=3600)]

DEFAULT_TIMEOUT_S = 120
_STATUS_LINE = re.compile(r"\n?\[[^\n]*, sandbox ([a-z]+), [0-9,]+ ms\]\Z")


@tool(effect=Effect.ONCE, category="commands", access=("run", "command"))
async def bash(
    call: Call,
    command: Annotated[str, "The command to run, in the workspace."],
    timeout: Annotated[  # noqa: ASYNC109  (the command's own timeout, passed to the sandbox)
        TimeoutSeconds | None, "Timeout in seconds; default 120, at most 3600."
    ] = None,
) -> str:
    """Run a command with bash, without input, in the sandbox. If the sandbox is strict, the command sees only the files
    of your scope and a private /tmp, and has no network. If the sandbox is none, the command is unrestricted and needs
    a person's approval. Each call starts a new shell in the workspace; processes still running when the command ends
    are killed. The last line of the result gives the exit code and the sandbox level. A long output is shortened in the
    middle, and the result names a file with the full output."""
    result = await call.shell(command, timeout or DEFAULT_TIMEOUT_S)
    return format_result(result, timeout or DEFAULT_TIMEOUT_S)


def format_result(result: CommandResult, timeout_s: float) -> str:
    """Format a command's result: its output, then its status for the model.

    A failed command is formatted like any other: the model reads the exit code.
    """
    text = strip_escapes(result.output)
    body = [text.removesuffix("\n")] if text else []
    output_note = [f"[the full output is in {result.full_output_path}]"] if result.full_output_path else []
    return "\n".join(
        [*body, *output_note, *(f"[{note}]" for note in result.notes), f"[{_end_summary(result, timeout_s)}]"]
    )


def _end_summary(result: CommandResult, timeout_s: float) -> str:
    if result.timed_out:
        outcome = f"timed out after {timeout_s:g} s and was killed with all its processes"
    elif result.exit_code is None:
        outcome = "killed from outside"
    else:
        outcome = f"exit {result.exit_code}"
    return f"{outcome}, sandbox {result.sandbox_level}, {result.duration_ms:,} ms"


def parse_sandbox_level(result_text: str) -> SandboxLevel | None:
    """Return the sandbox level from the last line of a result, which no command can forge."""
    match = _STATUS_LINE.search(result_text)
    return SandboxLevel(match[1]) if match and match[1] in list(SandboxLevel) else None
