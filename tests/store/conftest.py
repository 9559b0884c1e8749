"""A connection that reads what a test wrote into a home."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.store.database import open_reader
from tests.homes import Home


@pytest.fixture
def reader(home: Home) -> Iterator[sqlite3.Connection]:
    with closing(open_reader(home.workspace.database)) as connection:
        yield connection
