"""Narrower tokens, and visits: a name, some rights and a hash each, in `<home>/tokens.json`. What opens a door is itself
kept nowhere."""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from retinue.domain.api_permission import Right
from retinue.domain.value import value
from retinue.errors import Failed, NotFound, Usage
from retinue.storage.file_io import Stamp, no_room, read_file, replace_file, stamp_of
from retinue.storage.file_lock import alone

FILE = "tokens.json"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
VISIT = "page-"
"""What the name of a visit begins with."""
MOST_VISITS = 200
MOST_BROWSER = 200
"""Characters of what a browser calls itself."""


@value
class Token:
    """What is known of a token without having it."""

    name: str
    rights: frozenset[Right]
    made_at: str
    until: str | None = None
    """Of a visit: when it ends by itself."""
    browser: str | None = None
    """Of a visit: what the browser calls itself."""


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    sha256: str
    rights: list[Right]
    made_at: str
    until: str | None = None
    browser: str | None = None


class Tokens:
    """Read again whenever the file is another one: what is added or removed counts at once, in every process."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self._stamp: Stamp | None = None
        self._known: Mapping[str, _Kept] = {}

    def all(self) -> Sequence[Token]:
        return [_token(name, kept) for name, kept in sorted(self._read().items())]

    def find(self, said: str, *, visits: bool = False) -> Token | None:
        """Whose token this is, or whose cookie. Every hash is compared, and each in a time that tells nothing."""
        mark, found = _hashed(said), None
        for name, kept in self._read().items():
            if hmac.compare_digest(kept.sha256, mark) and (kept.until is not None) is visits:
                found = _token(name, kept)
        return found

    def visited(self, cookie: str, rights: frozenset[Right], *, at: str, until: str, browser: str) -> None:
        """A browser has come in with a link. Visits that are over by themselves go, and so does the oldest of very many."""
        kept = _Kept(
            sha256=_hashed(cookie),
            rights=sorted(rights),
            made_at=at,
            until=until,
            browser=browser[:MOST_BROWSER] or "unknown",
        )
        with self._alone():
            known = {key: each for key, each in self._read().items() if each.until is None or each.until > at}
            visits = sorted((each.made_at, key) for key, each in known.items() if each.until is not None)
            for _, oldest in visits[: max(0, len(visits) - MOST_VISITS + 1)]:
                del known[oldest]
            self._write({**known, f"{VISIT}{kept.sha256[:12]}": kept})

    def add(self, name: str, rights: frozenset[Right], *, at: str) -> str:
        """The new token, which nobody can be told again."""
        if not NAME.fullmatch(name):
            raise Usage(f"{name[:80]!r} is no name for a token: use a to z, 0 to 9 and -, at most 64")
        if name.startswith(VISIT):
            raise Usage(f"{name!r} would look like a browser's: names that begin with {VISIT} are theirs")
        if not rights:
            raise Usage(f"a token without rights opens nothing: name some of {', '.join(Right)}")
        made = secrets.token_urlsafe(32)
        with self._alone():
            known = self._read()
            if name in known:
                raise Usage(f"there is a token {name} already: `retinue tokens remove {name}` first")
            kept = _Kept(sha256=_hashed(made), rights=sorted(rights), made_at=at)
            self._write({**known, name: kept})
        return made

    def remove(self, name: str) -> None:
        with self._alone():
            known = self._read()
            if name not in known:
                raise NotFound(
                    f"there is no token {name[:80]!r}: `retinue tokens list` shows those there are"
                )
            self._write({key: kept for key, kept in known.items() if key != name})

    @contextmanager
    def _alone(self) -> Generator[None]:
        with ExitStack() as stack:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(alone(f"{self.path}.lock"))
            except OSError as error:
                raise no_room(f"{self.path}.lock", error) from error
            yield

    def _read(self) -> Mapping[str, _Kept]:
        """A file that cannot be understood opens nothing to anybody."""
        path = os.fspath(self.path)
        try:
            if (now := stamp_of(path)) != self._stamp or now is None:
                self._known = (
                    {} if now is None else msgspec.json.decode(read_file(path), type=dict[str, _Kept])
                )
                self._stamp = now
        except FileNotFoundError:
            self._known, self._stamp = {}, None
        except (OSError, ValueError, RecursionError) as error:
            self._known, self._stamp = {}, None
            raise Failed(f"{path} cannot be read ({error}): mend or remove it") from error
        return self._known

    def _write(self, known: Mapping[str, _Kept]) -> None:
        text = msgspec.json.format(msgspec.json.encode(dict(known)), indent=2) + b"\n"
        replace_file(os.fspath(self.path), text, token=secrets.token_hex(8))


def _token(name: str, kept: _Kept) -> Token:
    return Token(
        name=name,
        rights=frozenset(kept.rights),
        made_at=kept.made_at,
        until=kept.until,
        browser=kept.browser,
    )


def _hashed(token: str) -> str:
    """Fast on purpose: 256 random bits cannot be guessed, however quickly they are tried."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
