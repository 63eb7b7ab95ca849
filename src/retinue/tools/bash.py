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


@tool(effect=Effect.ONCE, category="commands", touches=("run", "command"))
async def bash(
    call: Call,
    command: Annotated[str, "What bash is to run, in the workspace."],
    timeout: Annotated[  # noqa: ASYNC109  (the command's own timeout, passed to the sandbox)
        TimeoutSeconds | None, "Seconds until it is ended; 120 if not given, at most 3600."
    ] = None,
) -> str:
    """Run a command with bash, without input. The sandbox holds it as tightly as this machine can: where it is strict,
    there are only the files of your scope, /tmp for files of your own, and no network; where it is none, nothing holds
    it but the person who allows it. Each call starts anew in the workspace; whatever still runs when the command ends
    is ended too. The last line of the answer says how it ended and what the sandbox was; a long output is cut in the
    middle, and the whole of it is in a file that the answer names."""
    result = await call.shell(command, timeout or DEFAULT_TIMEOUT_S)
    return format_result(result, timeout or DEFAULT_TIMEOUT_S)


def format_result(result: CommandResult, timeout_s: float) -> str:
    """Format a command's result: its output, then what the model must know about it.

    A failed command is formatted like any other: the model reads the exit code.
    """
    text = strip_escapes(result.output)
    body = [text.removesuffix("\n")] if text else []
    output_note = [f"[the whole output is in {result.full_output_path}]"] if result.full_output_path else []
    return "\n".join(
        [*body, *output_note, *(f"[{note}]" for note in result.notes), f"[{_end_summary(result, timeout_s)}]"]
    )


def _end_summary(result: CommandResult, timeout_s: float) -> str:
    if result.timed_out:
        outcome = f"ended after {timeout_s:g} s, with everything it had started: it took too long"
    elif result.exit_code is None:
        outcome = "it was ended from outside"
    else:
        outcome = f"exit {result.exit_code}"
    return f"{outcome}, sandbox {result.sandbox_level}, {result.duration_ms:,} ms"


def parse_sandbox_level(result_text: str) -> SandboxLevel | None:
    """Return the sandbox level from the last line of a result, which no command can forge."""
    match = _STATUS_LINE.search(result_text)
    return SandboxLevel(match[1]) if match and match[1] in list(SandboxLevel) else None
