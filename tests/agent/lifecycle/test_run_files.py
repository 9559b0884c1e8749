"""What the agent takes from a run's specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.agent.lifecycle.run_files import open_metrics, redactor_of
from gputui.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.redaction import REDACTED
from gputui.runs.spec import MetricsKind, MetricsSpec, RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from tests.stores import open_store

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


@pytest.mark.parametrize(
    ("kind", "path", "name", "content"),
    [
        ("hf", "{run_dir}/checkpoint-*/trainer_state.json", "checkpoint-1/trainer_state.json",
         '{"log_history": [{"step": 1, "loss": 0.5}]}'),
        ("csv", "logs/version_*/metrics.csv", "logs/version_0/metrics.csv", "step,loss\n1,0.5\n"),
        ("csv", "{run_dir}/log.csv", "log.csv", "step,loss\n1,0.5\n"),
    ],
)  # fmt: skip
def test_metrics_are_found_below_a_folder_with_brackets(
    tmp_path: Path, kind: MetricsKind, path: str, name: str, content: str
) -> None:
    folder = tmp_path / "exp [lr=1]*"
    connection = open_store(tmp_path / "gputui.db")
    connection.execute(
        "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
        "VALUES ('a-1', 1, 'a', 'p', 'running', '{}', '{}', 0)"
    )
    ingest = MetricsIngest(connection)
    spec = RunSpec("a", "python", ("t.py",), str(folder), metrics=(MetricsSpec(kind, path),))
    open_metrics(ingest, "a-1", spec, folder)
    ingest.begin_attempt("a-1", 1)
    file = folder / name
    file.parent.mkdir(parents=True)
    file.write_text(content)
    ingest.finish("a-1")
    assert connection.execute("SELECT step FROM metrics").fetchall() == [(1,)]
    ingest.close()
    connection.close()
