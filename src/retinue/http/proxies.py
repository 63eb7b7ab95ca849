"""Which proxy a request takes: the variables HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."""

import re
from base64 import b64encode
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import unquote_to_bytes

from msgspec import Struct, field

from retinue.domain.secret_fields import SecretFieldsStruct
from retinue.errors import BadConfig
from retinue.http.connect import InvalidServerUrl, ServerUrl, parse_server_url

_VARIABLES = {"https": "HTTPS_PROXY", "http": "HTTP_PROXY", "": "ALL_PROXY"}
"""Variable per scheme of the requested URL; the last one is for every scheme without a variable."""
_MAX_PORT = 65_535
_MIN_SECRET_CHARS = 4
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SEPARATORS = re.compile(r"[,\s]+")
_REDACTED = "[password]"


class Proxy(SecretFieldsStruct, frozen=True, kw_only=True):
    """An HTTP proxy, reached by plain HTTP or by TLS. As text, it is named without its password."""

    secret_fields = frozenset({"authorization", "secrets"})

    server: ServerUrl
    variable: str
    """The environment variable that names it."""
    authorization: str = ""
    """Value of the Proxy-Authorization header; empty if there is no user."""
    secrets: tuple[str, ...] = ()
    """The password and everything it can be read from."""

    def __str__(self) -> str:
        scheme = "https" if self.server.is_https else "http"
        return f"the proxy {scheme}://{self.server.host_header} ({self.variable})"

    def redact(self, text: str) -> str:
        """Remove the password from a text of the proxy."""
        for secret in self.secrets:
            text = text.replace(secret, _REDACTED)
        return text


class ProxyException(Struct, frozen=True, kw_only=True):
    """An entry of NO_PROXY: a host with everything below it, a range of addresses, or any host."""

    host: str = ""
    network: IPv4Network | IPv6Network | None = None
    port: int | None = None
    """None: any port."""

    def matches(self, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return address is not None and address in self.network
        return self.host in ("*", host) or (address is None and host.endswith(f".{self.host}"))


class ProxySettings(SecretFieldsStruct, frozen=True, kw_only=True):
    """The proxies of an environment."""

    secret_fields = frozenset({"urls"})

    urls: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Variable name and URL per scheme; the scheme "" is for all others."""
    exceptions: tuple[ProxyException, ...] = ()

    def proxy_for(self, server: ServerUrl) -> Proxy | None:
        """Return the proxy for a server, or None if it is reached directly.

        Raises:
            BadConfig: The variable does not name an HTTP proxy.
        """
        found = self.urls.get("https" if server.is_https else "http") or self.urls.get("")
        if found is None or self._is_exception(server):
            return None
        return _parse_proxy(*found)

    def secrets(self) -> tuple[str, ...]:
        """Return the passwords of all proxies, as far as their URLs can be read."""
        secrets: list[str] = []
        for variable, url in self.urls.values():
            try:
                secrets += _parse_proxy(variable, url).secrets
            except BadConfig:
                user = url.rpartition("@")[0].rpartition("//")[2]
                secrets += [each for each in (user, user.partition(":")[2]) if each]
        return tuple(dict.fromkeys(secrets))

    def _is_exception(self, server: ServerUrl) -> bool:
        if not self.exceptions:
            return False
        host = server.certificate_name.lower()
        address = _parse_address(host)
        return any(each.matches(host, address, server.port) for each in self.exceptions)


def proxy_settings(env: Mapping[str, str]) -> ProxySettings:
    """Read the proxy variables. In lower case they take precedence, as in other programs."""
    urls = {
        scheme: (name, url) for scheme, variable in _VARIABLES.items() for name, url in [_lookup(env, variable)] if url
    }  # fmt: skip
    if not urls:
        return ProxySettings()
    entries = _SEPARATORS.split(_lookup(env, "NO_PROXY")[1])
    exceptions = tuple(each for entry in entries if (each := _parse_exception(entry)) is not None)
    return ProxySettings(urls=urls, exceptions=exceptions)


def _lookup(env: Mapping[str, str], variable: str) -> tuple[str, str]:
    """Return the name and the value of a variable; an empty value in lower case hides the upper case."""
    lower = variable.lower()
    if lower in env:
        return lower, env[lower].strip()
    if variable == "HTTP_PROXY" and "REQUEST_METHOD" in env:
        # A CGI program gets HTTP_PROXY from the header "Proxy" of a request.
        return variable, ""
    return variable, env.get(variable, "").strip()


def _parse_proxy(variable: str, url: str) -> Proxy:
    """Parse a proxy's URL. The messages do not show it, because it may contain a password."""
    scheme_match = _SCHEME.match(url)
    scheme = scheme_match[1].lower() if scheme_match else "http"
    if scheme not in ("http", "https"):
        raise BadConfig(
            f"{variable} names a proxy of the kind {scheme}, which is not supported. Set it to an HTTP proxy: "
            "http://HOST:PORT"
        )
    authority, _, path = (url[scheme_match.end() :] if scheme_match else url).partition("/")
    user_info, _, address = authority.rpartition("@")
    try:
        # A slash in a password would end the address: the rest of the password would be taken for a path.
        server = parse_server_url("" if "@" in path else f"{scheme}://{address}")
    except InvalidServerUrl:
        raise BadConfig(
            f"{variable} is not the URL of a proxy. Write it as http://HOST:PORT, if necessary with USER:PASSWORD@ "
            "before the host and special characters of the password as %XX"
        ) from None
    if not user_info:
        return Proxy(server=server, variable=variable)
    user, _, password = user_info.partition(":")
    credentials = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    encoded = b64encode(credentials).decode("ascii")
    texts = (encoded, user_info, password, unquote_to_bytes(password).decode("utf-8", "replace"))
    return Proxy(
        server=server,
        variable=variable,
        authorization=f"Basic {encoded}",
        secrets=tuple(dict.fromkeys(each for each in texts if len(each) >= _MIN_SECRET_CHARS)),
    )


def _parse_exception(entry: str) -> ProxyException | None:
    """Parse an entry of NO_PROXY; what cannot be read matches nothing."""
    if not entry:
        return None
    host, port = _split_port(entry.lower())
    if port is not None and not 0 < port <= _MAX_PORT:
        return None
    try:
        return ProxyException(
            network=ip_network(host.removeprefix("[").removesuffix("]"), strict=False), port=port
        )
    except ValueError:
        pass
    if host != "*":
        host = host.removeprefix("*").strip(".")
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    return ProxyException(host=host, port=port) if host else None


def _split_port(entry: str) -> tuple[str, int | None]:
    """Split a port from a host or from an IPv6 address in brackets; a bare IPv6 address has none."""
    host, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and (":" not in host or (host.startswith("[") and host.endswith("]"))):
        return host, int(number)
    return entry, None


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
