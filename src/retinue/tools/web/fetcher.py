"""Pages of the web for agents: asked for only where the operator allows it, at a number that was judged, and no further."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from retinue.domain.io_results import Fetched
from retinue.domain.permissions.ip_ranges import is_public
from retinue.domain.permissions.urls import Address, Misread, address, allowed, onward, site
from retinue.errors import Failed, OutOfScope

SECONDS = 30.0
MAX_BYTES = 2_000_000
MAX_HOPS = 5

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""A name → the numbers of the machines that have it."""
Way = Callable[[str, int], tuple[str, int]]
"""A machine's number, and a port → where that is reached."""

_MOVED = frozenset({301, 302, 303, 307, 308})
_TEXTS = ("text/", "application/json", "application/xml", "application/javascript", "application/yaml")
_LIKE_TEXTS = ("+json", "+xml", "+yaml")
_HEADERS = {
    "User-Agent": "retinue",
    "Accept": "text/*, application/json, */*;q=0.1",
    "Accept-Encoding": "identity",
}


async def looked_up(host: str) -> Sequence[str]:
    """As this machine finds names."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


def straight(number: str, port: int) -> tuple[str, int]:
    return number, port


class Web:
    """Each page, and each one that it leads on to, is judged anew: its address by the operator's sites, its machine by
    the numbers that its name has now, and one of just those is connected to. Nothing of ours goes along: no cookie, no
    password, and no proxy of the environment's is asked."""

    def __init__(self, sites: Sequence[str], *, lookup: Lookup = looked_up, way: Way = straight) -> None:
        self._said = tuple(sites)
        self._sites = tuple(site(each) for each in sites)
        self._lookup = lookup
        self._way = way

    async def fetch(self, url: str) -> Fetched:
        """The page's text. OutOfScope where it, or one that it leads on to, is not allowed; Failed where it cannot be
        had."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self._fetched(url)
        except Misread as error:
            raise Failed(f"the address {error}") from error
        except TimeoutError as error:
            raise Failed(f"{url} did not come within {SECONDS:g} seconds") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Failed(f"{url} cannot be had: {str(error) or type(error).__name__}") from error

    async def _fetched(self, url: str) -> Fetched:
        page = address(url)
        for _ in range(MAX_HOPS + 1):
            self._permitted(page, url)
            numbers = await self._numbers(page, url)
            found = await self._asked(page, numbers)
            if isinstance(found, Fetched):
                return found
            page = found
        raise Failed(f"{url} leads on to another page more than {MAX_HOPS} times")

    def _permitted(self, page: Address, url: str) -> None:
        if not allowed(page, self._sites):
            raise self._refused(url, f"{page} is on no site that the configuration allows (web_fetch.hosts)")

    async def _numbers(self, page: Address, url: str) -> Sequence[str]:
        """All that its name has: who mixes in a machine of ours means harm."""
        try:
            numbers = await self._lookup(page.host)
        except (OSError, UnicodeError) as error:
            raise Failed(f"{page.host} has no number: {error}") from error
        if not numbers:
            raise Failed(f"{page.host} has no number")
        if not all(map(is_public, numbers)):
            raise self._refused(
                url,
                f"{page.host} is a machine of a network of its own, not of the world: those are never asked",
            )
        return numbers

    def _refused(self, url: str, why: str) -> OutOfScope:
        return OutOfScope(why, resource=url, allowed=self._said, error="host_not_allowed")

    async def _asked(self, page: Address, numbers: Sequence[str]) -> Fetched | Address:
        """The page, or where it leads on to. The resolver knows nothing but what was judged."""
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=_Known([self._way(each, page.port) for each in numbers]),
                    use_dns_cache=False,
                    force_close=True,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=_HEADERS,
                auto_decompress=False,
                trust_env=False,
            ) as session,
            session.get(URL(str(page), encoded=True), allow_redirects=False) as response,
        ):
            if response.status in _MOVED and (said := response.headers.get("Location")):
                return onward(page, said)
            return await _read(page, response)


class _Known(AbstractResolver):
    """Says of every name what is known already."""

    def __init__(self, places: Sequence[tuple[str, int]]) -> None:
        self._places = places

    async def resolve(
        self,
        host: str,
        port: int = 0,  # noqa: ARG002  (what was judged says it)
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002  (the same)
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=number,
                port=there,
                family=socket.AF_INET6 if ":" in number else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for number, there in self._places
        ]

    async def close(self) -> None:
        return


async def _read(page: Address, response: aiohttp.ClientResponse) -> Fetched:
    kind = response.content_type.lower()
    if not kind.startswith(_TEXTS) and not kind.endswith(_LIKE_TEXTS):
        raise Failed(f"{page} is {kind}, which is no text")
    packed = response.headers.get("Content-Encoding", "identity")
    if packed.lower() != "identity":
        raise Failed(f"{page} came packed ({packed}), which was not asked for")
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > MAX_BYTES:
            break
    return Fetched(
        url=str(page),
        status=response.status,
        kind=kind,
        text=_decoded(bytes(data[:MAX_BYTES]), response.charset),
        whole=len(data) <= MAX_BYTES,
    )


def _decoded(data: bytes, said: str | None) -> str:
    try:
        return data.decode(said or "utf-8", "replace")
    except LookupError:
        return data.decode("utf-8", "replace")
