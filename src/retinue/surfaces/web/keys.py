"""Keys: the token of a home, one-time links for the page, and the cookies they turn into."""

import base64
import hashlib
import hmac
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

TOKEN = "token"  # noqa: S105  (a file's name)
LINK_SECONDS = 600
COOKIE_SECONDS = 30 * 86_400


class Keys:
    """Everything is derived from the token in `<home>/token`: who replaces that file locks everybody out."""

    def __init__(self, home: Path) -> None:
        self.token = _kept(home / TOKEN)
        mark = hashlib.sha256(self.token.encode()).hexdigest()[:8]
        self.cookie = f"retinue-{mark}"
        """Its name: pages of several homes on one machine share their host's cookies."""
        self._links: dict[str, float] = {}

    def is_token(self, said: str) -> bool:
        return hmac.compare_digest(said.encode("utf-8", "replace"), self.token.encode())

    def link(self) -> str:
        """The code of a link that opens the page once."""
        self._links = {code: until for code, until in self._links.items() if until > time.monotonic()}
        code = secrets.token_urlsafe(32)
        self._links[code] = time.monotonic() + LINK_SECONDS
        return code

    def entered(self, code: str) -> str | None:
        """The cookie's value for a code that is used now and never again; None for any other."""
        if self._links.pop(code, 0.0) <= time.monotonic():
            return None
        facts = f"{int(time.time()) + COOKIE_SECONDS}.{secrets.token_urlsafe(12)}"
        return f"{facts}.{self._signed(facts)}"

    def is_cookie(self, said: str) -> bool:
        facts, _, seal = said.rpartition(".")
        if not hmac.compare_digest(seal.encode("utf-8", "replace"), self._signed(facts).encode()):
            return False
        until = facts.partition(".")[0]
        return until.isdecimal() and int(until) > time.time()

    def _signed(self, facts: str) -> str:
        raw = hmac.digest(self.token.encode(), b"page:" + facts.encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _kept(path: Path) -> str:
    """The token that is there, or a new one: 256 bits, for the owner's eyes only."""
    with suppress(FileNotFoundError):
        if found := path.read_text("ascii").strip():
            path.chmod(0o600)
            return found
    made = secrets.token_urlsafe(32)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        beside.unlink()
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{made}\n")
    beside.replace(path)
    return made
