"""SQLite: a file of one run with a table for each kind of data and foreign keys, rewritten as a
whole. ``run.sql`` has the tables and what fills them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gputui.core.redaction import redact_params
from gputui.reports.export.files import WholeFileSink
from gputui.reports.export.subject import Subject
from gputui.reports.export.texts import cleaned
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
        made = sqlite_utils.Database(sqlite3.connect(file.name, isolation_level=None))
        with closing(made), one_moment(subject.connection):
            made.attach("store", store)
            made.execute("BEGIN")
            count = 0
            for statement in _statements():
                cursor = made.execute(statement, {"run_id": subject.run.run_id})
                count += cursor.rowcount if statement.startswith("INSERT") else 0
                if statement.startswith("CREATE TABLE params"):
                    places, rows = "?, ?, ?", _params(subject)
                elif statement.startswith("CREATE TABLE metrics"):
                    places, rows = "?, ?, ?, ?, ?, ?, ?", _metrics(subject)
                else:
                    continue
                name = statement.split()[2]
                filled = made.conn.executemany(f"INSERT INTO {name} VALUES ({places})", rows)  # noqa: S608
                count += max(0, filled.rowcount)
            made.execute("COMMIT")
            _mend(made)
            return count


def _mend(made: sqlite_utils.Database) -> None:
    """Remove secrets from texts, and references to attempts of a history that was lost."""
    for table in made.tables:
        refers = {key.column for key in table.foreign_keys}
        if "attempt" in refers:
            lost = f"UPDATE {table.name} SET attempt = NULL WHERE attempt NOT IN (SELECT attempt FROM attempts)"  # noqa: S608
            made.execute(lost)
        texts = [one.name for one in table.columns if one.type == "TEXT" and one.name not in refers]
        if texts and table.name not in ("params", "metrics"):  # these are clean
            table.convert(texts, cleaned)


def _statements() -> Iterator[str]:
    statement = ""
    for line in _SCRIPT.read_text("utf-8").splitlines():
        statement += "" if line.startswith("--") else f"{line}\n"
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def _params(subject: Subject) -> Iterator[tuple[Any, ...]]:
    query = "SELECT number, params FROM attempts WHERE run_id = ?"
    for attempt, text in subject.connection.execute(query, (subject.run.run_id,)):
        for name, value in redact_params(json.loads(text)).items():
            is_plain = value is None or isinstance(value, str | int | float)
            yield attempt, name, cleaned(value) if is_plain else json.dumps(cleaned(value))


def _metrics(subject: Subject) -> Iterator[tuple[Any, ...]]:
    """SQLite has no NaN, so non-finite values are named in a separate column."""
    shown: dict[str, str] = {}
    for line in subject.lines():
        for name, value in subject.values(line).items():
            if name not in shown:
                shown[name] = cleaned(name)
            word = _WORDS[str(value)] if value - value != 0 else None
            number = value if word is None else None
            yield line.attempt, line.rank, line.step, line.at, shown[name], number, word
