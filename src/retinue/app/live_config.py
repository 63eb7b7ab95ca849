"""The operator's word, live: what the configuration denies is looked up at each call, not remembered from the start."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from retinue.app.log_file import log_line
from retinue.config.load import Config, load
from retinue.domain.ceiling import OPERATOR, Bounds, ceiling_of
from retinue.domain.pricing import Prices
from retinue.domain.rules import below
from retinue.domain.run import iso
from retinue.errors import RetinueError

Stamp = tuple[int, int, int] | None

UNSEEN: Stamp = (-1, -1, -1)
SETTLED_NS = 2_000_000_000
"""A folder changed more recently than this may change again within one tick of its clock, unseen by its stamp."""
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
        self._folder = os.fspath(config.folder)
        self._places = [os.fspath(config.folder / name) for name in ("config.toml", "config.json")]
        self._stamps: list[Stamp] = []
        self._there: list[tuple[str, Stamp]] = []
        """Those that are there. One that is not appears only with a change of the folder: links are not followed."""
        self._folder_stamp: Stamp = None
        self._look_at_all()
        self._bounds = bounds_of(config)
        self._prices = config.prices

    def prices(self) -> Prices:
        """What tokens cost, as it stands in the file now."""
        self()
        return self._prices

    def __call__(self) -> Bounds:
        if not self._as_it_was():
            self._look()
        return self._bounds

    def _as_it_was(self) -> bool:
        """Whether nothing can have changed: a look at what is there, and none at what is not."""
        if self._folder_stamp is None or _stamp(self._folder) != self._folder_stamp:
            return False
        return all(_stamp(place) == stamp for place, stamp in self._there)

    def _look(self) -> None:
        before = self._stamps
        self._look_at_all()
        if before != self._stamps:
            try:
                now = load({**self._config.env, "RETINUE_CONFIG": os.fspath(self._config.folder)})
            except (RetinueError, OSError) as error:
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

    def _look_at_all(self) -> None:
        """A folder that changed a moment ago may change again within one tick of its clock: its stamp counts later."""
        folder = _stamp(self._folder)
        self._stamps = [_stamp(place) for place in self._places]
        self._there = [each for each in zip(self._places, self._stamps, strict=True) if each[1] is not None]
        settled = folder is not None and not 0 <= time.time_ns() - folder[1] < SETTLED_NS
        self._folder_stamp = folder if settled and UNSEEN not in (folder, *self._stamps) else None


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
    """None where there is nothing. What cannot be looked at may be there all the same, and deny something."""
    try:
        found = os.stat(place)  # noqa: PTH116  (at every call: a Path costs more than the look)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return UNSEEN
    return found.st_ino, found.st_mtime_ns, found.st_size
