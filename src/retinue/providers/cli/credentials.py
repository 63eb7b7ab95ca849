"""What a program is given to reach its models: keys, and the hosts that they are for."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, cast
from urllib.parse import urlsplit

from retinue.domain.value import value
from retinue.errors import BadConfig
from retinue.providers.cli.protocol import Speech

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HTTPS, HTTP = 443, 80


@value
class Access:
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    urls: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where models are served that are not served by their makers, by the maker's name."""
    hosts: tuple[str, ...] = ()
    forwards: tuple[int, ...] = ()


def access(
    speech: Speech, settings: Mapping[str, Any], known: Mapping[str, str], elsewhere: Mapping[str, str]
) -> Access:
    """`known` are the user's variables, `elsewhere` says by maker where the user's models are served if not at the
    maker's. A definition that names its own server never gets the key meant for another."""
    own = str(settings.get("base_url") or settings.get("baseUrl") or "")
    variable = str(settings.get("api_key_env") or settings.get("apiKeyEnv") or "")
    if own and not speech.maker:
        raise BadConfig("pi knows its servers by names of its own: it takes `hosts`, and no `base_url`")
    if own or variable:
        env = {speech.key_variable or variable: known[variable]} if known.get(variable) else {}
    else:
        env = {name: known[name] for name in speech.keys if known.get(name)}
    makers = {
        maker: url for name, (maker, url) in speech.keys.items() if name in env or maker == speech.maker
    }
    moved = (
        {speech.maker: own} if own else {maker: elsewhere[maker] for maker in makers if maker in elsewhere}
    )
    if speech.url_variable and speech.maker in moved:
        env |= {speech.url_variable: moved[speech.maker]}
    hosts, forwards = {_with_port(each) for each in _list(settings.get("hosts"))}, set[int]()
    hosts |= set(speech.also) if not moved else set[str]()
    for url in (makers | moved).values():
        names, ports = _at(url)
        hosts |= names
        forwards |= ports
    return Access(env=env, urls=moved, hosts=tuple(sorted(hosts)), forwards=tuple(sorted(forwards)))


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
