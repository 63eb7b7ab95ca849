"""Programs that take turns by themselves: claude, codex and pi, what each is called, and what it is started with."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from retinue.domain.sandbox_level import Level
from retinue.domain.value import value


@value
class Kind:
    """One of the programs that can be an agent's driver."""

    binary: str
    install: str
    reserved: frozenset[str]
    """Words that Retinue says to it itself: nobody else may."""

    def spoken_for(self, words: Sequence[str]) -> list[str]:
        """The reserved ones among these words, in order."""
        heads = {word.partition("=")[0] if word.startswith("-") else word for word in words}
        return sorted(self.reserved & heads)


PROGRAMS: Mapping[str, Kind] = {
    "claude-cli": Kind(
        binary="claude",
        install="npm install -g @anthropic-ai/claude-code",
        reserved=frozenset(
            [
                "-p",
                "--print",
                "--verbose",
                "--output-format",
                "--input-format",
                "--include-partial-messages",
                "--session-id",
                "--resume",
                "-r",
                "--continue",
                "-c",
                "--fork-session",
                "--no-session-persistence",
            ]
        ),
    ),
    "codex-cli": Kind(
        binary="codex",
        install="npm install -g @openai/codex",
        reserved=frozenset(["exec", "e", "resume", "--json", "--last", "--ephemeral", "-C", "--cd"]),
    ),
    "pi-cli": Kind(
        binary="pi",
        install="npm install -g @mariozechner/pi-coding-agent",
        reserved=frozenset(
            [
                "--mode",
                "--session",
                "--session-dir",
                "--no-session",
                "--continue",
                "-c",
                "--resume",
                "-r",
                "--fork",
                "--print",
                "-p",
            ]
        ),
    ),
}
"""By the driver's name."""

DEFAULT = "default"
"""The model of a program that is left to choose one itself."""


class Misread(Exception):
    """What a definition says about its program cannot be used; `key` is where it says so."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


@value
class Told:
    """A definition's own settings for its program."""

    extra: tuple[str, ...] = ()
    workdir: str = ""
    wrapper: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])


SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""How variables end that hold what no file may."""
SETTINGS = ("workdir", "extraArgs", "wrapper", "hosts", "base_url", "baseUrl", "api_key_env", "apiKeyEnv")


def told(driver: str, said: Mapping[str, Any]) -> Told:
    """Misread names the key. Of a driver that is no program nothing is known here."""
    if driver not in PROGRAMS:
        return Told()
    for key in said:
        if key not in SETTINGS:
            raise Misread(key, f"is not a setting of {driver}; there are {', '.join(SETTINGS[:4])}")
    extra = _words("extraArgs", said.get("extraArgs"))
    if taken := PROGRAMS[driver].spoken_for(extra):
        raise Misread("extraArgs", f"must not include reserved {driver} flags: {', '.join(taken)}")
    _words("hosts", said.get("hosts"))
    wrapper = _map("wrapper", said.get("wrapper"))
    env = _map("wrapper.env", wrapper.get("env"))
    for key in wrapper:
        if key not in ("path", "env"):
            raise Misread(f"wrapper.{key}", "is not known; a wrapper has path and env")
    for name in env:
        if name.upper().endswith(SECRET):
            raise Misread(
                f"wrapper.env.{name}", "holds a key, and a definition is copied: name it by api_key_env"
            )
    if wrapper and not wrapper.get("path"):
        raise Misread("wrapper.path", "is missing: it names the program that starts the other")
    return Told(
        extra=extra,
        workdir=_word("workdir", said.get("workdir")),
        wrapper=_word("wrapper.path", wrapper.get("path")),
        env={name: _word(f"wrapper.env.{name}", value) for name, value in env.items()},
    )


def _word(key: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise Misread(key, "must be a text")
    return value


def _words(key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise Misread(key, "must be a list of texts")
    return tuple(_word(key, each) for each in cast("Sequence[Any]", value))


def _map(key: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Misread(key, "must be a map")
    return cast("dict[str, Any]", value)


@value
class Seat:
    """Where a session's program sits: how it is held, and the home that is its own."""

    level: Level
    home: str
    """The real folder."""
    seen: str
    """What the program knows it by."""


@value
class Program:
    """One process of a program: what is started, with what, and what it may reach."""

    binary: str
    argv: tuple[str, ...]
    """The words behind its name."""
    wrapper: str = ""
    """Another program that starts it: gets its name and its words."""
    install: str = ""
    """What a person without it types."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    files: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Of its home, written before it starts: names below it, and texts."""
    hosts: tuple[str, ...] = ()
    """`host:port`: all of the network that it reaches where the sandbox holds it."""
    forwards: tuple[int, ...] = ()
    """Ports of this machine's own loopback that it finds on its own."""
    workdir: str = ""
    """Relative to the workspace; empty: the workspace."""


@value
class Gone:
    """What came of a process."""

    exit: int | None
    """None: it was ended from outside."""
    complaint: str
    """The end of what it wrote to its standard error."""
    notes: tuple[str, ...] = ()
