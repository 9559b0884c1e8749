"""A run whose lines went through the ingest, and its curves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics.curves.live_curves import RunCurves
from gputui.metrics.curves.model import ChartData, ChartRequest
from gputui.runs.repository import transaction
from gputui.store.attempts import read_attempts
from gputui.store.database import open_reader
from gputui.store.rows import update
from tests.homes import add_attempt
from tests.metrics.conftest import NOW, RUN, MetricsHome

BEGAN_AT = NOW


class CurvesHome(MetricsHome):
    """A home with a run of attempts one after the other, whose lines went through the ingest."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._reader: sqlite3.Connection | None = None

    def close(self) -> None:
        super().close()
        if self._reader is not None:
            self._reader.close()

    @property
    def reader(self) -> sqlite3.Connection:
        if self._reader is None:
            self._reader = open_reader(self.workspace.database)
        return self._reader

    def begin_at(self, number: int, at: float, *, first_step: int | None = 0, gpus: tuple[str, ...] = ()) -> None:
        """Begin an attempt, ``at`` seconds after the run began; the one before ended five seconds earlier."""
        update(self.connection, "attempts", {"run_id": RUN, "number": number - 1}, ended_at=BEGAN_AT + at - 5)
        add_attempt(self.connection, RUN, number, BEGAN_AT + at, gpus=json.dumps(gpus), first_step=first_step)
        update(self.connection, "runs", {"run_id": RUN}, attempt=number)
        with transaction(self.connection):
            self.ingest.begin_attempt(RUN, number)

    def write(self, *lines: dict[str, Any]) -> None:
        with self.file.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        while self.ingest.pump().more:
            pass

    def steps_at(self, first: int, last: int, at: float, **more: Any) -> None:
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
def home(tmp_path: Path) -> Iterator[CurvesHome]:
    with closing(CurvesHome(tmp_path)) as home:
        yield home
