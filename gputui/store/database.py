"""Connections to the SQLite database (the agent's writer, the views' readers), its schema, and rows
as records.

SQLite is the bus between the processes, in WAL mode: one writer, any number of readers.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE, file_system_of, is_network_file_system

BUSY_TIMEOUT_SECONDS = 5.0
# A larger file is checked only after an error: reading all of it would delay every start.
CHECKED_AT_START_BYTES = 64 * 2**20
SCHEMA_VERSION = 37
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
    """Open the agent's connection, and create the file (0600) with its schema. ``progress`` gets a
    text before a long check. Raises StoreError, also for a network file system."""
    kind = file_system_of(path.parent.resolve(), Path("/proc/self/mountinfo").read_text("utf-8", "replace"))
    if is_network_file_system(kind):
        raise StoreError(
            f"{path.parent} is on a network file system ({kind}), where the database cannot work; "
            "choose a local directory with --home or GPUTUI_HOME"
        )
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE))
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error}; check permissions and free space") from error
    with _connected(path) as connection:
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
    """Open a connection that writes beside the agent's, for commands. Raises as `open_reader`."""
    if not path.exists():
        raise StoreMissingError(f"nothing has been recorded in {path.parent} yet; start gputui or gputui --record")
    with _connected(path, check_same_thread) as connection:
        if not _known_version(connection, path):
            raise StoreMissingError(f"{path} is not set up for this gputui yet; gputui agent start does that")
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a view's read-only connection. Raises StoreMissingError if nothing was recorded yet, or
    another StoreError."""
    connection = open_commander(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


@contextmanager
def _connected(path: Path, check_same_thread: bool = True) -> Iterator[sqlite3.Connection]:
    """Open a connection, which an error in the block closes; SQLite's become StoreErrors."""
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None,
            check_same_thread=check_same_thread,
        )  # fmt: skip
        yield connection
    except (sqlite3.Error, StoreError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StoreError):
            raise
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if is_locked(error):
            raise StoreLockedError(f"{path} is locked by another program; try again") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StoreCorruptError(f"{path} is damaged: {error}") from error
        raise StoreError(f"cannot use {path}: {error}; check permissions and free space") from error


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes whenever another connection commits."""
    return pragma(connection, "data_version")


def is_same_file(path: Path, own: os.stat_result) -> bool:
    """Whether a path still names the file with the status ``own``, and was not replaced or removed."""
    return path.exists() and os.path.samestat(path.stat(), own)


def set_aside(path: Path, now: float) -> Path:
    """Rename a corrupt database and its side files; return the new path."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    names = (f"{path.name}.corrupt-{stamp}{f'-{n}' if n > 1 else ''}" for n in range(1, 1000))
    target = next(place for name in names if not (place := path.with_name(name)).exists())
    for suffix in ("", "-wal", "-shm"):
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(target.with_name(target.name + suffix))
    return target


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


def suspect_mark(path: Path) -> Path:
    """A marker file that makes the next writer check the database."""
    return path.with_name(path.name + ".suspect")


def is_locked(error: BaseException) -> bool:
    """Whether another program holds a lock, so that a retry may work. SQLITE_PROTOCOL is reported
    for a lock of the write-ahead log (https://www.sqlite.org/rescode.html#protocol)."""
    code = getattr(error, "sqlite_errorcode", None)
    locks = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
    return isinstance(error, StoreLockedError) or (code is not None and code & 0xFF in locks)


# --- rows


UNREADABLE: Mapping[str, Any] = MappingProxyType({})
"""Stands for a malformed JSON object; compare by identity."""


@lru_cache(maxsize=512)
def json_mapping(text: str | None) -> Mapping[str, Any]:
    """A column with a JSON object; UNREADABLE for anything else: one bad row breaks no view."""
    value = _parse(text)
    return MappingProxyType(value) if isinstance(value, dict) else UNREADABLE


@lru_cache(maxsize=512)
def json_items(text: str | None) -> tuple[Any, ...]:
    """A column with a JSON list; anything else is empty."""
    value = _parse(text)
    return tuple(value) if isinstance(value, list) else ()


def _json_dict(text: str | None) -> dict[str, Any]:
    return dict(json_mapping(text))


def _parse(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


Record = TypeVar("Record", bound=Struct)


def records(
    connection: sqlite3.Connection, kind: type[Record], query: str, *values: object, **named: object
) -> list[Record]:
    """The rows of a query as records of ``kind``, by the names of columns. JSON columns fill fields
    of mappings (read-only), dicts and tuples. Raises sqlite3.Error."""
    cursor = connection.execute(query, named or values)
    converters = _converters(kind)
    names = [column[0] for column in cursor.description]
    plain = [(name, place) for place, name in enumerate(names) if converters.get(name, ...) is None]
    others = [(name, place, convert) for place, name in enumerate(names) if (convert := converters.get(name))]
    return [
        kind(
            **{name: row[place] for name, place in plain},
            **{name: convert(row[place]) for name, place, convert in others},
        )
        for row in cursor.fetchall()
    ]


@cache
def _converters(kind: type[Struct]) -> dict[str, Callable[[Any], Any] | None]:
    """What makes the value of each field of a column's value; None for the value itself."""
    return {field.name: _converter(field.type) for field in msgspec.structs.fields(kind)}


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    one = next(option for option in options if option is not NoneType)
    origin = get_origin(one) or one
    convert: Callable[[Any], Any]
    if origin is tuple:
        convert = json_items
    elif origin is Mapping:
        convert = json_mapping
    elif origin is dict:
        convert = _json_dict
    elif isinstance(origin, type) and (origin is bool or issubclass(origin, Enum)):
        convert = origin
    else:
        return None
    return (lambda value: None if value is None else convert(value)) if NoneType in options else convert


def named_rows(connection: sqlite3.Connection, query: str, *values: object, **named: object) -> list[dict[str, Any]]:
    """The rows of a query by the names of the columns. Raises sqlite3.Error."""
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
    """Insert a row of ``values`` by column and return its id; ``clash`` is what happens to one with
    its key. Raises sqlite3.Error."""
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
