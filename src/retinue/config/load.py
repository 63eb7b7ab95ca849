"""Load the configuration from files and environment variables; each error names the key."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import fields

from retinue.agents import validators
from retinue.agents.registry import FileAgentRegistry, InlineDefinition
from retinue.agents.validators import InvalidValue
from retinue.config.schema import URL_PREFIX, parse_settings
from retinue.domain.limits import Limits, RetentionSettings, SubagentSettings
from retinue.domain.mcp import McpServerConfig
from retinue.domain.pricing import Price, Prices
from retinue.domain.providers import MODEL_APIS, OPENAI_CHAT, PROVIDERS, ModelApi
from retinue.domain.secret_fields import SecretFieldsStruct
from retinue.errors import BadConfig, BadDefinition, NotFound
from retinue.storage import strict_json
from retinue.storage.strict_yaml import MAX_DEPTH, ParseError
from retinue.storage.text_file import lstat_stamp, read_text_file

LIVE_SETTINGS = ("agents", "approvals", "deny", "ceiling", "prices", "context_windows")
"""Settings that every running process follows when the file changes."""
_NOT_IN_FINGERPRINT = frozenset(
    {"env", "is_persistent", "is_unattended", "has_own_approvals", "retention", *LIVE_SETTINGS}
) - {"approvals"}
SECRET_NAME_SUFFIXES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD")
"""Suffixes of environment variables that hold secrets."""
MIN_SECRET_CHARS = 16
PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
"""Environment variables for proxies; also read in lower case."""
TLS_VARIABLES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "RETINUE_CLIENT_CERT", "RETINUE_CLIENT_KEY", "RETINUE_CLIENT_KEY_PASSWORD",
)  # fmt: skip
"""Environment variables for certificates."""


class Secret(str):
    """A text that is used but never shown: its repr does not reveal it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)" if self else "Secret()"


class ProviderConfig(Struct, frozen=True, kw_only=True):
    """Address and key of a provider's API. Only the user's environment and configuration set it, never a
    project.
    """

    base_url: str
    kind: str = OPENAI_CHAT
    """The API that the server is asked over; `openai` begins with the one that the address suggests."""
    api_key: Secret = Secret()
    api_key_command: str = ""
    """Command that prints the key."""
    key_variable: str = ""
    """The environment variable that holds the key, named in messages."""
    needs_key: bool = True
    key_header: str = ""
    """Header of the key, if it is not the usual one."""
    headers: Mapping[str, Secret] = field(default_factory=dict[str, Secret])
    """Headers that the user adds; one may hold a key."""
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that the user adds to each request."""
    models: tuple[str, ...] = ()
    """Models to list, if the server does not."""
    thinking_field: str = ""
    schema_disables_tools: bool = False
    max_concurrent: int | None = None
    """Requests at the same time."""
    requests_per_minute: float | None = None
    is_default: bool = True
    """Whether the URL is the provider's own."""
    allow_http: bool = False
    """Whether another machine may be reached by plain HTTP."""
    retry_seconds: float | None = None
    """How long a failed request is tried again before its run waits for the server; None: the default."""
    reply_seconds: float | None = None
    """Longest time of one reply; None: only the run's deadline limits it."""
    idle_seconds: float | None = None
    """Longest time without a byte from the server; None: the default."""


def _default_providers() -> Mapping[str, ProviderConfig]:
    return {name: _load_provider(api, {}, {}) for name, api in MODEL_APIS.items()}


class Config(SecretFieldsStruct, frozen=True, kw_only=True):
    secret_fields = frozenset({"env"})

    home: Path
    """Data folder: sessions, the ledger, logs."""
    config_dir: Path
    """The user's configuration folder: config.toml or config.json, and agents/."""
    file: Path | None = None
    """The configuration file that was read, if any."""
    model: str | None = None
    """Set by RETINUE_MODEL or the file; `default_model()` decides."""
    fallback_models: tuple[str, ...] = ()
    """Models to ask, in this order, if an agent's model fails and its definition names no others."""
    agents: tuple[InlineDefinition, ...] = ()
    limits: Limits = Limits()
    retention: RetentionSettings = RetentionSettings()
    approvals: str = "ask"
    ceiling: Mapping[str, Any] | None = None
    tools: tuple[str, ...] = ()
    """`module:name` of the user's own tools."""
    sandbox_minimum: str = "none"
    deny: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Denied to every agent, by kind: tools, paths, agents."""
    web_hosts: tuple[str, ...] = ()
    """Sites that web_fetch may reach. If there are none, the tool does not exist."""
    mcp: tuple[McpServerConfig, ...] = ()
    """MCP servers."""
    prices: Prices = field(default_factory=dict[str, Price])
    """Token prices, for displayed sums only."""
    context_windows: Mapping[str, int] = field(default_factory=dict[str, int])
    """Context windows in tokens, by `provider:model` or the model's name alone."""
    database: str | None = None
    subagents: SubagentSettings = SubagentSettings()
    providers: Mapping[str, ProviderConfig] = field(default_factory=_default_providers)
    """Servers of the providers, by the provider's name; CLI agents and local models have none."""
    is_persistent: bool = True
    """False for a temporary home that is deleted with this process. Not a configuration key."""
    is_unattended: bool = False
    """True if nobody can answer approvals before that home is deleted. Not a configuration key."""
    has_own_approvals: bool = False
    """True if the program chose `approvals`, so that the file no longer does. Not a configuration key."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment in which a definition's `api_key_env` is looked up."""

    models_home: Path | None = None
    """Home whose local models are used, if not this one. Not a configuration key."""

    @property
    def models_dir(self) -> Path:
        return self.models_home or self.home

    @property
    def agents_dir(self) -> Path:
        return self.config_dir / "agents"

    @property
    def skills_dir(self) -> Path:
        return self.config_dir / "skills"

    def default_model(self) -> str | None:
        """Return `provider:model`, or None if no model is configured or usable."""
        if self.model is not None:
            return self.model
        from retinue.providers.offered_models import offered_names  # noqa: PLC0415  (imported on use, for a fast start)

        for name, provider in self.providers.items():
            spec = PROVIDERS.get(name)
            if spec is not None and spec.default_model and provider.api_key:
                return spec.offered_default_model(offered_names(self.home, provider.base_url))
        from retinue.providers.registry import usable_default_model  # noqa: PLC0415  (imported on use, for a fast start)

        return usable_default_model(self)

    def fingerprint(self) -> str:
        """Return a hash of everything that affects how a run is executed, except the settings that every process rereads.

        Two processes with the same fingerprint execute a run alike. Keys are included, but cannot be read
        from it.
        """
        settings = [
            *(getattr(self, each.name) for each in fields(self) if each.name not in _NOT_IN_FINGERPRINT)
        ]
        secrets = [
            *self._provider_credentials(),
            *self._mcp_credentials(),
            *self._network_variables().items(),
        ]
        return hashlib.sha256(f"{settings!r} {secrets!r}".encode("utf-8", "replace")).hexdigest()[:32]

    def secrets(self) -> tuple[str, ...]:
        """Return the values that must never appear in a transcript, log or event.

        These are our API keys, and values that look like keys in the environment and in MCP servers'
        settings.
        """
        api_keys = [each for each in self._provider_credentials() if each]
        from_environment = [
            value
            for name, value in self.env.items()
            if name.upper().endswith(SECRET_NAME_SUFFIXES) and _looks_random(value)
        ]
        from_mcp_servers = [value for value in self._mcp_credentials() if _looks_random(value)]
        return tuple(
            dict.fromkeys(api_keys + from_environment + from_mcp_servers + self._network_passwords())
        )

    def _network_variables(self) -> dict[str, str]:
        """Return the variables that decide how servers are reached."""
        names = (*PROXY_VARIABLES, *(each.lower() for each in PROXY_VARIABLES), *TLS_VARIABLES)
        return {name: self.env[name] for name in names if name in self.env}

    def _network_passwords(self) -> list[str]:
        """Return the passwords of proxies and of the client certificate, except plain words."""
        if not self._network_variables():
            return []
        from retinue.http.network import network_settings  # noqa: PLC0415  (imported on use, for a fast start)

        network = network_settings(self.env)
        passwords = (*network.proxies.secrets(), network.tls.client_key_password)
        return [each for each in passwords if each and not each.isalpha()]

    def _provider_credentials(self) -> list[str]:
        """Return the keys of model servers, and the values of headers that may be keys."""
        keys = [str(each.api_key) for each in self.providers.values()]
        headers = [str(value) for each in self.providers.values() for value in each.headers.values()]
        return [*keys, *(value.removeprefix("Bearer ") for value in headers if _looks_random(value))]

    def _mcp_credentials(self) -> list[str]:
        """Return the values passed to MCP servers in their environment and headers, which is where their keys
        are.
        """
        return [
            value
            for each in self.mcp
            for value in (
                *each.env.values(),
                *(header.removeprefix("Bearer ") for header in each.headers.values()),
                *(self.env.get(name, "") for name in (*each.inherit, each.bearer_env)),
            )
        ]


def _looks_random(value: str) -> bool:
    """Return True for long mixed values, as keys are.

    Redacting a word, a number or a path would damage every text that contains it.
    """
    is_mixed = any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    return (
        is_mixed
        and len(value) >= MIN_SECRET_CHARS
        and " " not in value
        and not value.startswith(("/", ".", "~", "http"))
    )


def load_config(env: Mapping[str, str], *, home: str | None = None) -> Config:
    """Load the user's configuration.

    Raises:
        BadConfig: The configuration is invalid; the message names the file and the key.
    """
    folder = _config_dir(env)
    for each in (folder, folder / "agents"):
        if each.exists() and not each.is_dir():
            raise BadConfig(
                f"{each}: must be a folder, but is a file. Set RETINUE_CONFIG to the folder of config.toml."
            )
    file, raw = _read_config_file(folder)
    try:
        parsed = parse_settings(raw)
    except InvalidValue as error:
        raise BadConfig(f"{file}: {error}") from error
    home_dir = _home_dir(env, home)
    if home_dir.exists() and not home_dir.is_dir():
        raise BadConfig(
            f"{home_dir}: must be a folder, but is a file. Set RETINUE_HOME or --home to the data folder."
        )
    configured_model = parsed.pop("model", None)
    model = env.get("RETINUE_MODEL") or configured_model or None
    configured_providers: Mapping[str, Any] = parsed.pop("providers", None) or {}
    providers = {
        name: _load_provider(api, env, configured_providers.get(name) or {})
        for name, api in MODEL_APIS.items()
    }
    for name in configured_providers.keys() - MODEL_APIS.keys():
        prefix = f"{name.upper().replace('-', '_')}_"
        api = ModelApi(base_url="", env_prefix=prefix, needs_key=False)
        providers[name] = _load_provider(api, env, configured_providers[name])
    config = Config(
        home=home_dir, config_dir=folder, file=file, model=model, providers=providers, env=env, **parsed
    )
    _check_watchers_read_only(config)
    return config


def _check_watchers_read_only(config: Config) -> None:
    """Refuse to start if a configured watcher has tools that change something.

    Definitions are merged first, because the tools may be set in a file.
    """
    watchers = [each.name for each in config.agents if "watcher" in (each.partial.get("roles") or ())]
    registry = FileAgentRegistry.from_settings(config)
    for name in watchers:
        try:
            registry.get(name)
        except NotFound as error:
            raise BadConfig(f"{config.file}: agents: {error.__cause__ or error}") from error


def _home_dir(env: Mapping[str, str], option: str | None) -> Path:
    path = option or env.get("RETINUE_HOME")
    if path:
        return Path(path).absolute()
    return _platform_dir(env, "data")


def _config_dir(env: Mapping[str, str]) -> Path:
    path = env.get("RETINUE_CONFIG")
    if path:
        return Path(path).absolute()
    return _platform_dir(env, "config")


def _platform_dir(env: Mapping[str, str], kind: str) -> Path:
    """Return the platform's own folder; platformdirs is imported only if no folder was named."""
    import platformdirs  # noqa: PLC0415  (imported on use, for a fast start)

    variable = {"data": "XDG_DATA_HOME", "config": "XDG_CONFIG_HOME"}[kind]
    if Path(env.get(variable, "")).is_absolute():
        return Path(env[variable]) / "retinue"
    find_dir = platformdirs.user_data_path if kind == "data" else platformdirs.user_config_path
    return find_dir("retinue", appauthor=False)


def _read_config_file(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the configuration file and its content, not yet validated."""
    names = ("config.toml", "config.json")
    try:
        existing = [folder / name for name in names if lstat_stamp(folder / name) is not None]
    except BadDefinition as error:
        raise BadConfig(str(error)) from error
    if len(existing) > 1:
        raise BadConfig(f"{folder}: contains both config.toml and config.json. Remove one of them.")
    if not existing:
        return None, {}
    path = existing[0]
    try:
        text = read_text_file(path)
        raw = strict_json.parse_json(text) if path.suffix == ".json" else _parse_toml(text)
    except BadDefinition as error:
        raise BadConfig(str(error)) from error
    except ParseError as error:
        raise BadConfig(f"{path}:{error.line}: {error.problem}") from error
    if not isinstance(raw, dict):
        raise BadConfig(f"{path}: must be a map of settings, but is {validators.describe_type(raw)}")
    return path, cast("dict[str, Any]", raw)


def _parse_toml(text: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415  (imported on use, for a fast start: often there is no such file)

    if strict_json.nesting_depth(text) > MAX_DEPTH:
        raise ParseError(1, f"is nested deeper than {MAX_DEPTH} levels")
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ParseError(1, f"is not valid TOML: {error}") from error


def _load_provider(api: ModelApi, env: Mapping[str, str], configured: Mapping[str, Any]) -> ProviderConfig:
    """Combine configuration and environment; the environment takes precedence."""
    url = env.get(api.url_variable)
    if url and not URL_PREFIX.match(url):
        raise BadConfig(
            f"{api.url_variable} is '{url[:200]}', which is not a URL. Write it as https://host/path."
        )
    base_url = url or configured.get("base_url")
    own_variable = configured.get("api_key_env") or ""
    variables = (own_variable,) if own_variable else (api.key_variable, *api.other_key_variables)
    key = next((env[name] for name in variables if env.get(name)), configured.get("api_key") or "")
    headers = cast("dict[str, str]", configured.get("headers") or {})
    needs_key = bool(own_variable) or (api.needs_key and not configured.get("api_key_command"))
    times = {name: configured.get(name) for name in ("retry_seconds", "reply_seconds", "idle_seconds")}
    return ProviderConfig(
        base_url=base_url or api.base_url,
        kind=configured.get("kind") or api.kind,
        api_key=Secret(key.strip()),
        api_key_command=configured.get("api_key_command") or "",
        key_variable=variables[0],
        needs_key=needs_key,
        key_header=api.key_header,
        headers={name: Secret(value) for name, value in headers.items()},
        body=configured.get("body") or {},
        models=tuple(configured.get("models") or ()),
        thinking_field=api.thinking_field,
        schema_disables_tools=api.schema_disables_tools,
        max_concurrent=configured.get("max_concurrent"),
        requests_per_minute=configured.get("requests_per_minute"),
        is_default=not base_url,
        allow_http=bool(configured.get("allow_http")),
        **times,
    )
