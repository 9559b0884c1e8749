"""The agent's reading of a run's specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.agent.lifecycle.run_files import open_metrics, redactor_of
from gputui.core.config import Workspace
from gputui.core.secret_patterns import REDACTED
from gputui.metrics.ingest import MetricsIngest
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import resolve
from gputui.runs.checkpoint_files import list_checkpoints
from gputui.runs.command import checkpoint_directory
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from tests.homes import add_run, open_store
from tests.tables import table

INHERITED = "inherited-secret"
OWN = "of-the-run-alone"


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


@table(
    ("name", "decoy", "source"),
    [
        (name, decoy, source)
        for name, decoy in (("exp [lr=1]", "exp l"), ("v[0-9]", "v1"), ("[!a]x", "bx"), ("all*", "allx"), ("a?", "ab"))
        for source in ("logs/*.csv", "logs/m.csv", "{run_dir}/../../logs/*.csv", "{here}/logs/*.csv")
    ],
)
def test_special_characters_of_folders_are_no_part_of_a_pattern(
    tmp_path: Path, name: str, decoy: str, source: str
) -> None:
    here = tmp_path / name
    for folder in (here, tmp_path / decoy):
        (folder / "logs").mkdir(parents=True)
        (folder / "runs" / "a-1").mkdir(parents=True)
    profile = here / "a.yaml"
    profile.write_text(
        f"script: a.py\ngpus: 0\nmetrics:\n  source: csv\n  path: '{source.replace('{here}', str(here))}'\n"
    )
    spec = resolve(load(profile))
    connection = open_store(tmp_path / "store.db")
    add_run(connection, spec=spec)
    ingest = MetricsIngest(connection)
    open_metrics(ingest, "a-1", spec, here / "runs" / "a-1")
    ingest.begin_attempt("a-1", 1)
    for folder, step in ((here, 1), (tmp_path / decoy, 2)):
        (folder / "logs" / "m.csv").write_text(f"step,loss\n{step},0.5\n")
    ingest.finish("a-1")
    assert connection.execute("SELECT step FROM metrics").fetchall() == [(1,)]
    ingest.close()
    connection.close()


@table(("name", "decoy"), [("exp [lr=1]", "exp l"), ("v[0-9]", "v1"), ("all*", "allx"), ("a?", "ab")])
def test_checkpoints_are_found_below_folders_with_special_characters(tmp_path: Path, name: str, decoy: str) -> None:
    for folder in (name, decoy):
        (tmp_path / folder / "out").mkdir(parents=True)
        (tmp_path / folder / "out" / f"step_1-{folder}.pt").write_bytes(b"x")
    profile = tmp_path / name / "a.yaml"
    profile.write_text("script: a.py\ngpus: 0\ncheckpoints: {dir: out, pattern: 'step_*.pt'}\n")
    spec = resolve(load(profile))
    directory = checkpoint_directory(spec, tmp_path)
    assert directory is not None
    assert spec.checkpoints is not None
    [file] = list_checkpoints(directory, spec.checkpoints.pattern)
    assert Path(file.path).name == f"step_1-{name}.pt"
