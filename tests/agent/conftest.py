"""A connection of the agent's to an empty store."""

from __future__ import annotations

import sqlite3

import pytest

from tests.homes import Home


@pytest.fixture
def connection(home: Home) -> sqlite3.Connection:
    return home.connection
