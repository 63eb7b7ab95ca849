"""Settings: what the operator and the environment say, read once, typed, and with every mistake named by its key."""

import hashlib
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, cast

from retinue.agents import validators
from retinue.agents.registry import DefinitionCatalogue, Inline
from retinue.agents.validators import Wrong
from retinue.config.schema import URL, settings
from retinue.domain.limits import Limits, Subagents
from retinue.domain.mcp_tool import Server
from retinue.domain.pricing import Price, Prices
from retinue.domain.value import value
from retinue.errors import BadConfig, BadDefinition, NotFound
from retinue.storage import strict_json
from retinue.storage.strict_yaml import MAX_DEPTH, Mistake
from retinue.storage.text_file import read_text, stamp_of

_NOT_TOLD = frozenset({"env", "keeps", "prices"})
SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD")
"""How a variable's name ends that holds one."""
SHORTEST_SECRET = 16
OPENAI_DEFAULT = "openai:gpt-5-mini"
ANTHROPIC_DEFAULT = "anthropic:claude-sonnet-4-5"
LOCAL_DEFAULT = "local:smollm2"
"""Where there is no key: a demonstration, if its weights are there."""


class Secret(str):
    """A text that is used and never shown: no representation of a configuration gives it away."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)" if self else "Secret()"


@value
class Provider:
    """How a model's server is reached. Only the user's own environment and configuration say it, never a project."""

    base_url: str
    key: Secret = Secret()
    is_default: bool = True
    """Whether the address is the maker's own."""


@value
class Providers:
    openai: Provider = Provider(base_url="https://api.openai.com/v1")
    anthropic: Provider = Provider(base_url="https://api.anthropic.com")


@value
class Config:
    home: Path
    """Data: sessions, the ledger, logs."""
    folder: Path
    """The user's configuration: config.toml or config.json, and agents/."""
    file: Path | None = None
    """The configuration file that was read, if there is one."""
    model: str | None = None
    """What RETINUE_MODEL or the file says; `default_model()` is what counts."""
    agents: tuple[Inline, ...] = ()
    limits: Limits = Limits()
    approvals: str = "ask"
    ceiling: Mapping[str, Any] | None = None
    tools: tuple[str, ...] = ()
    """`module:name` of the user's own tools."""
    sandbox_minimum: str = "none"
    deny: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """What no agent may have, by kind: tools, paths, agents."""
    web_hosts: tuple[str, ...] = ()
    """The sites that web_fetch may reach. None: there is no such tool."""
    mcp: tuple[Server, ...] = ()
    """Programs that bring tools."""
    prices: Prices = field(default_factory=dict[str, Price])
    """What tokens cost, for sums that are shown; it decides nothing."""
    database: str | None = None
    subagents: Subagents = Subagents()
    schedules: tuple[Any, ...] = ()
    channels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    providers: Providers = Providers()
    keeps: bool = True
    """False: the home is one for this process alone, and goes with it. No file says this."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Where a definition's `api_key_env` is looked up."""

    models_home: Path | None = None
    """The home whose local models are used, where that is another. No file says this."""

    @property
    def models(self) -> Path:
        return self.models_home or self.home

    @property
    def agents_dir(self) -> Path:
        return self.folder / "agents"

    @property
    def skills_dir(self) -> Path:
        return self.folder / "skills"

    def default_model(self) -> str | None:
        """`driver:model`, or None: then domain.model.NO_MODEL says what to set."""
        if self.model is not None:
            return self.model
        if self.providers.openai.key:
            return OPENAI_DEFAULT
        if self.providers.anthropic.key:
            return ANTHROPIC_DEFAULT
        from retinue.providers.local.weights import usable  # noqa: PLC0415  (start-up is a promise)

        return LOCAL_DEFAULT if usable(self.models) else None

    def fingerprint(self) -> str:
        """Of all that decides how a run goes: two processes with the same one would work it alike. Keys count, and
        cannot be read from it."""
        both = (self.providers.openai, self.providers.anthropic)
        facts = [*(getattr(self, each.name) for each in fields(self) if each.name not in _NOT_TOLD)]
        keys = [*(str(each.key) for each in both), *self._handed_on()]
        return hashlib.sha256(f"{facts!r} {keys!r}".encode("utf-8", "replace")).hexdigest()[:32]

    def secrets(self) -> tuple[str, ...]:
        """Values that must never appear in a transcript, a log or an event: our keys, and whatever else the
        environment calls one."""
        both = (self.providers.openai, self.providers.anthropic)
        ours = [str(each.key) for each in both if each.key]
        others = [
            value
            for name, value in self.env.items()
            if name.upper().endswith(SECRET_NAMES) and _random(value)
        ]
        servers = [value for value in self._handed_on() if _random(value)]
        return tuple(dict.fromkeys(ours + others + servers))

    def _handed_on(self) -> list[str]:
        """What servers are told in their environment and their headers, which is where their keys are."""
        return [
            value
            for each in self.mcp
            for value in (
                *each.env.values(),
                *(header.removeprefix("Bearer ") for header in each.headers.values()),
                *(self.env.get(name, "") for name in (*each.inherit, each.bearer_env)),
            )
        ]


def _random(value: str) -> bool:
    """Long and mixed, as keys are: a word, a number or a path would be taken out of every text it stands in."""
    mixed = any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    return (
        mixed
        and len(value) >= SHORTEST_SECRET
        and " " not in value
        and not value.startswith(("/", ".", "~", "http"))
    )


def load(env: Mapping[str, str], *, home: str | None = None) -> Config:
    """The configuration of this user; BadConfig is one sentence with the file and the key."""
    folder = _folder(env)
    for each in (folder, folder / "agents"):
        if each.exists() and not each.is_dir():
            raise BadConfig(
                f"{each}: must be a folder, and is a file; RETINUE_CONFIG names the folder of config.toml"
            )
    file, said = _file(folder)
    try:
        found = settings(said)
    except Wrong as wrong:
        raise BadConfig(f"{file}: {wrong}") from wrong
    where = _home(env, home)
    if where.exists() and not where.is_dir():
        raise BadConfig(
            f"{where}: must be a folder, and is a file; RETINUE_HOME and --home name the folder of the data"
        )
    named = found.pop("model", None)
    model = env.get("RETINUE_MODEL") or named or None
    providers = _providers(env, found.pop("providers", None) or {})
    config = Config(home=where, folder=folder, file=file, model=model, providers=providers, env=env, **found)
    _check_watchers(config)
    return config


def _check_watchers(config: Config) -> None:
    """A watcher that could change something stops the start, with its name: merged, because its tools may stand
    in a file."""
    watchers = [each.name for each in config.agents if "watcher" in (each.partial.get("roles") or ())]
    catalogue = DefinitionCatalogue.of(config)
    for name in watchers:
        try:
            catalogue.get(name)
        except NotFound as missing:
            raise BadConfig(f"{config.file}: agents: {missing.__cause__ or missing}") from missing


def _home(env: Mapping[str, str], given: str | None) -> Path:
    named = given or env.get("RETINUE_HOME")
    if named:
        return Path(named).absolute()
    return _platform(env, "data")


def _folder(env: Mapping[str, str]) -> Path:
    named = env.get("RETINUE_CONFIG")
    if named:
        return Path(named).absolute()
    return _platform(env, "config")


def _platform(env: Mapping[str, str], which: str) -> Path:
    """The platform's own folder, imported only when nobody named one."""
    import platformdirs  # noqa: PLC0415  (start-up is a promise)

    variable = {"data": "XDG_DATA_HOME", "config": "XDG_CONFIG_HOME"}[which]
    if Path(env.get(variable, "")).is_absolute():
        return Path(env[variable]) / "retinue"
    find = platformdirs.user_data_path if which == "data" else platformdirs.user_config_path
    return find("retinue", appauthor=False)


def _file(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The configuration file and what it says, not yet judged."""
    names = ("config.toml", "config.json")
    try:
        there = [folder / name for name in names if stamp_of(folder / name) is not None]
    except BadDefinition as bad:
        raise BadConfig(str(bad)) from bad
    if len(there) > 1:
        raise BadConfig(f"{folder}: holds both config.toml and config.json; keep one of the two")
    if not there:
        return None, {}
    path = there[0]
    try:
        text = read_text(path)
        said = strict_json.read(text) if path.suffix == ".json" else _toml(text)
    except BadDefinition as bad:
        raise BadConfig(str(bad)) from bad
    except Mistake as mistake:
        raise BadConfig(f"{path}:{mistake.line}: {mistake.problem}") from mistake
    if not isinstance(said, dict):
        raise BadConfig(f"{path}: must be a map of settings, and is {validators.kind(said)}")
    return path, cast("dict[str, Any]", said)


def _toml(text: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415  (start-up is a promise, and many have no such file)

    if strict_json.depth(text) > MAX_DEPTH:
        raise Mistake(1, f"is nested deeper than {MAX_DEPTH} levels")
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Mistake(1, f"is not TOML: {error}") from error


def _providers(env: Mapping[str, str], said: Mapping[str, Any]) -> Providers:
    """The environment has the last word."""
    known = Providers()
    return Providers(
        openai=_provider("openai", known.openai, env, said.get("openai") or {}),
        anthropic=_provider("anthropic", known.anthropic, env, said.get("anthropic") or {}),
    )


def _provider(name: str, known: Provider, env: Mapping[str, str], said: Mapping[str, Any]) -> Provider:
    variable = f"{name.upper()}_BASE_URL"
    url = env.get(variable)
    if url and not URL.match(url):
        raise BadConfig(
            f"{variable} is '{url[:200]}', which is not an address; write it as https://host/path"
        )
    key = Secret((env.get(f"{name.upper()}_API_KEY") or said.get("api_key") or "").strip())
    chosen = url or said.get("base_url")
    return Provider(base_url=chosen or known.base_url, key=key, is_default=not chosen)
