"""Settings: what the operator and the environment say, read once, typed, and with every mistake named by its key."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from retinue.domain.limits import HARD_DEPTH, Limits, Subagents
from retinue.domain.web import Misread, site
from retinue.errors import BadConfig, BadDefinition, NotFound
from retinue.store import dialects, strict_json, values
from retinue.store import fields as definition
from retinue.store.catalogue import DefinitionCatalogue, Inline
from retinue.store.strict_yaml import MAX_DEPTH, Mistake
from retinue.store.textfile import read_text, stamp_of
from retinue.store.values import Path as KeyPath
from retinue.store.values import Wrong

_NOT_TOLD = frozenset({"env", "keeps"})
SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD")
"""How a variable's name ends that holds one."""
SHORTEST_SECRET = 16
OPENAI_DEFAULT = "openai:gpt-5-mini"
ANTHROPIC_DEFAULT = "anthropic:claude-sonnet-4-5"
APPROVALS = ("ask", "auto", "deny")
SANDBOXES = ("none", "landlock", "strict")


class Secret(str):
    """A text that is used and never shown: no representation of a configuration gives it away."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)" if self else "Secret()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """How a model's server is reached. Only the user's own environment and configuration say it, never a project."""

    base_url: str
    key: Secret = Secret()
    is_default: bool = True
    """Whether the address is the maker's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    openai: Provider = Provider(base_url="https://api.openai.com/v1")
    anthropic: Provider = Provider(base_url="https://api.anthropic.com")


@dataclass(frozen=True, slots=True, kw_only=True)
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
    database: str | None = None
    subagents: Subagents = Subagents()
    schedules: tuple[Any, ...] = ()
    channels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    providers: Providers = Providers()
    keeps: bool = True
    """False: the home is one for this process alone, and goes with it. No file says this."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Where a definition's `api_key_env` is looked up."""

    @property
    def agents_dir(self) -> Path:
        return self.folder / "agents"

    def default_model(self) -> str | None:
        """`driver:model`, or None: then domain.model.NO_MODEL says what to set."""
        if self.model is not None:
            return self.model
        if self.providers.openai.key:
            return OPENAI_DEFAULT
        return ANTHROPIC_DEFAULT if self.providers.anthropic.key else None

    def fingerprint(self) -> str:
        """Of all that decides how a run goes: two processes with the same one would work it alike. Keys count, and
        cannot be read from it."""
        both = (self.providers.openai, self.providers.anthropic)
        facts = [*(getattr(self, each.name) for each in fields(self) if each.name not in _NOT_TOLD)]
        keys = [str(each.key) for each in both]
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
        return tuple(dict.fromkeys(ours + others))


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
        settings = _settings(said)
    except Wrong as wrong:
        raise BadConfig(f"{file}: {wrong}") from wrong
    where = _home(env, home)
    if where.exists() and not where.is_dir():
        raise BadConfig(
            f"{where}: must be a folder, and is a file; RETINUE_HOME and --home name the folder of the data"
        )
    named = settings.pop("model", None)
    model = env.get("RETINUE_MODEL") or named or None
    providers = _providers(env, settings.pop("providers", None) or {})
    config = Config(
        home=where, folder=folder, file=file, model=model, providers=providers, env=env, **settings
    )
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
        raise BadConfig(f"{path}: must be a map of settings, and is {values.kind(said)}")
    return path, cast("dict[str, Any]", said)


def _toml(text: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415  (start-up is a promise, and many have no such file)

    if strict_json.depth(text) > MAX_DEPTH:
        raise Mistake(1, f"is nested deeper than {MAX_DEPTH} levels")
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Mistake(1, f"is not TOML: {error}") from error


def _settings(said: Mapping[str, Any]) -> dict[str, Any]:
    """Typed settings by the names of Config's fields; a key that is null counts as absent."""
    settings: dict[str, Any] = {}
    for key, value in said.items():
        if key not in _KEYS:
            raise Wrong((key,), f"is not a known setting{values.hint(key, _KEYS)}")
        if value is not None:
            for name, each in _KEYS[key](value, (key,)).items():
                if name in settings:
                    raise Wrong((key,), f"says '{name}' a second time; keep one of the two")
                settings[name] = each
    return settings


def _limits(value: Any, path: KeyPath) -> Limits:
    found = _LIMITS(value, path)
    return Limits(**{key: each for key, each in found.items() if each is not None})


def _limit(name: str) -> values.Reader:
    if name == "max_depth":
        return values.whole(0, HARD_DEPTH)
    return values.number(0.001, 1e9) if name.endswith("seconds") else values.whole(1, 1_000_000)


def _address(value: Any, path: KeyPath) -> str:
    found = values.word(value, path)
    if not _URL.match(found):
        raise Wrong(path, f"'{found[:200]}' is not an address; write it as https://host/path")
    return found


def _site(value: Any, path: KeyPath) -> str:
    found = values.word(value, path)
    try:
        site(found)
    except Misread as error:
        raise Wrong(
            path,
            f"'{found[:200]}' {error}; write docs.example.org, *.example.org, http://example.org:8080 or *",
        ) from error
    return found


_LIMITS = values.table({each.name: _limit(each.name) for each in fields(Limits)})
_DENY = values.table({"tools": values.names, "paths": values.globs, "agents": values.names})
_WEB_FETCH = values.table({"hosts": values.listed(_site)})
_SANDBOX = values.table({"minimum": values.one_of(SANDBOXES)})
_URL = re.compile(r"https?://[^\s/]")
_PROVIDER = values.table({"base_url": _address, "api_key": values.word})
_PROVIDERS = values.table({"openai": _PROVIDER, "anthropic": _PROVIDER})
_SUBAGENTS = values.table(
    {"allow_agents": values.names, "allowAgents": values.names, "model": values.word},
)


def _subagents(value: Any, path: KeyPath) -> Subagents:
    found = _SUBAGENTS(value, path)
    if "allow_agents" in found and "allowAgents" in found:
        raise Wrong((*path, "allowAgents"), "says the same as 'allow_agents'; keep one of the two")
    allowed = found.get("allow_agents", found.get("allowAgents"))
    return Subagents(allow_agents=allowed, model=found.get("model"))


def _agents(value: Any, path: KeyPath) -> dict[str, Any]:
    """Either definitions in a list, or defaults for sub-agents and the definitions beside them."""
    if isinstance(value, list):
        return {"agents": _inline(cast("list[Any]", value), path)}
    found = values.mapping(value, path)
    for key in found:
        if key not in ("defaults", "list"):
            raise Wrong((*path, key), f"is not a known key{values.hint(key, ('defaults', 'list'))}")
    settings: dict[str, Any] = {}
    if found.get("list") is not None:
        settings["agents"] = _inline(found["list"], (*path, "list"))
    if found.get("defaults") is not None:
        settings |= _defaults(found["defaults"], (*path, "defaults"))
    return settings


def _defaults(value: Any, path: KeyPath) -> dict[str, Any]:
    found = values.table({"subagents": _subagents, "model": dialects.model})(value, path)
    settings: dict[str, Any] = {}
    if found.get("subagents") is not None:
        settings["subagents"] = found["subagents"]
    if found.get("model") is not None:
        settings["model"] = found["model"].sets["model"]
    return settings


def _inline(value: Any, path: KeyPath) -> tuple[Inline, ...]:
    items = values.listed(values.mapping)(value, path)
    found: dict[str, Inline] = {}
    for at, item in enumerate(items):
        here = (*path, at)
        partial, readings = definition.interpret(item, here)
        for reading in readings:
            if reading.wrong is not None:
                raise reading.wrong
        name = partial.get("name")
        if not name:
            raise Wrong(here, "has no name; give it one with name or agentId")
        if name in found:
            raise Wrong(here, f"defines '{name}' a second time; names are unique")
        found[name] = Inline(name=name, partial=partial)
    return tuple(found.values())


def _as(name: str, read: values.Reader) -> values.Reader:
    return lambda value, path: {name: read(value, path)}


def _model(value: Any, path: KeyPath) -> str:
    """Empty for `inherit`, which says nothing here."""
    return dialects.model(value, path).sets["model"] or ""


_KEYS: dict[str, values.Reader] = {
    "model": _as("model", _model),
    "agents": _agents,
    "limits": _as("limits", _limits),
    "approvals": _as("approvals", values.one_of(APPROVALS)),
    "ceiling": _as("ceiling", definition.ceiling),
    "tools": _as("tools", values.listed(values.word)),
    "sandbox": lambda value, path: {"sandbox_minimum": _SANDBOX(value, path).get("minimum") or "none"},
    "deny": lambda value, path: {
        "deny": {key: each for key, each in _DENY(value, path).items() if each is not None}
    },
    "web_fetch": lambda value, path: {"web_hosts": _WEB_FETCH(value, path).get("hosts") or ()},
    "database": _as("database", values.word),
    "subagents": _as("subagents", _subagents),
    "schedules": _as("schedules", values.listed(values.open_map)),
    "channels": _as("channels", values.open_map),
    "providers": _as("providers", _PROVIDERS),
}
"""Every setting, and how it is read into Config's fields."""


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
    if url and not _URL.match(url):
        raise BadConfig(
            f"{variable} is '{url[:200]}', which is not an address; write it as https://host/path"
        )
    key = Secret((env.get(f"{name.upper()}_API_KEY") or said.get("api_key") or "").strip())
    chosen = url or said.get("base_url")
    return Provider(base_url=chosen or known.base_url, key=key, is_default=not chosen)
