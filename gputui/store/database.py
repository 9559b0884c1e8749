"""Connections to the SQLite database (the agent's writer, the views' readers) and its schema.

SQLite is the bus between the processes, in WAL mode: one writer, and any number of readers that never block it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE, file_system_of, is_network_file_system

BUSY_TIMEOUT_SECONDS = 5.0
CHECKED_AT_START_BYTES = 64 * 2**20
SCHEMA_VERSION = 35
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
    """Open the agent's connection, and create the file (0600) with its schema. ``progress`` is called with a text
    before a long check. Raises StoreError (a network file system, no room, no permission), StoreCorruptError or
    StoreVersionError."""
    _refuse_network_file_system(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        os.close(descriptor)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot open {path}: {error}; check permissions and free space") from error
    try:
        version = _known_version(connection, path)
        # Applies to a new file only.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        # NORMAL loses at most the last moments on a power cut, never integrity:
        # https://www.sqlite.org/pragma.html#pragma_synchronous
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        connection.execute("PRAGMA cache_size = -2048")
        connection.execute("PRAGMA temp_store = MEMORY")
        if version:
            _check_integrity(connection, path, progress)
        else:
            connection.executescript(f"BEGIN;\n{schema()}\nPRAGMA user_version = {SCHEMA_VERSION};\nCOMMIT;")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise _explain(error, path) from error
    except StoreError:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a view's read-only connection. Raises StoreMissingError if nothing was recorded yet, StoreCorruptError,
    StoreVersionError or StoreError."""
    connection = open_commander(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes whenever another connection commits."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def set_aside(path: Path, now: float) -> Path:
    """Rename a corrupt database and its side files; return the new path."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    target = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(target.with_name(target.name + suffix))
    return target


def open_commander(path: Path, *, check_same_thread: bool = True) -> sqlite3.Connection:
    """Open a connection that writes beside the agent's: a view's, for inserting commands. Raises as `open_reader`
    does."""
    if not path.exists():
        raise StoreMissingError(f"nothing has been recorded in {path.parent} yet; start gputui or gputui --record")
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=BUSY_TIMEOUT_SECONDS,
            isolation_level=None,
            check_same_thread=check_same_thread,
        )
    except sqlite3.Error as error:
        raise _explain(error, path) from error
    try:
        if not _known_version(connection, path):
            raise StoreMissingError(f"{path} is not set up for this gputui yet; gputui agent start does that")
    except sqlite3.Error as error:
        connection.close()
        raise _explain(error, path) from error
    except StoreError:
        connection.close()
        raise
    return connection


def schema() -> str:
    """The SQL of a new database."""
    return Path(__file__).with_name("schema.sql").read_text("utf-8")


def _known_version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version, 0 for an empty file. Raises StoreVersionError."""
    version = pragma(connection, "user_version")
    if version not in (0, SCHEMA_VERSION):
        raise StoreVersionError(
            f"{path} was made by another version of gputui (schema {version}, this one has {SCHEMA_VERSION}); "
            f"move {path.parent} away, or choose another --home"
        )
    return version


def _check_integrity(connection: sqlite3.Connection, path: Path, progress: Callable[[str], None]) -> None:
    """Check the database for damage. A large file is checked only after an error, because reading all of it would delay
    every start. Raises StoreCorruptError."""
    suspect = suspect_mark(path)
    if path.stat().st_size > CHECKED_AT_START_BYTES and not suspect.exists():
        return
    progress("checking the database for damage")
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise StoreCorruptError(f"{path} is damaged: {problem}")
    suspect.unlink(missing_ok=True)


def suspect_mark(path: Path) -> Path:
    """A marker file that makes the next writer check the database."""
    return path.with_name(path.name + ".suspect")


def _refuse_network_file_system(path: Path) -> None:
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        return
    kind = file_system_of(path.parent.resolve(), mountinfo)
    if is_network_file_system(kind):
        raise StoreError(
            f"{path.parent} is on a network file system ({kind}), where the database cannot work; "
            "choose a local directory with --home or GPUTUI_HOME"
        )


def is_locked(error: BaseException) -> bool:
    """Whether another program holds a lock, so that a retry may work. SQLITE_PROTOCOL is reported for a lock of the
    write-ahead log after many tries (https://www.sqlite.org/rescode.html#protocol)."""
    code = getattr(error, "sqlite_errorcode", None)
    locks = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
    return isinstance(error, StoreLockedError) or (code is not None and code & 0xFF in locks)


def _explain(error: sqlite3.Error, path: Path) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if is_locked(error):
        return StoreLockedError(f"{path} is locked by another program; try again")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorruptError(f"{path} is damaged: {error}")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return StoreError(f"cannot write {path}: {error}; free some disk space")
    return StoreError(f"cannot open {path}: {error}; check permissions and free space")


def named_rows(connection: sqlite3.Connection, query: str, *values: object, **named: object) -> list[dict[str, Any]]:
    """The rows of a query with positional or named values, by the names of the columns. Raises sqlite3.Error."""
    # Not sqlite3.Row, which searches its names for every value.
    cursor = connection.execute(query, named or values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def insert(
    connection: sqlite3.Connection,
    table: str,
    clash: Literal["ABORT", "IGNORE", "REPLACE"] = "ABORT",
    /,
    **values: object,
) -> int:
    """Insert a row of ``values`` by column; ``clash`` is what happens to a row with its key. Returns the row's id.
    Raises sqlite3.Error."""
    marks = ", ".join(f":{name}" for name in values)
    statement = f"INSERT OR {clash} INTO {table} ({', '.join(values)}) VALUES ({marks})"  # noqa: S608 - names only
    return int(connection.execute(statement, values).lastrowid or 0)


def update(connection: sqlite3.Connection, table: str, key: Mapping[str, object], /, **values: object) -> None:
    """Set ``values`` in the row with this ``key``, both by column. Raises sqlite3.Error."""
    changes = ", ".join(f"{name} = ?" for name in values)
    where = " AND ".join(f"{name} = ?" for name in key)
    connection.execute(f"UPDATE {table} SET {changes} WHERE {where}", (*values.values(), *key.values()))  # noqa: S608


@contextmanager
def one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Read a consistent snapshot inside the block: in the connection's current transaction, or in a new one, which is
    rolled back, so that nothing may be written in it. Raises sqlite3.Error."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


class Room(Struct, frozen=True):
    """The size of a database: its file, and the part in use."""

    file_bytes: int
    used_bytes: int


def room(connection: sqlite3.Connection) -> Room:
    """The size of the database. Raises sqlite3.Error."""
    size, pages, free = (pragma(connection, name) for name in ("page_size", "page_count", "freelist_count"))
    return Room(size * pages, size * (pages - free))


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """The value of a numeric pragma."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
