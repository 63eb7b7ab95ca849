"""Addresses on the web: the one way they are read, and which of them the operator allows. What could be read in two
ways is refused, never guessed."""

import re
from collections.abc import Iterable

from retinue.domain.value import value

MAX_URL = 2_000
ANY = "*"

_PORTS = {"https": 443, "http": 80}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_TARGET = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
"""All that may stand behind the host, so that nobody has to decide how to write the rest."""
_HIGHEST_PORT = 65_535
_LONGEST_HOST = 253


class Misread(ValueError):
    """A sentence on what an address must not hold."""


@value
class Address:
    """One page, in the one form in which it is asked for."""

    scheme: str
    host: str
    port: int
    target: str = "/"
    """Path and query; what stands behind a # is the reader's business."""

    def __str__(self) -> str:
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}{self.target}"


@value
class Site:
    """What the operator allows: one host, or all below a name, by one scheme and port."""

    scheme: str
    host: str
    """Empty: any."""
    port: int
    below: bool = False

    def covers(self, address: Address) -> bool:
        if (address.scheme, address.port) != (self.scheme, self.port):
            return False
        if self.below:
            return address.host.endswith(f".{self.host}")
        return not self.host or address.host == self.host


def address(url: str) -> Address:
    """Misread when it is not plainly one address with a name, by http or https."""
    if len(url) > MAX_URL:
        raise Misread(f"is {len(url):,} characters long, and {MAX_URL:,} is the most")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Misread(
            "holds a blank, a control character or a letter outside ASCII: write those as %XX or xn--…"
        )
    scheme, rest = _scheme(url)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    host, port = _place(rest[:end], scheme)
    target = rest[end:].partition("#")[0]
    if not _TARGET.fullmatch(target):
        raise Misread("holds a character behind the host that must be written as %XX")
    return Address(
        scheme=scheme, host=host, port=port, target=target if target.startswith("/") else f"/{target}"
    )


def onward(page: Address, said: str) -> Address:
    """Where a page leads on to, in its own words: an address, or what stands behind its host or its folder."""
    path = page.target.partition("?")[0]
    if _SCHEME.match(said):
        return address(said)
    if said.startswith("//"):
        return address(f"{page.scheme}:{said}")
    if said.startswith("/"):
        target = said
    elif said.startswith(("?", "#")):
        target = f"{path}{said}"
    else:
        target = f"{path.rpartition('/')[0]}/{said}"
    return address(f"{page.scheme}://{page.host}:{page.port}{target}")


def site(said: str) -> Site:
    """`docs.example.org`, `*.example.org`, `example.org:8443`, `http://example.org`, or `*`. Without a scheme it is
    https."""
    if said == ANY:
        return Site(scheme="https", host="", port=_PORTS["https"])
    scheme, rest = _scheme(said) if "://" in said else ("https", said)
    name = rest.removeprefix("*.")
    host, port = _place(name, scheme)
    return Site(scheme=scheme, host=host, port=port, below=name != rest)


def allowed(page: Address, sites: Iterable[Site]) -> bool:
    return any(each.covers(page) for each in sites)


def _scheme(url: str) -> tuple[str, str]:
    said = _SCHEME.match(url)
    if said is None or said[1].lower() not in _PORTS:
        raise Misread("must begin with https:// or http://")
    return said[1].lower(), url[said.end() :]


def _place(said: str, scheme: str) -> tuple[str, int]:
    if "@" in said:
        raise Misread("holds a name or a password before an @, which no address here may")
    if said.startswith("["):
        raise Misread("names a machine by its number: use its name")
    name, colon, number = said.lower().partition(":")
    if colon and not (_PORT.fullmatch(number) and int(number) <= _HIGHEST_PORT):
        raise Misread("has a port that is no number from 1 to 65535")
    labels = name.split(".")
    if len(name) > _LONGEST_HOST or not all(_LABEL.fullmatch(each) for each in labels):
        raise Misread(
            "has a host that is no plain name: letters, digits, - and dots between them, none at the end"
        )
    if _NUMBER.fullmatch(labels[-1]):
        raise Misread("names a machine by its number: use its name")
    return name, int(number) if colon else _PORTS[scheme]
