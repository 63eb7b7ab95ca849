"""Hosts: the names under which the page may be asked for. A name that another site made point here is none of them."""

import ipaddress
import socket
from urllib.parse import urlsplit

ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  (named, not bound)
LOCALHOST = "localhost"


class Hosts:
    """What may stand in a Host header, letter by letter."""

    def __init__(self, url: str, bound: str) -> None:
        """`bound` is what the port listens on. Where that is every address of the machine, an address written as a
        number is right too: nobody else can make a number point here."""
        place = urlsplit(url)
        self._port = place.port or 80
        names = {place.netloc.rpartition(":")[0]}
        if bound in ANYWHERE:
            names |= {LOCALHOST, socket.gethostname().lower()}
        elif _loopback(bound):
            names.add(LOCALHOST)
        self._names = frozenset(names)
        self._numbers = bound in ANYWHERE

    def __contains__(self, said: str) -> bool:
        name, colon, port = said.rpartition(":")
        if not colon or said.endswith("]"):
            name, port = said, "80"
        if port != str(self._port):
            return False
        return name in self._names or (self._numbers and _number(name))


def _number(name: str) -> bool:
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    try:
        return (ipaddress.ip_address(bare).version == 6) == (bare != name)  # noqa: PLR2004  (the protocol's)
    except ValueError:
        return False


def _loopback(bound: str) -> bool:
    try:
        return ipaddress.ip_address(bound).is_loopback
    except ValueError:
        return bound == LOCALHOST
