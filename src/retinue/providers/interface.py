"""The functions that a provider's module implements, and their arguments."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from retinue.domain.cli_agent import CliAgentCommand, CliAgentSandbox, ProcessExit
from retinue.domain.model_turn import Model
from retinue.domain.permissions.ip_ranges import is_loopback_host
from retinue.domain.permissions.scope import Scope
from retinue.domain.providers import MODEL_APIS
from retinue.domain.secret_fields import SecretFieldsStruct
from retinue.errors import BadConfig
from retinue.http.network import NetworkSettings, network_settings
from retinue.interfaces import Provider
from retinue.providers.learned_changes import LearnedChanges


class ServerSettings(Protocol):
    """URL and key of a provider's API, as the user set them."""

    @property
    def base_url(self) -> str: ...
    @property
    def kind(self) -> str:
        """Return the API that the server is asked over."""
        ...

    @property
    def api_key(self) -> str: ...
    @property
    def api_key_command(self) -> str:
        """Return the command that prints the key, or an empty string."""
        ...

    @property
    def key_variable(self) -> str: ...
    @property
    def needs_key(self) -> bool: ...
    @property
    def key_header(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> Mapping[str, Any]: ...
    @property
    def models(self) -> Sequence[str]: ...
    @property
    def thinking_field(self) -> str: ...
    @property
    def schema_disables_tools(self) -> bool: ...
    @property
    def is_default(self) -> bool:
        """Return whether the URL is the provider's own."""
        ...

    @property
    def allow_http(self) -> bool:
        """Return whether another machine may be reached without encryption."""
        ...

    @property
    def max_concurrent(self) -> int | None: ...
    @property
    def requests_per_minute(self) -> float | None: ...
    @property
    def retry_seconds(self) -> float | None: ...
    @property
    def reply_seconds(self) -> float | None: ...
    @property
    def idle_seconds(self) -> float | None: ...


class ProviderSettings(Protocol):
    """The part of the configuration that providers read."""

    @property
    def providers(self) -> Mapping[str, ServerSettings]:
        """Model servers by provider name; providers without a server are omitted."""
        ...

    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def models_dir(self) -> Path: ...


class CliAgentLauncher(Protocol):
    """Runs CLI agents, restricted as tightly as this machine can."""

    async def prepare_home(self, session: str) -> CliAgentSandbox: ...

    async def run(
        self,
        program: CliAgentCommand,
        *,
        session: str,
        scope: Scope,
        agent_sandbox: CliAgentSandbox,
        on_output: Callable[[bytes], None],
    ) -> ProcessExit:
        """Run a program and return or raise only when none of its processes is alive.

        A cancellation ends the program first and is then passed on.
        """
        ...


class ProviderServices(Struct, frozen=True, kw_only=True):
    """Services of the application that providers use."""

    redact: Callable[[str], str]
    """Replace the secrets in a text."""
    cli_agent_launcher: Callable[[], CliAgentLauncher]
    learned_changes: LearnedChanges
    """What servers refused before, and what is sent instead."""
    add_secret: Callable[[str], None]
    """Redact a key that was fetched just now, wherever it appears."""
    now: Callable[[], datetime]


class ListedModel(Struct, frozen=True, kw_only=True):
    """A row of `retinue models list`."""

    model: str
    state: str
    about: str
    is_usable: bool
    weights: "ListedWeights | None" = None


class ListedWeights(Struct, frozen=True, kw_only=True):
    """The weights of a local model."""

    path: Path | None
    """None if they are not installed."""
    size: int
    licence: str


CreateProvider = Callable[[Model, ProviderSettings, ProviderServices], Provider]
CheckModel = Callable[[Model, ProviderSettings], None]
"""Raises BadConfig, with what to do, if the model cannot be used here."""
ListModels = Callable[[ProviderSettings], Sequence[ListedModel]]


class ServerAccess(SecretFieldsStruct, frozen=True, kw_only=True):
    secret_fields = frozenset({"api_key"})

    base_url: str
    api_key: Callable[[], str] | str
    """The key, or a function that returns it for each request."""
    key_variable: str
    """The environment variable that holds the key, named in error messages."""
    network: NetworkSettings
    """Proxies and certificates."""
    key_command: str = ""
    """Command that prints the key."""
    key_header: str = ""
    """Header of the key, if it is not the usual one of the API."""
    thinking_field: str = ""
    """Field that requests thinking, if it is not the usual one of the API."""
    schema_disables_tools: bool = False
    """The server lets the model call no tool if it gets a schema in its own field."""
    headers: Mapping[str, str] = {}
    """Headers that the user adds to each request."""
    body: Mapping[str, Any] = {}
    """Fields that the user adds to each request."""


def server_access(model: Model, settings: ProviderSettings) -> ServerAccess:
    """Return the URL and key for a model; a definition with its own server never gets another one's key.

    Raises:
        BadConfig: The URL would send the conversation to another machine without encryption, or the proxy or the
            certificates of the environment cannot be used.
    """
    custom_base_url, server = own_base_url(model), settings.providers[model.provider]
    base_url, network = custom_base_url or server.base_url, network_settings(settings.env)
    if not base_url:
        prefix = MODEL_APIS[model.provider].url_variable
        raise BadConfig(
            f"No address for {model.full_name}. Set {prefix}, or base_url in [providers.{model.provider}]."
        )
    check_encryption(base_url, model.provider, settings)
    network.check(base_url)
    if not server.allow_http:
        network.check_encryption(base_url)
    if custom_base_url:
        return ServerAccess(
            base_url=base_url,
            api_key=own_api_key(model, settings.env),
            key_variable=server.key_variable,
            network=network,
        )
    return ServerAccess(
        base_url=base_url,
        api_key=server.api_key,
        key_variable=server.key_variable,
        network=network,
        key_command=server.api_key_command,
        key_header=server.key_header,
        thinking_field=server.thinking_field,
        schema_disables_tools=server.schema_disables_tools,
        headers=server.headers,
        body=server.body,
    )


def lacks_key(provider: str, settings: ProviderSettings) -> bool:
    """Return whether a provider's server needs a key that is not set."""
    server = settings.providers[provider]
    if server.api_key or server.api_key_command or not server.needs_key:
        return False
    # Another server at the address of a known one may need no key.
    return server.is_default or provider not in MODEL_APIS


def check_encryption(url: str, provider: str, settings: ProviderSettings) -> None:
    """Raise BadConfig for plain HTTP to another machine, unless the provider's settings allow that."""
    address = urlsplit(url)
    if address.scheme != "http" or is_loopback_host(address.hostname or ""):
        return
    if not settings.providers[provider].allow_http:
        raise BadConfig(
            f"{provider}: {url} is not encrypted: your key and your conversations would cross the network in plain "
            f"text. Use https://, or set `allow_http = true` in [providers.{provider}] of your configuration."
        )


def own_base_url(model: Model) -> str:
    """Return the base URL that a definition sets for its server, or an empty string."""
    return str(model.settings.get("base_url") or model.settings.get("baseUrl") or "")


def own_key_variable(model: Model) -> str:
    return str(model.settings.get("api_key_env") or model.settings.get("apiKeyEnv") or "")


def own_api_key(model: Model, env: Mapping[str, str]) -> str:
    """Return the key for the definition's own server, from the variable that the definition names."""
    return env.get(own_key_variable(model), "")
