"""docs/schema.md: what it names is there, and its questions can be asked."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from gputui.core.config import Workspace
from gputui.store.database import open_reader, open_writer
from gputui.store.series import GPU, HOST, SLOW

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"


def test_the_questions_of_the_page_have_answers(workspace: Workspace) -> None:
    # What comes behind is about an exported file.
    text = PAGE.read_text("utf-8").partition("## One run as a file")[0]
    questions = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    named = {
        name for row in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for name in re.findall(r"`([a-z_]+)`", row)
    }
    open_writer(workspace.database).close()
    with closing(open_reader(workspace.database)) as connection:
        for question in questions:
            assert connection.execute(question).fetchall() == []
        there = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert len(questions) >= 5
    assert named >= {"gpu_hours", "runs", "metric_points"} and named <= there


def test_freed_pages_of_a_new_database_can_be_given_back(workspace: Workspace) -> None:
    with closing(open_writer(workspace.database)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    with closing(sqlite3.connect(workspace.database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_schema_has_a_column_for_each_hardware_value(workspace: Workspace) -> None:
    with closing(open_writer(workspace.database)) as connection:
        for series in (GPU, SLOW, HOST):
            there = {row[1] for row in connection.execute(f"PRAGMA table_info({series.table})")}
            assert set(series.columns) <= there
