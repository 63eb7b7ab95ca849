"""Pages of the web, from real servers on loopback that stand for machines of the world: who is asked, and who never is."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from retinue.errors import Failed, OutOfScope
from retinue.tools.web.fetcher import MAX_PAGE_BYTES, MAX_REDIRECTS, WebFetcher
from retinue.tools.web.web_fetch import format_page, html_to_text

WORLD = "93.184.216.34"
OTHER = "2606:2800::1"


@dataclass(slots=True, kw_only=True)
class Net:
    """A little world: names that have numbers, and machines that answer. Every number that is dialled is kept."""

    names: dict[str, list[Sequence[str]]]
    """What a name server answers, one time after the other; the last answer stays."""
    port: int = 0
    dialled: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    asked: list[str] = field(default_factory=list[str])
    heard: list[bytes] = field(default_factory=list[bytes])

    async def lookup(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError(-2, "Name or service not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def way(self, number: str, port: int) -> tuple[str, int]:
        self.dialled.append((number, port))
        return "127.0.0.1", self.port

    def web(self, *sites: str) -> WebFetcher:
        return WebFetcher(sites, resolver=self.lookup, route_address=self.way)


@asynccontextmanager
async def net(
    answers: Callable[[str], bytes], **names: list[Sequence[str]] | Sequence[str]
) -> AsyncGenerator[Net]:
    """Every machine of it is one server, which answers by the path that it is asked for."""
    told = {
        name.replace("_", "."): [each] if isinstance(each, tuple) else each for name, each in names.items()
    }
    world = Net(names=told)  # pyright: ignore[reportArgumentType]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        world.heard.append(request)
        writer.write(answers(request.split(b" ")[1].decode()))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    world.port = server.sockets[0].getsockname()[1]
    try:
        yield world
    finally:
        server.close()
        await server.wait_closed()


def page(text: str, *more: str, kind: str = "text/plain", status: str = "200 OK") -> bytes:
    head = "\r\n".join(
        (f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(text.encode())}", *more)
    )
    return f"{head}\r\n\r\n{text}".encode()


def moved(to: str) -> bytes:
    return page("", f"Location: {to}", status="302 Found")


async def test_a_page_of_an_allowed_site_is_text_and_nothing_of_ours_goes_along():
    async with net(lambda _: page("Words."), docs_example=(WORLD, OTHER)) as world:
        found = await world.web("http://docs.example").fetch("http://Docs.Example/a?b#c")
    assert (found.url, found.status, found.text) == ("http://docs.example/a?b", 200, "Words.")
    assert (world.asked, world.dialled) == (["docs.example"], [(WORLD, 80), (OTHER, 80)])
    (request,) = world.heard
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
async def test_another_site_is_not_even_looked_up(url: str):
    """Shows: S06."""
    async with net(lambda _: page("No."), docs_example=(WORLD,), evil_example=(WORLD,)) as world:
        with pytest.raises(OutOfScope, match="no site that the configuration allows") as refused:
            await world.web("http://docs.example").fetch(url)
        nowhere = world.web()
        with pytest.raises(OutOfScope):
            await nowhere.fetch("http://docs.example/")
    assert (refused.value.error, refused.value.allowed) == ("host_not_allowed", ("http://docs.example",))
    assert (world.asked, world.dialled, world.heard) == ([], [], [])


@pytest.mark.parametrize(
    "url", ["http://docs.example@evil.example/", "http://docs.example\r\nHost: evil.example/", "http://docs.example./", "http://127.0.0.1/"]
)  # fmt: skip
async def test_what_is_oddly_spelt_is_no_address(url: str):
    """Shows: S06."""
    async with net(lambda _: page("No."), docs_example=(WORLD,)) as world:
        with pytest.raises(Failed, match="the address"):
            await world.web("http://docs.example").fetch(url)
    assert (world.asked, world.dialled, world.heard) == ([], [], [])


@pytest.mark.parametrize(
    "numbers",
    [
        ("127.0.0.1",), ("169.254.169.254",), ("10.1.2.3",), ("::1",), ("::ffff:10.0.0.1",), ("fd00:ec2::254",),
        (WORLD, "127.0.0.1"), ("127.0.0.1", WORLD), (OTHER, "fe80::1%lo"),
    ],
)  # fmt: skip
async def test_a_name_of_a_machine_of_ours_is_refused_after_it_was_looked_up(numbers: tuple[str, ...]):
    """One such number among others is enough: which of them is dialled must not be chance.

    Shows: S07.
    """
    async with net(lambda _: page("No."), docs_example=numbers) as world:
        with pytest.raises(OutOfScope, match="never asked"):
            await world.web("http://docs.example").fetch("http://docs.example/latest/meta-data/")
    assert (world.asked, world.dialled, world.heard) == (["docs.example"], [], [])


async def test_a_name_that_changes_its_number_is_asked_at_the_one_that_was_judged():
    """Shows: S07."""
    answers: list[Sequence[str]] = [(WORLD,), ("127.0.0.1",)]
    async with net(lambda _: page("Words."), docs_example=answers) as world:
        web = world.web("http://docs.example")
        assert (await web.fetch("http://docs.example/")).text == "Words."
        with pytest.raises(OutOfScope, match="never asked"):
            await web.fetch("http://docs.example/")
    assert world.asked == ["docs.example"] * 2
    assert world.dialled == [(WORLD, 80)]
    assert len(world.heard) == 1


async def test_where_a_page_leads_on_to_is_judged_as_if_it_were_asked_for():
    """Shows: S06, S07."""
    leads = {
        "/here": "/there", "/away": "http://evil.example/", "/plain": "https://docs.example/", "/in": "http://inner.example/",
        "/number": "http://169.254.169.254/latest/", "/odd": "http://docs.example@evil.example/", "/file": "file:///etc/passwd",
        "/again": "/again", "/rebound": "http://turned.example/",
    }  # fmt: skip
    turned: list[Sequence[str]] = [("127.0.0.1",)]
    async with net(
        lambda path: moved(leads[path]) if path in leads else page("There."),
        docs_example=(WORLD,), inner_example=("10.0.0.1",), evil_example=(WORLD,), turned_example=turned,
    ) as world:  # fmt: skip
        web = world.web("http://docs.example", "http://inner.example", "http://turned.example")
        assert (await web.fetch("http://docs.example/here")).url == "http://docs.example/there"
        for path in ("/away", "/plain", "/in", "/rebound"):
            with pytest.raises(OutOfScope):
                await web.fetch(f"http://docs.example{path}")
        for path in ("/number", "/odd", "/file"):
            with pytest.raises(Failed, match="the address"):
                await web.fetch(f"http://docs.example{path}")
        asked = len(world.heard)
        with pytest.raises(Failed, match="leads on to another page more than"):
            await web.fetch("http://docs.example/again")
    assert {number for number, _ in world.dialled} == {WORLD}
    assert asked == 9
    assert len(world.heard) == asked + MAX_REDIRECTS + 1
    assert all(b"Host: docs.example\r\n" in request for request in world.heard)


async def test_what_is_no_text_is_packed_or_has_no_end_is_not_taken():
    answers = {
        "/image": page("x", kind="image/png"),
        "/packed": page("x", "Content-Encoding: gzip"),
        "/long": page("é" * MAX_PAGE_BYTES, kind="text/plain; charset=nonsense"),
        "/odd": page("ok", kind="application/ld+json", status="404 Not Found"),
    }
    async with net(lambda path: answers[path], docs_example=(WORLD,)) as world:
        web = world.web("http://docs.example")
        for path in ("/image", "/packed"):
            with pytest.raises(Failed):
                await web.fetch(f"http://docs.example{path}")
        odd = await web.fetch("http://docs.example/odd")
        long = await web.fetch("http://docs.example/long")
        with pytest.raises(Failed, match=r"gone\.example has no number"):
            await world.web("http://gone.example").fetch("http://gone.example/")
    assert (odd.status, odd.text, odd.is_complete) == (404, "ok", True)
    assert (len(long.text.encode()), long.is_complete) == (MAX_PAGE_BYTES, False)
    assert format_page(odd).startswith("[http://docs.example/odd: status 404, application/ld+json]\nok")
    assert format_page(long).endswith("[only the first 100,000 characters are shown]")


async def test_a_server_that_is_not_there_is_told():
    async with net(lambda _: page(""), docs_example=(WORLD,)) as world:
        web = world.web("http://docs.example")
    with pytest.raises(Failed, match="cannot be had"):
        await web.fetch("http://docs.example/")


@pytest.mark.parametrize(
    ("text", "read"),
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
def test_a_page_is_read_without_its_markup(text: str, read: str):
    assert html_to_text(text).strip() == read


def test_a_page_made_to_keep_a_reader_busy_does_not():
    for unit in ("<", "<a href=", "<script", "<!--", "&", "<p\n\u2003", "\u2003", "<a href='", "</script"):
        html_to_text(unit * (MAX_PAGE_BYTES // len(unit)))
