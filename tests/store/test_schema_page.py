"""docs/schema.md: what it names is there, and its questions can be asked."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from gputui.config import Workspace
from gputui.store.database import migrations, open_reader, open_writer

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


def described(connection: sqlite3.Connection) -> dict[str, object]:
    """What makes two schemas equal, whatever words they were written in."""
    found: dict[str, object] = {}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        found[f"{kind} {name}"] = " ".join(sql.split()).replace('"', "") if sql and kind != "table" else None
        if kind == "table":
            found[f"columns of {name}"] = connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
            found[f"keys of {name}"] = connection.execute(f"PRAGMA foreign_key_list({name})").fetchall()
            found[f"options of {name}"] = [
                row[2:] for row in connection.execute("PRAGMA table_list") if row[:2] == ("main", name)
            ]
            found[f"checks of {name}"] = sorted(re.findall(r"CHECK \(.*?\)", sql or ""))
    for table in ("record_bounds", "rollup_marks"):
        found[f"rows of {table}"] = connection.execute(f"SELECT * FROM {table}").fetchall()
    return found


def test_a_new_home_has_the_schema_that_migrations_make_of_an_old_one(workspace: Workspace) -> None:
    old = workspace.database.with_name("old.db")
    with closing(sqlite3.connect(old)) as connection:
        number, first = migrations()[0]
        connection.executescript(f"{first}; PRAGMA user_version = {number}")
    with closing(open_writer(old)) as of_old, closing(open_writer(workspace.database)) as of_new:
        assert described(of_new) == described(of_old)
        assert of_new.execute("PRAGMA user_version").fetchone() == of_old.execute("PRAGMA user_version").fetchone()
        identities = [one.execute("SELECT identity FROM store").fetchone()[0] for one in (of_old, of_new)]
    assert len(set(identities)) == 2
