"""CLI agents: their settings, commands and processes."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct, field

from retinue.domain.providers import CLI_AGENTS
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.secret_fields import SecretFieldsStruct

DEFAULT_MODEL = "default"
"""Model name that lets the program choose."""


class InvalidSetting(Exception):
    """A CLI agent setting in a definition is invalid; `key` names it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


class CliAgentSettings(Struct, frozen=True, kw_only=True):
    """A definition's settings for its program."""

    extra_args: tuple[str, ...] = ()
    workdir: str = ""
    wrapper: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])


SECRET_NAME_SUFFIXES = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Suffixes of variable names whose values must not be stored in a file."""
SETTING_NAMES = (
    "workdir",
    "extraArgs",
    "wrapper",
    "hosts",
    "base_url",
    "baseUrl",
    "api_key_env",
    "apiKeyEnv",
)


def parse_cli_settings(driver: str, settings: Mapping[str, Any]) -> CliAgentSettings:
    """Parse a definition's program settings; empty for a provider that is not a program.

    Raises InvalidSetting, which names the key.
    """
    if driver not in CLI_AGENTS:
        return CliAgentSettings()
    for key in settings:
        if key not in SETTING_NAMES:
            raise InvalidSetting(
                key, f"is not a setting of {driver}. Use one of {', '.join(SETTING_NAMES[:4])}"
            )
    extra = _extra_args_setting(driver, settings.get("extraArgs"))
    _text_list_setting("hosts", settings.get("hosts"))
    wrapper = _map_setting("wrapper", settings.get("wrapper"))
    env = _map_setting("wrapper.env", wrapper.get("env"))
    for key in wrapper:
        if key not in ("path", "env"):
            raise InvalidSetting(f"wrapper.{key}", "is unknown: a wrapper has only path and env")
    for name in env:
        if name.upper().endswith(SECRET_NAME_SUFFIXES):
            raise InvalidSetting(
                f"wrapper.env.{name}",
                "must not contain a secret, because definitions are copied. Use api_key_env",
            )
    if wrapper and not wrapper.get("path"):
        raise InvalidSetting("wrapper.path", "is missing: it must name the program that starts the agent")
    return CliAgentSettings(
        extra_args=extra,
        workdir=_text_setting("workdir", settings.get("workdir")),
        wrapper=_text_setting("wrapper.path", wrapper.get("path")),
        env={name: _text_setting(f"wrapper.env.{name}", value) for name, value in env.items()},
    )


def _extra_args_setting(driver: str, value: Any) -> tuple[str, ...]:
    extra = _text_list_setting("extraArgs", value)
    if reserved := CLI_AGENTS[driver].reserved_flags_in(extra):
        raise InvalidSetting("extraArgs", f"must not include reserved {driver} flags: {', '.join(reserved)}")
    if word := CLI_AGENTS[driver].unattached_word_in(extra):
        raise InvalidSetting(
            "extraArgs", f"must contain only options and their values: {word!r} belongs to no option"
        )
    return extra


def _text_setting(key: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise InvalidSetting(key, "must be a string")
    return value


def _text_list_setting(key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidSetting(key, "must be a list of strings")
    return tuple(_text_setting(key, each) for each in cast("Sequence[Any]", value))


def _map_setting(key: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidSetting(key, "must be a map")
    return cast("dict[str, Any]", value)


class CliAgentSandbox(Struct, frozen=True, kw_only=True):
    """The sandbox of a session's program: its level and its home."""

    level: SandboxLevel
    home: str
    """The real folder."""
    visible_home: str
    """The home's path as the program sees it."""


class CliAgentCommand(SecretFieldsStruct, frozen=True, kw_only=True):
    """A process to start: its arguments, and what it may access."""

    secret_fields = frozenset({"env", "files"})

    binary: str
    args: tuple[str, ...]
    """Arguments after the program's name."""
    wrapper: str = ""
    """Another program that starts it; receives its name and arguments."""
    install: str = ""
    """Command that installs it."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Files written into its home before it starts: relative paths and texts."""
    hosts: tuple[str, ...] = ()
    """`host:port` entries; the only network access inside the sandbox."""
    forwards: tuple[int, ...] = ()
    """Ports of the machine's loopback that are forwarded into the sandbox."""
    workdir: str = ""
    """Relative to the workspace; empty for the workspace itself."""


class ProcessExit(Struct, frozen=True, kw_only=True):
    """The end of a process."""

    exit_code: int | None
    """None if it was killed."""
    stderr_tail: str
    """The end of its standard error."""
    notes: tuple[str, ...] = ()
