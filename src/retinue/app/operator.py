"""The operator's word, live: what the configuration denies is looked up at each call, not remembered from the start."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from retinue.app.log import log_line
from retinue.config import Config, load
from retinue.domain.ceiling import OPERATOR, Bounds, ceiling_of
from retinue.domain.price import Prices
from retinue.domain.rule import below
from retinue.domain.run import iso
from retinue.errors import RetinueError

Stamp = tuple[int, int, int] | None

UNREAD = "the configuration cannot be read any more, and what it denied before is all that is denied: {why}"
READ_AGAIN = "the configuration is read again, and what it denies counts from now on"


class Operator:
    """A deny counts from the moment it stands in the file. A file that cannot be read lifts nothing and adds nothing:
    what it said last still counts, and whoever listens is told, once for each state of the file."""

    def __init__(self, config: Config, *, now: Callable[[], datetime]) -> None:
        self.tell: Callable[[str], None] = _nobody
        """Hears what the operator should know; the log has it in any case."""
        self._config = config
        self._now = now
        self._broken = False
        self._fresh = False
        self._places = [os.fspath(config.folder / name) for name in ("config.toml", "config.json")]
        self._stamps = self._looked()
        self._bounds = bounds_of(config)
        self._prices = config.prices

    def prices(self) -> Prices:
        """What tokens cost, as it stands in the file now."""
        self()
        return self._prices

    def __call__(self) -> Bounds:
        """Looked up once in a round of the loop, for all who ask in it."""
        if not self._fresh:
            self._look()
            with suppress(RuntimeError):  # no loop: then each asks for itself
                asyncio.get_running_loop().call_soon(self._aged)
                self._fresh = True
        return self._bounds

    def _aged(self) -> None:
        self._fresh = False

    def _look(self) -> None:
        stamps = self._looked()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                now = load({**self._config.env, "RETINUE_CONFIG": os.fspath(self._config.folder)})
            except RetinueError as error:
                self._broken = True
                self._say(UNREAD.format(why=str(error).rstrip(".")))
                return
            if self._broken:
                self._broken = False
                self._say(READ_AGAIN)
            self._prices = now.prices
            self._bounds = bounds_of(replace(self._config, deny=now.deny, ceiling=now.ceiling))

    def _say(self, sentence: str) -> None:
        log_line(self._config.home, {"at": iso(self._now()), "level": "warn", "what": sentence})
        with suppress(
            OSError
        ):  # whoever listened may be gone, and that is no affair of the call that is judged
            self.tell(sentence)

    def _looked(self) -> list[Stamp]:
        return [_stamp(place) for place in self._places]


def _nobody(_sentence: str) -> None:
    """Listens to nothing: the log has it."""


def bounds_of(config: Config) -> Bounds:
    """The operator's denies and ceiling, with Retinue's own folders closed to every agent."""
    return Bounds(
        deny_tools=config.deny.get("tools", ()),
        deny_paths=config.deny.get("paths", ()),
        deny_agents=config.deny.get("agents", ()),
        closed=tuple(below(os.path.realpath(folder)) for folder in (config.home, config.folder)),
        ceiling=replace(ceiling_of(config.ceiling, by=OPERATOR, root="/"), **_relative(config)),
    )


def _relative(config: Config) -> dict[str, Any]:
    """The ceiling's paths as they are written: each session's workspace is where they start."""
    paths: Mapping[str, tuple[str, ...] | None] = (config.ceiling or {}).get("paths") or {}
    return {"read": paths.get("read"), "write": paths.get("write"), "deny": paths.get("deny") or ()}


def _stamp(place: str) -> Stamp:
    try:
        found = os.stat(place)  # noqa: PTH116  (at every call: a Path costs more than the look)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
