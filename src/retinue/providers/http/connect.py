"""The way to a server: its address as it is written, the machines that have its name, and a socket to one of them."""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import Any
from urllib.parse import quote, urlsplit

from retinue.domain.value import value

PORTS = {"https": 443, "http": 80}
HEAD_START = 0.25
"""Seconds that one address of a name has before the next is tried beside it."""
REMEMBERED_SECONDS = 10.0
"""How long the addresses of a name are taken for true."""

_HOST = re.compile(r"(?:[\w-]{1,63}\.)*[\w-]{1,63}\.?", re.ASCII)
_WRITTEN = "/%?&=+,;:@!$'()*~[]"

Place = tuple[socket.AddressFamily, socket.SocketKind, int, Any]
"""A family, a kind, a protocol and an address, as the system has them."""


class NoUrl(ValueError):
    """The text is no URL of a server."""


class Unreachable(Exception):
    """No connection came about: a few words that say why."""


@value
class Where:
    """What a URL says."""

    host: str
    port: int
    secure: bool
    target: str
    named: str
    """The host as a request names it."""
    proven: str
    """The host as its certificate names it."""


def where(url: str) -> Where:
    """NoUrl when it is none, or leads to no server by HTTP."""
    try:
        parts = urlsplit(url)
        host, port = _host(parts.hostname or ""), parts.port
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_WRITTEN)
    except ValueError as error:
        raise NoUrl(url) from error
    if parts.scheme not in PORTS or parts.username is not None:
        raise NoUrl(url)
    usual = PORTS[parts.scheme]
    port = usual if port is None else port
    bare = host.partition("%")[0]
    named = f"[{bare}]" if ":" in bare else bare
    return Where(
        host=host,
        port=port,
        secure=parts.scheme == "https",
        target=target,
        named=named if port == usual else f"{named}:{port}",
        proven=bare.removesuffix("."),
    )


def _host(said: str) -> str:
    if ":" in said:
        # A zone, which only this machine knows, stands in a URL behind %25.
        return said.replace("%25", "%")
    host = said if said.isascii() else said.encode("idna").decode("ascii")
    if not _HOST.fullmatch(host):
        raise NoUrl(said)
    return host


@cache
def trusting_the_system() -> ssl.SSLContext:
    """Servers must show a certificate that this machine trusts."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Dial:
    """Makes sockets to one server. Those who want one at the same time ask for its addresses together."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._lookup: asyncio.Future[list[Place]] | None = None
        self._asked = 0.0
        try:
            self._known = _places(host, port, socket.AI_NUMERICHOST)
        except OSError:
            self._known = None

    async def socket(self) -> socket.socket:
        places = self._known or await self._looked_up()
        return await (_connected(places[0]) if len(places) == 1 else first_through(places))

    async def _looked_up(self) -> Sequence[Place]:
        loop = asyncio.get_running_loop()
        lookup, now = self._lookup, loop.time()
        stale = lookup is not None and lookup.done() and (
            lookup.exception() is not None or now - self._asked > REMEMBERED_SECONDS
        )  # fmt: skip
        if lookup is None or stale:
            self._lookup = lookup = loop.run_in_executor(None, _places, self._host, self._port)
            self._asked = now
        return await asyncio.shield(lookup)


def why(error: OSError) -> str:
    """The reason as a person would say it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS came about: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, ConnectionResetError) and error.errno is None:
        # asyncio's word for a server that ends the connection, in good order, in the middle of the greeting.
        return "no TLS came about: the server hung up"
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)


def _places(host: str, port: int, flags: int = 0) -> list[Place]:
    """Families take turns, so that one that leads nowhere holds up only every other try."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    places: list[Place] = [(family, kind, proto, address) for family, kind, proto, _, address in found]
    first = [each for each in places if each[0] == places[0][0]]
    others = [each for each in places if each[0] != places[0][0]]
    return [each for each in chain.from_iterable(zip_longest(first, others)) if each is not None]


async def _connected(place: Place) -> socket.socket:
    family, kind, proto, address = place
    made = socket.socket(family, kind, proto)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, address)
    except BaseException:
        made.close()
        raise
    return made


async def first_through(places: Sequence[Place]) -> socket.socket:
    """The first that is through. Each is tried a moment after the one before, or as soon as one has failed."""
    through: list[socket.socket] = []
    failures: list[OSError] = []

    async def attempt(place: Place) -> None:
        try:
            through.append(await _connected(place))
        except OSError as error:
            failures.append(error)

    try:
        async with asyncio.TaskGroup() as group:
            tries: set[asyncio.Task[None]] = set()
            for place in places:
                if not through:
                    tries.add(group.create_task(attempt(place)))
                    tries = await _one_more(tries, HEAD_START)
            while tries and not through:
                tries = await _one_more(tries, None)
            for each in tries:
                each.cancel()
    except BaseException:
        _shut(through)
        raise
    _shut(through[1:])
    if not through:
        raise OSError(", ".join(dict.fromkeys(map(why, failures)))) from failures[0]
    return through[0]


async def _one_more(tries: set[asyncio.Task[None]], seconds: float | None) -> set[asyncio.Task[None]]:
    """Those that are still under way when one has ended, or the time is over."""
    return (await asyncio.wait(tries, timeout=seconds, return_when=asyncio.FIRST_COMPLETED))[1]


def _shut(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()
