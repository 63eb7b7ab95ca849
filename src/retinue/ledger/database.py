"""The ledger's file: made, opened, brought up to date, and what its failures mean."""

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from retinue.errors import Failed, Held, NoRoom, RetinueError, Unreadable
from retinue.ledger.journal_mode import WAL, journal, kind_of

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""How long another process may keep the file from us before that is an error, for each batch of steps."""

PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02)
"""Between two tries; the last one is repeated."""

_PAGE = 2048
"""A step changes a few bytes on each of some pages, and every one of these is written whole. Smaller pages would leave
room for one run each, and so much of them empty."""
_LOG = 4 * 1024 * 1024
"""How long the log becomes, about, before its pages are taken over into the file."""
_SCHEMA = Path(__file__).with_name("schema")
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_LEAST_ROOM = 64 * 1024
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, this user's share of it, or what this process may put into one file."""
_DISK = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file cannot be written",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_AUTH: "access is denied",
}


def opened(
    path: Path, *, patience: float = PATIENCE_SECONDS, kind: Callable[[Path], str] = kind_of
) -> sqlite3.Connection:
    """A connection to an up-to-date ledger; the file and its folder are made for this user alone. `kind` says what kind
    of disk a folder is on."""
    try:
        _made(path)
    except OSError as error:
        why = error.strerror or error
        raise NoRoom(f"{path}: the ledger cannot be kept here: {why}", full=error.errno in _FULL) from error
    try:
        if not _writable(path):
            return _patiently(lambda: _looked_at(path), patience)
        return _patiently(lambda: _connected(path, journal(kind(path.parent))), patience)
    except sqlite3.Error as error:
        raise meaning(error, path) from error


def place(path: Path) -> str:
    """The file as SQLite is to open it. Where nothing can be written it is only read: without a log nobody writes to it
    elsewhere, and the file is all there is; with one, the log's index must be there too."""
    if _writable(path):
        return path.absolute().as_uri()
    logged = path.with_name(f"{path.name}-wal").exists()
    return f"{path.absolute().as_uri()}?mode=ro{'' if logged else '&immutable=1'}"


def newest() -> int:
    """The version of the schema that an up-to-date ledger has."""
    return max(int(step.stem) for step in _SCHEMA.glob("*.sql"))


def is_busy(error: Exception) -> bool:
    return _code(error) in _BUSY


def meaning(error: sqlite3.Error, path: Path) -> RetinueError:
    """What an error of the database says to a person."""
    code = _code(error)
    if code in _BUSY:
        return Held(f"{path}: another process keeps the ledger locked; end that process, or try again")
    if code in _DISK:
        if code != sqlite3.SQLITE_FULL and _full(path):
            code = sqlite3.SQLITE_FULL
        full = code == sqlite3.SQLITE_FULL
        do = "; make room and try again" if full else ""
        return NoRoom(f"{path}: {_DISK[code]} ({error}){do}", full=full)
    if code in _BROKEN or code is None:
        return damaged(path, "the ledger", error)
    return Failed(f"{path}: the ledger refused a statement ({error})")


def _full(path: Path) -> bool:
    """A full disk often shows as another error: the log's index cannot be made, or a page cannot be written. A share of
    the disk that is used up shows only to those who write."""
    with suppress(OSError):
        disk = os.statvfs(path.parent)
        if disk.f_bavail * disk.f_frsize < _LEAST_ROOM:
            return True
    try:
        _grown(path)
    except OSError as error:
        return error.errno in _FULL
    return False


def _grown(path: Path) -> None:
    """A nameless file beside the log becomes as long as the log, and a little longer."""
    log = path.with_name(f"{path.name}-wal")
    size = max((each.stat().st_size for each in (path, log) if each.exists()), default=0)
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, bytes(_LEAST_ROOM), size)
    finally:
        os.close(descriptor)


def damaged(path: Path, thing: str, error: Exception) -> Unreadable:
    return Unreadable(str(path), f"{thing} is damaged ({error}); run: retinue doctor --repair")


def _code(error: Exception) -> int | None:
    """The primary result code; None where the module itself could not read a value."""
    extended = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


def _patiently(action: Callable[[], T], patience: float) -> T:
    """Tries again while another process is in the way. Sleeps: for a thread of its own, never for the loop."""
    until = time.monotonic() + patience
    attempt = 0
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
        time.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        attempt += 1


def _writable(path: Path) -> bool:
    return os.access(path.parent, os.W_OK)


def _made(path: Path) -> None:
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        # Only a file that is not there yet is opened by hand: closing any descriptor of a live ledger would give up
        # this process's locks on it, and the next process to leave would take the log away from under us.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not stat.S_ISREG(path.stat().st_mode):
            raise NoRoom(f"{path}: the ledger needs an ordinary file here; move this one away") from None
    else:
        _named(path)


def _named(path: Path) -> None:
    """A home that is new has its name on disk before anything in it is acknowledged, and so have the folders above it:
    whoever made one of them may not have waited for that. Those that are not ours to open were there before."""
    for folder in path.parents:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    # The two threads that use a connection never do so at the same time.
    connection = sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.execute(f"PRAGMA page_size={_PAGE}").close()  # of a new file; others stay as they are
        connection.execute(f"PRAGMA journal_mode={mode}").close()
        # Without a log a commit is over when its journal is gone, and gone it must stay when the power fails.
        connection.execute(f"PRAGMA synchronous={'FULL' if mode == WAL else 'EXTRA'}").close()
        _migrated(connection, path)
        page = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA wal_autocheckpoint={_LOG // page}").close()
    except BaseException:
        connection.close()
        raise
    return connection


def _looked_at(path: Path) -> sqlite3.Connection:
    """What stands there can be read, unless it would have to be brought up to date first."""
    connection = sqlite3.connect(
        place(path), uri=True, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        _up_to_date(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    if (found := _version(connection, path, newest())) < newest():
        raise NoRoom(
            f"{path}: this ledger is of an older Retinue (version {found}), and cannot be brought up to date where "
            "nothing can be written: let its folder be written to once"
        )


def _migrated(connection: sqlite3.Connection, path: Path) -> None:
    """Each step of the schema is one transaction, so a crash between two leaves a ledger that goes on from there."""
    last = newest()
    for step in sorted(_SCHEMA.glob("*.sql")):
        if _version(connection, path, last) >= int(step.stem):
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _version(connection, path, last) < int(step.stem):
                _executed(connection, step.read_text("utf-8"))
                connection.execute(f"PRAGMA user_version={int(step.stem)}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _version(connection: sqlite3.Connection, path: Path, last: int) -> int:
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > last:
        raise Failed(
            f"{path}: this ledger was written by a newer Retinue (version {found}, here {last}); upgrade Retinue"
        )
    return found


def _executed(connection: sqlite3.Connection, script: str) -> None:
    """Statement by statement, because executescript would commit first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
