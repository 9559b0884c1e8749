"""A home with a run and its checkpoints, whose folder is looked at as the agent does."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.checkpoint_survey import scan, search_now
from gputui.core.config import Workspace
from gputui.recovery.checkpoints import ledger, resumable
from gputui.recovery.checkpoints.choices import for_person
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec
from gputui.store import checkpoints
from gputui.store.checkpoints import CheckpointRow
from tests.homes import Home, add_boundary, add_line, add_run, add_source

BEGIN = 1_700_000_000.0


class CheckpointHome(Home):
    """A home with a run and its checkpoint folder. Steps take a second."""

    def __init__(self, workspace: Workspace, pattern: str = "*") -> None:
        super().__init__(workspace, BEGIN)
        self.saved = 0
        self.shift = 0.0
        self.folder = workspace.run_dir("a-1") / "checkpoints"
        self.folder.mkdir(parents=True)
        self.services = self.context()
        spec = RunSpec(
            name="a", launcher="python", program=("x.py",), python="/p", workdir="/",
            metrics=(MetricsSpec("jsonl", "/m"),), loss="loss",
            checkpoints=CheckpointSpec("{run_dir}/checkpoints", pattern, ("--resume", "{checkpoint}")),
        )  # fmt: skip
        add_run(self.connection, spec=spec, now=self.now)
        add_source(self.connection)

    def attempt_folder(self, number: int) -> Path:
        folder = self.workspace.run_dir("a-1") / "attempts" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def begin(self, number: int, path: str | None = None) -> None:
        """Begin an attempt after a scan: from a checkpoint, or from the start."""
        self.now += 10.0
        self.scan()
        with transaction(self.connection) as connection:
            repository.set_next_attempt(connection, "a-1", params={}, resume_from=path, not_before=None)
            launch = Launch(("x",), {}, "/", 1.0)
            repository.insert_attempt(connection, self.run_of(), number=number, gpus=(), launch=launch, now=self.now)
            checkpoint_survey.attempt_begins(
                connection, self.run_of(), number, self.folder, self.attempt_folder(number)
            )
            add_boundary(connection, number)

    def step(self, *steps: int, nan_from: int = 1 << 60, is_timed: bool = True) -> None:
        for step in steps:
            self.now += 1.0
            stamp = {"time": self.now} if is_timed else {}
            data = {"step": step, **stamp, "loss": 1.0 if step < nan_from else "NaN"}
            add_line(self.connection, step, self.now, data, attempt=self.run_of().attempt)
            self.connection.execute("UPDATE attempts SET last_step = ? WHERE number = ?", (step, self.run_of().attempt))

    def save(self, name: str, data: bytes | None = None) -> Path:
        """A checkpoint with weights of its own, dated by a clock that may be false."""
        self.saved += 1
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(archive(f"{self.saved:09}") if data is None else data)
        os.utime(path, (self.now + self.shift,) * 2)
        return path

    def search(self, ended: bool = False) -> CheckpointSearch:
        ended_at = self.now if ended else None
        search = search_now(self.services, self.run_of(), ended_at)
        assert search is not None
        return search

    def scan(self) -> list[str]:
        """Scan the folder; the names that may be resumed from, the best first."""
        search = self.search()
        survey = scan(search, self.now)
        with transaction(self.connection) as connection:
            if search.writer is not None:
                checkpoints.note_scan(connection, "a-1", search.writer, str(self.folder), self.now)
            checkpoint_survey.write_ledger(connection, search, survey.rows)
        return self.usable()

    def end(self, kind: str | None = "killed") -> list[str]:
        """End the newest attempt; returns the names that may be resumed from."""
        self.now += 1.0
        search = self.search(ended=True)
        number = search.attempts[-1].number
        rows = ledger.attempt_ended(surveyed(search, lambda: self.now), search.attempts, number, kind)
        with transaction(self.connection) as connection:
            repository.end_attempt(connection, "a-1", number, state="failed", ended_at=self.now, exit_record={})
            checkpoint_survey.attempt_ended(
                connection, search, rows, self.attempt_folder(number), is_seen=True, now=self.now
            )
        return self.usable()

    def usable(self) -> list[str]:
        search = self.search()
        return [row.name for row in resumable.candidates(search.rows, search.attempts)]

    def ledger(self) -> dict[str, CheckpointRow]:
        return {row.name: row for row in checkpoints.of_run(self.connection, "a-1")}

    def resumable_by_person(self) -> list[str]:
        return [info.path.name for info in for_person(self.search(), None, wall=lambda: self.now).usable]


def archive(weights: str = "w") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("weights", weights)
    return buffer.getvalue()
