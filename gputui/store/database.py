"""Connections to the SQLite database (the agent's writer, the views' readers), its schema and its size.

SQLite is the bus between the processes, in WAL mode: one writer, any number of readers.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gputui.core.config import PRIVATE_FILE_MODE, file_system_of, is_network_file_system

BUSY_TIMEOUT_SECONDS = 5.0  # longer than any transaction of the agent
# A larger file is checked only after an error: reading all of it would delay every start.
CHECKED_AT_START_BYTES = 64 * 2**20
SCHEMA_VERSION = 53
"""The `user_version` of the database: raised with every change of the schema."""


class StoreError(Exception):
    """The store cannot be used; the message says why and what to do."""


class StoreMissingError(StoreError):
    """Nothing has been recorded in this home yet."""


class StoreLockedError(StoreError):
    """Another program holds the database's lock."""


class StoreCorruptError(StoreError):
    """The file is not a usable SQLite database."""


class StoreVersionError(StoreError):
    """The file was made by another version of gputui."""


def open_writer(path: Path, progress: Callable[[str], None] = lambda _: None) -> sqlite3.Connection:
    """Open the agent's connection, and create the file (0600) with its schema.

    Args:
        progress: Gets a text before a long check.

    Raises:
        StoreError: The file cannot be used or is on a network file system; subclasses for a locked or damaged file and
            one of another version.
    """
    kind = file_system_of(path.parent.resolve(), Path("/proc/self/mountinfo").read_text("utf-8", "replace"))
    if is_network_file_system(kind):
        raise StoreError(
            f"{path.parent} is on a network file system ({kind}), where the database cannot work; "
            "choose a local directory with --home or GPUTUI_HOME"
        )
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE))
    except OSError as error:
        raise _store_error(error, path) from error
    with _setting_up(path) as connection:
        version = _known_version(connection, path)
        # synchronous = NORMAL loses at most the last moments on a power cut, never integrity:
        # https://www.sqlite.org/pragma.html#pragma_synchronous. auto_vacuum: a new file only.
        for setting in (
            "auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON",
            "journal_size_limit = 16777216", "cache_size = -2048", "temp_store = MEMORY",
        ):  # fmt: skip
            connection.execute(f"PRAGMA {setting}")
        if not version:
            connection.executescript(f"BEGIN;\n{schema()}\nPRAGMA user_version = {SCHEMA_VERSION};\nCOMMIT;")
        elif path.stat().st_size <= CHECKED_AT_START_BYTES or suspect_mark(path).exists():
            progress("checking the database for damage")
            problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if problem != "ok":
                raise StoreCorruptError(f"{path} is damaged: {problem}")
            suspect_mark(path).unlink(missing_ok=True)
    return connection


def open_commander(path: Path, *, check_same_thread: bool = True) -> sqlite3.Connection:
    """Open a connection that writes beside the agent's, for commands.

    Raises:
        StoreMissingError: Nothing was recorded yet.
        StoreError: The file cannot be used; also other subclasses.
    """
    if not path.exists():
        raise StoreMissingError(f"nothing has been recorded in {path.parent} yet; start gputui or gputui --record")
    with _setting_up(path, check_same_thread) as connection:
        if not _known_version(connection, path):
            raise StoreMissingError(f"{path} is not set up for this gputui yet; gputui agent start does that")
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a view's read-only connection. Raises StoreMissingError if nothing was recorded yet, and
    StoreError or another subclass if the file cannot be used."""
    connection = open_commander(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def empty_store() -> sqlite3.Connection:
    """A connection to a store of its own in which nothing is recorded."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(schema())
    return connection


@contextmanager
def _setting_up(path: Path, check_same_thread: bool = True) -> Iterator[sqlite3.Connection]:
    """Open a connection, and close it if the block raises anything. Errors of SQLite and of the file
    system, also while opening, become StoreErrors."""
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{_mode(path)}", uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None,
            check_same_thread=check_same_thread,
        )  # fmt: skip
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise _store_error(error, path) from error


def _mode(path: Path) -> str:
    """The parameters of SQLite's URI. Without permission to write, SQLite reads beside a writer by the
    files of its write-ahead log, which it could not make itself; without them nobody writes, and
    the file alone is whole (https://www.sqlite.org/wal.html#readonly)."""
    if os.access(path, os.W_OK):
        return "mode=rw"
    if is_fixed(path):
        return "mode=ro&immutable=1"
    return "mode=ro"


def is_fixed(path: Path) -> bool:
    """Return whether this user may only read the database, and nobody writes to it now."""
    return not os.access(path, os.W_OK) and not path.with_name(path.name + "-wal").exists()


def _store_error(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    if is_locked(error):
        return StoreLockedError(f"{path} is locked by another program; try again")
    # The low byte is the primary code of an extended one.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorruptError(f"{path} is damaged: {error}")
    return StoreError(f"cannot use {path}: {error}; check permissions and free space")


def is_locked(error: BaseException) -> bool:
    """Return whether another program holds a lock, so that a retry may work. SQLITE_PROTOCOL is
    reported for a lock of the write-ahead log (https://www.sqlite.org/rescode.html#protocol)."""
    code = getattr(error, "sqlite_errorcode", None)
    locks = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
    return isinstance(error, StoreLockedError) or (code is not None and code & 0xFF in locks)


def _known_version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version, 0 for an empty file. Raises StoreVersionError."""
    version = pragma(connection, "user_version")
    if version not in (0, SCHEMA_VERSION):
        raise StoreVersionError(
            f"{path} was made by another version of gputui (schema {version}, this one has {SCHEMA_VERSION}); "
            f"move {path.parent} away, or choose another --home"
        )
    return version


def schema() -> str:
    """The SQL of a new database."""
    return Path(__file__).with_name("schema.sql").read_text("utf-8")


def is_same_file(path: Path, status: os.stat_result) -> bool:
    """Return whether a path still names the file with a status, and was not replaced or removed."""
    try:
        return os.path.samestat(path.stat(), status)
    except FileNotFoundError:
        return False


def set_aside(path: Path, now: float) -> Path:
    """Rename a corrupt database and its side files; return the new path."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    target = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    for suffix in ("", "-wal", "-shm"):
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(target.with_name(target.name + suffix))
    return target


def suspect_mark(path: Path) -> Path:
    """A marker file that makes the next writer check the database."""
    return path.with_name(path.name + ".suspect")


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes whenever another connection commits."""
    return pragma(connection, "data_version")


@contextmanager
def one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Read a consistent snapshot: in the current transaction, or in a new one, which is rolled
    back, so that nothing may be written in it. Raises sqlite3.Error."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def used_space(connection: sqlite3.Connection) -> tuple[int, int]:
    """The bytes of the database's file, and of the part in use. Raises sqlite3.Error."""
    size, pages, free = (pragma(connection, name) for name in ("page_size", "page_count", "freelist_count"))
    return size * pages, size * (pages - free)


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """The value of a numeric pragma."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
