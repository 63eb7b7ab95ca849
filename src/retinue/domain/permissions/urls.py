"""A strict URL parser, and the sites that the operator allows. Ambiguous URLs are refused."""

import re
from collections.abc import Iterable

from msgspec import Struct

MAX_URL_CHARS = 2_000
ANY_SITE = "*"

_DEFAULT_PORTS = {"https": 443, "http": 80}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_TARGET = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
"""Everything allowed after the host, so that no escaping is needed."""
_MAX_PORT = 65_535
_MAX_HOST_CHARS = 253


class InvalidUrl(ValueError):
    """Why a URL is invalid, as the end of a sentence about it."""


class Url(Struct, frozen=True, kw_only=True):
    """A parsed URL, in normal form."""

    scheme: str
    host: str
    port: int
    target: str = "/"
    """Path and query, without the fragment."""

    def __str__(self) -> str:
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}{self.target}"


class AllowedSite(Struct, frozen=True, kw_only=True):
    """An allowed host, or every host below a domain, with one scheme and port."""

    scheme: str
    host: str
    """Empty: any."""
    port: int
    includes_subdomains: bool = False

    def matches(self, url: Url) -> bool:
        if (url.scheme, url.port) != (self.scheme, self.port):
            return False
        if self.includes_subdomains:
            return url.host.endswith(f".{self.host}")
        return not self.host or url.host == self.host


def parse_url(url: str) -> Url:
    """Parse a plain http or https URL with a host name; raises InvalidUrl otherwise."""
    if len(url) > MAX_URL_CHARS:
        raise InvalidUrl(f"is {len(url):,} characters long; the maximum is {MAX_URL_CHARS:,}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidUrl(
            "contains a space, a control character or a non-ASCII character: write them as %XX or xn--…"
        )
    scheme, remainder = _split_scheme(url)
    end = min((at for at in map(remainder.find, "/?#") if at >= 0), default=len(remainder))
    host, port = _parse_host_and_port(remainder[:end], scheme)
    target = remainder[end:].partition("#")[0]
    if not _TARGET.fullmatch(target):
        raise InvalidUrl("contains a character after the host that must be written as %XX")
    return Url(scheme=scheme, host=host, port=port, target=target if target.startswith("/") else f"/{target}")


def resolve_redirect(base: Url, location: str) -> Url:
    """Resolve a redirect's location, absolute or relative, against the URL of the page."""
    path = base.target.partition("?")[0]
    if _SCHEME.match(location):
        return parse_url(location)
    if location.startswith("//"):
        return parse_url(f"{base.scheme}:{location}")
    if location.startswith("/"):
        target = location
    elif location.startswith(("?", "#")):
        target = f"{path}{location}"
    else:
        target = f"{path.rpartition('/')[0]}/{location}"
    return parse_url(f"{base.scheme}://{base.host}:{base.port}{target}")


def parse_site(text: str) -> AllowedSite:
    """Parse an allowed site; without a scheme it is https.

    Forms: `docs.example.org`, `*.example.org`, `example.org:8443`, `http://example.org`, or `*`.
    """
    if text == ANY_SITE:
        return AllowedSite(scheme="https", host="", port=_DEFAULT_PORTS["https"])
    scheme, remainder = _split_scheme(text) if "://" in text else ("https", text)
    name = remainder.removeprefix("*.")
    host, port = _parse_host_and_port(name, scheme)
    return AllowedSite(scheme=scheme, host=host, port=port, includes_subdomains=name != remainder)


def is_url_allowed(url: Url, sites: Iterable[AllowedSite]) -> bool:
    return any(each.matches(url) for each in sites)


def _split_scheme(url: str) -> tuple[str, str]:
    match = _SCHEME.match(url)
    if match is None or match[1].lower() not in _DEFAULT_PORTS:
        raise InvalidUrl("must begin with https:// or http://")
    return match[1].lower(), url[match.end() :]


def _parse_host_and_port(text: str, scheme: str) -> tuple[str, int]:
    if "@" in text:
        raise InvalidUrl("must not contain a user name or password")
    if text.startswith("["):
        raise InvalidUrl("must contain a host name, not an IP address")
    name, colon, number = text.lower().partition(":")
    if colon and not (_PORT.fullmatch(number) and int(number) <= _MAX_PORT):
        raise InvalidUrl("has an invalid port: use a number from 1 to 65535")
    labels = name.split(".")
    if len(name) > _MAX_HOST_CHARS or not all(_HOST_LABEL.fullmatch(each) for each in labels):
        raise InvalidUrl(
            "has an invalid host name: use letters, digits and -, separated by dots, with no dot at the end"
        )
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        raise InvalidUrl("must contain a host name, not an IP address")
    return name, int(number) if colon else _DEFAULT_PORTS[scheme]
