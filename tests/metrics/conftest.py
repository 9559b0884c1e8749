"""One run with one metrics file, and what the store holds of it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics import files
from gputui.metrics.formats import PRINTED_STREAMS, Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.runs.launchers import FOR_SCRIPT, LAUNCHERS
from gputui.store.database import schema
from tests.homes import open_store

RUN = "run-1"
NOW = 1_700_000_000.0


class Bench:
    """A run, its folder and its ingest. `restart` stands for a new agent."""

    def __init__(
        self, folder: Path, *, kind: str = "jsonl", name: str = "metrics.jsonl", in_memory: bool = False, **spec: Any
    ) -> None:
        self.folder = folder
        self.connection = _in_memory() if in_memory else open_store(folder / "gputui.db")
        self.add_run(RUN, spec)
        self.rank_output = LAUNCHERS[spec.get("launcher", FOR_SCRIPT.name)].rank_output(2)
        self.file = folder / name
        self.ingest = MetricsIngest(self.connection, clock=lambda: NOW)
        path = str(folder) if kind in PRINTED_STREAMS else str(self.file)
        wanted = spec.get("metrics", {})
        self.ingest.open_source(RUN, path, kind, Reading(tuple(wanted.get("patterns", ())), wanted.get("step")))

    def add_run(self, run_id: str, spec: dict[str, Any] | None = None) -> None:
        self.connection.execute(
            "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
            "VALUES (?, (SELECT count(*) FROM runs), ?, 'p', 'running', ?, '{}', 0)",
            (run_id, run_id, json.dumps(spec or {})),
        )

    def begin(self, attempt: int = 1) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.ingest.begin_attempt(RUN, attempt, self.rank_output)
        self.connection.execute("COMMIT")

    def restart(self) -> None:
        self.ingest.close()
        self.ingest = MetricsIngest(self.connection, clock=lambda: NOW)

    def append(self, content: bytes | str) -> None:
        with self.file.open("ab") as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def steps(self, *numbers: int) -> None:
        self.append("".join(line(number) for number in numbers))

    def pump(self) -> Any:
        report = self.ingest.pump()
        while report.more:
            report = self.ingest.pump()
        return report

    def notes(self) -> list[str]:
        """Read all there is; what is to be reported of it."""
        found = []
        while True:
            report = self.ingest.pump()
            found += [note.text for _, note in report.notes]
            if not report.more:
                return found

    def stored(self) -> list[tuple[int, int]]:
        """(attempt, step) of every line in the order they were written."""
        return self.connection.execute(
            "SELECT attempt, step FROM metrics ORDER BY source_id, generation, byte_offset"
        ).fetchall()

    def data(self) -> list[dict[str, Any]]:
        rows = self.connection.execute("SELECT data FROM metrics ORDER BY source_id, generation, byte_offset")
        return [json.loads(text) for (text,) in rows]

    def rejected(self) -> list[tuple[int, str]]:
        """(attempt, reason) of every line set aside."""
        return self.connection.execute(
            "SELECT attempt, reason FROM rejected_lines ORDER BY source_id, generation, byte_offset"
        ).fetchall()

    def counts(self) -> tuple[int, int]:
        """(lines stored, lines set aside) as counted."""
        row = self.connection.execute("SELECT sum(line_count), sum(rejected_count) FROM metric_sources").fetchone()
        return int(row[0]), int(row[1])


def _in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(_empty_store())
    return connection


@lru_cache(maxsize=1)
def _empty_store() -> bytes:
    """An empty store: thousands of examples would spend their time on the schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(schema())
        return connection.serialize()


def line(step: int, **values: Any) -> str:
    return json.dumps({"step": step, "loss": 1 / (step + 1), **values}) + "\n"


@pytest.fixture(autouse=True)
def look_at_each_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked for whenever there is a look at them."""
    monkeypatch.setattr(files, "SEARCH_SHARE", math.inf)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.ingest.close()
    made.connection.close()


@pytest.fixture
def connection(bench: Bench) -> sqlite3.Connection:
    return bench.connection
