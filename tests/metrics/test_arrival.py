"""Lines that tell no time have that at which they arrived."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.store.metrics import queries, watched

from .conftest import NOW, RUN, Bench, line


@pytest.mark.parametrize(
    ("kind", "text", "age_seconds"),
    [
        ("jsonl", line(1), -5.0),
        ("csv", "step,loss\n1,0.5\n", 3600.0),
        ("hf", '{"log_history": [{"step": 1, "loss": 0.5}]}', 3600.0),
        ("stdout", "step 1: 0.5\n", 3600.0),
    ],
)
def test_a_line_without_a_time(tmp_path: Path, kind: str, text: str, age_seconds: float) -> None:
    bench = Bench(tmp_path, kind=kind, metrics={"patterns": [r"step (?P<step>\d+): (?P<loss>\S+)"]})
    bench.begin()
    file = tmp_path / "attempts/1/output.log" if kind == "stdout" else bench.file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (NOW - age_seconds, NOW - age_seconds))
    bench.pump()
    (point,) = queries.points_json(bench.connection, RUN, ["loss"])
    assert (point["time"], point["arrived"]) == (NOW - max(0.0, age_seconds), True)
    (seen,), _ = watched.newest_lines(bench.connection, RUN, {}, 10)
    assert (seen.step, seen.at) == (1, None)


def test_a_line_with_a_time_keeps_it(bench: Bench) -> None:
    bench.begin()
    bench.append(line(1, time=NOW - 7))
    bench.pump()
    (point,) = queries.points_json(bench.connection, RUN, ["loss"])
    assert (point["time"], point["arrived"]) == (NOW - 7, False)
    (seen,), _ = watched.newest_lines(bench.connection, RUN, {}, 10)
    assert seen.at == NOW - 7


@pytest.mark.parametrize(
    "time",
    [3600.5, NOW + 2 * 86_400, 1.7e12, "2023-11-14 22:13"],
    ids=["elapsed", "ahead", "milliseconds", "text"],
)
def test_a_time_that_is_no_time_of_day(bench: Bench, time: float | str) -> None:
    bench.begin()
    bench.append(line(1, time=time) + line(2, time=time))
    os.utime(bench.file, (NOW, NOW))
    notes = [note.kind for _, note in bench.pump().notes]
    bench.append(line(3, time=time))
    notes += [note.kind for _, note in bench.pump().notes]
    assert notes == ["times_unknown"]
    points = list(queries.points_json(bench.connection, RUN, ["loss"]))
    assert all(point["arrived"] and abs(point["time"] - NOW) < 1 for point in points) and len(points) == 3
    assert [data["time_"] for data in bench.data()] == [time] * 3
    seen, _ = watched.newest_lines(bench.connection, RUN, {}, 10)
    assert [line.at for line in seen] == [None] * 3


@pytest.mark.parametrize("time", [NOW + 3600, NOW - 86_400 * 3000], ids=["another clock", "an imported run"])
def test_a_time_from_elsewhere_stays(bench: Bench, time: float) -> None:
    bench.begin()
    bench.append(line(1, time=time))
    os.utime(bench.file, (NOW, NOW))
    assert bench.pump().notes == []
    (point,) = queries.points_json(bench.connection, RUN, ["loss"])
    assert (point["time"], point["arrived"]) == (time, False)
