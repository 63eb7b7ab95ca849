"""Fetch web pages for agents, only from allowed sites and public addresses."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

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
from retinue.http.client import Connection, HttpClient
from retinue.http.connect import Connector, ServerUrl, Unreachable, parse_server_url
from retinue.http.network import DIRECT, NetworkSettings
from retinue.http.parser import ResponseError

FETCH_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 15.0
NAME_CHECK_TIMEOUT_S = 5.0
"""Time to resolve a name that the proxy will resolve again."""
MAX_PAGE_BYTES = 2_000_000
MAX_REDIRECTS = 5

ResolveHost = Callable[[str], Awaitable[Sequence[str]]]
"""Resolve a host name to IP addresses."""
RouteAddress = Callable[[str, int], tuple[str, int]]
"""Map an IP address and port to the address to connect to."""

_PRIVATE_SUFFIXES = (
    ".localhost", ".local", ".internal", ".intranet", ".private", ".corp", ".home", ".lan", ".home.arpa",
)  # fmt: skip
"""Endings of names that exist only in private networks."""
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/javascript", "application/yaml")
_TEXT_SUFFIXES = ("+json", "+xml", "+yaml")
_HEADERS = {
    "User-Agent": "retinue",
    "Accept": "text/*, application/json, */*;q=0.1",
    "Accept-Encoding": "identity",
    "Connection": "close",
}
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([^\s;"']+)""", re.IGNORECASE)


async def resolve_host(host: str) -> Sequence[str]:
    """Resolve a host name with the system's resolver."""
    results = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in results))


def direct_route(ip_address: str, port: int) -> tuple[str, int]:
    return ip_address, port


class WebFetcher:
    """Fetch pages of the allowed sites.

    Each page and each redirect target is checked: its URL against the allowed sites, and the IP addresses that
    its host name currently has against the public ranges. Only checked addresses are connected to. Cookies and
    credentials are not used.

    Through a proxy, the proxy resolves the name and connects. The name is checked here as well, but a name that
    is unknown here is left to the proxy, unless it is one of private networks.
    """

    def __init__(
        self,
        sites: Sequence[str],
        *,
        resolver: ResolveHost = resolve_host,
        route_address: RouteAddress = direct_route,
        network: NetworkSettings = DIRECT,
    ) -> None:
        self._site_texts = tuple(sites)
        self._sites = tuple(parse_site(each) for each in sites)
        self._resolver = resolver
        self._route_address = route_address
        self._network = network.without_client_certificate()

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
        except Unreachable as error:
            raise Failed(f"Cannot fetch {url}: {error}") from error
        except ResponseError as error:
            raise Failed(f"Cannot fetch {url}: the server {error}") from error

    async def _follow_redirects(self, url: str) -> FetchedPage:
        page = parse_url(url)
        for _ in range(MAX_REDIRECTS + 1):
            self._check_site_allowed(page, url)
            server = parse_server_url(str(page))
            if self._network.proxies.proxy_for(server) is None:
                ip_addresses = await self._resolve_public_addresses(page, url)
                addresses = [self._route_address(each, page.port) for each in ip_addresses]
                result = await self._request_page(page, server, Connector(page.host, page.port, addresses))
            else:
                await self._check_name_for_proxy(page, url)
                result = await self._request_page(page, server, None)
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

    async def _check_name_for_proxy(self, page: Url, url: str) -> None:
        """Refuse a name that is private here, before a proxy is asked to resolve it."""
        if "." not in page.host or page.host.endswith(_PRIVATE_SUFFIXES):
            raise self._not_allowed_error(
                url, f"{page.host} is a name of a private network. Only public addresses can be fetched."
            )
        with suppress(Failed, TimeoutError):
            async with asyncio.timeout(NAME_CHECK_TIMEOUT_S):
                await self._resolve_public_addresses(page, url)

    async def _request_page(
        self, page: Url, server: ServerUrl, connector: Connector | None
    ) -> FetchedPage | Url:
        """Request a page from the checked addresses or through the proxy; return it or its redirect target."""
        client = HttpClient(
            server,
            _HEADERS,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            network=self._network,
            connector=connector,
        )
        try:
            connection = await client.request("GET", {})
            location = connection.response.headers.get("location")
            if connection.response.status in _REDIRECT_STATUSES and location:
                return resolve_redirect(page, location)
            return await _read_page(page, connection)
        finally:
            await client.close()


async def _read_page(page: Url, connection: Connection) -> FetchedPage:
    response = connection.response
    content_type_header = response.headers.get("content-type") or "application/octet-stream"
    content_type = content_type_header.partition(";")[0].strip().lower()
    if not content_type.startswith(_TEXT_TYPES) and not content_type.endswith(_TEXT_SUFFIXES):
        raise Failed(f"{page} is not text: its content type is {content_type}.")
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise Failed(f"{page} was sent with an unsupported content encoding ({encoding}).")
    data = bytearray()
    while len(data) <= MAX_PAGE_BYTES and (chunk := await connection.read()):
        data += chunk
    charset = _CHARSET.search(content_type_header)
    return FetchedPage(
        url=str(page),
        status=response.status,
        media_type=content_type,
        text=_decode_text(bytes(data[:MAX_PAGE_BYTES]), charset[1] if charset else None),
        is_complete=len(data) <= MAX_PAGE_BYTES,
    )


def _decode_text(data: bytes, charset: str | None) -> str:
    try:
        return data.decode(charset or "utf-8", "replace")
    except LookupError:
        return data.decode("utf-8", "replace")
