"""How one program is spoken to and understood: what every one of them is known by."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from retinue.domain.value import value
from retinue.providers.cli.reply_parser import Account

Read = Callable[[Mapping[str, Any], Account], None]
"""Takes in one line of the program's own JSON."""


@value
class Words:
    """What one turn is to say, before it is put into a program's own order."""

    text: str
    id: str
    """The program's own name for the conversation; for one that mints it itself, empty the first time."""
    resumes: bool
    extra: tuple[str, ...]
    home: str
    """The program's home, as it knows it."""


@value
class Instructions:
    """What a program finds in its home before it starts."""

    prompt: str
    held: bool
    """The cell holds it, so that it need not hold itself."""
    cwd: str
    urls: Mapping[str, str]
    """Where models are served that are not served by their makers, by the maker's name."""


@value
class Speech:
    """One program's ways."""

    argv: Callable[[Words], tuple[str, ...]]
    read: Read
    files: Callable[[Instructions], Mapping[str, str]]
    mints: bool
    """Whether the conversation's name is ours to choose."""
    also: tuple[str, ...] = ()
    """Other hosts of the maker's that it speaks to, where its models are served by the maker."""
    maker: str = ""
    """Whose models it speaks to; empty: those of many."""
    url_variable: str = ""
    key_variable: str = ""
    """The variable in which it looks for its key."""
    quiet: Mapping[str, str]
    """Variables that keep it from doing what nobody asked for: updates, telemetry."""
    held: Mapping[str, str] = field(default_factory=dict[str, str])
    """More of them, where the cell holds it."""
    keys: Mapping[str, tuple[str, str]]
    """Variables of the user's that reach it when they are set: whose each is, and where that one's models are."""
    mends: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """What it may say when it will not start, and the words with which it does."""
