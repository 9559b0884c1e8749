"""A run as an SQLite file: tidy tables with foreign keys that hold, and the recipes of docs/schema.md."""

from __future__ import annotations

import json
import math
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlite_utils.cli import cli

from gputui.config import Workspace
from gputui.reports.export.once import export
from gputui.reports.export.sink import TargetTakenError
from gputui.reports.export.sqlite_sink import TABLES
from gputui.reports.export.subject import read_subject
from gputui.store.events import add_event
from tests.tui.filling import NOW, Filler

PAGE = Path(__file__).parents[3] / "docs" / "schema.md"
RUN = "vit-b16-1"


@pytest.fixture
def filler(workspace: Workspace) -> Iterator[Filler]:
    made = Filler(workspace)
    made.overnight()
    made.metrics(RUN, 3, [{"step": 9001, "time": NOW, "loss": math.nan, "grad_norm": math.inf, "lr": 0.5}])
    add_event(made.connection, "sink_failed", "no answer", now=NOW, key="csv", run_id=RUN, attempt=3)
    add_event(made.connection, "launched", "by me", now=NOW, run_id="resnet50-2")
    made.connection.execute(
        "INSERT INTO checkpoints (run_id, path, attempt, origin, modified_ns, step, first_seen_at) "
        "VALUES (?, '/c/step_1.pt', 99, 'rebuilt', 5000000000, 1, 5)", (RUN,),
    )  # fmt: skip
    made.connection.execute("UPDATE attempts SET params = ? WHERE number = 2", (json.dumps({"lr": 1, "token": "abc"}),))
    yield made
    made.close()


def written(filler: Filler, target: Path, *names: str) -> int:
    return export(filler.connection, read_subject(filler.connection, RUN, names), "sqlite", str(target), replace=False)


def rows(path: Path, question: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()


def test_each_table_holds_the_run_alone_and_every_key_leads_somewhere(filler: Filler, tmp_path: Path) -> None:
    target = tmp_path / "run.sqlite"
    count = written(filler, target)
    assert {name for (name,) in rows(target, "SELECT name FROM sqlite_master WHERE type = 'table'")} == set(TABLES)
    assert count == sum(rows(target, f"SELECT count(*) FROM {name}")[0][0] for name in TABLES)
    assert rows(target, "PRAGMA foreign_key_check") == [] and rows(target, "PRAGMA integrity_check") == [("ok",)]
    refers = {(table, *row[3:1:-1]) for table in TABLES for row in rows(target, f"PRAGMA foreign_key_list({table})")}
    assert refers == {
        (name, column, other) for name, table in TABLES.items() for column, other in (table.refers or {}).items()
    }
    assert rows(target, "SELECT run_id FROM runs") == [(RUN,)]
    held = filler.connection.execute("SELECT count(*) FROM metric_points WHERE run_id = ?", (RUN,)).fetchone()[0]
    assert rows(target, "SELECT count(*) FROM metrics WHERE not_finite IS NULL") == [(held,)]
    assert rows(target, "SELECT name, value, not_finite FROM metrics WHERE not_finite IS NOT NULL ORDER BY name") == [
        ("grad_norm", None, "Infinity"), ("loss", None, "NaN"),
    ]  # fmt: skip
    assert rows(target, "SELECT kind, key FROM events WHERE key IS NOT NULL") == [("sink_failed", "csv")]
    assert rows(target, "SELECT count(*) FROM incidents JOIN decisions USING (incident_id)")[0][0] >= 2
    assert rows(target, "SELECT attempt, modified_at FROM checkpoints") == [(None, 5.0)], "of no attempt that is there"
    assert rows(target, "SELECT typeof(value), value FROM params WHERE attempt = 2 AND name = 'lr'") == [("integer", 1)]
    assert "abc" not in str(rows(target, "SELECT * FROM params"))


def test_samples_are_those_of_the_attempts_gpus_and_minutes_where_they_are_gone(filler: Filler, tmp_path: Path) -> None:
    gpu_id, begin = filler.connection.execute(
        "SELECT gpu_id, min(at) FROM gpu_samples WHERE gpu_id = (SELECT gpu_id FROM gpus JOIN attempts AS a "
        "ON a.gpus LIKE '%' || uuid || '%' WHERE a.run_id = ?) GROUP BY gpu_id", (RUN,),
    ).fetchone()  # fmt: skip
    minute = begin // 60 * 60 - 600
    filler.connection.execute("UPDATE attempts SET started_at = ? WHERE run_id = ?", (minute - 60, RUN))
    filler.connection.execute(
        "INSERT INTO gpu_minutes (gpu_id, at, sample_count, utilization_percent_mean) VALUES (?, ?, 60, 42.0)",
        (gpu_id, minute),
    )
    target = tmp_path / "run.sqlite"
    written(filler, target)
    found = rows(target, "SELECT DISTINCT at, utilization_percent FROM samples WHERE span_seconds = 60")
    assert found == [(minute, 42.0)]
    taken = rows(target, "SELECT DISTINCT gpu_uuid FROM samples WHERE span_seconds = 0")
    assert taken and set(taken) <= set(rows(target, "SELECT DISTINCT gpu_uuid FROM attempt_gpus"))


def test_only_the_metrics_asked_for_and_nothing_is_replaced(filler: Filler, tmp_path: Path) -> None:
    target = tmp_path / "run.sqlite"
    written(filler, target, "lr")
    assert rows(target, "SELECT DISTINCT name FROM metrics") == [("lr",)]
    with pytest.raises(TargetTakenError):
        written(filler, target)


RECIPES = re.findall(r"```sh\n(sqlite-utils.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_page_names_every_table() -> None:
    about = PAGE.read_text("utf-8").partition("## One run as a file")[2]
    rows = re.findall(r"^\| (`[^|]*) \|", about, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} == set(TABLES) and len(RECIPES) >= 5


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(recipe: str, filler: Filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(filler, tmp_path / f"{RUN}.sqlite")
    done = CliRunner().invoke(cli, shlex.split(recipe)[1:])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) > 1 or done.output.count("}") > 0


def test_the_runs_of_a_sweep_come_into_one_file(
    filler: Filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (loop,) = re.findall(r"```sh\nfor run in .*?; do sqlite-utils (.*?) \| sqlite-utils (.*?); done\n```",
                         PAGE.read_text("utf-8"))  # fmt: skip
    monkeypatch.chdir(tmp_path)
    written(filler, tmp_path / "lr-1.sqlite")
    read, put = (shlex.split(part.replace("$run", "lr-1")) for part in loop)
    lines = CliRunner().invoke(cli, read).output
    done = CliRunner().invoke(cli, put, input=lines)
    assert done.exit_code == 0, done.output
    assert rows(tmp_path / "all.sqlite", "SELECT DISTINCT run_id FROM metrics") == [(RUN,)]
