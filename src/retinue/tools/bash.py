"""bash: runs a command in the sandbox."""

import re
from typing import Annotated

from msgspec import Meta

from retinue.domain.io_results import Ran
from retinue.domain.sandbox_level import Level
from retinue.domain.sanitize import without_escapes
from retinue.domain.tool import Effect
from retinue.interfaces import Call
from retinue.tools.define import tool

Seconds = Annotated[int, Meta(ge=1, le=3600)]

DEFAULT_SECONDS = 120
_LAST = re.compile(r"\n?\[[^\n]*, sandbox ([a-z]+), [0-9,]+ ms\]\Z")


@tool(effect=Effect.ONCE, category="commands", touches=("run", "command"))
async def bash(
    call: Call,
    command: Annotated[str, "What bash is to run, in the workspace."],
    timeout: Annotated[Seconds | None, "Seconds until it is ended; 120 if not given, at most 3600."] = None,  # noqa: ASYNC109  (the command's time, told to the sandbox)
) -> str:
    """Run a command with bash, without input. The sandbox holds it as tightly as this machine can: where it is strict,
    there are only the files of your scope, /tmp for files of your own, and no network; where it is none, nothing holds
    it but the person who allows it. Each call starts anew in the workspace; whatever still runs when the command ends
    is ended too. The last line of the answer says how it ended and what the sandbox was; a long output is cut in the
    middle, and the whole of it is in a file that the answer names."""
    ran = await call.shell(command, timeout or DEFAULT_SECONDS)
    return answer(ran, timeout or DEFAULT_SECONDS)


def answer(ran: Ran, seconds: float) -> str:
    """What it wrote, then what must be known of it. A command that fails has an answer like any other: the model
    reads the exit code."""
    text = without_escapes(ran.text)
    body = [text.removesuffix("\n")] if text else []
    kept = [f"[the whole output is in {ran.kept}]"] if ran.kept else []
    return "\n".join([*body, *kept, *(f"[{note}]" for note in ran.notes), f"[{_end(ran, seconds)}]"])


def _end(ran: Ran, seconds: float) -> str:
    if ran.timed_out:
        how = f"ended after {seconds:g} s, with everything it had started: it took too long"
    elif ran.exit is None:
        how = "it was ended from outside"
    else:
        how = f"exit {ran.exit}"
    return f"{how}, sandbox {ran.level}, {ran.ms:,} ms"


def level_in(answer: str) -> Level | None:
    """The level that an answer of this tool says in its last line, which no command can write."""
    said = _LAST.search(answer)
    return Level(said[1]) if said and said[1] in list(Level) else None
