"""A past for a young store: samples of the GPUs and the host as if the agent had run for some time already."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

from gputui.core.config import Workspace
from gputui.store.database import open_writer

SWAY = {"utilization_percent": 8.0, "power_watts": 50.0, "temperature_celsius": 5.0, "cpu_percent": 5.0}
"""How far these columns go up and down around what was measured."""


def fill(workspace: Workspace, seconds: int = 900) -> None:
    """Put a sample for each second before the first one."""
    with closing(open_writer(workspace.database)) as connection:
        connection.row_factory = sqlite3.Row
        for table in ("gpu_samples", "host_samples"):
            first = connection.execute(f"SELECT * FROM {table} WHERE at = (SELECT min(at) FROM {table})").fetchall()
            _extend(connection, table, [dict(row) for row in first], seconds)


def _extend(connection: sqlite3.Connection, table: str, first: list[dict[str, float]], seconds: int) -> None:
    if not first:
        return
    columns = list(first[0])
    rows = []
    for number, sample in enumerate(first):
        for back in range(1, seconds):
            past = {**sample, "at": sample["at"] - back}
            for name in SWAY.keys() & sample.keys():
                if sample[name] is not None:
                    past[name] = max(0.0, sample[name] + SWAY[name] * math.sin(back / 7.0 + number))
            rows.append([past[name] for name in columns])
    connection.execute("BEGIN IMMEDIATE")
    places = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)
    connection.execute("COMMIT")
