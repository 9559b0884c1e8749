"""SQLite: a file of one run with a table for each kind of data and foreign keys, rewritten as a
whole. ``run.sql`` has the tables and what fills them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gputui.core.redaction import redact_params
from gputui.reports.export.files import WholeFileSink
from gputui.reports.export.subject import Subject
from gputui.reports.export.texts import clean_value
from gputui.store.database import one_moment

if TYPE_CHECKING:
    import sqlite_utils

_SCRIPT = Path(__file__).with_name("run.sql")
_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class SqliteSink(WholeFileSink):
    """A SQLite file with the tables of ``run.sql``."""

    def fill(self, subject: Subject, file: IO[bytes]) -> int:
        """Fill all tables. Also raises sqlite3.Error."""
        import sqlite_utils

        ((_, _, store), *_) = subject.connection.execute("PRAGMA database_list").fetchall()
        database = sqlite_utils.Database(sqlite3.connect(file.name, isolation_level=None))
        with closing(database), one_moment(subject.connection):
            database.attach("store", store)
            database.execute("BEGIN")
            count = 0
            for statement in _statements():
                cursor = database.execute(statement, {"run_id": subject.run.run_id})
                if statement.startswith("INSERT"):
                    count += cursor.rowcount
                if statement.startswith("CREATE TABLE params"):
                    places = "?, ?, ?"
                    rows = _params(subject)
                elif statement.startswith("CREATE TABLE metrics"):
                    places = "?, ?, ?, ?, ?, ?, ?"
                    rows = _metrics(subject)
                else:
                    continue
                name = statement.split()[2]
                filled = database.conn.executemany(f"INSERT INTO {name} VALUES ({places})", rows)  # noqa: S608
                count += max(0, filled.rowcount)
            database.execute("COMMIT")
            _mend(database)
            return count


def _mend(database: sqlite_utils.Database) -> None:
    """Remove secrets from texts, and references to attempts of a history that was lost."""
    for table in database.tables:
        refers = {key.column for key in table.foreign_keys}
        if "attempt" in refers:
            lost = f"UPDATE {table.name} SET attempt = NULL WHERE attempt NOT IN (SELECT attempt FROM attempts)"  # noqa: S608
            database.execute(lost)
        texts = [column.name for column in table.columns if column.type == "TEXT" and column.name not in refers]
        if texts and table.name not in ("params", "metrics"):  # these are clean
            table.convert(texts, clean_value)


def _statements() -> Iterator[str]:
    statement = ""
    for line in _SCRIPT.read_text("utf-8").splitlines():
        if not line.startswith("--"):
            statement += f"{line}\n"
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def _params(subject: Subject) -> Iterator[tuple[Any, ...]]:
    query = "SELECT number, params FROM attempts WHERE run_id = ?"
    for attempt, text in subject.connection.execute(query, (subject.run.run_id,)):
        for name, value in redact_params(json.loads(text)).items():
            cell = clean_value(value)
            if value is not None and not isinstance(value, str | int | float):
                cell = json.dumps(cell)
            yield attempt, name, cell


def _metrics(subject: Subject) -> Iterator[tuple[Any, ...]]:
    """SQLite has no NaN, so non-finite values are named in a separate column."""
    clean_names: dict[str, str] = {}
    for line in subject.lines():
        for name, value in subject.values(line).items():
            if name not in clean_names:
                clean_names[name] = clean_value(name)
            head = line.attempt, line.rank, line.step, line.at, clean_names[name]
            if math.isfinite(value):
                yield *head, value, None
            else:
                yield *head, None, _WORDS[str(value)]
