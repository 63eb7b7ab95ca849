"""Connections to an HTTP proxy, and tunnels through it, opened with CONNECT."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from retinue.http.connect import Connector, ProxyRefused, ServerUrl, Unreachable, connection_error
from retinue.http.parser import ResponseError, ResponseParser
from retinue.http.proxies import Proxy

MAX_REASON_CHARS = 200

_AUTHENTICATION_REQUIRED = 407
_SUCCESSES = range(200, 300)
_TEMPORARY_FAILURES = frozenset({408, 429, *range(500, 600)} - {501, 505})

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)


class _TunnelRequest(asyncio.Protocol):
    """Waits for the head of the proxy's response to CONNECT."""

    def __init__(self) -> None:
        self.response = ResponseParser()
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        try:
            self.response.feed(data)
        except ResponseError as error:
            self._fail(error)
        else:
            if self.response.status and not self.answered.done():
                self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ResponseError("closed the connection before it responded"))

    def _fail(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


async def connect_to_proxy(
    connector: Connector,
    proxy: Proxy,
    context: ssl.SSLContext | None,
    make_protocol: Callable[[socket.socket], ProtocolT],
) -> tuple[asyncio.Transport, ProtocolT]:
    """Connect to a proxy; raise Unreachable, with the proxy's name, if that fails."""
    try:
        raw_socket = await connector.connect()
        return await asyncio.get_running_loop().create_connection(
            lambda: make_protocol(raw_socket),
            sock=raw_socket,
            ssl=context,
            server_hostname=proxy.server.certificate_name if context else None,
        )
    except OSError as error:
        raise connection_error(error, f"{proxy} cannot be reached: ") from error


async def open_tunnel(
    connector: Connector, proxy: Proxy, context: ssl.SSLContext | None, server: ServerUrl
) -> asyncio.Transport:
    """Ask a proxy to connect to a server, and return the connection, on which TLS can begin.

    Raises:
        ProxyRefused: The proxy refuses, or is none.
        Unreachable: The proxy cannot be reached, or cannot reach the server.
    """
    transport, request = await connect_to_proxy(connector, proxy, context, lambda _: _TunnelRequest())
    host = f"[{server.certificate_name}]" if ":" in server.host else server.host
    target = f"{host}:{server.port}"
    head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: retinue\r\n{authorization_line(proxy)}\r\n"
    try:
        transport.write(head.encode("latin-1"))
        await request.answered
        _check_answer(proxy, request.response, target)
    except ResponseError as error:
        transport.abort()
        raise ProxyRefused(f"{proxy} {_sentence_part(proxy, str(error))}") from error
    except OSError as error:
        transport.abort()
        raise connection_error(error, f"{proxy} ended the connection: ") from error
    except BaseException:
        transport.abort()
        raise
    finally:
        request.answered.cancel()
    return transport


def authorization_line(proxy: Proxy) -> str:
    return f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""


def _check_answer(proxy: Proxy, response: ResponseParser, target: str) -> None:
    """Raise Unreachable unless the proxy has connected."""
    if response.status in _SUCCESSES:
        if response.pieces:
            raise ProxyRefused(f"{proxy} sent data that nobody had requested")
        return
    if response.status == _AUTHENTICATION_REQUIRED:
        raise authentication_error(proxy, response)
    status = f"HTTP {response.status} {_sentence_part(proxy, response.reason)}".rstrip()
    if response.status in _TEMPORARY_FAILURES:
        raise Unreachable(f"{proxy} could not connect to {target} ({status})")
    raise ProxyRefused(
        f"{proxy} refused to connect to {target} ({status}). To reach the server without it, add the host to NO_PROXY"
    )


def authentication_error(proxy: Proxy, response: ResponseParser) -> ProxyRefused:
    """Return the error for a proxy's status 407."""
    offered = response.headers.get("proxy-authenticate", "")
    if offered and "basic" not in offered.lower():
        methods = ", ".join(dict.fromkeys(each.split()[0] for each in offered.split(",") if each.split()))
        return ProxyRefused(
            f"{proxy} accepts no user name and password, only {_sentence_part(proxy, methods)} (HTTP 407)"
        )
    if proxy.authorization:
        return ProxyRefused(f"{proxy} rejected the user name or the password in {proxy.variable} (HTTP 407)")
    return ProxyRefused(
        f"{proxy} requires a user name and a password (HTTP 407). "
        f"Write USER:PASSWORD@ before the host in {proxy.variable}"
    )


def _sentence_part(proxy: Proxy, text: str) -> str:
    """Return a text of the proxy for a message: short, and without the password."""
    return proxy.redact(text)[:MAX_REASON_CHARS]
