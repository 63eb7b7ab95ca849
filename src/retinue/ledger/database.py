"""The ledger's SQLite file: creation, opening, schema migration and error translation."""

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from retinue.errors import DiskError, Failed, RetinueError, SessionLocked, Unreadable
from retinue.ledger.journal_mode import WAL, detect_filesystem_type, journal_mode_for
from retinue.storage.file_io import DISK_ADVICE

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
"""Time that another process may keep the file locked before that is an error, per batch of steps."""

BUSY_RETRY_DELAYS_S = (0.001, 0.002, 0.005, 0.01, 0.02)
"""Delays between attempts; the last one is repeated."""

_PAGE_SIZE = 2048
"""A compromise: a step changes a few bytes on several pages, and each changed page is written whole, but smaller pages
would hold only one run each.
"""
_WAL_SIZE = 4 * 1024 * 1024
"""Approximate size of the write-ahead log at which its pages are checkpointed into the file."""
_SCHEMA_FOLDER = Path(__file__).with_name("schema")
_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CORRUPTION_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_MIN_FREE_BYTES = 64 * 1024
_READ_BYTES = 1 << 20
_DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk is full, the user's quota is used up, or the process's file size limit is reached."""
_DISK_ERROR_MESSAGES = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file cannot be written",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_AUTH: "access is denied",
}


def open_database(
    path: Path,
    *,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    detect_filesystem: Callable[[Path], str] = detect_filesystem_type,
) -> sqlite3.Connection:
    """Open the ledger, migrating its schema and creating a missing file for this user alone.

    `detect_filesystem` returns the file system type of a folder.
    """
    try:
        _create_database_file(path)
    except OSError as error:
        cause = error.strerror or error
        raise DiskError(
            f"{path}: the ledger cannot be created: {cause}", is_full=error.errno in _DISK_FULL_ERRNOS
        ) from error
    try:
        if not _is_writable(path):
            return _retry_while_busy(lambda: _connect_read_only(path), busy_timeout_s)
        return _retry_while_busy(
            lambda: _connect_read_write(path, journal_mode_for(detect_filesystem(path.parent))),
            busy_timeout_s,
        )
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, path) from error


def open_memory_database() -> sqlite3.Connection:
    """Open an empty database with the current schema in memory."""
    connection = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.deserialize(_empty_database())
    return connection


@cache
def _empty_database() -> bytes:
    """Return a database with the current schema and no rows: quicker to copy than to migrate."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _migrate_schema(connection, Path(":memory:"))
        return connection.serialize()
    finally:
        connection.close()


def database_uri(path: Path) -> str:
    """Return the URI to open the file with, read-only if its folder cannot be written.

    Read-only and without a write-ahead log, no other process writes the file, so it is opened as immutable.
    With a log, the log's index must be readable too.
    """
    if _is_writable(path):
        return path.absolute().as_uri()
    has_wal = path.with_name(f"{path.name}-wal").exists()
    return f"{path.absolute().as_uri()}?mode=ro{'' if has_wal else '&immutable=1'}"


def latest_schema_version() -> int:
    """Return the schema version of an up-to-date ledger."""
    return max(int(migration.stem) for migration in _SCHEMA_FOLDER.glob("*.sql"))


def is_busy_error(error: Exception) -> bool:
    return _primary_error_code(error) in _BUSY_CODES


def is_disk_failure(error: Exception, path: Path) -> bool:
    """Return True if the disk failed to read or write; a full disk is no failure."""
    code = _primary_error_code(error)
    if code in _CORRUPTION_CODES:
        return _is_intact(path)
    return code == sqlite3.SQLITE_IOERR and not _is_disk_full(path)


def is_damage_error(error: Exception) -> bool:
    """Return True if SQLite calls the file damaged; a read that fails with EIO looks like that too."""
    code = _primary_error_code(error)
    return code is None or code in _CORRUPTION_CODES


def check_readable(path: Path) -> None:
    """Read the whole file and its log.

    The descriptors stay open: closing one would drop this process's locks on the file.

    Raises:
        DiskError: The disk fails to read them.
    """
    try:
        for file in (path, path.with_name(f"{path.name}-wal")):
            if file == path or file.exists():
                status = file.stat()
                descriptor = _kept_descriptor(os.fspath(file), status.st_dev, status.st_ino)
                for start in range(0, status.st_size, _READ_BYTES):
                    os.pread(descriptor, _READ_BYTES, start)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _disk_read_error(path, error.strerror) from error


def _is_intact(path: Path) -> bool:
    """Return True if a file that SQLite called damaged is not: the disk failed to read it, now or just before."""
    if not path.is_file():
        return False
    try:
        check_readable(path)
        with closing(sqlite3.connect(database_uri(path), uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
            return connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
    except DiskError:
        return True
    except sqlite3.Error:
        return False


@cache
def _kept_descriptor(path: str, _device: int, _inode: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def verify_disk(connection: sqlite3.Connection, path: Path) -> None:
    """Write everything from the write-ahead log to the database file, and sync both.

    After a failed sync the kernel may forget pages that it could not write, and a later sync reports success.

    Raises:
        DiskError: The disk still fails.
    """
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, path) from error


def translate_sqlite_error(error: sqlite3.Error, path: Path) -> RetinueError:
    """Translate a database error into an error with a message for the user."""
    code = _primary_error_code(error)
    if code in _BUSY_CODES:
        return SessionLocked(
            f"{path}: the ledger is locked by another process. End that process, or try again."
        )
    if code in _DISK_ERROR_MESSAGES:
        if code != sqlite3.SQLITE_FULL and _is_disk_full(path):
            code = sqlite3.SQLITE_FULL
        full = code == sqlite3.SQLITE_FULL
        advice = ". Free some disk space and try again." if full else ""
        if code == sqlite3.SQLITE_IOERR:
            advice = f". {DISK_ADVICE}"
        return DiskError(f"{path}: {_DISK_ERROR_MESSAGES[code]} ({error}){advice}", is_full=full)
    if code in _CORRUPTION_CODES and _is_intact(path):
        return _disk_read_error(path, error)
    if code in _CORRUPTION_CODES or code is None:
        return damaged_file_error(path, "the ledger", error)
    return Failed(f"{path}: the ledger cannot execute a statement ({error})")


def _is_disk_full(path: Path) -> bool:
    """Return whether the disk is full, which SQLite often reports as another error.

    For example, the log's index cannot be created, or a page cannot be written. A used-up quota shows only on
    writing, so a write is tried as well.
    """
    with suppress(OSError):
        stats = os.statvfs(path.parent)
        if stats.f_bavail * stats.f_frsize < _MIN_FREE_BYTES:
            return True
    try:
        _probe_file_growth(path)
    except OSError as error:
        return error.errno in _DISK_FULL_ERRNOS
    return False


def _probe_file_growth(path: Path) -> None:
    """Write an unnamed file next to the log that is slightly longer than the log."""
    wal = path.with_name(f"{path.name}-wal")
    size = max((each.stat().st_size for each in (path, wal) if each.exists()), default=0)
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, bytes(_MIN_FREE_BYTES), size)
    finally:
        os.close(descriptor)


def _disk_read_error(path: Path, error: object) -> DiskError:
    return DiskError(f"{path}: the disk failed to read the ledger ({error}). {DISK_ADVICE}")


def damaged_file_error(path: Path, thing: str, error: Exception) -> Unreadable:
    return Unreadable(str(path), f"{thing} is damaged ({error}). Run `retinue doctor --repair`.")


def _primary_error_code(error: Exception) -> int | None:
    """Return the primary result code, or None if the sqlite3 module itself could not read a value."""
    extended = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


def _retry_while_busy(action: Callable[[], T], busy_timeout_s: float) -> T:
    """Retry while another process has the file locked.

    Sleeps: call it in a thread, never on the event loop.
    """
    deadline = time.monotonic() + busy_timeout_s
    attempt = 0
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy_error(error) or time.monotonic() >= deadline:
                raise
        time.sleep(BUSY_RETRY_DELAYS_S[min(attempt, len(BUSY_RETRY_DELAYS_S) - 1)])
        attempt += 1


def _is_writable(path: Path) -> bool:
    return os.access(path.parent, os.W_OK)


def _create_database_file(path: Path) -> None:
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        # Open the file directly only if it does not exist yet: closing any descriptor of a live ledger would drop
        # this process's locks on it, and the next process to close it would delete the log while we use it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DiskError(f"{path}: the ledger must be a regular file. Move this one away.") from None
    else:
        _sync_parent_folders(path)


def _sync_parent_folders(path: Path) -> None:
    """Sync all parent folders, so that a new home survives a power failure.

    Nothing in it is acknowledged before. The folders above are synced too, because their creator may not have
    done so. Folders that cannot be opened by this user existed before.
    """
    for folder in path.parents:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _connect_read_write(path: Path, journal_mode: str) -> sqlite3.Connection:
    # Two threads use a connection, never at the same time.
    connection = sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.execute(f"PRAGMA page_size={_PAGE_SIZE}").close()  # has an effect on new files only
        connection.execute(f"PRAGMA journal_mode={journal_mode}").close()
        # Without a write-ahead log, deleting the journal is the commit, so the deletion must survive a power failure.
        connection.execute(f"PRAGMA synchronous={'FULL' if journal_mode == WAL else 'EXTRA'}").close()
        _migrate_schema(connection, path)
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA wal_autocheckpoint={_WAL_SIZE // page_size}").close()
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """Open an existing ledger for reading; raise DiskError if it would have to be migrated first."""
    connection = sqlite3.connect(
        database_uri(path),
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        _check_schema_version(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema_version(connection: sqlite3.Connection, path: Path) -> None:
    if (version := _read_schema_version(connection, path, latest_schema_version())) < latest_schema_version():
        raise DiskError(
            f"{path}: the ledger has an old schema (version {version}) and cannot be upgraded in a read-only folder. "
            "Make the folder writable once."
        )


def _migrate_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Apply missing migrations, each in its own transaction, so that a crash can be resumed."""
    latest = latest_schema_version()
    for migration in sorted(_SCHEMA_FOLDER.glob("*.sql")):
        if _read_schema_version(connection, path, latest) >= int(migration.stem):
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _read_schema_version(connection, path, latest) < int(migration.stem):
                _execute_script(connection, migration.read_text("utf-8"))
                connection.execute(f"PRAGMA user_version={int(migration.stem)}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _read_schema_version(connection: sqlite3.Connection, path: Path, latest: int) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > latest:
        raise Failed(
            f"{path}: the ledger was written by a newer Retinue (schema version {version}, supported {latest}). Upgrade Retinue."
        )
    return version


def _execute_script(connection: sqlite3.Connection, script: str) -> None:
    """Execute a script statement by statement, because `executescript` would commit first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
