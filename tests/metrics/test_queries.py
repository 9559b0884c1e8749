"""Queries of screens and the command line."""

from __future__ import annotations

import json
import math
import sqlite3

from gputui.store.metrics import queries

from .conftest import NOW, RUN, MetricsHome, line


def test_a_run_without_metrics(reader: sqlite3.Connection) -> None:
    assert queries.metric_names(reader, RUN) == []
    assert queries.latest(reader, RUN) == {}
    assert queries.ranks(reader, RUN, 1) == []
    assert list(queries.points_json(reader, RUN)) == []


def test_names_in_the_order_of_their_appearance(home: MetricsHome, reader: sqlite3.Connection) -> None:
    home.begin()
    home.append('{"step": 1, "time": 1.6e9, "zeta": 1, "note": "x", "on": true, "deep": {"a": 1}, "alpha": NaN}\n')
    home.append('{"step": 2, "rank": 0, "zeta": null, "val/acc": 0.5}\n')
    home.pump()
    assert queries.metric_names(reader, RUN) == ["zeta", "alpha", "val/acc"]


def test_the_newest_value_of_every_name(home: MetricsHome, reader: sqlite3.Connection) -> None:
    home.begin()
    home.append(line(1, **{"val/acc": 0.5}))
    for step in range(2, 2000):
        home.steps(step)
    home.append('{"step": 2000, "loss": NaN}\n')
    home.pump()
    home.begin(2)
    home.append('{"step": 5, "rank": 0, "lr": 0.25}\n{"step": 5, "rank": 1, "lr": 0.75}\n')
    home.pump()
    values = queries.latest(reader, RUN)
    assert math.isnan(values.pop("loss"))
    assert values == {"val/acc": 0.5, "lr": 0.25}


def test_ranks(home: MetricsHome, reader: sqlite3.Connection) -> None:
    home.begin()
    home.append("".join(line(step, rank=rank, time=1.6e9 + step) for step in range(9) for rank in (2, 0, 1)))
    home.pump()
    home.begin(2)
    home.append(line(7, rank=1))
    home.pump()
    first = queries.ranks(reader, RUN, 1)
    assert [(row.rank, row.step, row.at, dict(row.data)) for row in first] == [
        (rank, 8, 1.6e9 + 8, {"loss": 1 / 9}) for rank in (0, 1, 2)
    ]
    [late] = queries.ranks(reader, RUN, 2)
    # A line without a time is as old as its arrival: else nobody would see that no more come.
    assert (late.rank, late.step) == (1, 7)
    assert late.at is not None


def test_any_name_can_be_asked_for(home: MetricsHome, reader: sqlite3.Connection) -> None:
    names = ["val/acc", "a.b", "a[0]", "$", "größe", 'say "x"', "back\\slash", "", "new\nline", "''", "$.loss", "🙂"]
    home.begin()
    for value, name in enumerate(names):
        for step, ascii_only in enumerate((True, False)):
            values = {"step": step, name: value, "a": {"b": 7}, "loss": 9}
            home.append(json.dumps(values, ensure_ascii=ascii_only) + "\n")
    home.pump()
    for value, name in enumerate(names):
        assert queries.latest(reader, RUN)[name] == value
        assert [row["value"] for row in queries.points_json(reader, RUN, [name])] == [value, value]


def test_points_as_json(home: MetricsHome, reader: sqlite3.Connection) -> None:
    home.begin()
    home.append(
        '{"step": 1, "time": 1.6e9, "loss": NaN, "lr": 1e-3, "phase": "train"}\n{"step": 2, "rank": 1, "loss": 2}\n'
    )
    home.pump()
    rows = list(queries.points_json(reader, RUN))
    assert rows == [
        {"attempt": 1, "rank": None, "step": 1, "time": 1.6e9, "arrived": False, "name": "loss", "value": "NaN"},
        {"attempt": 1, "rank": None, "step": 1, "time": 1.6e9, "arrived": False, "name": "lr", "value": 0.001},
        {"attempt": 1, "rank": 1, "step": 2, "time": NOW, "arrived": True, "name": "loss", "value": 2},
    ]
    json.dumps(rows, allow_nan=False)
    assert [row["value"] for row in queries.points_json(reader, RUN, ["lr", "nothing"])] == [0.001]


def test_the_view_for_people_with_other_tools(home: MetricsHome, reader: sqlite3.Connection) -> None:
    home.begin()
    home.append('{"step": 1, "loss": 0.5, "deep": {"a": 1}, "text": "x", "bad": NaN}\n')
    home.pump()
    rows = reader.execute("SELECT run_id, attempt, step, name, value FROM metric_points").fetchall()
    assert rows == [(RUN, 1, 1, "loss", 0.5)]


def test_two_runs_are_kept_apart(home: MetricsHome, reader: sqlite3.Connection) -> None:
    home.add_run("run-2")
    second_file = home.folder / "other.jsonl"
    home.ingest.open_source("run-2", str(second_file), "jsonl")
    home.ingest.begin_attempt("run-2", 1)
    home.begin()
    home.steps(1)
    second_file.write_text('{"step": 2, "lr": 3}\n')
    home.pump()
    assert queries.metric_names(reader, RUN) == ["loss"]
    assert queries.latest(reader, "run-2") == {"lr": 3.0}
