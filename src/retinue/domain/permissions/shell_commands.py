"""Shell commands that need no approval.

The sandbox enforces the boundary, never the text of a command: these globs only save approvals.
"""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from retinue.domain.agent import ShellCommands
from retinue.domain.glob import matches
from retinue.domain.rules import Verdict

_SIMPLE_COMMAND = re.compile(r"[\w \t@%+:,./^-]*")
"""A single program and literal arguments.

Any other character can make a line run more than one program or change its words, so no pattern applies to
it.
"""

ANY_COMMAND = "*"

_WORD_SEPARATORS = re.compile(r"[\s;|&<>()`'\"=$]+")
"""Characters that may separate two names in a line, however it is quoted."""


def denied_text(command: str, rules: ShellCommands | None) -> str | None:
    """Return the denied text that a command contains, if any, wherever in the line it occurs."""
    normalized = _collapse_whitespace(command)
    return next(
        (
            text
            for text in (rules and rules.deny) or ()
            if text.strip() and _collapse_whitespace(text) in normalized
        ),
        None,
    )


def _collapse_whitespace(text: str) -> str:
    """Collapse spaces and line breaks."""
    return " ".join(text.split())


def check_preapproved(
    command: str, rules: ShellCommands | None, names_by_path: Mapping[str, str] = MappingProxyType({})
) -> Verdict:
    """Check whether a command needs no approval.

    A pattern without a space matches the program, one with spaces the whole line; `*` matches everything. Only
    a line of one program, found by its bare name, and literal arguments can match. `names_by_path` maps programs'
    paths to the names that patterns use for them.
    """
    allowed = (rules and rules.allow) or ()
    if not allowed:
        return Verdict(ok=False, rule="not preapproved by any shell_commands rule")
    if ANY_COMMAND in allowed:
        return Verdict(ok=True, rule="shell_commands allow *")
    words = command.split()
    words[:1] = [names_by_path.get(each, each) for each in words[:1]]
    if not words or not command.isascii() or not _SIMPLE_COMMAND.fullmatch(command) or "/" in words[0]:
        return Verdict(ok=False, rule="shell_commands cover only one program with literal arguments")
    line = " ".join(words)
    for pattern in allowed:
        if matches(pattern, line if " " in pattern else words[0]):
            return Verdict(ok=True, rule=f"shell_commands allow {pattern}")
    return Verdict(ok=False, rule="no pattern of shell_commands allows it")


def possible_file_names(command: str) -> list[str]:
    """Return every part of a line that may be a file name.

    These are its words as a shell splits them, and the pieces between everything that separates or quotes
    words.
    """
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    names: list[str] = []
    with suppress(ValueError):  # unclosed quote: keep what came before it
        names.extend(lexer)
    return list(dict.fromkeys(each for each in (*names, *_WORD_SEPARATORS.split(command)) if each))
