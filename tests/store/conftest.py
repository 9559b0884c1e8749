"""A store that a test fills, and a connection that reads it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.core.config import locate
from gputui.store.database import open_reader
from tests.ui.tui.filling import Filler


@pytest.fixture
def filler(tmp_path: Path) -> Iterator[Filler]:
    made = Filler(locate(tmp_path))
    yield made
    made.close()


@pytest.fixture
def reader(filler: Filler) -> Iterator[sqlite3.Connection]:
    connection = open_reader(filler.workspace.database)
    yield connection
    connection.close()
