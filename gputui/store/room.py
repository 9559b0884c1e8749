"""The room that the database takes."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """What a database takes: bytes of its file, and those of them in use."""

    file_bytes: int
    used_bytes: int


def room(connection: sqlite3.Connection) -> Room:
    """The room that the database takes. Raises sqlite3.Error."""
    size, pages, free = (pragma(connection, name) for name in ("page_size", "page_count", "freelist_count"))
    return Room(size * pages, size * (pages - free))


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """A pragma that is one number."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
