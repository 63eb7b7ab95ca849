"""Keys that a command prints: short-lived tokens, kept until they expire."""

import asyncio
import base64
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

import msgspec

from retinue.providers.errors import ProviderError, sanitize_server_text
from retinue.providers.retry_policy import AUTH, provider_error

COMMAND_TIMEOUT_S = 30.0
DEFAULT_LIFETIME_S = 300.0
"""How long a key is kept that does not say when it expires."""
EXPIRY_MARGIN_S = 60.0
"""A key is fetched again this long before it expires."""
MAX_OUTPUT_BYTES = 64 * 1024
_KEY_FIELDS = ("access_token", "token", "key", "api_key", "id_token")


class KeyCommand:
    """A command that prints a key, or a JSON object with one and its expiry; it runs again when the key expires."""

    def __init__(
        self,
        command: str,
        add_secret: Callable[[str], None],
        now: Callable[[], datetime],
        *,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> None:
        self._command = command
        self._now = now
        self._add_secret = add_secret
        self._timeout_s = timeout_s
        self._key = ""
        self._expires_at = -math.inf
        self._lock = asyncio.Lock()

    async def fetch(self) -> str:
        """Return the key; concurrent requests wait for one run of the command.

        Raises:
            ProviderError: The command failed, printed nothing, or did not end in time.
        """
        async with self._lock:
            loop_time = asyncio.get_running_loop().time
            if loop_time() >= self._expires_at:
                key, lifetime_s = parse_key(await self._run(), self._now())
                if not key:
                    raise _key_error("printed no key")
                self._add_secret(key)
                self._key, self._expires_at = key, loop_time() + lifetime_s
            return self._key

    def forget(self) -> None:
        """Run the command again for the next request, because the server rejected the key."""
        self._expires_at = -math.inf

    async def _run(self) -> str:
        """Run the command as the user's shell would, but never in a project's folder."""
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise _key_error(f"could not be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise _key_error(f"did not end within {self._timeout_s:g} seconds") from error
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await process.wait()
        if process.returncode != 0:
            reason = sanitize_server_text(errors.decode("utf-8", "replace"))
            raise _key_error(
                f"failed with exit code {process.returncode}" + (f": {reason}" if reason else "")
            )
        return output[:MAX_OUTPUT_BYTES].decode("utf-8", "replace").strip()


def parse_key(output: str, now: datetime) -> tuple[str, float]:
    """Return the key and the seconds for which it is kept."""
    fields = _parse_object(output)
    if fields is None:
        return output, _lifetime_of(_token_claims(output), now)
    key = next((value for name in _KEY_FIELDS if isinstance(value := fields.get(name), str)), "")
    return key.strip(), _lifetime_of(fields if _has_expiry(fields) else _token_claims(key), now)


def _parse_object(text: str) -> Mapping[str, Any] | None:
    try:
        found: Any = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else None


def _token_claims(token: str) -> Mapping[str, Any]:
    """Return what a JSON Web Token says about itself."""
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 — head, claims, signature
        return {}
    try:
        return _parse_object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)).decode()) or {}
    except ValueError:
        return {}


def _has_expiry(fields: Mapping[str, Any]) -> bool:
    return any(name in fields for name in ("expires_in", "expires_at", "expiry", "exp"))


def _lifetime_of(fields: Mapping[str, Any], now: datetime) -> float:
    seconds = fields.get("expires_in")
    if not isinstance(seconds, int | float):
        at = next((fields[name] for name in ("expires_at", "expiry", "exp") if fields.get(name)), None)
        seconds = _seconds_until(at, now)
    if seconds is None:
        return DEFAULT_LIFETIME_S
    return max(0.0, float(seconds) - EXPIRY_MARGIN_S)


def _seconds_until(at: object, now: datetime) -> float | None:
    try:
        if isinstance(at, int | float):
            return at - now.timestamp()
        return (datetime.fromisoformat(str(at)) - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None


def _key_error(problem: str) -> ProviderError:
    return provider_error(f"the command of api_key_command {problem}", AUTH)
