"""Shell commands: which of them need not ask. No text is a boundary: the sandbox is, and these globs spare questions."""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from retinue.domain.agent import ShellCommands
from retinue.domain.glob import matches
from retinue.domain.rules import Verdict

_PLAIN = re.compile(r"[\w \t@%+:,./^-]*")
"""One program and plain words. Whatever else stands in a line makes more of it, or of its words something else than
they look like: then no pattern speaks for it."""

ANYTHING = "*"

_BETWEEN = re.compile(r"[\s;|&<>()`'\"=$]+")
"""What may stand between two names in a line, however it is quoted."""


def blocked(command: str, rules: ShellCommands | None) -> str | None:
    """The denied text that a command holds, if there is one. A denied text blocks wherever it stands."""
    flat = _flat(command)
    return next((text for text in (rules and rules.deny) or () if text.strip() and _flat(text) in flat), None)


def _flat(text: str) -> str:
    """However it is spaced and broken into lines."""
    return " ".join(text.split())


def need_not_ask(
    command: str, rules: ShellCommands | None, known: Mapping[str, str] = MappingProxyType({})
) -> Verdict:
    """A pattern without a blank names a program, one with blanks the whole line. Only a line of one program, found
    by its bare name, and plain words can be spoken for; `*` speaks for everything. `known` are programs by their paths,
    each with the name that patterns have for it."""
    allowed = (rules and rules.allow) or ()
    if not allowed:
        return Verdict(ok=False, rule="no shell_commands grant it in advance")
    if ANYTHING in allowed:
        return Verdict(ok=True, rule="shell_commands allow *")
    words = command.split()
    words[:1] = [known.get(each, each) for each in words[:1]]
    if not words or not command.isascii() or not _PLAIN.fullmatch(command) or "/" in words[0]:
        return Verdict(ok=False, rule="shell_commands speak only for one program and plain words")
    line = " ".join(words)
    for pattern in allowed:
        if matches(pattern, line if " " in pattern else words[0]):
            return Verdict(ok=True, rule=f"shell_commands allow {pattern}")
    return Verdict(ok=False, rule="no pattern of shell_commands allows it")


def words(command: str) -> list[str]:
    """Whatever in a line may be the name of a file: its words as a shell takes them, and the pieces
    between everything that parts or quotes words."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[str] = []
    with suppress(ValueError):  # a quote that is never closed: what came before it counts
        found.extend(lexer)
    return list(dict.fromkeys(each for each in (*found, *_BETWEEN.split(command)) if each))
