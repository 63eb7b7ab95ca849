"""Allowed Host headers, as protection against DNS rebinding."""

import ipaddress
import socket
from urllib.parse import urlsplit

WILDCARD_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104  (named, not bound)
LOCALHOST = "localhost"


class AllowedHosts:
    """The exact values that a Host header may have."""

    def __init__(self, page_url: str, bound_address: str) -> None:
        """Derive the allowed names from the page's URL and the address the port listens on.

        If it listens on every address, any IP literal is allowed too: no other site can make a literal point
        here.
        """
        url_parts = urlsplit(page_url)
        self._port = url_parts.port or 80
        names = {url_parts.netloc.rpartition(":")[0]}
        if bound_address in WILDCARD_ADDRESSES:
            names |= {LOCALHOST, socket.gethostname().lower()}
        elif _is_loopback(bound_address):
            names.add(LOCALHOST)
        self._names = frozenset(names)
        self._allows_ip_literals = bound_address in WILDCARD_ADDRESSES

    def __contains__(self, host_header: str) -> bool:
        name, colon, port = host_header.rpartition(":")
        if not colon or host_header.endswith("]"):
            name, port = host_header, "80"
        if port != str(self._port):
            return False
        return name in self._names or (self._allows_ip_literals and _is_ip_literal(name))


def _is_ip_literal(name: str) -> bool:
    address = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    try:
        return (ipaddress.ip_address(address).version == 6) == (address != name)  # noqa: PLR2004  (the protocol's)
    except ValueError:
        return False


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == LOCALHOST
