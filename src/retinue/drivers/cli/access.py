"""What a program is given to reach its models: keys, and the hosts that they are for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from retinue.drivers.cli.speech import Speech
from retinue.errors import BadConfig

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HTTPS, HTTP = 443, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    base_url: str = ""
    hosts: tuple[str, ...] = ()
    forwards: tuple[int, ...] = ()


def access(speech: Speech, settings: Mapping[str, Any], known: Mapping[str, str], url: str) -> Access:
    """`known` are the user's variables, `url` is where their models are served if not at the maker's. A definition that
    names its own server never gets the key meant for another."""
    own = str(settings.get("base_url") or settings.get("baseUrl") or "")
    variable = str(settings.get("api_key_env") or settings.get("apiKeyEnv") or "")
    base = own or url
    if own and not speech.url:
        raise BadConfig("pi knows its servers by its own names: write `hosts` instead of `base_url`")
    named = speech.key_variable or variable
    if own or variable:
        env = {named: known[variable]} if known.get(variable) else {}
    else:
        env = {name: known[name] for name in speech.keys if known.get(name)}
    hosts = {speech.keys[name] for name in env if name in speech.keys}
    forwards: set[int] = set()
    if base:
        hosts, forwards = _at(base)
        env |= {speech.url_variable: base} if speech.url_variable else {}
    elif speech.url and not hosts:
        hosts, _ = _at(speech.url)
    more = {_with_port(each) for each in _list(settings.get("hosts"))}
    return Access(env=env, base_url=base, hosts=tuple(sorted(hosts | more)), forwards=tuple(sorted(forwards)))


def _at(url: str) -> tuple[set[str], set[int]]:
    """A server on this machine is reached by a port of the program's own loopback; any other by its name."""
    try:
        parts = urlsplit(url)
        port = parts.port or (HTTPS if parts.scheme == "https" else HTTP)
    except ValueError as error:
        raise BadConfig(f"{url!r} is not an address: write it as https://host/path") from error
    host = parts.hostname or ""
    return (set[str](), {port}) if host in LOOPBACK else ({f"{host}:{port}"}, set[int]())


def _with_port(host: str) -> str:
    return host if ":" in host else f"{host}:{HTTPS}"


def _list(value: Any) -> list[str]:
    return (
        [str(each) for each in cast("list[Any] | tuple[Any, ...]", value)]
        if isinstance(value, list | tuple)
        else []
    )
