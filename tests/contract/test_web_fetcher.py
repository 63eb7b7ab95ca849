"""The web fetcher against a server on loopback that stands in for every public host: allowed sites, addresses and redirects."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from logging_proxy import open_proxy

from retinue.errors import Failed, OutOfScope
from retinue.http.network import network_settings
from retinue.tools.web.fetcher import MAX_PAGE_BYTES, MAX_REDIRECTS, WebFetcher
from retinue.tools.web.web_fetch import format_page, html_to_text

PUBLIC_IPV4 = "93.184.216.34"
PUBLIC_IPV6 = "2606:2800::1"


@dataclass(slots=True, kw_only=True)
class FakeInternet:
    """Fake DNS and routing: host names with addresses, which all lead to one server. Every connection is recorded."""

    names: dict[str, list[Sequence[str]]]
    """Addresses per host name, one answer per lookup; the last answer is repeated."""
    port: int = 0
    connections: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    lookups: list[str] = field(default_factory=list[str])
    requests: list[bytes] = field(default_factory=list[bytes])

    async def lookup(self, host: str) -> Sequence[str]:
        self.lookups.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError(-2, "Name or service not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def route(self, address: str, port: int) -> tuple[str, int]:
        self.connections.append((address, port))
        return "127.0.0.1", self.port

    def fetcher(self, *sites: str, env: Mapping[str, str] | None = None) -> WebFetcher:
        return WebFetcher(
            sites, resolver=self.lookup, route_address=self.route, network=network_settings(env or {})
        )


@asynccontextmanager
async def fake_internet(
    answers: Callable[[str], bytes],
    *,
    context: ssl.SSLContext | None = None,
    **names: list[Sequence[str]] | Sequence[str],
) -> AsyncGenerator[FakeInternet]:
    """Start the server of a fake internet; it answers by the path of the request."""
    addresses = {
        name.replace("_", "."): [answer] if isinstance(answer, tuple) else answer
        for name, answer in names.items()
    }
    internet = FakeInternet(names=addresses)  # pyright: ignore[reportArgumentType]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        internet.requests.append(request)
        writer.write(answers(request.split(b" ")[1].decode()))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    internet.port = server.sockets[0].getsockname()[1]
    try:
        yield internet
    finally:
        server.close()
        await server.wait_closed()


def make_page(text: str, *headers: str, kind: str = "text/plain", status: str = "200 OK") -> bytes:
    head = "\r\n".join(
        (f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(text.encode())}", *headers)
    )
    return f"{head}\r\n\r\n{text}".encode()


def make_redirect(location: str) -> bytes:
    return make_page("", f"Location: {location}", status="302 Found")


async def test_a_page_of_an_allowed_site_is_fetched_with_a_minimal_request():
    async with fake_internet(
        lambda _: make_page("Words."), docs_example=(PUBLIC_IPV4, PUBLIC_IPV6)
    ) as internet:
        fetched = await internet.fetcher("http://docs.example").fetch("http://Docs.Example/a?b#c")
    assert (fetched.url, fetched.status, fetched.text) == ("http://docs.example/a?b", 200, "Words.")
    assert (internet.lookups, internet.connections) == (
        ["docs.example"],
        [(PUBLIC_IPV4, 80), (PUBLIC_IPV6, 80)],
    )
    (request,) = internet.requests
    names = [line.split(b":")[0].lower() for line in request.split(b"\r\n")[1:] if line]
    assert request.startswith(b"GET /a?b HTTP/1.1\r\nHost: docs.example\r\n")
    assert sorted(names) == [b"accept", b"accept-encoding", b"connection", b"host", b"user-agent"]


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/", "https://docs.example/", "http://docs.example:81/", "http://docs.example.evil.example/",
        "http://sub.docs.example/",
    ],
)  # fmt: skip
async def test_the_host_name_of_a_site_that_is_not_allowed_is_not_resolved(url: str):
    """Shows: S06."""
    async with fake_internet(
        lambda _: make_page("No."), docs_example=(PUBLIC_IPV4,), evil_example=(PUBLIC_IPV4,)
    ) as internet:
        with pytest.raises(OutOfScope, match="not on a site that the configuration allows") as refused:
            await internet.fetcher("http://docs.example").fetch(url)
        with pytest.raises(OutOfScope):
            await internet.fetcher().fetch("http://docs.example/")
    assert (refused.value.error, refused.value.allowed) == ("host_not_allowed", ("http://docs.example",))
    assert (internet.lookups, internet.connections, internet.requests) == ([], [], [])


@pytest.mark.parametrize(
    "url", ["http://docs.example@evil.example/", "http://docs.example\r\nHost: evil.example/", "http://docs.example./", "http://127.0.0.1/"]
)  # fmt: skip
async def test_a_malformed_url_is_refused(url: str):
    """Shows: S06."""
    async with fake_internet(lambda _: make_page("No."), docs_example=(PUBLIC_IPV4,)) as internet:
        with pytest.raises(Failed, match="The URL"):
            await internet.fetcher("http://docs.example").fetch(url)
    assert (internet.lookups, internet.connections, internet.requests) == ([], [], [])


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",), ("169.254.169.254",), ("10.1.2.3",), ("::1",), ("::ffff:10.0.0.1",), ("fd00:ec2::254",),
        (PUBLIC_IPV4, "127.0.0.1"), ("127.0.0.1", PUBLIC_IPV4), (PUBLIC_IPV6, "fe80::1%lo"),
    ],
)  # fmt: skip
async def test_a_host_name_that_resolves_to_a_private_address_is_refused(addresses: tuple[str, ...]):
    """One private address among public ones is enough, because any of them could be used.

    Shows: S07.
    """
    async with fake_internet(lambda _: make_page("No."), docs_example=addresses) as internet:
        with pytest.raises(OutOfScope, match="in a private network"):
            await internet.fetcher("http://docs.example").fetch("http://docs.example/latest/meta-data/")
    assert (internet.lookups, internet.connections, internet.requests) == (["docs.example"], [], [])


async def test_each_fetch_checks_the_address_again_and_connects_to_the_checked_one():
    """Shows: S07."""
    answers: list[Sequence[str]] = [(PUBLIC_IPV4,), ("127.0.0.1",)]
    async with fake_internet(lambda _: make_page("Words."), docs_example=answers) as internet:
        fetcher = internet.fetcher("http://docs.example")
        assert (await fetcher.fetch("http://docs.example/")).text == "Words."
        with pytest.raises(OutOfScope, match="in a private network"):
            await fetcher.fetch("http://docs.example/")
    assert internet.lookups == ["docs.example"] * 2
    assert internet.connections == [(PUBLIC_IPV4, 80)]
    assert len(internet.requests) == 1


async def test_a_redirect_is_checked_like_a_direct_request():
    """Shows: S06, S07."""
    redirects = {
        "/here": "/there", "/away": "http://evil.example/", "/plain": "https://docs.example/", "/in": "http://inner.example/",
        "/number": "http://169.254.169.254/latest/", "/odd": "http://docs.example@evil.example/", "/file": "file:///etc/passwd",
        "/again": "/again", "/rebound": "http://turned.example/",
    }  # fmt: skip
    rebound: list[Sequence[str]] = [("127.0.0.1",)]
    async with fake_internet(
        lambda path: make_redirect(redirects[path]) if path in redirects else make_page("There."),
        docs_example=(PUBLIC_IPV4,), inner_example=("10.0.0.1",), evil_example=(PUBLIC_IPV4,), turned_example=rebound,
    ) as internet:  # fmt: skip
        fetcher = internet.fetcher("http://docs.example", "http://inner.example", "http://turned.example")
        assert (await fetcher.fetch("http://docs.example/here")).url == "http://docs.example/there"
        for path in ("/away", "/plain", "/in", "/rebound"):
            with pytest.raises(OutOfScope):
                await fetcher.fetch(f"http://docs.example{path}")
        for path in ("/number", "/odd", "/file"):
            with pytest.raises(Failed, match="The URL"):
                await fetcher.fetch(f"http://docs.example{path}")
        request_count = len(internet.requests)
        with pytest.raises(Failed, match="redirects more than"):
            await fetcher.fetch("http://docs.example/again")
    assert {address for address, _ in internet.connections} == {PUBLIC_IPV4}
    assert request_count == 9
    assert len(internet.requests) == request_count + MAX_REDIRECTS + 1
    assert all(b"Host: docs.example\r\n" in request for request in internet.requests)


async def test_a_page_of_a_name_that_is_unknown_here_comes_through_the_proxy():
    """See ADR 0066: the proxy resolves names, also of redirects."""
    redirects = {"/a": "http://gone.example/b", "/private": "http://inner.example/"}
    async with fake_internet(
        lambda path: make_redirect(redirects[path]) if path in redirects else make_page("There."),
        inner_example=("10.0.0.1",), docs_example=(PUBLIC_IPV4,),
    ) as internet:  # fmt: skip
        routes = {"gone.example:80": internet.port, "docs.example:80": internet.port}
        async with open_proxy(routes=routes) as proxy:
            sites = ("http://docs.example", "http://gone.example", "http://inner.example", "http://intranet")
            fetcher = internet.fetcher(*sites, env={"HTTP_PROXY": proxy.url})
            assert (await fetcher.fetch("http://docs.example/a")).url == "http://gone.example/b"
            assert proxy.requests == ["GET http://docs.example/a", "GET http://gone.example/b"]
            for url in ("http://inner.example/", "http://intranet/", "http://docs.example/private"):
                with pytest.raises(OutOfScope, match="private network"):
                    await fetcher.fetch(url)
            assert proxy.requests[2:] == ["GET http://docs.example/private"]
            # Without the proxy, the page's own addresses are checked and used.
            direct = internet.fetcher(*sites, env={"HTTP_PROXY": proxy.url, "NO_PROXY": "docs.example"})
            assert (await direct.fetch("http://docs.example/c")).text == "There."
            with pytest.raises(Failed, match=r"Cannot resolve gone\.example"):
                await internet.fetcher(*sites).fetch("http://gone.example/")
    assert len(proxy.requests) == 3
    assert internet.connections == [(PUBLIC_IPV4, 80)]


@pytest.mark.parametrize(
    "host", ["localhost", "db", "a.localhost", "metadata.google.internal", "nas.local", "x.home.arpa"]
)
async def test_no_proxy_is_asked_for_a_name_of_a_private_network(host: str):
    """Shows: S07."""
    async with fake_internet(lambda _: make_page("No.")) as internet, open_proxy() as proxy:
        fetcher = internet.fetcher(f"http://{host}", env={"ALL_PROXY": proxy.url})
        with pytest.raises(OutOfScope, match="a name of a private network"):
            await fetcher.fetch(f"http://{host}/")
    assert (proxy.heads, internet.lookups) == ([], [])


async def test_a_proxy_that_refuses_is_named_without_its_password():
    async with (
        fake_internet(lambda _: make_page("No."), docs_example=(PUBLIC_IPV4,)) as internet,
        open_proxy(credentials="me:right-one") as proxy,
    ):
        env = {"ALL_PROXY": proxy.url.replace("//", "//me:wrong-one@")}
        for scheme in ("http", "https"):
            fetcher = internet.fetcher(f"{scheme}://docs.example", env=env)
            with pytest.raises(Failed, match="rejected the user name or the password") as error_info:
                await fetcher.fetch(f"{scheme}://docs.example/")
            assert f"Cannot fetch {scheme}://docs.example/: the proxy {proxy.url} (ALL_PROXY)" in str(
                error_info.value
            )
            assert "wrong-one" not in str(error_info.value)


async def test_binary_and_compressed_pages_are_refused_and_long_pages_are_truncated():
    answers = {
        "/image": make_page("x", kind="image/png"),
        "/packed": make_page("x", "Content-Encoding: gzip"),
        "/long": make_page("é" * MAX_PAGE_BYTES, kind="text/plain; charset=nonsense"),
        "/odd": make_page("ok", kind="application/ld+json", status="404 Not Found"),
    }
    async with fake_internet(lambda path: answers[path], docs_example=(PUBLIC_IPV4,)) as internet:
        fetcher = internet.fetcher("http://docs.example")
        for path in ("/image", "/packed"):
            with pytest.raises(Failed):
                await fetcher.fetch(f"http://docs.example{path}")
        odd = await fetcher.fetch("http://docs.example/odd")
        long = await fetcher.fetch("http://docs.example/long")
        with pytest.raises(Failed, match=r"Cannot resolve gone\.example"):
            await internet.fetcher("http://gone.example").fetch("http://gone.example/")
    assert (odd.status, odd.text, odd.is_complete) == (404, "ok", True)
    assert (len(long.text.encode()), long.is_complete) == (MAX_PAGE_BYTES, False)
    assert format_page(odd).startswith("[http://docs.example/odd: status 404, application/ld+json]\nok")
    assert format_page(long).endswith("[only the first 100,000 characters are shown]")


@pytest.mark.parametrize(
    "header", [b"Transfer-Encoding: xchunked", b"Transfer-Encoding: gzip, chunked", b"X\0Y: z", b"X: a\0b"]
)
async def test_a_response_that_programs_could_read_differently_is_refused(header: bytes):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + header
    body = b"\r\n\r\n5\r\nWords\r\n0\r\n\r\n"
    answers = {"/odd": head + body, "/plain": head.replace(header, b"Transfer-Encoding: Chunked") + body}
    async with fake_internet(lambda path: answers[path], docs_example=(PUBLIC_IPV4,)) as internet:
        fetcher = internet.fetcher("http://docs.example")
        assert (await fetcher.fetch("http://docs.example/plain")).text == "Words"
        with pytest.raises(Failed):
            await fetcher.fetch("http://docs.example/odd")


async def test_a_refused_connection_is_reported():
    async with fake_internet(lambda _: make_page(""), docs_example=(PUBLIC_IPV4,)) as internet:
        fetcher = internet.fetcher("http://docs.example")
    with pytest.raises(Failed, match="Cannot fetch"):
        await fetcher.fetch("http://docs.example/")


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<h1>A</h1><p>b <b>c</b>\n d</p>", "A\n\nb c\nd"),
        ("a<SCRIPT>bad()</Script >b", "ab"),
        ("a<script>never closed", "a"),
        ("x < y &amp; z &#x41;", "x < y & z A"),
        ('<a href="/l">link</a>', "(/l) link"),
        ("<!doctype html><!-- <p>no --><p>yes", "yes"),
        ("\u0130<style>x</style>b", "\u0130b"),
        ("<" * 10, "<" * 10),
    ],
)
def test_html_is_converted_to_text(html: str, text: str):
    assert html_to_text(html).strip() == text


def test_malicious_html_is_converted_in_linear_time():
    for unit in ("<", "<a href=", "<script", "<!--", "&", "<p\n\u2003", "\u2003", "<a href='", "</script"):
        html_to_text(unit * (MAX_PAGE_BYTES // len(unit)))
