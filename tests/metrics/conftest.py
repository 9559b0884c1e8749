"""One run with one metrics file, and what the store holds of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.core.config import locate
from gputui.metrics import files
from gputui.metrics.formats import PRINTED_STREAMS, Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.runs.launchers import FOR_SCRIPT, LAUNCHERS
from gputui.store.rows import insert
from tests.homes import Home

RUN = "run-1"
NOW = 1_700_000_000.0


class MetricsHome(Home):
    """A home with a run, its folder and its ingest. `restart` stands for a new agent."""

    def __init__(
        self, folder: Path, *, kind: str = "jsonl", name: str = "metrics.jsonl", in_memory: bool = False, **spec: Any
    ) -> None:
        super().__init__(locate(folder / "home", {}), NOW, in_memory=in_memory)
        self.folder = folder
        self.add_run(RUN, spec)
        self.rank_output = LAUNCHERS[spec.get("launcher", FOR_SCRIPT.name)].rank_output(2)
        self.file = folder / name
        self.restart()
        path = str(folder) if kind in PRINTED_STREAMS else str(self.file)
        reading = spec.get("metrics", {})
        self.ingest.open_source(RUN, path, kind, Reading(tuple(reading.get("patterns", ())), reading.get("step")))

    def close(self) -> None:
        self.ingest.close()
        super().close()

    def restart(self) -> None:
        if hasattr(self, "ingest"):
            self.ingest.close()
        self.ingest = MetricsIngest(self.connection, clock=lambda: NOW)

    def add_run(self, run_id: str, spec: dict[str, Any] | None = None) -> None:
        self.sequence += 1
        insert(
            self.connection, "runs", run_id=run_id, sequence=self.sequence, name=run_id, profile="p", state="running",
            spec=json.dumps(spec or {}), params="{}", created_at=0,
        )  # fmt: skip

    def begin(self, attempt: int = 1) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.ingest.begin_attempt(RUN, attempt, self.rank_output)
        self.connection.execute("COMMIT")

    def print_to(self, attempt: int) -> None:
        """Let what is appended go to the output of an attempt."""
        self.file = self.folder / f"attempts/{attempt}/output.log"
        self.file.parent.mkdir(parents=True, exist_ok=True)

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
        """Read all there is; returns the messages of the reports."""
        messages = []
        while True:
            report = self.ingest.pump()
            messages += [note.message for _, note in report.notes]
            if not report.more:
                return messages

    def stored(self) -> list[tuple[int, int]]:
        """(attempt, step) of every line in the order they were written."""
        return self.rows("SELECT attempt, step FROM metrics ORDER BY source_id, generation, byte_offset")

    def data(self) -> list[dict[str, Any]]:
        rows = self.rows("SELECT data FROM metrics ORDER BY source_id, generation, byte_offset")
        return [json.loads(text) for (text,) in rows]

    def rejected(self) -> list[tuple[int, str]]:
        """(attempt, reason) of every line set aside."""
        return self.rows("SELECT attempt, reason FROM rejected_lines ORDER BY source_id, generation, byte_offset")

    def counts(self) -> tuple[int, int]:
        """(lines stored, lines set aside) as counted."""
        ((lines, rejected),) = self.rows("SELECT sum(line_count), sum(rejected_count) FROM metric_sources")
        return int(lines), int(rejected)


def line(step: int, **values: Any) -> str:
    return json.dumps({"step": step, "loss": 1 / (step + 1), **values}) + "\n"


@pytest.fixture(autouse=True)
def look_at_each_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked for whenever there is a look at them."""
    monkeypatch.setattr(files, "SEARCH_SHARE", math.inf)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[MetricsHome]:
    with closing(MetricsHome(tmp_path)) as home:
        yield home
