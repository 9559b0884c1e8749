"""Databases for tests: the schema is made once and copied, because making it costs as much as most tests."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from pathlib import Path

from gputui.core.config import PRIVATE_FILE_MODE
from gputui.store.database import open_writer


def open_store(path: Path) -> sqlite3.Connection:
    """The agent's connection to a store; where none is yet, to a new one."""
    if not path.exists():
        path.write_bytes(_empty())
        path.chmod(PRIVATE_FILE_MODE)
    return open_writer(path)


@functools.cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gputui.db"
        open_writer(path).close()
        return path.read_bytes()
