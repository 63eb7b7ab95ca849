"""Connecting to a server: URL parsing, name resolution with a cache, and racing addresses."""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import Struct

DEFAULT_PORTS = {"https": 443, "http": 80}
ATTEMPT_DELAY_S = 0.25
"""Delay before the next address of a host is tried in parallel."""
DNS_CACHE_S = 10.0
"""Time that resolved addresses are reused."""

_UNKNOWN_ISSUER_CODES = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's codes for a certificate that is valid but whose issuer is not trusted."""
_TRUST_HINT = ". If you trust it, set SSL_CERT_FILE to a file with the certificate of its issuer"
_HOST_PATTERN = re.compile(r"(?:[\w-]{1,63}\.)*[\w-]{1,63}\.?", re.ASCII)
_UNQUOTED_CHARS = "/%?&=+,;:@!$'()*~[]"

SocketAddress = tuple[socket.AddressFamily, socket.SocketKind, int, Any]
"""Address family, socket kind, protocol and address, as returned by getaddrinfo."""


class InvalidServerUrl(ValueError):
    """The text is not the URL of an HTTP server."""


class Unreachable(Exception):
    """No connection could be made; the message says why in a few words."""


class Misconfigured(Unreachable):
    """Another attempt would end in the same way until somebody changes a setting."""


class UntrustedCertificate(Misconfigured):
    """The server's TLS certificate is not valid for it, or the server does not accept ours."""


class ProxyRefused(Misconfigured):
    """The proxy refuses to connect, or is none."""


class ServerUrl(Struct, frozen=True, kw_only=True):
    """The parts of a server's URL."""

    host: str
    port: int
    is_https: bool
    target: str
    host_header: str
    """The host as written in the Host header."""
    certificate_name: str
    """The host as named by its TLS certificate."""


def parse_server_url(url: str) -> ServerUrl:
    """Parse the URL of an HTTP server; raise InvalidServerUrl if it is none."""
    try:
        parts = urlsplit(url)
        host, port = _parse_host(parts.hostname or ""), parts.port
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_UNQUOTED_CHARS)
    except ValueError as error:
        raise InvalidServerUrl(url) from error
    if parts.scheme not in DEFAULT_PORTS or parts.username is not None:
        raise InvalidServerUrl(url)
    default_port = DEFAULT_PORTS[parts.scheme]
    port = default_port if port is None else port
    host_without_zone = host.partition("%")[0]
    bracketed = f"[{host_without_zone}]" if ":" in host_without_zone else host_without_zone
    return ServerUrl(
        host=host,
        port=port,
        is_https=parts.scheme == "https",
        target=target,
        host_header=bracketed if port == default_port else f"{bracketed}:{port}",
        certificate_name=host_without_zone.removesuffix("."),
    )


def _parse_host(text: str) -> str:
    if ":" in text:
        # In a URL, a zone id, which is local to this machine, follows %25.
        return text.replace("%25", "%")
    host = text if text.isascii() else text.encode("idna").decode("ascii")
    if not _HOST_PATTERN.fullmatch(host):
        raise InvalidServerUrl(text)
    return host


class Connector:
    """Open sockets to one server; concurrent callers share one name look-up.

    Args:
        host: Its name or IP address.
        port: Its port.
        addresses: IP addresses and ports to connect to instead, so that the name is not looked up.
    """

    def __init__(self, host: str, port: int, addresses: Sequence[tuple[str, int]] = ()) -> None:
        self._host = host
        self._port = port
        self._lookup: asyncio.Future[list[SocketAddress]] | None = None
        self._looked_up_at = 0.0
        self._literal_addresses = [
            each for address in addresses for each in _resolve_addresses(*address, socket.AI_NUMERICHOST)
        ]
        if not addresses:
            with suppress(OSError):
                self._literal_addresses = _resolve_addresses(host, port, socket.AI_NUMERICHOST)

    async def connect(self) -> socket.socket:
        addresses = self._literal_addresses or await self._resolve_host()
        return await (_connect_socket(addresses[0]) if len(addresses) == 1 else connect_first(addresses))

    async def _resolve_host(self) -> Sequence[SocketAddress]:
        loop = asyncio.get_running_loop()
        lookup, now = self._lookup, loop.time()
        is_stale = lookup is not None and lookup.done() and (
            lookup.exception() is not None or now - self._looked_up_at > DNS_CACHE_S
        )  # fmt: skip
        if lookup is None or is_stale:
            self._lookup = lookup = loop.run_in_executor(None, _resolve_addresses, self._host, self._port)
            self._looked_up_at = now
        return await asyncio.shield(lookup)


def connection_error(error: OSError, subject: str = "") -> Unreachable:
    """Return the error for a connection that could not be made."""
    is_refused = isinstance(error, ssl.SSLCertVerificationError) or is_certificate_alert(error)
    kind = UntrustedCertificate if is_refused else Unreachable
    return kind(f"{subject}{describe_os_error(error)}")


def is_certificate_alert(error: BaseException | None) -> bool:
    """Return whether the other side ended TLS because of our certificate, or because there was none."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason is not None and "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def describe_os_error(error: OSError) -> str:
    """Describe an OS error in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = _TRUST_HINT if error.verify_code in _UNKNOWN_ISSUER_CODES else ""
        return f"its certificate is not trusted: {error.verify_message}{hint}"
    if is_certificate_alert(error):
        return "it did not accept the client certificate, or requires one (RETINUE_CLIENT_CERT)"
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, ConnectionResetError) and error.errno is None:
        # asyncio raises this when the server closes the connection in order during the TLS handshake.
        return "TLS handshake failed: the server closed the connection"
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)


def _resolve_addresses(host: str, port: int, flags: int = 0) -> list[SocketAddress]:
    """Resolve a host; families alternate, so that an unreachable one delays only every other attempt."""
    results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    addresses: list[SocketAddress] = [
        (family, kind, proto, address) for family, kind, proto, _, address in results
    ]
    same_family = [each for each in addresses if each[0] == addresses[0][0]]
    others = [each for each in addresses if each[0] != addresses[0][0]]
    return [each for each in chain.from_iterable(zip_longest(same_family, others)) if each is not None]


async def _connect_socket(socket_address: SocketAddress) -> socket.socket:
    family, kind, proto, address = socket_address
    connection = socket.socket(family, kind, proto)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


async def connect_first(addresses: Sequence[SocketAddress]) -> socket.socket:
    """Connect to the addresses in parallel and return the first socket that connects.

    Each attempt begins a moment after the previous one, or as soon as one has failed.
    """
    connected: list[socket.socket] = []
    failures: list[OSError] = []

    async def attempt(address: SocketAddress) -> None:
        try:
            connected.append(await _connect_socket(address))
        except OSError as error:
            failures.append(error)

    try:
        async with asyncio.TaskGroup() as group:
            attempts: set[asyncio.Task[None]] = set()
            for address in addresses:
                if not connected:
                    attempts.add(group.create_task(attempt(address)))
                    attempts = await _wait_for_one(attempts, ATTEMPT_DELAY_S)
            while attempts and not connected:
                attempts = await _wait_for_one(attempts, None)
            for each in attempts:
                each.cancel()
    except BaseException:
        _close_sockets(connected)
        raise
    _close_sockets(connected[1:])
    if not connected:
        raise OSError(", ".join(dict.fromkeys(map(describe_os_error, failures)))) from failures[0]
    return connected[0]


async def _wait_for_one(
    attempts: set[asyncio.Task[None]], timeout_s: float | None
) -> set[asyncio.Task[None]]:
    """Wait until one attempt ends or the time is over, and return the unfinished ones."""
    return (await asyncio.wait(attempts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED))[1]


def _close_sockets(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()
