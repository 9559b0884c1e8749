"""Lines that tell no time have that at which they arrived."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.store.metrics import queries, watched

from .conftest import NOW, RUN, Bench, line


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("jsonl", line(1)),
        ("csv", "step,loss\n1,0.5\n"),
        ("hf", '{"log_history": [{"step": 1, "loss": 0.5}]}'),
        ("stdout", "step 1: 0.5\n"),
    ],
)
@pytest.mark.parametrize("age_seconds", [-5.0, 3600.0], ids=["read at once", "read an hour later"])
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
