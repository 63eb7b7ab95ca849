"""Settling: a new session's folder is on disk before anybody is told that it is there."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH118, PTH120

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from retinue.domain.session import Session
from retinue.errors import Failed
from retinue.sessions.folder import Built
from retinue.storage import file_names
from retinue.storage.file_io import sync_path
from retinue.storage.thread_pool import Threads

SHARE = 32
"""Sessions that one thread puts on disk while others are still being made."""


class Settling:
    """Sessions that are made at one time reach the disk together: a few threads are asked once each, and a folder that
    many of them stand in is synced once for all."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._new: list[tuple[Built, asyncio.Future[None]]] = []

    async def settled(self, built: Built) -> None:
        """On disk when this returns; an OSError where it is not."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._new.append((built, done))
        if len(self._new) == 1:
            loop.call_soon(self._begin)
        elif len(self._new) >= SHARE:
            self._begin()
        await self._threads.over(done)

    def _begin(self) -> None:
        new, self._new = self._new, []
        if not new:
            return
        made = [built for built, _ in new]
        try:
            work = self._threads.do(lambda: settle_all(made, self._threads), long=True)
        except Failed as closed:
            _told(new, [closed] * len(new))
            return
        work.add_done_callback(lambda done: _told(new, _failures(done, len(new))))


def _failures(
    done: "asyncio.Future[list[BaseException | None]]", count: int
) -> Sequence[BaseException | None]:
    """Whatever kept all of them from being tried kept each."""
    error = done.exception()
    return done.result() if error is None else [error] * count


def _told(
    new: Sequence[tuple[Built, asyncio.Future[None]]], failures: Sequence[BaseException | None]
) -> None:
    for (_, done), failure in zip(new, failures, strict=True):
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)


def settle_all(new: Sequence[Built], threads: Threads) -> list[BaseException | None]:
    """What kept each of them from being on disk."""
    failures: list[BaseException | None] = [None] * len(new)
    above: dict[str, list[int]] = {}
    for number, built in enumerate(new):
        try:
            above.setdefault(_inside(built.session, built.opened), []).append(number)
        except OSError as error:
            failures[number] = error
    for folder, numbers in above.items():
        try:
            _synced(folder, threads)
        except OSError as error:
            for number in numbers:
                failures[number] = error
    threads.settled.update(
        built.session.path for built, failure in zip(new, failures, strict=True) if failure is None
    )
    return failures


def settle(session: Session, threads: Threads) -> None:
    """A session whose folder somebody made by other means."""
    _synced(_inside(session, ()), threads)
    threads.settled.add(session.path)


def _inside(session: Session, opened: Sequence[int]) -> str:
    """What says who the session is and what it may do, and every name that is in nobody else's way; gives back the folder
    that it shares with others. The folder has its name already: so the first sync takes most of this along, where one
    before would cost a journal a commit of its own. The plan's facts stand in session.json, so the plan need not be
    waited for: one that was lost is written anew. The preset goes before session.json: a session that says who it is has
    rights that can be read. Whoever has just made these files has them `opened`, in this order."""
    for descriptor in opened:
        os.fsync(descriptor)
    if not opened:
        for name in (file_names.PRESET, file_names.FACTS):
            with suppress(FileNotFoundError):
                sync_path(os.path.join(session.path, name))
        sync_path(session.path)
    folder = session.path
    for _ in range(2 if session.top else 0):
        folder = os.path.dirname(folder)
        sync_path(folder)  # nobody else's
    return os.path.dirname(folder)


def _synced(folder: str, threads: Threads) -> None:
    """A folder of sessions; the one above it may be new too, with the first session of a process."""
    for _ in range(2):
        known = threads.known_folder(folder)
        threads.sync_folder(folder)
        if known:
            return
        folder = os.path.dirname(folder)
