"""Connections to the SQLite database (the agent's writer, the views' readers) and its migrations.

SQLite is the bus between the processes, in WAL mode: one writer, and any number of readers that never block it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path

from msgspec import Struct

from gputui.config import PRIVATE_FILE_MODE, file_system_of, is_network_file_system
from gputui.store.machine import other_machine
from gputui.store.retention import RAW_SECONDS
from gputui.store.sample_packs import unpack
from gputui.store.series import GPU, HOST, SLOW

BUSY_TIMEOUT_SECONDS = 5.0
CHECKED_AT_START_BYTES = 64 * 2**20
UNPACKED_BEFORE = 30


class StoreError(Exception):
    """The store cannot be used; the message says why and what to do."""


class StoreMissingError(StoreError):
    """Nothing has been recorded in this home yet."""


class StoreOutdatedError(StoreMissingError):
    """The file was written by an older gputui, and is not migrated yet."""


class StoreLockedError(StoreError):
    """Another program holds the database's lock."""


class StoreCorruptError(StoreError):
    """The file is not a usable SQLite database."""


class StoreNewerError(StoreError):
    """The file was written by a newer gputui."""


def migrations() -> list[tuple[int, str]]:
    """The migrations as (version, SQL), in order. A released migration never changes."""
    scripts = []
    for entry in resources.files("gputui.store").joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            scripts.append((int(entry.name.split("_", 1)[0]), entry.read_text("utf-8")))
    return sorted(scripts)


def open_writer(
    path: Path,
    progress: Callable[[str], None] = lambda _: None,
    raw_seconds: float | None = RAW_SECONDS,
) -> sqlite3.Connection:
    """Open the agent's connection: create the file (0600) and migrate its schema, one transaction per step, so that an
    interrupted migration continues. ``progress`` is called with a text before each long step. ``raw_seconds`` (None:
    for ever) is how long samples are kept, which a migration needs to know.

    Raises StoreError (a network file system, no room, no permission), StoreCorruptError or StoreNewerError.
    """
    _refuse_network_file_system(path)
    refuse_other_machine(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        os.close(descriptor)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot open {path}: {error}; check permissions and free space") from error
    try:
        _refuse_newer(connection, path)
        # Applies to a new file only; an older one reuses free pages and never shrinks.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        # NORMAL loses at most the last moments on a power cut, never integrity:
        # https://www.sqlite.org/pragma.html#pragma_synchronous
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        connection.execute("PRAGMA cache_size = -2048")
        connection.execute("PRAGMA temp_store = MEMORY")
        _migrate(connection, path, progress, raw_seconds)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise _explain(error, path) from error
    except StoreError:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a view's read-only connection.

    Raises StoreMissingError if nothing was recorded yet, StoreCorruptError, StoreNewerError or StoreError.
    """
    connection = open_commander(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes whenever another connection commits."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def is_outdated(path: Path) -> bool:
    """Whether the database needs a migration; False if unknown."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            version = _version(connection)
            return version > 0 and (version < migrations()[-1][0] or bool(_missing_columns(connection)))
    except sqlite3.Error:
        return False


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


def open_commander(path: Path) -> sqlite3.Connection:
    """Open a view's connection for inserting commands. Raises as `open_reader` does."""
    if not path.exists():
        raise StoreMissingError(f"nothing has been recorded in {path.parent} yet; start gputui or gputui --record")
    refuse_other_machine(path.parent)
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise _explain(error, path) from error
    try:
        _refuse_newer(connection, path)
        version = _version(connection)
        if version > 0 and (version < migrations()[-1][0] or _missing_columns(connection)):
            raise StoreOutdatedError(f"{path} is of an older gputui; gputui agent start brings it up to date")
        if version == 0:
            raise StoreMissingError(f"{path} is not set up for this gputui yet; gputui agent start does that")
    except sqlite3.Error as error:
        connection.close()
        raise _explain(error, path) from error
    except StoreError:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(
    connection: sqlite3.Connection, path: Path, progress: Callable[[str], None], raw_seconds: float | None
) -> None:
    version = _version(connection)
    steps = [step for step in migrations() if step[0] > version]
    if not version:
        script = resources.files("gputui.store").joinpath("schema.sql").read_text("utf-8")
        connection.executescript(f"BEGIN;\n{script}\nPRAGMA user_version = {steps[-1][0]};\nCOMMIT;")
        steps = []
    elif not steps:
        _check_integrity(connection, path, progress)
    for index, (number, script) in enumerate(steps, 1):
        progress(f"bringing the database up to date, step {index} of {len(steps)}")
        if number == UNPACKED_BEFORE:
            unpack(connection, raw_seconds, time.time(), progress)
        connection.executescript(f"BEGIN;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
    for table, column in _missing_columns(connection):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def _missing_columns(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """(table, column with its type) of hardware values that the database does not have yet."""
    missing = []
    for series in (GPU, SLOW, HOST):
        existing = {row[1] for row in connection.execute(f"PRAGMA table_info({series.table})")}
        for name, is_real in series.columns.items():
            if name not in existing:
                missing.append((series.table, f"{name} {'REAL' if is_real else 'INTEGER'}"))
    return missing


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


def refuse_other_machine(state: Path) -> None:
    """Raise StoreError if the home belongs to another machine."""
    why = other_machine(state)
    if why is not None:
        raise StoreError(why)


def _refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreNewerError if a newer gputui wrote the database."""
    version, newest = _version(connection), migrations()[-1][0]
    if version > newest:
        raise StoreNewerError(
            f"{path} was written by a newer gputui (schema {version}, this one knows {newest}); "
            "update gputui or use --home"
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
