"""The credentials of a CLI agent: keys from the user's environment, and the hosts they are for."""

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec import field

from retinue.domain.secret_fields import SecretFieldsStruct
from retinue.errors import BadConfig
from retinue.providers.cli.protocol import CliProtocol

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HTTPS_PORT, HTTP_PORT = 443, 80


class CliCredentials(SecretFieldsStruct, frozen=True, kw_only=True):
    secret_fields = frozenset({"env"})

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    vendor_urls: Mapping[str, str] = field(default_factory=dict[str, str])
    """URLs of model servers that are not the vendors' own, by vendor."""
    hosts: tuple[str, ...] = ()
    forwards: tuple[int, ...] = ()


def resolve_credentials(
    protocol: CliProtocol,
    settings: Mapping[str, Any],
    user_env: Mapping[str, str],
    configured_urls: Mapping[str, str],
) -> CliCredentials:
    """Return what a program needs to reach its models.

    A definition that names its own server never gets the key meant for another.

    Args:
        user_env: the user's environment variables.
        configured_urls: base URLs that differ from the vendor's, by vendor.
    """
    base_url = str(settings.get("base_url") or settings.get("baseUrl") or "")
    variable = str(settings.get("api_key_env") or settings.get("apiKeyEnv") or "")
    if base_url and not protocol.vendor:
        raise BadConfig("pi does not support `base_url`. Use `hosts`")
    if base_url or variable:
        env = {protocol.key_variable or variable: user_env[variable]} if user_env.get(variable) else {}
    else:
        env = {name: user_env[name] for name in protocol.credential_variables if user_env.get(name)}
    vendor_urls = {
        vendor: url
        for name, (vendor, url) in protocol.credential_variables.items()
        if name in env or vendor == protocol.vendor
    }
    custom_urls = (
        {protocol.vendor: base_url}
        if base_url
        else {vendor: configured_urls[vendor] for vendor in vendor_urls if vendor in configured_urls}
    )
    if protocol.url_variable and protocol.vendor in custom_urls:
        env |= {protocol.url_variable: custom_urls[protocol.vendor]}
    hosts, forwards = (
        {_with_default_port(each) for each in _as_string_list(settings.get("hosts"))},
        set[int](),
    )
    hosts |= set(protocol.extra_hosts) if not custom_urls else set[str]()
    for url in (vendor_urls | custom_urls).values():
        server_hosts, server_ports = _server_address(url)
        hosts |= server_hosts
        forwards |= server_ports
    return CliCredentials(
        env=env, vendor_urls=custom_urls, hosts=tuple(sorted(hosts)), forwards=tuple(sorted(forwards))
    )


def _server_address(url: str) -> tuple[set[str], set[int]]:
    """Return a remote server as a host, and a local one as a loopback port to forward."""
    try:
        parts = urlsplit(url)
        port = parts.port or (HTTPS_PORT if parts.scheme == "https" else HTTP_PORT)
    except ValueError as error:
        raise BadConfig(f"{url!r} is not a valid URL. Write it as https://host/path") from error
    host = parts.hostname or ""
    return (set[str](), {port}) if host in LOOPBACK else ({f"{host}:{port}"}, set[int]())


def _with_default_port(host: str) -> str:
    return host if ":" in host else f"{host}:{HTTPS_PORT}"


def _as_string_list(value: Any) -> list[str]:
    return (
        [str(each) for each in cast("list[Any] | tuple[Any, ...]", value)]
        if isinstance(value, list | tuple)
        else []
    )
