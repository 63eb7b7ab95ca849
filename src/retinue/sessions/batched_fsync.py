"""Batched fsync: new sessions are durable before their creation is acknowledged."""

# Paths are joined and open_fds thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH118, PTH120

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from retinue.domain.session import Session
from retinue.errors import Failed
from retinue.sessions.folder import NewSessionFolder
from retinue.storage import file_names
from retinue.storage.file_io import fsync_path
from retinue.storage.thread_pool import DiskThreadPool

MAX_BATCH_SIZE = 32
"""Sessions that one thread makes durable while others are still being created."""


class BatchedFsync:
    """Make sessions that are created at the same time durable together.

    Few threads are used, and a parent folder shared by many sessions is synced once.
    """

    def __init__(self, threads: DiskThreadPool) -> None:
        self._threads = threads
        self._pending: list[tuple[NewSessionFolder, asyncio.Future[None]]] = []

    async def sync(self, new_session: NewSessionFolder) -> None:
        """Return once the session is on disk; raise OSError if that fails."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._pending.append((new_session, future))
        if len(self._pending) == 1:
            loop.call_soon(self._start_batch)
        elif len(self._pending) >= MAX_BATCH_SIZE:
            self._start_batch()
        await self._threads.await_completion(future)

    def _start_batch(self) -> None:
        batch, self._pending = self._pending, []
        if not batch:
            return
        sessions = [new_session for new_session, _ in batch]
        try:
            result = self._threads.submit(
                lambda: sync_new_sessions(sessions, self._threads), force_thread=True
            )
        except Failed as closed_error:
            _resolve_futures(batch, [closed_error] * len(batch))
            return
        result.add_done_callback(lambda done: _resolve_futures(batch, _failure_per_session(done, len(batch))))


def _failure_per_session(
    done: "asyncio.Future[list[BaseException | None]]", count: int
) -> Sequence[BaseException | None]:
    """Return one failure per session; an error of the whole batch counts for each of them."""
    error = done.exception()
    return done.result() if error is None else [error] * count


def _resolve_futures(
    batch: Sequence[tuple[NewSessionFolder, asyncio.Future[None]]], failures: Sequence[BaseException | None]
) -> None:
    for (_, future), failure in zip(batch, failures, strict=True):
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)


def sync_new_sessions(
    sessions: Sequence[NewSessionFolder], threads: DiskThreadPool
) -> list[BaseException | None]:
    """Sync new sessions to disk and return the failure of each, or None."""
    failures: list[BaseException | None] = [None] * len(sessions)
    by_parent: dict[str, list[int]] = {}
    for index, new_session in enumerate(sessions):
        try:
            by_parent.setdefault(_sync_session_files(new_session.session, new_session.open_fds), []).append(
                index
            )
        except OSError as error:
            failures[index] = error
    for folder, indexes in by_parent.items():
        try:
            _sync_sessions_folder(folder, threads)
        except OSError as error:
            for index in indexes:
                failures[index] = error
    threads.mark_durable(
        *(
            new_session.session.path
            for new_session, failure in zip(sessions, failures, strict=True)
            if failure is None
        )
    )
    return failures


def sync_session(session: Session, threads: DiskThreadPool) -> None:
    """Make an existing session durable."""
    _sync_sessions_folder(_sync_session_files(session, ()), threads)
    threads.mark_durable(session.path)


def _sync_session_files(session: Session, open_fds: Sequence[int]) -> str:
    """Sync a session's own files and folders; return the parent folder it shares with others.

    The folder already has its final name, so the first fsync includes most of the other writes. An fsync
    before the rename would cost another journal commit. The plan repeats data of session.json, so it is not
    synced: a lost plan is written again. The preset is synced before session.json, so that a session with an
    identity has readable permissions. `open_fds` holds descriptors of the new files, in this order.
    """
    for descriptor in open_fds:
        os.fsync(descriptor)
    if not open_fds:
        for name in (file_names.PRESET, file_names.METADATA):
            with suppress(FileNotFoundError):
                fsync_path(os.path.join(session.path, name))
        fsync_path(session.path)
    folder = session.path
    for _ in range(2 if session.is_top_level else 0):
        folder = os.path.dirname(folder)
        fsync_path(folder)  # not shared with other sessions
    return os.path.dirname(folder)


def _sync_sessions_folder(folder: str, threads: DiskThreadPool) -> None:
    """Sync a folder of sessions, and its parent if the folder itself may be new."""
    for _ in range(2):
        was_synced = threads.has_synced_folder(folder)
        threads.sync_folder(folder)
        if was_synced:
            return
        folder = os.path.dirname(folder)
