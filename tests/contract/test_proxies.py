"""The HTTP client behind real proxies on loopback, and the variables that choose them."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from certificate import create_certificate
from logging_proxy import open_proxy

from retinue.config.load import load_config
from retinue.errors import BadConfig
from retinue.http.client import HttpClient
from retinue.http.connect import Misconfigured, Unreachable, parse_server_url
from retinue.http.network import network_settings
from retinue.http.parser import ResponseError
from retinue.http.proxies import proxy_settings

PASSWORD = "s3cret/p@ss"
USER_INFO = "me:s3cret%2Fp%40ss"


def proxy_url(env: Mapping[str, str], url: str) -> str | None:
    proxy = proxy_settings(env).proxy_for(parse_server_url(url))
    return None if proxy is None else str(proxy)


@pytest.mark.parametrize(
    ("env", "url", "expected"),
    [
        ({"HTTPS_PROXY": "http://p:3128"}, "https://x.example", "the proxy http://p:3128 (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": "http://p:3128"}, "http://x.example", None),
        ({"HTTP_PROXY": "http://p:3128"}, "http://x.example", "the proxy http://p:3128 (HTTP_PROXY)"),
        ({"HTTP_PROXY": "http://p:3128"}, "https://x.example", None),
        ({"ALL_PROXY": "http://p:3128"}, "https://x.example", "the proxy http://p:3128 (ALL_PROXY)"),
        ({"ALL_PROXY": "http://a:1", "http_proxy": "http://h:2"}, "http://x", "the proxy http://h:2 (http_proxy)"),
        ({"https_proxy": "http://l:1", "HTTPS_PROXY": "http://u:1"}, "https://x", "the proxy http://l:1 (https_proxy)"),
        ({"https_proxy": "", "HTTPS_PROXY": "http://u:1"}, "https://x", None),
        ({"https_proxy": "", "ALL_PROXY": "http://u:1"}, "https://x", "the proxy http://u:1 (ALL_PROXY)"),
        ({"HTTPS_PROXY": " p.example:8080 "}, "https://x", "the proxy http://p.example:8080 (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": "http://p.example"}, "https://x", "the proxy http://p.example (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": "https://p.example/"}, "https://x", "the proxy https://p.example (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": "http://[::1]:3128"}, "https://x", "the proxy http://[::1]:3128 (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": f"http://{USER_INFO}@p:1"}, "https://x", "the proxy http://p:1 (HTTPS_PROXY)"),
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, "http://x", None),
        ({"http_proxy": "http://p:1", "REQUEST_METHOD": "GET"}, "http://x", "the proxy http://p:1 (http_proxy)"),
        ({}, "https://x", None),
    ],
)  # fmt: skip
def test_the_variables_choose_the_proxy(env: Mapping[str, str], url: str, expected: str | None):
    assert proxy_url(env, url) == expected


@pytest.mark.parametrize(
    ("no_proxy", "url", "is_direct"),
    [
        ("*", "https://x.example", True),
        ("a.example, *", "https://x.example", True),
        ("x.example", "https://x.example", True),
        ("X.Example", "https://x.EXAMPLE", True),
        ("x.example", "https://sub.x.example", True),
        ("x.example", "https://notx.example", False),
        ("x.example", "https://x.example.", True),
        ("x.example.", "https://x.example", True),
        (".x.example", "https://sub.x.example", True),
        (".x.example", "https://x.example", True),
        ("*.x.example", "https://sub.x.example", True),
        ("a b\tx.example", "https://x.example", True),
        ("a,,x.example,", "https://x.example", True),
        ("x.example:8443", "https://x.example:8443", True),
        ("x.example:8443", "https://x.example", False),
        ("x.example:443", "https://x.example", True),
        ("example", "https://x.example", True),
        ("grün.example", "https://grün.example", True),
        ("127.0.0.1", "http://127.0.0.1:9", True),
        ("127.0.0.1:9", "http://127.0.0.1:9", True),
        ("127.0.0.1:8", "http://127.0.0.1:9", False),
        ("0.0.1", "http://127.0.0.1:9", False),
        ("127.0.0.0/8", "http://127.1.2.3", True),
        ("10.0.0.0/8", "http://127.0.0.1", False),
        ("10.1.2.3/8", "http://10.200.0.1", True),
        ("::1", "http://[::1]:9", True),
        ("[::1]", "http://[::1]:9", True),
        ("[::1]:9", "http://[::1]:9", True),
        ("[::1]:8", "http://[::1]:9", False),
        ("fd00::/8", "http://[fd12::1]", True),
        ("fd00::/8", "http://[fe80::1]", False),
        ("127.0.0.0/8", "http://localhost", False),
        ("10.0.0.0/99,x.example:0,:80,.,*.", "http://x.example:80", False),
        ("", "http://localhost", False),
    ],
)
def test_no_proxy_names_hosts_domains_ports_and_ranges(no_proxy: str, url: str, is_direct: bool):
    assert (proxy_url({"ALL_PROXY": "http://p:1", "NO_PROXY": no_proxy}, url) is None) is is_direct


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("socks5://p:1080", "names a proxy of the kind socks5, which is not supported"),
        ("http://", "is not the URL of a proxy"),
        ("http://me:s3cretword@", "is not the URL of a proxy"),
        ("http://me:s3cret/word@p:1", "is not the URL of a proxy"),
        ("http://me:12/s3cret@p:1", "is not the URL of a proxy"),
        ("http://me:s3cret#word@p:99999", "is not the URL of a proxy"),
        ("p q s3cret", "is not the URL of a proxy"),
    ],
)
def test_an_unusable_proxy_is_named_by_its_variable_and_its_password_is_not_shown(value: str, message: str):
    network = network_settings({"HTTPS_PROXY": value})
    with pytest.raises(BadConfig, match=message) as error_info:
        network.check("https://x.example")
    assert str(error_info.value).startswith("HTTPS_PROXY ")
    for secret in ("s3cret", "12"):
        assert secret not in str(error_info.value)
        assert secret not in repr(network)
    network.check("http://x.example")


@pytest.mark.parametrize(
    ("proxy", "url", "is_refused"),
    [
        ("http://proxy.example:3128", "http://127.0.0.1:11434/v1", True),
        ("http://proxy.example:3128", "https://x.example/v1", False),
        ("https://proxy.example:3128", "http://127.0.0.1:11434/v1", False),
        ("http://127.0.0.1:3128", "http://localhost:11434/v1", False),
    ],
)
def test_a_plain_request_to_this_machine_is_not_sent_to_a_proxy_on_another_one_unencrypted(
    proxy: str, url: str, is_refused: bool
):
    settings = network_settings({"ALL_PROXY": proxy})
    if not is_refused:
        settings.check_encryption(url)
        return
    with pytest.raises(BadConfig, match=r"in plain text\. Add 127\.0\.0\.1 to NO_PROXY"):
        settings.check_encryption(url)
    network_settings({"ALL_PROXY": proxy, "NO_PROXY": "127.0.0.1"}).check_encryption(url)


def test_proxy_passwords_are_secrets_in_every_form_and_not_part_of_any_repr(tmp_path: Path):
    env = {"RETINUE_CONFIG": str(tmp_path), "HTTPS_PROXY": f"http://{USER_INFO}@p:1"}
    config = load_config(env, home=str(tmp_path / "home"))
    assert {PASSWORD, "s3cret%2Fp%40ss", USER_INFO, "bWU6czNjcmV0L3BAc3M="} <= set(config.secrets())
    network = network_settings(env)
    proxy = network.proxies.proxy_for(parse_server_url("https://x"))
    assert "s3cret" not in repr((network, proxy, config))
    assert (
        load_config({**env, "HTTPS_PROXY": "http://q:1"}, home=str(tmp_path)).fingerprint()
        != config.fingerprint()
    )


@asynccontextmanager
async def open_server(
    context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Serve "ok" to every request; yield the URL and the received heads."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(2)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, OSError):
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(serve(reader, writer)))

    async with await asyncio.start_server(accept, host, 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else "localhost"
        yield f"http{'s' if context else ''}://{shown}:{port}/v1", heads
        await asyncio.gather(*tasks)


async def post(url: str, env: Mapping[str, str], times: int = 1) -> bytes:
    client = HttpClient(url, {"X-Key": "k"}, connect_timeout_s=10, network=network_settings(env))
    try:
        for _ in range(times):
            connection = await client.post({}, [b"{}"])
            body = await connection.read()
            connection.release()
        return body  # pyright: ignore[reportPossiblyUnboundVariable]
    finally:
        await client.close()


def tls_server(folder: Path, *names: str) -> tuple[ssl.SSLContext, str]:
    issued = create_certificate(folder, *names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.file)
    return context, str(issued.file)


async def test_a_plain_request_names_the_whole_url_to_the_proxy_and_reuses_its_connection():
    async with open_server() as (url, heads), open_proxy() as proxy:
        assert await post(f"{url}/a?b", {"HTTP_PROXY": proxy.url}, times=2) == b"ok"
        assert proxy.requests == [f"POST {url}/a?b"]
    host = url.split("/")[2]
    assert proxy.heads[0] == (
        f"POST {url}/a?b HTTP/1.1\r\nHost: {host}\r\nX-Key: k\r\nContent-Length: 2\r\n\r\n".encode()
    )
    assert len(heads) == 2


async def test_a_tls_request_passes_through_a_tunnel_that_shows_the_proxy_only_the_host(tmp_path: Path):
    context, file = tls_server(tmp_path, "localhost")
    async with open_server(context) as (url, heads), open_proxy() as proxy:
        assert await post(url, {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": file}, times=3) == b"ok"
        host = url.split("/")[2]
        assert proxy.heads == [
            f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: retinue\r\n\r\n".encode()
        ]
        assert b"X-Key" not in bytes(proxy.tunnelled)
        assert (len(heads), b"X-Key: k" in heads[0]) == (3, True)


@pytest.mark.parametrize(
    "connected",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\n\r\n",
        b"HTTP/1.1 200 OK\nVia: x\n\n",
    ],
)
async def test_a_tunnel_opens_however_the_proxy_says_so(tmp_path: Path, connected: bytes):
    context, file = tls_server(tmp_path, "localhost")
    async with open_server(context) as (url, _), open_proxy() as proxy:
        proxy.connected = connected
        assert await post(url, {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": file}) == b"ok"


@pytest.mark.parametrize("is_https", [False, True])
async def test_a_password_is_sent_to_the_proxy_and_to_no_server(tmp_path: Path, is_https: bool):
    context, file = tls_server(tmp_path, "localhost") if is_https else (None, "")
    async with open_server(context) as (url, heads), open_proxy(credentials=f"me:{PASSWORD}") as proxy:
        env = {"ALL_PROXY": proxy.url.replace("//", f"//{USER_INFO}@"), "SSL_CERT_FILE": file}
        assert await post(url, env) == b"ok"
        assert len(proxy.heads) == 1
        assert b"Proxy-Authorization" not in heads[0]


@pytest.mark.parametrize("is_https", [False, True])
async def test_a_proxy_can_be_reached_by_tls_itself(tmp_path: Path, is_https: bool):
    (tmp_path / "proxy").mkdir()
    proxy_context, proxy_file = tls_server(tmp_path / "proxy", "localhost")
    context, file = tls_server(tmp_path, "localhost") if is_https else (None, "")
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(Path(proxy_file).read_text() + (Path(file).read_text() if file else ""))
    async with open_server(context) as (url, _), open_proxy(context=proxy_context) as proxy:
        env = {"ALL_PROXY": proxy.url.replace("127.0.0.1", "localhost"), "SSL_CERT_FILE": str(bundle)}
        assert await post(url, env, times=2) == b"ok"
        assert len(proxy.requests) == 1
        env["SSL_CERT_FILE"] = file or str(Path(proxy_file).with_name("none.pem"))
        if is_https:
            with pytest.raises(
                Misconfigured, match=r"the proxy https://.* cannot be reached: its certificate is not"
            ):
                await post(url, env)


async def test_an_ipv6_server_is_named_in_brackets(tmp_path: Path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return  # this machine has no IPv6
    async with open_server(host="::1") as (url, _), open_proxy() as proxy:
        port = url.split("]:")[1].partition("/")[0]
        assert await post(url, {"HTTP_PROXY": proxy.url}) == b"ok"
        with pytest.raises(Unreachable):  # it is no TLS server
            await post(url.replace("http:", "https:"), {"HTTPS_PROXY": proxy.url})
        assert proxy.requests == [f"POST http://[::1]:{port}/v1", f"CONNECT [::1]:{port}"]


async def test_an_exception_of_the_proxy_is_reached_directly():
    async with open_server() as (url, _), open_proxy() as proxy:
        assert await post(url, {"HTTP_PROXY": proxy.url, "NO_PROXY": ".localhost"}) == b"ok"
        assert proxy.heads == []


REFUSALS: Mapping[str, tuple[bytes, type[Unreachable], str]] = {
    "forbidden": (
        b"HTTP/1.1 403 Blocked by policy\r\nContent-Length: 3\r\n\r\nno!", Misconfigured,
        "refused to connect to localhost:{port} (HTTP 403 Blocked by policy). {hint}",
    ),
    "no credentials": (
        b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\n\r\n", Misconfigured,
        "rejected the user name or the password in HTTPS_PROXY (HTTP 407)",
    ),
    "another method": (
        b"HTTP/1.1 407 No\r\nProxy-Authenticate: Negotiate\r\nProxy-Authenticate: NTLM\r\n\r\n", Misconfigured,
        "accepts no user name and password, only Negotiate, NTLM (HTTP 407)",
    ),
    "down": (
        b"HTTP/1.1 502 Bad Gateway\r\n\r\n", Unreachable,
        "could not connect to localhost:{port} (HTTP 502 Bad Gateway)",
    ),
    "no proxy": (
        b"HTTP/1.1 501 Unsupported method\r\n\r\n", Misconfigured,
        "refused to connect to localhost:{port} (HTTP 501 Unsupported method). {hint}",
    ),
    "garbage": (b"SSH-2.0-OpenSSH_9\r\n", Misconfigured, "did not send an HTTP response: 'SSH-2.0-OpenSSH_9'"),
    "nothing": (b"", Misconfigured, "closed the connection before it responded"),
    "half a head": (b"HTTP/1.1 200 OK\r\nX", Misconfigured, "closed the connection before it responded"),
    "a redirect": (
        b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n", Misconfigured,
        "refused to connect to localhost:{port} (HTTP 302 Found). {hint}",
    ),
    "early data": (b"HTTP/1.1 200 OK\r\n\r\nhello", Misconfigured, "sent data that nobody had requested"),
    "the password": (
        f"HTTP/1.1 403 {PASSWORD} is bad, and so is {USER_INFO}\r\n\r\n".encode(), Misconfigured,
        "refused to connect to localhost:{port} (HTTP 403 [password] is bad, and so is [password]). {hint}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "kind", "message"), [*REFUSALS.values()], ids=[*REFUSALS])
async def test_a_proxy_that_does_not_connect_is_named_without_its_password(
    answer: bytes, kind: type[Unreachable], message: str
):
    async with open_proxy(answer=answer) as proxy:
        env = {"HTTPS_PROXY": proxy.url.replace("//", f"//{USER_INFO}@")}
        with pytest.raises(Unreachable) as error_info:
            await post("https://localhost:7/v1", env)
    assert type(error_info.value) is kind or (kind is Misconfigured and isinstance(error_info.value, kind))
    hint = "To reach the server without it, add the host to NO_PROXY"
    assert str(error_info.value) == f"the proxy {proxy.url} (HTTPS_PROXY) {message.format(port=7, hint=hint)}"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            b"SSH-2.0 s3cret/p@ss\r\n",
            Misconfigured,
            "{proxy} did not send an HTTP response: 'SSH-2.0 [password]'",
        ),
        (b"", ResponseError, "closed the connection before it responded; it was asked through {proxy}"),
    ],
    ids=["garbage", "nothing"],
)
async def test_a_proxy_that_sends_no_response_to_a_plain_request_is_named(
    answer: bytes, kind: type[Exception], message: str
):
    async with open_proxy(answer=answer) as proxy:
        with pytest.raises(kind) as error_info:
            await post("http://localhost:7/v1", {"HTTP_PROXY": proxy.url.replace("//", f"//{USER_INFO}@")})
    assert str(error_info.value) == message.format(proxy=f"the proxy {proxy.url} (HTTP_PROXY)")


@pytest.mark.parametrize("url", ["http://localhost:7/", "https://localhost:7/"])
async def test_a_proxy_that_requires_a_password_says_where_to_set_it(url: str):
    async with open_proxy(credentials=f"me:{PASSWORD}") as proxy:
        with pytest.raises(
            Misconfigured,
            match=r"requires a user name and a password.*Write USER:PASSWORD@ before the host in ALL_PROXY",
        ):
            await post(url, {"ALL_PROXY": proxy.url})
        wrong = proxy.url.replace("//", "//me:another-1@")
        with pytest.raises(
            Misconfigured, match="rejected the user name or the password in ALL_PROXY"
        ) as error_info:
            await post(url, {"ALL_PROXY": wrong})
        assert "another-1" not in str(error_info.value)
        assert len(proxy.heads) == 2


async def test_a_proxy_that_is_down_is_named():
    async with open_proxy() as proxy:
        pass
    env = {"ALL_PROXY": proxy.url.replace("//", f"//{USER_INFO}@")}
    for url in ("http://localhost:7/", "https://localhost:7/"):
        with pytest.raises(Unreachable) as error_info:
            await post(url, env)
        assert not isinstance(error_info.value, Misconfigured)
        assert (
            str(error_info.value)
            == f"the proxy {proxy.url} (ALL_PROXY) cannot be reached: Connection refused"
        )


async def test_a_proxy_that_never_answers_is_named():
    async with open_proxy(answer=b"HTTP/1.1 ", waits=True) as proxy:
        client = HttpClient(
            "https://x.example",
            {},
            connect_timeout_s=0.2,
            network=network_settings({"HTTPS_PROXY": proxy.url}),
        )
        with pytest.raises(
            Unreachable, match=r"no connection within 0\.2 s through the proxy http://127\.0\.0\.1"
        ):
            await client.post({}, [b""])
        await client.close()


async def test_a_server_behind_a_proxy_with_an_unknown_certificate_is_refused_and_says_how_to_trust_it(
    tmp_path: Path,
):
    context, file = tls_server(tmp_path, "localhost")
    async with open_server(context) as (url, heads), open_proxy() as proxy:
        with pytest.raises(
            Misconfigured, match=r"its certificate is not trusted: self-signed.*set SSL_CERT_FILE"
        ):
            await post(url, {"HTTPS_PROXY": proxy.url})
        assert (len(proxy.requests), heads) == (1, [])
        assert await post(url, {"HTTPS_PROXY": proxy.url, "REQUESTS_CA_BUNDLE": file}) == b"ok"
