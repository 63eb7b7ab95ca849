"""The listeners of the server, and the limits of each connection."""

from enum import StrEnum

from msgspec import Struct


class Listener(StrEnum):
    """The listener a request arrived on. The listening socket decides it, never a header."""

    UNIX_SOCKET = "socket"
    """The Unix socket in the home: the kernel guarantees that the peer is the same user."""
    TCP_PORT = "page"
    """The TCP port: the peer is unknown until it authenticates."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits of one connection."""

    max_url_bytes: int = 8_192
    max_headers: int = 100
    max_head_bytes: int = 32_768
    """Bytes from the start of a request to the end of its headers."""
    max_body_bytes: int = 4 * 1024 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    keep_alive_seconds: float = 30.0
    """Time from a response to the first byte of the next request."""
    stall_seconds: float = 30.0
    """Time for which a client may read nothing of its response."""
    linger_seconds: float = 1.0
    """Time for which a rejected client is still read, so that the response reaches it."""
    max_connections: int = 256
    """Counted per listener, so that many page visitors do not lock out the command line."""
