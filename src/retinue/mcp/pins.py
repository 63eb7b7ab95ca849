"""Pins: the tools of servers that a person agreed to, each whole, with its hash, as it was then."""

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from retinue.domain.mcp_tool import HINTS, Offer, Pin
from retinue.errors import Failed, NotFound
from retinue.storage.file_io import Stamp, no_room, read_file, replace_file, stamp_of
from retinue.storage.file_lock import alone

Pinned = Mapping[str, Mapping[str, Pin]]
"""Server → tool → what was agreed to."""


class Pins:
    """`<home>/mcp.json`. Read anew whenever it has changed: what is trusted, or is not any more, counts at once, in
    every process."""

    def __init__(self, path: Path, *, token: Callable[[], str]) -> None:
        self._path = os.fspath(path)
        self._token = token
        self._seen: Stamp | None = None
        self._pinned: Pinned = {}

    def stamp(self) -> Stamp | None:
        """Tells a change."""
        return stamp_of(self._path)

    def all(self) -> Pinned:
        """A file that cannot be read is an error: nothing is trusted by mistake, and nothing forgotten by one."""
        stamp = self.stamp()
        if stamp is None:
            return {}
        if stamp != self._seen:
            self._pinned, self._seen = _read(self._path), stamp
        return self._pinned

    def of(self, server: str) -> Mapping[str, Pin]:
        return self.all().get(server, {})

    def trust(self, server: str, offers: Sequence[Offer]) -> None:
        """Exactly these are trusted from now on, of this server."""
        with self._changing() as pinned:
            pinned[server] = {offer.name: Pin(offer=offer) for offer in offers}

    def distrust(self, server: str) -> None:
        if not self.of(server):
            raise NotFound(f"nothing of {server} is trusted: `retinue mcp list` shows what is")
        with self._changing() as pinned:
            pinned.pop(server, None)

    def changed(self, server: str, pin: Pin, now: str) -> None:
        """A tool is not what was agreed to, and is refused until a person has looked at it again. If meanwhile somebody
        has agreed to something else, that stands."""
        if self.of(server).get(pin.offer.name) != pin:
            return
        with self._changing() as pinned:
            tools = dict(pinned.get(server, {}))
            if tools.get(pin.offer.name) == pin:
                pinned[server] = {**tools, pin.offer.name: Pin(offer=pin.offer, changed=now)}

    @contextmanager
    def _changing(self) -> Generator[dict[str, Mapping[str, Pin]]]:
        """Between reading and writing nobody else writes."""
        try:
            Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with alone(f"{self._path}.lock"):
                pinned = dict(self.all())
                yield pinned
                text = json.dumps(_as_json(pinned), indent=2) + "\n"
                replace_file(self._path, text.encode(), token=self._token())
        except OSError as error:
            raise no_room(self._path, error) from error


def _as_json(pinned: Pinned) -> dict[str, Any]:
    return {
        server: {
            name: {
                "sha256": pin.offer.hash,
                **({"changed": pin.changed} if pin.changed else {}),
                "description": pin.offer.description,
                "hints": dict(pin.offer.hints),
                "schema": pin.offer.schema,
            }
            for name, pin in sorted(tools.items())
        }
        for server, tools in sorted(pinned.items())
        if tools
    }


def _read(path: str) -> Pinned:
    try:
        found: Any = json.loads(read_file(path))
        return {
            server: {name: _pin(name, facts) for name, facts in tools.items()}
            for server, tools in cast("dict[str, dict[str, dict[str, Any]]]", found).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Failed(f"{path} is not what Retinue wrote ({error}): mend or remove it") from error


def _pin(name: str, facts: Mapping[str, Any]) -> Pin:
    """What does not have its own hash was not agreed to by anybody: it is refused."""
    hints: Mapping[str, Any] = facts.get("hints") or {}
    offer = Offer(
        name=name,
        description=str(facts["description"]),
        schema=dict(facts["schema"]),
        hints={hint: bool(hints[hint]) for hint in HINTS if hint in hints},
    )
    changed = str(facts.get("changed") or "")
    return Pin(offer=offer, changed=changed if facts["sha256"] == offer.hash else changed or offer.hash)
