"""A run as an SQLite file: tidy tables with foreign keys that hold, and as docs/architecture.md lists them."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.reports.export.subject import read_subject
from gputui.reports.export.whole import export
from gputui.store import checkpoints
from gputui.store.events import NewEvent, add_event
from tests.homes import NOW, Home
from tests.ledgers import ledger_row
from tests.stories import overnight

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
RUN = "vit-b16-1"


@pytest.fixture
def home(home: Home) -> Home:
    overnight(home)
    home.metrics(RUN, 3, [{"step": 9001, "time": NOW, "loss": math.nan, "grad_norm": math.inf, "lr": 0.5}])
    failed = "no answer of https://me:hunter22@host"
    add_event(home.connection, NewEvent("sink_failed", failed, key="csv", run_id=RUN, attempt=3), now=NOW)
    add_event(home.connection, NewEvent("launched", "by me", run_id="resnet50-2"), now=NOW)
    checkpoints.save(home.connection, RUN, (), [ledger_row("step_1.pt", 5, 99, 1), ledger_row("2", 6, gone_at=7.0)])
    home.connection.execute("UPDATE attempts SET params = ? WHERE number = 2", (json.dumps({"lr": 1, "token": "abc"}),))
    return home


def rows(path: Path, question: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()


def test_each_table_holds_the_run_alone_and_every_key_leads_somewhere(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "run.sqlite"
    subject = read_subject(home.connection, RUN, "sqlite", str(target))
    count = export(subject, "sqlite", str(target), replaces=False)
    tables = [name for (name,) in rows(target, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    # The table of the page: its tables, and what each refers to.
    section = PAGE.read_text().partition("### One run as a file")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (`[a-z_`, ]+) \| ([a-z_`, ]*) ?\|$", section, re.M)
    documented = {
        name: set(re.findall("[a-z_]+", refers)) for names, refers in lines for name in re.findall("[a-z_]+", names)
    }
    assert set(tables) == set(documented)
    assert count == sum(rows(target, f"SELECT count(*) FROM {name}")[0][0] for name in tables)
    assert rows(target, "PRAGMA foreign_key_check") == []
    assert rows(target, "PRAGMA integrity_check") == [("ok",)]
    for name in tables:
        refers = {row[2] for row in rows(target, f"PRAGMA foreign_key_list({name})")}
        assert refers <= documented[name], name
        assert refers or name in ("runs", "gpus"), name
    assert rows(target, "SELECT run_id FROM runs") == [(RUN,)]
    finite_points = home.connection.execute("SELECT count(*) FROM metric_points WHERE run_id = ?", (RUN,)).fetchone()[0]
    for question, answer in (
        ("count(*) FROM metrics WHERE not_finite IS NULL", [(finite_points,)]),
        ("name, value, not_finite FROM metrics WHERE not_finite IS NOT NULL ORDER BY name",
         [("grad_norm", None, "Infinity"), ("loss", None, "NaN")]),
        ("kind, key, message FROM events WHERE key IS NOT NULL",
         [("sink_failed", "csv", "no answer of https://me:[redacted]@host")]),
        ("count(*) >= 2 FROM incidents JOIN decisions USING (incident_id)", [(1,)]),
        ("attempt, modified_at FROM checkpoints", [(None, 5.0)]),  # its attempt is not in the store
        ("typeof(value), value FROM params WHERE attempt = 2 AND name = 'lr'", [("integer", 1)]),
    ):  # fmt: skip
        assert rows(target, f"SELECT {question}") == answer, question
    assert "abc" not in str(rows(target, "SELECT * FROM params"))
