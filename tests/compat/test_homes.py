"""A home of a former version says the same after the upgrade."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.store.database import open_writer
from tests.compat import homes
from tests.machine import Machine

HELD_SECONDS = 48 * 3600.0


@pytest.fixture
def upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    machine = Machine(tmp_path)
    homes.unpack(homes.SCHEMA_29, machine)
    open_writer(machine.workspace.database).close()
    yield machine
    machine.close()
    monkeypatch.undo()
    time.tzset()


def assert_still(found: Any, before: Any, where: str) -> None:
    """Equal, but for fields that are new."""
    if isinstance(before, dict):
        assert before.keys() <= found.keys(), where
        for key, value in before.items():
            assert_still(found[key], value, f"{where}.{key}")
    elif isinstance(before, list):
        assert len(found) == len(before), where
        for number, value in enumerate(before):
            assert_still(found[number], value, f"{where}[{number}]")
    elif isinstance(before, float):
        assert found == pytest.approx(before, rel=1e-9, abs=1e-9), where
    else:
        assert found == before, where


def numbers(lines: list[str]) -> list[str]:
    """Numbers, steps and times of a text, whose sentences may change."""
    return re.findall(r"\d[\d.:_]*", " ".join(lines))


def without_sum(lines: list[str]) -> list[str]:
    """An explanation without how long the run took: an older version counted from its launch, now its attempts are
    summed up. Also without days before times, which an older version left out."""
    total, day = r"succeeded [^,]* after its launch,|that took [^.]*(\.\d+ \w+)?\.", r"\d+ [A-Z][a-z]{2} (?=\d\d:)"
    return [re.sub(f"{total}|{day}", "", " ".join(lines))]


def test_the_commands_print_the_same(upgraded: Machine) -> None:
    before = homes.expected(homes.SCHEMA_29)["shown"]
    found = homes.shown(upgraded)
    for name, value in before.items():
        if name.startswith("explain "):
            # What one paragraph has need not stand in another.
            assert set(numbers(without_sum(found[name]))) == set(numbers(without_sum(value))), name
        else:
            assert_still(found[name], value, name)


def test_every_sample_of_the_last_two_days_and_every_minute_hour_and_day_is_there(upgraded: Machine) -> None:
    since = homes.LAST_SAMPLE - HELD_SECONDS
    with closing(open_writer(upgraded.workspace.database)) as connection:
        found = homes.recorded(connection)
    before = {
        table: [dict(zip(held["columns"], row, strict=True)) for row in held["rows"]]
        for table, held in homes.expected(homes.SCHEMA_29)["recorded"].items()
    }
    for table, rows in before.items():
        is_sample = table.endswith("samples")
        held = {(row.get("gpu_id"), round(row["at"], 3)): row for row in found[table]}
        for row in rows:
            if is_sample and row["at"] < since:
                continue
            assert_still(held[row.get("gpu_id"), round(row["at"], 3)], row, f"{table} {row['at']}")
    for kind in ("gpu", "host"):
        older = [row for row in before[f"{kind}_samples"] if row["at"] < since]
        assert older
        for table, seconds in ((f"{kind}_minutes", 60), (f"{kind}_hours", 3600)):
            spans = {(row.get("gpu_id"), row["at"]) for row in found[table]}
            assert {(row.get("gpu_id"), row["at"] // seconds * seconds) for row in older} <= spans
