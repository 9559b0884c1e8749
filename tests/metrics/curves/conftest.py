"""A run whose lines went through the ingest, and its curves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics.curves.live_curves import RunCurves
from gputui.metrics.curves.model import ChartData, ChartRequest
from gputui.metrics.ingest import MetricsIngest
from gputui.store.attempts import read_attempts
from gputui.store.database import open_reader
from tests.homes import open_store

RUN = "run-1"
BEGAN_AT = 1_700_000_000.0


class Story:
    """A run with attempts one after the other. ``unreduced`` stands for a database from before there were envelopes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gputui.db"
        self.connection = open_store(self.path)
        self.connection.execute(
            "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
            "VALUES (?, 1, 'run', 'p', 'running', '{}', '{}', 0)",
            (RUN,),
        )
        self.file = folder / "metrics.jsonl"
        self.ingest = MetricsIngest(self.connection, clock=lambda: BEGAN_AT)
        self.ingest.open_source(RUN, str(self.file), "jsonl")
        self._reader: sqlite3.Connection | None = None

    @property
    def reader(self) -> sqlite3.Connection:
        if self._reader is None:
            self._reader = open_reader(self.path)
        return self._reader

    def attempt(self, number: int, at: float, *, first_step: int | None = 0, gpus: tuple[str, ...] = ()) -> None:
        """Begin an attempt, ``at`` seconds after the run began; the one before ended five seconds earlier."""
        self.connection.execute(
            "UPDATE attempts SET ended_at = ? WHERE run_id = ? AND number = ?", (BEGAN_AT + at - 5, RUN, number - 1)
        )
        self.connection.execute(
            "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, started_at, first_step) "
            "VALUES (?, ?, 'running', '{}', ?, '{}', ?, ?, ?)",
            (RUN, number, json.dumps(gpus), BEGAN_AT + at, BEGAN_AT + at, first_step),
        )
        self.connection.execute("UPDATE runs SET attempt = ? WHERE run_id = ?", (number, RUN))
        self.connection.execute("BEGIN IMMEDIATE")
        self.ingest.begin_attempt(RUN, number)
        self.connection.execute("COMMIT")

    def write(self, *lines: dict[str, Any]) -> None:
        with self.file.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        while self.ingest.pump().more:
            pass

    def steps(self, first: int, last: int, at: float, **more: Any) -> None:
        """A line a second from ``at`` on, the loss as high as the step."""
        self.write(
            *(
                {"step": step, "time": BEGAN_AT + at + step - first, "loss": float(step), **more}
                for step in range(first, last)
            )
        )

    def unreduce(self) -> None:
        for table in ("metric_stretches", "metric_envelopes"):
            self.connection.execute(f"DELETE FROM {table}")

    def ask(self, request: ChartRequest, curves: RunCurves | None = None) -> ChartData:
        reader = self.reader
        reader.execute("BEGIN")
        try:
            return (curves or RunCurves(RUN)).read(reader, read_attempts(reader, RUN), request)
        finally:
            reader.execute("ROLLBACK")


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    made.ingest.close()
    made.connection.close()
    if made._reader is not None:
        made._reader.close()
