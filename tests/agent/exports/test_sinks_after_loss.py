"""The database is lost and a live run read back from its folder: its sinks go on with the same targets."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.exports import live_sink
from gputui.agent.exports.sinks import Sinks
from gputui.agent.lifecycle import rebuild
from gputui.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.reports.export.follower import Follower, Target
from gputui.reports.export.formats import Format
from gputui.reports.export.memory import MemoryPlace
from gputui.runs.spec import MetricsSpec, RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.database import migrations, open_writer
from gputui.store.metrics.exported import ExportProgress, HistoryLostError, read_piece
from gputui.store.runs import find_run
from tests.reports.export.test_follower import Clock, Killed, written_steps
from tests.tui.filling import NOW, Filler

FILES: tuple[Format, ...] = ("jsonl", "csv", "parquet", "tensorboard")


class Lost:
    """A run as an agent leaves it in its folder, and a database that can be lost."""

    def __init__(self, workspace: Workspace, targets: dict[Format, str]) -> None:
        self.workspace, self.targets = workspace, targets
        self.filler = Filler(workspace)
        self.connection: sqlite3.Connection = self.filler.connection
        self.run_dir = workspace.run_dir("net-1")
        self.run_dir.mkdir()
        self.spec = RunSpec(
            name="net", launcher="python", program=("t.py",), workdir="/", python="/usr/bin/python",
            params={"lr": 0.5, "api_key": "verysecretindeed"},
            metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),),
            sinks={str(form): target for form, target in targets.items()},
        )  # fmt: skip
        write_spec(self.run_dir / SPEC_FILE, self.spec)
        self.filler.run("net-1", attempt=1)
        self.filler.attempt("net-1", 1)
        self.connection.execute("UPDATE runs SET spec = ?", (json.dumps(self.spec.to_json()),))
        folder = self.run_dir / "attempts" / "1"
        folder.mkdir(parents=True)
        plan = {
            "argv": ["python", "t.py"], "env": {}, "cwd": "/", "grace_seconds": 30.0, "run_id": "net-1", "attempt": 1,
            "created_at": NOW - 5000, "gpus": [], "params": {"lr": 0.5}, "metrics_bytes": 0,
        }  # fmt: skip
        (folder / "attempt.json").write_text(json.dumps(plan))
        (folder / "started.json").write_text("{}")
        self.ingest = MetricsIngest(self.connection)
        self.ingest.open_source("net-1", str(self.run_dir / "metrics.jsonl"), "jsonl")
        self.ingest.begin_attempt("net-1", 1)

    def context(self, monotonic: Callable[[], float] = time.monotonic) -> AgentContext:
        made = AgentContext.of(self.connection, self.workspace, wake=lambda: None, now=lambda: NOW, monotonic=monotonic)
        return replace(made, ingest=self.ingest)

    def steps(self, first: int, last: int) -> None:
        with (self.run_dir / "metrics.jsonl").open("a") as file:
            for step in range(first, last + 1):
                file.write(json.dumps({"step": step, "time": NOW + step, "loss": 1 / step}) + "\n")
        self.ingest.pump()

    def incident(self, summary: str) -> None:
        self.connection.execute(
            "INSERT INTO incidents (run_id, attempt, at, kind, summary, fingerprint, evidence) "
            "VALUES ('net-1', 1, ?, 'killed', ?, ?, '{}')",
            (NOW, summary, summary),
        )

    def end(self) -> None:
        self.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = ?", (NOW + 50,))

    def lose(self) -> None:
        before = find_run(self.connection, "net-1").created_at
        self.close()
        for path in self.workspace.state.glob("gputui.db*"):
            path.unlink()
        self.connection = open_writer(self.workspace.database)
        self.ingest = MetricsIngest(self.connection)
        assert rebuild.rebuild(self.context()) == 1
        self.ingest.pump()
        assert find_run(self.connection, "net-1").created_at != before

    def follow(self, form: Format) -> int:
        clock = Clock()
        followed = Target("net-1", self.run_dir, form, self.targets[form])
        return Follower(
            self.workspace.database, followed, cpu=lambda: 0.0, clock=lambda: clock.now, wait=clock.wait,
            wall=lambda: NOW,
        ).run()  # fmt: skip

    def close(self) -> None:
        self.ingest.close()
        self.connection.close()


@pytest.fixture
def lost(workspace: Workspace, tmp_path: Path) -> Iterator[Lost]:
    made = Lost(
        workspace, {**{form: str(tmp_path / form) for form in FILES}, "mlflow": f"sqlite:///{tmp_path}/mlflow.db"}
    )
    yield made
    made.close()


@pytest.mark.parametrize("form", FILES)
def test_it_goes_on_with_the_same_file(form: Format, lost: Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        lost.incident(f"{number} before the loss")
    lost.steps(1, 3)
    with pytest.raises(Killed):
        lost.follow(form)
    lost.lose()
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    lost.incident("after the loss")
    lost.steps(4, 5)
    lost.end()
    assert lost.follow(form) > 0
    target = Path(lost.targets[form])
    assert [step for _, step in written_steps(form, target)] == [1, 2, 3, 4, 5]
    if form == "jsonl":
        assert target.read_text().count("after the loss") == 1, "its number was told before, of another incident"
    if form == "tensorboard":
        assert sum(path.read_bytes().count(b"loss\x15") for path in target.iterdir()) == 5, "none twice"
    assert lost.follow(form) == 0


@pytest.mark.long
def test_mlflow_gets_the_run_once(lost: Lost) -> None:
    from mlflow.tracking import MlflowClient

    lost.steps(1, 3)
    with pytest.raises(Killed):
        lost.follow("mlflow")
    lost.lose()
    lost.steps(4, 5)
    lost.end()
    lost.follow("mlflow")
    client = MlflowClient(tracking_uri=lost.targets["mlflow"])
    experiment = client.get_experiment_by_name("gputui")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")] == [1, 2, 3, 4, 5]


def test_the_agent_finds_what_the_sinks_remember(lost: Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent and the process of a sink mean the same files, before the loss and after it."""
    places: list[MemoryPlace] = []
    monkeypatch.setattr(live_sink, "adopt", lambda lock: places.append(MemoryPlace(lock.parent.parent, lock.stem)))
    monkeypatch.setattr(live_sink, "start", lambda *arguments: None)
    lost.steps(1, 3)
    for form in FILES:
        with pytest.raises(Killed):
            lost.follow(form)
    for is_before in (True, False):
        agent = Sinks(lost.context(lambda: 0.0))
        agent.begin()
        agent.turn()
        agent.close()
        if is_before:
            lost.lose()
    found = [place.read() for place in places if not place.stem.startswith("mlflow")]
    assert len(found) == 2 * len(FILES) and None not in found


def test_another_store_is_told_from_one_that_was_read() -> None:
    progress: list[dict[str, Any]] = []
    for _ in range(2):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            for _, script in migrations():
                connection.executescript(script)
            connection.execute(
                "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
                "VALUES ('net-1', 1, 'net', 'net', 'running', '{}', '{}', 1.0)"
            )
            read = read_piece(connection, "net-1", ExportProgress(), 10).progress
            assert read_piece(connection, "net-1", read, 10).progress == read
            for other in progress:
                with pytest.raises(HistoryLostError):
                    read_piece(connection, "net-1", ExportProgress.from_json(json.loads(json.dumps(other))), 10)
            progress.append(read.to_json())
