"""Settling: a new session's folder is on disk before anybody is told that it is there."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH118, PTH120

import os
from contextlib import suppress

from retinue.domain.session import Session
from retinue.store import names
from retinue.store.disk import sync_path
from retinue.store.threads import Threads


def settle(session: Session, threads: Threads) -> None:
    """What says who the session is and what it may do, and every name on the way to it. The plan's facts stand in
    session.json, so the plan need not be waited for: one that was lost is written anew."""
    for name in (names.PRESET, names.FACTS):
        with suppress(FileNotFoundError):
            sync_path(os.path.join(session.path, name))
    sync_path(session.path)
    _named(session, 4 if session.top else 2, session.path, threads)


def settle_name(session: Session, whole: str, threads: Threads) -> None:
    """The same for a folder that was on disk before it got its name: `whole` is all of it."""
    _named(session, 2, whole, threads)


def _named(session: Session, levels: int, folder: str, threads: Threads) -> None:
    """The topmost may be new with the first session of a process: the folder of all sessions, that of all children."""
    for _ in range(levels):
        folder = os.path.dirname(folder)
        known = threads.known_folder(folder)
        threads.sync_folder(folder)
        if known:
            break
    threads.settled.add(session.path)
