"""Authentication for the TCP port: the home's token, API tokens, one-time links and cookies."""

import base64
import hashlib
import hmac
import os
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from retinue.domain.api_permission import ALL_PERMISSIONS, WEB_USER_PERMISSIONS, ApiPermission
from retinue.domain.sanitize import safe_text
from retinue.domain.timestamps import iso_timestamp
from retinue.errors import Failed
from retinue.server.auth_throttle import LoginThrottle
from retinue.storage.file_io import FileStamp, file_stamp
from retinue.storage.token_store import TokenStore

TOKEN_FILE = "token"  # noqa: S105  (a file's name)
MIN_TOKEN_CHARS = 32
"""Minimum length of a token that the user put into the file, so that it is not guessable."""
LINK_LIFETIME_SECONDS = 600
MAX_LINKS = 1_000
COOKIE_LIFETIME_SECONDS = 30 * 86_400


class ApiCaller(Struct, frozen=True, kw_only=True):
    """The authenticated caller and its rights, from the daemon's records only."""

    rights: frozenset[ApiPermission]
    name: str = "person"


OWNER = ApiCaller(rights=ALL_PERMISSIONS)
BROWSER_CALLER = ApiCaller(rights=WEB_USER_PERMISSIONS)


class Authenticator:
    """Authenticate callers by secrets derived from the token in `<home>/token`.

    Replacing or removing that file invalidates all sessions immediately. A cookie also needs its row in the token
    store: removing the row ends that browser's session.
    """

    def __init__(self, home: Path) -> None:
        self._token_path = home / TOKEN_FILE
        self._token_store = TokenStore(home)
        self._links: dict[str, float] = {}
        self._stamp: FileStamp | None = None
        self._token = ""
        self.throttle = LoginThrottle()
        self._reload_token()

    @property
    def token(self) -> str:
        with suppress(Failed, OSError):
            self._reload_token()
        return self._token

    @property
    def cookie_name(self) -> str:
        """Name of the cookie: pages of several homes on one machine share their host's cookies."""
        return f"retinue-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    def authenticate_bearer(self, secret: str) -> ApiCaller | None:
        """Return the caller that has this token, or None."""
        token = self.token
        if token and hmac.compare_digest(secret.encode("utf-8", "replace"), token.encode()):
            return OWNER
        with suppress(Failed):
            if token_info := self._token_store.find(secret):
                return ApiCaller(rights=token_info.rights, name=token_info.name)
        return None

    def authenticate_cookie(self, cookie: str) -> ApiCaller | None:
        """Return the caller that has this cookie, which a link was exchanged for, or None."""
        payload, _, signature = cookie.rpartition(".")
        if not self.token or not hmac.compare_digest(
            signature.encode("utf-8", "replace"), self._sign(payload).encode()
        ):
            return None
        expires_at = payload.partition(".")[0]
        if not expires_at.isdecimal() or int(expires_at) <= time.time():
            return None
        with suppress(Failed):
            return BROWSER_CALLER if self._token_store.find(cookie, browser_sessions=True) else None
        return None

    def create_link(self) -> str:
        """Create the code of a link that opens the page once."""
        now = time.monotonic()
        remaining = [(code, expires_at) for code, expires_at in self._links.items() if expires_at > now]
        self._links = dict(remaining[1 - MAX_LINKS :])
        code = secrets.token_urlsafe(32)
        self._links[code] = now + LINK_LIFETIME_SECONDS
        return code

    def redeem_link(self, code: str, browser: str = "") -> str | None:
        """Exchange a one-time code for a cookie value; None if the code is unknown, used or expired.

        The browser session is stored, so that it can be revoked alone.
        """
        if self._links.pop(code, 0.0) <= time.monotonic():
            return None
        now = datetime.now(UTC)
        expires_at = now + timedelta(seconds=COOKIE_LIFETIME_SECONDS)
        payload = f"{int(expires_at.timestamp())}.{secrets.token_urlsafe(12)}"
        cookie = f"{payload}.{self._sign(payload)}"
        self._token_store.add_browser_session(
            cookie,
            BROWSER_CALLER.rights,
            at=str(iso_timestamp(now)),
            until=str(iso_timestamp(expires_at)),
            browser=safe_text(browser),
        )
        return cookie

    def _sign(self, payload: str) -> str:
        digest = hmac.digest(self._token.encode(), b"page:" + payload.encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def _reload_token(self) -> None:
        """Reload the token if its file changed.

        An old token is invalid at once; with an unreadable file, all requests are refused.
        """
        stamp = file_stamp(os.fspath(self._token_path))
        if stamp is not None and stamp == self._stamp:
            return
        self._token, self._stamp = "", None
        self._token = _read_or_create_token(self._token_path)
        self._stamp = file_stamp(os.fspath(self._token_path))


def _read_or_create_token(path: Path) -> str:
    """Return the existing token, or create one of 256 bits that only the owner can read."""
    with suppress(FileNotFoundError):
        token = path.read_bytes().decode("ascii", "replace").strip()
        if len(token) >= MIN_TOKEN_CHARS:
            path.chmod(0o600)
            return token
        if token:
            raise Failed(
                f"{path} is shorter than {MIN_TOKEN_CHARS} characters. Remove it; the daemon creates a new one."
            )
    new_token = secrets.token_urlsafe(32)
    temporary_path = path.with_name(f"{path.name}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        temporary_path.unlink()
    descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{new_token}\n")
        temporary_path.replace(path)
    except OSError:
        temporary_path.unlink(missing_ok=True)
        raise
    return new_token
