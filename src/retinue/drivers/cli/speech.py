"""How one program is spoken to and understood: what every one of them is known by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.drivers.cli.account import Account

Read = Callable[[Mapping[str, Any], Account], None]
"""Takes in one line of the program's own JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What one turn is to say, before it is put into a program's own order."""

    text: str
    id: str
    """The program's own name for the conversation; for one that mints it itself, empty the first time."""
    resumes: bool
    extra: tuple[str, ...]
    home: str
    """The program's home, as it knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """What a program finds in its home before it starts."""

    prompt: str
    held: bool
    """The cell holds it, so that it need not hold itself."""
    cwd: str
    base_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """One program's ways."""

    argv: Callable[[Words], tuple[str, ...]]
    read: Read
    files: Callable[[Instructions], Mapping[str, str]]
    mints: bool
    """Whether the conversation's name is ours to choose."""
    url: str
    """Where its models are served when nobody says otherwise; empty: it knows many places."""
    url_variable: str = ""
    key_variable: str = ""
    """The variable in which it looks for its key."""
    quiet: Mapping[str, str]
    """Variables that keep it from doing what nobody asked for: updates, telemetry."""
    keys: Mapping[str, str]
    """Variables of the user's that reach it when they are set, and the host that each is for."""
    model_flag: str = "--model"
