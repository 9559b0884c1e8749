"""Packs of samples become rows, whatever happens meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.store.database import open_writer
from tests.compat import homes
from tests.machine import Machine

SAMPLES = ("gpu_samples", "gpu_slow_samples", "host_samples")
DAY = 86_400.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    homes.unpack(homes.SCHEMA_29, made)
    yield made
    made.close()


def samples(machine: Machine, raw_seconds: float | None = None) -> dict[str, list[tuple[Any, ...]]]:
    """All samples after the upgrade, by the columns that they had before."""
    with closing(open_writer(machine.workspace.database, raw_seconds=raw_seconds)) as connection:
        return read(connection)


def read(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    held = homes.expected(homes.SCHEMA_29)["recorded"]
    return {
        table: sorted(connection.execute(f"SELECT {', '.join(held[table]['columns'])} FROM {table}").fetchall())
        for table in SAMPLES
    }


def before() -> dict[str, list[tuple[Any, ...]]]:
    held = homes.expected(homes.SCHEMA_29)["recorded"]
    return {table: sorted(tuple(row) for row in held[table]["rows"]) for table in SAMPLES}


def test_every_value_of_every_pack_becomes_a_row(machine: Machine) -> None:
    assert samples(machine) == before()


def test_an_interrupted_upgrade_goes_on_where_it_was(machine: Machine) -> None:
    class StoppedError(Exception):
        pass

    left = []
    for steps in (1, 2):
        reports = iter(range(steps))

        def stop(_doing: str, reports: Iterator[int] = reports) -> None:
            if next(reports, None) is None:
                raise StoppedError

        with pytest.raises(StoppedError):
            open_writer(machine.workspace.database, stop, None)
        with closing(sqlite3.connect(machine.workspace.database)) as connection:
            left.append(connection.execute("SELECT count(*) FROM gpu_sample_packs").fetchone()[0])
            assert read(connection) == before()
            assert connection.execute("PRAGMA user_version").fetchone() == (29,)
    assert left[0] > left[1] > 0
    assert samples(machine) == before()


def test_packs_that_are_too_old_go_when_their_hours_are_there(machine: Machine) -> None:
    found, all_of_them = samples(machine, 2 * DAY), before()
    since = (homes.LAST_SAMPLE - 2 * DAY) // 3600 * 3600
    for table, rows in found.items():
        assert set(rows) < set(all_of_them[table])
        at = homes.expected(homes.SCHEMA_29)["recorded"][table]["columns"].index("at")
        assert [row for row in rows if row[at] >= since] == [row for row in all_of_them[table] if row[at] >= since]
    with closing(open_writer(machine.workspace.database)) as connection:
        assert connection.execute("SELECT raw_since FROM record_bounds").fetchone()[0] <= since


def test_what_was_not_rolled_up_yet_is_kept_whatever_its_age(machine: Machine) -> None:
    with closing(sqlite3.connect(machine.workspace.database)) as connection:
        connection.execute("DELETE FROM rollup_marks WHERE span_seconds = 3600 AND gpu_id = 2")
        connection.commit()
    assert samples(machine, 2 * DAY) == before()
