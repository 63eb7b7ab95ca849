"""Models, MCP servers and web pages behind a proxy, and TLS servers with a certificate of their own."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from certificate import create_certificate
from logging_proxy import copy_stream, open_proxy
from user_machine import UserMachine

from retinue.testing.fake_model_server import FakeModelServer
from retinue.testing.replies import text_reply, tool_call_reply

PASSWORD = "s3cret-of-the-proxy"
ENCODED = b64encode(f"me:{PASSWORD}".encode())


@asynccontextmanager
async def tls_front(server: FakeModelServer, folder: Path) -> AsyncGenerator[tuple[str, str]]:
    """Open a TLS server in front of a model server; yield its URL and the file with its certificate."""
    certificate = create_certificate(folder, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.file)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(
            "127.0.0.1", int(server.url.rpartition(":")[2])
        )
        await asyncio.gather(copy_stream(reader, target_writer), copy_stream(target_reader, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(serve(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context) as front:
        yield f"https://localhost:{front.sockets[0].getsockname()[1]}/v1", str(certificate.file)
        await asyncio.gather(*tasks)


def assert_no_password(machine: UserMachine, *texts: str) -> None:
    """Check that the password is in no file of the home and in no output."""
    files = [path.read_bytes() for path in machine.home.rglob("*") if path.is_file()]
    for content in (*files, *(text.encode() for text in texts)):
        assert PASSWORD.encode() not in content
        assert ENCODED not in content


async def test_a_run_reaches_a_tls_model_server_through_a_proxy_with_a_password(
    machine: UserMachine, tmp_path: Path
):
    script = [tool_call_reply(("ls", {"path": "."})), text_reply("Done.")]
    async with (
        machine.serve_models(script) as server,
        tls_front(server, tmp_path) as (url, certificate),
        open_proxy(credentials=f"me:{PASSWORD}") as proxy,
    ):
        machine.env |= {"OPENAI_BASE_URL": url, "SSL_CERT_FILE": certificate}
        machine.env |= {"HTTPS_PROXY": proxy.url.replace("//", f"//me:{PASSWORD}@")}
        done = await machine("run", "Hello.")
        assert (done.code, done.out.strip()) == (0, "Done."), done.err
        assert proxy.requests == [f"CONNECT {url.split('/')[2]}"]
        assert len(server.requests) == 2
        assert all("proxy-authorization" not in each.headers for each in server.requests)
    assert_no_password(machine, done.out, done.err)


async def test_a_server_named_in_no_proxy_is_reached_directly(machine: UserMachine):
    async with machine.serve_models([text_reply("Done."), text_reply("Done.")]), open_proxy() as proxy:
        done = await machine("run", "Hello.", HTTP_PROXY=proxy.url, NO_PROXY="10.0.0.0/8,127.0.0.1")
        assert (done.code, proxy.heads) == (0, []), done.err
        done = await machine("run", "Hello.", HTTP_PROXY=proxy.url)
        assert (done.code, len(proxy.heads)) == (0, 1), done.err


async def test_an_untrusted_certificate_is_reported_once_with_what_to_do(
    machine: UserMachine, tmp_path: Path
):
    async with (
        machine.serve_models([text_reply("No.")]) as server,
        tls_front(server, tmp_path) as (url, _),
        open_proxy() as proxy,
    ):
        done = await machine("run", "Hello.", OPENAI_BASE_URL=url, HTTPS_PROXY=proxy.url)
        assert (done.code, len(proxy.heads), server.requests) == (1, 1, [])
    assert (
        "its certificate is not trusted: self-signed certificate. If you trust it, set SSL_CERT_FILE"
        in done.err
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n",
            "rejected the user name or the password in HTTPS_PROXY",
        ),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", "refused to connect to localhost:9 (HTTP 403 No)"),
        (b"nonsense\r\n", "did not send an HTTP response: 'nonsense'"),
    ],
    ids=["407", "403", "garbage"],
)
async def test_a_proxy_that_refuses_is_named_without_its_password_and_asked_once(
    machine: UserMachine, answer: bytes, message: str
):
    async with open_proxy(answer=answer) as proxy:
        machine.env |= {
            "OPENAI_API_KEY": "sk-test-openai-0123456789",
            "OPENAI_BASE_URL": "https://localhost:9/v1",
            "RETINUE_MODEL": "openai:test-model",
        }
        done = await machine("run", "Hello.", HTTPS_PROXY=proxy.url.replace("//", f"//me:{PASSWORD}@"))
        assert (done.code, len(proxy.heads)) == (1, 1), done.err
    assert f"the proxy {proxy.url} (HTTPS_PROXY) {message}" in done.err
    assert_no_password(machine, done.out, done.err)


async def test_a_proxy_that_cannot_be_used_is_refused_before_a_session_is_created(machine: UserMachine):
    machine.env |= {"OPENAI_API_KEY": "sk-test-openai-0123456789", "RETINUE_MODEL": "openai:test-model"}
    done = await machine("run", "Hello.", ALL_PROXY=f"socks5://me:{PASSWORD}@127.0.0.1:9")
    assert (done.code, done.out) == (2, "")
    assert "ALL_PROXY names a proxy of the kind socks5, which is not supported" in done.err
    assert not machine.sessions.exists() or [*machine.sessions.iterdir()] == []
    assert_no_password(machine, done.err)
    local = "http://127.0.0.1:9/v1"
    done = await machine("run", "Hello.", HTTP_PROXY="http://proxy.example:3128", OPENAI_BASE_URL=local)
    assert (done.code, "in plain text. Add 127.0.0.1 to NO_PROXY" in done.err) == (2, True)
    machine.write_config(mcp={"far": {"url": "http://127.0.0.1:9/mcp"}})
    done = await machine("mcp", "trust", "far", HTTP_PROXY="http://proxy.example:3128")
    assert (done.code, "in plain text. Add 127.0.0.1 to NO_PROXY" in done.err) == (2, True)
    done = await machine("run", "Hello.", SSL_CERT_FILE="/nowhere.pem")
    assert (done.code, "SSL_CERT_FILE: /nowhere.pem does not exist" in done.err) == (2, True)


async def test_an_agents_web_pages_come_through_the_proxy_and_its_commands_do_not_see_it(
    machine: UserMachine,
):
    machine.write_config(approvals="auto", web_fetch={"hosts": ["http://docs.example", "http://inner"]})
    script = [
        tool_call_reply(
            ("web_fetch", {"url": "http://docs.example/page"}),
            ("web_fetch", {"url": "http://inner/page"}),
            ("bash", {"command": "env"}),
        ),
        text_reply("Done."),
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pages.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nWords.")
        await reader.read()
        writer.close()

    pages: list[bytes] = []
    async with (
        machine.serve_models(script) as server,
        await asyncio.start_server(serve, "127.0.0.1", 0) as web,
    ):
        port = web.sockets[0].getsockname()[1]
        async with open_proxy(credentials=f"me:{PASSWORD}", routes={"docs.example:80": port}) as proxy:
            url = proxy.url.replace("//", f"//me:{PASSWORD}@")
            done = await machine("run", "Hello.", http_proxy=url, no_proxy="127.0.0.1")
            assert done.code == 0, done.err
            assert proxy.requests == ["GET http://docs.example/page"]
        results = [each["content"] for each in server.requests[1].messages if each["role"] == "tool"]
    assert results[0] == "[http://docs.example/page: text/plain]\nWords."
    assert "a name of a private network" in results[1]
    assert "PATH=" in results[2]
    assert "proxy" not in results[2].lower()
    assert b"Proxy-Authorization" not in pages[0]
    assert_no_password(machine, done.out, done.err)
