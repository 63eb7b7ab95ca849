"""Fetch web pages for agents, only from allowed sites and public addresses."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from retinue.domain.http_framing import is_supported_transfer_encoding
from retinue.domain.io_results import FetchedPage
from retinue.domain.permissions.ip_ranges import is_public_ip
from retinue.domain.permissions.urls import (
    InvalidUrl,
    Url,
    is_url_allowed,
    parse_site,
    parse_url,
    resolve_redirect,
)
from retinue.errors import Failed, OutOfScope

FETCH_TIMEOUT_S = 30.0
MAX_PAGE_BYTES = 2_000_000
MAX_REDIRECTS = 5

ResolveHost = Callable[[str], Awaitable[Sequence[str]]]
"""Resolve a host name to IP addresses."""
RouteAddress = Callable[[str, int], tuple[str, int]]
"""Map an IP address and port to the address to connect to."""

_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/javascript", "application/yaml")
_TEXT_SUFFIXES = ("+json", "+xml", "+yaml")
_HEADERS = {
    "User-Agent": "retinue",
    "Accept": "text/*, application/json, */*;q=0.1",
    "Accept-Encoding": "identity",
}


async def resolve_host(host: str) -> Sequence[str]:
    """Resolve a host name with the system's resolver."""
    results = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in results))


def direct_route(ip_address: str, port: int) -> tuple[str, int]:
    return ip_address, port


class WebFetcher:
    """Fetch pages of the allowed sites.

    Each page and each redirect target is checked: its URL against the allowed sites, and the IP addresses that
    its host name currently has against the public ranges. Only checked addresses are connected to. Cookies,
    credentials and the proxy settings of the environment are not used.
    """

    def __init__(
        self,
        sites: Sequence[str],
        *,
        resolver: ResolveHost = resolve_host,
        route_address: RouteAddress = direct_route,
    ) -> None:
        self._site_texts = tuple(sites)
        self._sites = tuple(parse_site(each) for each in sites)
        self._resolver = resolver
        self._route_address = route_address

    async def fetch(self, url: str) -> FetchedPage:
        """Return a page's text.

        Raises:
            OutOfScope: the page, or a redirect target, is not allowed.
            Failed: the page cannot be fetched.
        """
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await self._follow_redirects(url)
        except InvalidUrl as error:
            raise Failed(f"The URL {error}.") from error
        except TimeoutError as error:
            raise Failed(f"{url} timed out after {FETCH_TIMEOUT_S:g} seconds.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Failed(f"Cannot fetch {url}: {str(error) or type(error).__name__}") from error

    async def _follow_redirects(self, url: str) -> FetchedPage:
        page = parse_url(url)
        for _ in range(MAX_REDIRECTS + 1):
            self._check_site_allowed(page, url)
            ip_addresses = await self._resolve_public_addresses(page, url)
            result = await self._request_page(page, ip_addresses)
            if isinstance(result, FetchedPage):
                return result
            page = result
        raise Failed(f"{url} redirects more than {MAX_REDIRECTS} times.")

    def _check_site_allowed(self, page: Url, url: str) -> None:
        if not is_url_allowed(page, self._sites):
            raise self._not_allowed_error(
                url, f"{page} is not on a site that the configuration allows (web_fetch.hosts)."
            )

    async def _resolve_public_addresses(self, page: Url, url: str) -> Sequence[str]:
        """Resolve a page's host; refuse it if any of its addresses is not public.

        A host name with both public and private addresses is treated as an attack.
        """
        try:
            ip_addresses = await self._resolver(page.host)
        except (OSError, UnicodeError) as error:
            raise Failed(f"Cannot resolve {page.host}: {error}") from error
        if not ip_addresses:
            raise Failed(f"Cannot resolve {page.host}: no address found.")
        if not all(map(is_public_ip, ip_addresses)):
            raise self._not_allowed_error(
                url,
                f"{page.host} has an address in a private network. Only public addresses can be fetched.",
            )
        return ip_addresses

    def _not_allowed_error(self, url: str, message: str) -> OutOfScope:
        return OutOfScope(message, resource=url, allowed=self._site_texts, error="host_not_allowed")

    async def _request_page(self, page: Url, ip_addresses: Sequence[str]) -> FetchedPage | Url:
        """Request a page; return it or its redirect target. The resolver returns only checked addresses."""
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=_FixedResolver([self._route_address(each, page.port) for each in ip_addresses]),
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
            if not is_supported_transfer_encoding(response.headers.getall("Transfer-Encoding", ())):
                raise Failed(f"{page} was sent with an unsupported transfer encoding.")
            if response.status in _REDIRECT_STATUSES and (location := response.headers.get("Location")):
                return resolve_redirect(page, location)
            return await _read_page(page, response)


class _FixedResolver(AbstractResolver):
    """A resolver that returns fixed addresses for every name."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self._addresses = addresses

    async def resolve(
        self,
        host: str,
        port: int = 0,  # noqa: ARG002  (the checked address has the port)
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002  (the same)
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=ip_address,
                port=target_port,
                family=socket.AF_INET6 if ":" in ip_address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for ip_address, target_port in self._addresses
        ]

    async def close(self) -> None:
        return


async def _read_page(page: Url, response: aiohttp.ClientResponse) -> FetchedPage:
    content_type = response.content_type.lower()
    if not content_type.startswith(_TEXT_TYPES) and not content_type.endswith(_TEXT_SUFFIXES):
        raise Failed(f"{page} is not text: its content type is {content_type}.")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise Failed(f"{page} was sent with an unsupported content encoding ({encoding}).")
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > MAX_PAGE_BYTES:
            break
    return FetchedPage(
        url=str(page),
        status=response.status,
        media_type=content_type,
        text=_decode_text(bytes(data[:MAX_PAGE_BYTES]), response.charset),
        is_complete=len(data) <= MAX_PAGE_BYTES,
    )


def _decode_text(data: bytes, charset: str | None) -> str:
    try:
        return data.decode(charset or "utf-8", "replace")
    except LookupError:
        return data.decode("utf-8", "replace")
