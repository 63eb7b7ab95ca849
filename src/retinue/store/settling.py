"""Settling: a new session's folder is on disk before anybody is told that it is there."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH118, PTH120

import os
from collections.abc import Sequence
from contextlib import suppress

from retinue.domain.session import Session
from retinue.store import names
from retinue.store.disk import sync_path
from retinue.store.threads import Threads


def settle(session: Session, threads: Threads, *, opened: Sequence[int] = ()) -> None:
    """What says who the session is and what it may do, and every name on the way to it; the topmost may be new with the
    first session of a process. The folder has its name already: so the first sync takes most of this along, where one
    before would cost a journal a commit of its own. The plan's facts stand in session.json, so the plan need not be
    waited for: one that was lost is written anew. The preset goes before session.json: a session that says who it is has
    rights that can be read. Whoever has just made these files has them `opened`, in this order."""
    for descriptor in opened:
        os.fsync(descriptor)
    if not opened:
        for name in (names.PRESET, names.FACTS):
            with suppress(FileNotFoundError):
                sync_path(os.path.join(session.path, name))
        sync_path(session.path)
    folder = session.path
    for _ in range(2 if session.top else 0):
        folder = os.path.dirname(folder)
        sync_path(folder)  # nobody else's
    for _ in range(2):
        folder = os.path.dirname(folder)
        known = threads.known_folder(folder)
        threads.sync_folder(folder)
        if known:
            break
    threads.settled.add(session.path)
