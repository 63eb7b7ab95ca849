"""Keys: who may come in by the port. The token of a home, narrower ones, links that open the page once, and the cookies
they turn into."""

import base64
import hashlib
import hmac
import os
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from retinue.domain.api_permission import EVERY, PERSON, Right
from retinue.domain.run import iso
from retinue.domain.sanitize import safe_text
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.server.auth_throttle import Throttle
from retinue.storage.file_io import Stamp, stamp_of
from retinue.storage.token_store import Tokens

TOKEN = "token"  # noqa: S105  (a file's name)
SHORTEST = 32
"""Characters of a token that somebody put there themselves: one that can be guessed is none."""
LINK_SECONDS = 600
MOST_LINKS = 1_000
COOKIE_SECONDS = 30 * 86_400


@value
class Caller:
    """Who asks, and what they may: the daemon's knowledge, whatever the request says of itself."""

    rights: frozenset[Right]
    by: str = "person"


OWNER = Caller(rights=EVERY)
VISITOR = Caller(rights=PERSON)


class Keys:
    """Everything is derived from the token in `<home>/token`: who replaces or removes that file locks everybody out,
    at once. A cookie also needs its row among the tokens: who removes that ends one browser's visit."""

    def __init__(self, home: Path) -> None:
        self._path = home / TOKEN
        self._narrow = Tokens(home)
        self._links: dict[str, float] = {}
        self._stamp: Stamp | None = None
        self._token = ""
        self.throttle = Throttle()
        self._look()

    @property
    def token(self) -> str:
        with suppress(Failed, OSError):
            self._look()
        return self._token

    @property
    def cookie(self) -> str:
        """Its name: pages of several homes on one machine share their host's cookies."""
        return f"retinue-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    def bearer(self, said: str) -> Caller | None:
        """Whoever has this token; None: nobody."""
        token = self.token
        if token and hmac.compare_digest(said.encode("utf-8", "replace"), token.encode()):
            return OWNER
        with suppress(Failed):
            if found := self._narrow.find(said):
                return Caller(rights=found.rights, by=found.name)
        return None

    def visitor(self, cookie: str) -> Caller | None:
        """Whoever has this cookie, which a link of ours turned into; None: nobody."""
        facts, _, seal = cookie.rpartition(".")
        if not self.token or not hmac.compare_digest(
            seal.encode("utf-8", "replace"), self._signed(facts).encode()
        ):
            return None
        until = facts.partition(".")[0]
        if not until.isdecimal() or int(until) <= time.time():
            return None
        with suppress(Failed):
            return VISITOR if self._narrow.find(cookie, visits=True) else None
        return None

    def link(self) -> str:
        """The code of a link that opens the page once."""
        now = time.monotonic()
        left = [(code, until) for code, until in self._links.items() if until > now]
        self._links = dict(left[1 - MOST_LINKS :])
        code = secrets.token_urlsafe(32)
        self._links[code] = now + LINK_SECONDS
        return code

    def entered(self, code: str, browser: str = "") -> str | None:
        """The cookie's value for a code that is used now and never again; None for any other. The visit is noted, so that
        it can be taken back alone."""
        if self._links.pop(code, 0.0) <= time.monotonic():
            return None
        now = datetime.now(UTC)
        until = now + timedelta(seconds=COOKIE_SECONDS)
        facts = f"{int(until.timestamp())}.{secrets.token_urlsafe(12)}"
        cookie = f"{facts}.{self._signed(facts)}"
        self._narrow.visited(
            cookie, VISITOR.rights, at=str(iso(now)), until=str(iso(until)), browser=safe_text(browser)
        )
        return cookie

    def _signed(self, facts: str) -> str:
        raw = hmac.digest(self._token.encode(), b"page:" + facts.encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def _look(self) -> None:
        """A token that was replaced counts no more; what cannot be read opens nothing."""
        now = stamp_of(os.fspath(self._path))
        if now is not None and now == self._stamp:
            return
        self._token, self._stamp = "", None
        self._token = _kept(self._path)
        self._stamp = stamp_of(os.fspath(self._path))


def _kept(path: Path) -> str:
    """The token that is there, or a new one: 256 bits, for the owner's eyes only."""
    with suppress(FileNotFoundError):
        found = path.read_bytes().decode("ascii", "replace").strip()
        if len(found) >= SHORTEST:
            path.chmod(0o600)
            return found
        if found:
            raise Failed(f"{path} is shorter than {SHORTEST} characters: remove it, and a new one is made")
    made = secrets.token_urlsafe(32)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        beside.unlink()
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{made}\n")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    return made
