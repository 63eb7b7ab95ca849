"""API tokens with limited permissions and browser sessions, stored as hashes in `<home>/tokens.json`."""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from retinue.domain.api_permission import ApiPermission
from retinue.errors import Failed, NotFound, UsageError
from retinue.storage.file_io import FileStamp, file_stamp, read_file, replace_file, write_error
from retinue.storage.file_lock import file_lock

TOKENS_FILE = "tokens.json"
TOKEN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
BROWSER_TOKEN_PREFIX = "page-"  # noqa: S105  (a prefix)
"""Prefix of the names of browser sessions."""
MAX_BROWSER_TOKENS = 200
MAX_BROWSER_NAME_CHARS = 200
"""Maximum length of the stored User-Agent."""


class Token(Struct, frozen=True, kw_only=True):
    """The stored properties of a token, without its secret."""

    name: str
    rights: frozenset[ApiPermission]
    made_at: str
    until: str | None = None
    """Expiry time of a browser session."""
    browser: str | None = None
    """User-Agent of a browser session."""


class _StoredToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    sha256: str
    rights: list[ApiPermission]
    made_at: str
    until: str | None = None
    browser: str | None = None


class TokenStore:
    """Token store, read again whenever its file changed.

    Added and removed tokens take effect at once in every process.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / TOKENS_FILE
        self._loaded_stamp: FileStamp | None = None
        self._stored_tokens: Mapping[str, _StoredToken] = {}

    def all(self) -> Sequence[Token]:
        return [_token_info(name, stored) for name, stored in sorted(self._load().items())]

    def find(self, secret: str, *, browser_sessions: bool = False) -> Token | None:
        """Return the token or browser session that this secret belongs to.

        Every hash is compared, each in constant time, so that timing reveals nothing.
        """
        digest, found = _hash_token(secret), None
        for name, stored in self._load().items():
            if hmac.compare_digest(stored.sha256, digest) and (stored.until is not None) is browser_sessions:
                found = _token_info(name, stored)
        return found

    def add_browser_session(
        self, cookie: str, rights: frozenset[ApiPermission], *, at: str, until: str, browser: str
    ) -> None:
        """Store a browser session; drop expired ones, and the oldest beyond the maximum."""
        stored = _StoredToken(
            sha256=_hash_token(cookie),
            rights=sorted(rights),
            made_at=at,
            until=until,
            browser=browser[:MAX_BROWSER_NAME_CHARS] or "unknown",
        )
        with self._exclusive():
            tokens = {
                key: each for key, each in self._load().items() if each.until is None or each.until > at
            }
            browser_tokens = sorted(
                (each.made_at, key) for key, each in tokens.items() if each.until is not None
            )
            for _, oldest in browser_tokens[: max(0, len(browser_tokens) - MAX_BROWSER_TOKENS + 1)]:
                del tokens[oldest]
            self._save({**tokens, f"{BROWSER_TOKEN_PREFIX}{stored.sha256[:12]}": stored})

    def add(self, name: str, rights: frozenset[ApiPermission], *, at: str) -> str:
        """Create a token and return its secret, which cannot be shown again."""
        if not TOKEN_NAME.fullmatch(name):
            raise UsageError(
                f"{name[:80]!r} is not a valid token name. Use at most 64 of a-z, 0-9 and hyphens."
            )
        if name.startswith(BROWSER_TOKEN_PREFIX):
            raise UsageError(
                f"{name!r} is not a valid token name: {BROWSER_TOKEN_PREFIX} is reserved for browser sessions."
            )
        if not rights:
            raise UsageError(
                f"A token requires at least one permission. Choose from {', '.join(ApiPermission)}."
            )
        secret = secrets.token_urlsafe(32)
        with self._exclusive():
            tokens = self._load()
            if name in tokens:
                raise UsageError(
                    f"A token named {name} already exists. Remove it first with `retinue tokens remove {name}`."
                )
            stored = _StoredToken(sha256=_hash_token(secret), rights=sorted(rights), made_at=at)
            self._save({**tokens, name: stored})
        return secret

    def remove(self, name: str) -> None:
        with self._exclusive():
            tokens = self._load()
            if name not in tokens:
                raise NotFound(f"Token {name[:80]!r} not found. List the tokens with `retinue tokens list`.")
            self._save({key: stored for key, stored in tokens.items() if key != name})

    @contextmanager
    def _exclusive(self) -> Generator[None]:
        with ExitStack() as stack:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(file_lock(f"{self.path}.lock"))
            except OSError as error:
                raise write_error(f"{self.path}.lock", error) from error
            yield

    def _load(self) -> Mapping[str, _StoredToken]:
        """Load the file if it changed. An unreadable file grants no access."""
        path = os.fspath(self.path)
        try:
            if (stamp := file_stamp(path)) != self._loaded_stamp or stamp is None:
                self._stored_tokens = (
                    {}
                    if stamp is None
                    else msgspec.json.decode(read_file(path), type=dict[str, _StoredToken])
                )
                self._loaded_stamp = stamp
        except FileNotFoundError:
            self._stored_tokens, self._loaded_stamp = {}, None
        except (OSError, ValueError, RecursionError) as error:
            self._stored_tokens, self._loaded_stamp = {}, None
            raise Failed(f"{path} cannot be read ({error}). Repair or remove it.") from error
        return self._stored_tokens

    def _save(self, tokens: Mapping[str, _StoredToken]) -> None:
        text = msgspec.json.format(msgspec.json.encode(dict(tokens)), indent=2) + b"\n"
        replace_file(os.fspath(self.path), text, token=secrets.token_hex(8))


def _token_info(name: str, stored: _StoredToken) -> Token:
    return Token(
        name=name,
        rights=frozenset(stored.rights),
        made_at=stored.made_at,
        until=stored.until,
        browser=stored.browser,
    )


def _hash_token(token: str) -> str:
    """Hash a token. A fast hash is enough: 256 random bits cannot be guessed at any speed."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
