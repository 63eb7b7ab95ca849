"""The protocol of one CLI agent: its arguments, output events, home files and environment."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from retinue.providers.cli.reply_parser import CliReplyBuilder

ReadEvent = Callable[[Mapping[str, Any], CliReplyBuilder], None]
"""Read one JSON line of the program's output into the reply builder."""


class Invocation(Struct, frozen=True, kw_only=True):
    """The values one turn passes to the program, before they become its arguments."""

    message: str
    conversation_id: str
    """The program's id of the conversation; "" in the first turn of a program that chooses it."""
    is_resume: bool
    extra_args: tuple[str, ...]
    home: str
    """The program's home, as a path the program can use."""


class HomeSettings(Struct, frozen=True, kw_only=True):
    """Values for the files in the program's home, written before it starts."""

    prompt: str
    is_sandboxed: bool
    """The sandbox restricts the program, so that its own restrictions can be off."""
    cwd: str
    vendor_urls: Mapping[str, str]
    """URLs of model servers that are not the vendors' own, by vendor."""


class CliProtocol(Struct, frozen=True, kw_only=True):
    """The way to run one CLI agent and read its output."""

    build_args: Callable[[Invocation], tuple[str, ...]]
    read_event: ReadEvent
    build_home_files: Callable[[HomeSettings], Mapping[str, str]]
    accepts_conversation_id: bool
    """Whether Retinue chooses the conversation id."""
    extra_hosts: tuple[str, ...] = ()
    """More hosts of the vendor that the program connects to when the vendor serves its models."""
    model_flags: tuple[str, ...] = ("--model",)
    """Flags that choose the model; the first one is used."""
    thinking_args: tuple[str, ...] = ()
    """Arguments that set the thinking level, as `{}`; empty if the program has none."""
    thinking_levels: Mapping[str, str] = field(default_factory=dict[str, str])
    """The program's names of our thinking levels where they differ."""
    vendor: str = ""
    """The vendor whose models it uses; empty if it uses those of several."""
    url_variable: str = ""
    key_variable: str = ""
    """The environment variable the program reads its key from."""
    base_env: Mapping[str, str]
    """Variables that turn off updates and telemetry."""
    sandboxed_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """More variables for when the sandbox restricts the program."""
    credential_variables: Mapping[str, tuple[str, str]]
    """The user's variables that are passed on if set, each with its vendor and the vendor's URL."""
    command_prefixes: tuple[str, ...] = ()
    """Beginnings of a message that the program takes as a command or a file instead."""
    command_words: frozenset[str] = frozenset()
    """Messages of one word that the program takes as a command."""
    startup_fixes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Parts of error messages on a failed start, and the arguments that fix it."""
