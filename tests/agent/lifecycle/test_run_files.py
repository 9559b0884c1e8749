"""The agent's reading of a run's specification."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.agent.lifecycle.run_files import open_metrics, redactor_of
from gputui.core.config import Workspace
from gputui.core.secret_patterns import REDACTED
from gputui.metrics.ingest import MetricsIngest
from gputui.runs.spec import MetricsSpec, RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from tests.agent.conftest import SPEC, add_run

INHERITED, OWN = "inherited-secret", "of-the-run-alone"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", INHERITED)


def test_a_run_has_its_own_secrets_and_those_that_it_inherits(workspace: Workspace) -> None:
    workspace.run_dir("r-1").mkdir()
    spec = RunSpec(name="r", launcher="command", program=("x",), workdir="/", env={"A_TOKEN": OWN, "LR": "0.123456"})
    write_spec(workspace.run_dir("r-1") / SPEC_FILE, spec)
    said = f"{INHERITED} and {OWN} at 0.123456"
    assert redactor_of(workspace, "r-1").text(said) == f"{REDACTED} and {REDACTED} at 0.123456"
    assert redactor_of(workspace, "gone-1").text(said) == f"{REDACTED} and {OWN} at 0.123456"


def test_metrics_are_found_below_a_folder_with_brackets(tmp_path: Path, connection: sqlite3.Connection) -> None:
    folder = tmp_path / "exp [lr=1]*"
    spec = replace(SPEC, workdir=str(folder), metrics=(MetricsSpec("csv", "logs/version_*/metrics.csv"),))
    add_run(connection, spec=spec)
    ingest = MetricsIngest(connection)
    open_metrics(ingest, "a-1", spec, folder)
    ingest.begin_attempt("a-1", 1)
    file = folder / "logs/version_0/metrics.csv"
    file.parent.mkdir(parents=True)
    file.write_text("step,loss\n1,0.5\n")
    ingest.finish("a-1")
    assert connection.execute("SELECT step FROM metrics").fetchall() == [(1,)]
    ingest.close()
