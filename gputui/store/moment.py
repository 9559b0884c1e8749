"""Several questions to the store, answered from one moment of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """What is read inside is from one moment: that of the transaction which the connection is in, or of one of its own.
    Inside a new one nothing is to be written: it is rolled back. Raises sqlite3.Error."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
