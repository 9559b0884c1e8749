"""`gputui study check --dry-run`, and lists of what nobody supervises."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from gputui.cli.main import command
from gputui.config import Workspace
from gputui.studies import optuna_export
from tests.tui.filling import GIB, Filler

PROFILE = """
name: small
command: python train.py --lr {lr}
gpus: 1
params: {lr: 0.1}
"""
STUDY = """
profile: ./small.yaml
space: {lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}
objective: {metric: loss}
sampler: grid
trials_per_gpu: 3
"""


@pytest.mark.parametrize(("peak_gib", "sharing"), [(30, 2), (20, 3), (70, 1), (None, 1)])
def test_trials_that_fit_on_a_gpu_together_are_counted(
    workspace: Workspace, tmp_path: Path, peak_gib: int | None, sharing: int
) -> None:
    filler = Filler(workspace)
    filler.agent()
    filler.gpus(2)
    filler.run("small-1", "succeeded", name="small")
    filler.attempt("small-1", 1, "succeeded", gpus=(0,))
    if peak_gib is not None:
        filler.metrics("small-1", 1, [{"step": 1, "gpu_mem_peak": peak_gib * GIB}])
    filler.close()
    (tmp_path / "small.yaml").write_text(PROFILE)
    study = tmp_path / "s.yaml"
    study.write_text(STUDY)
    words = ["--home", str(workspace.state.parent), "study", "check", str(study), "--dry-run"]
    found = json.loads(CliRunner().invoke(command, [*words, "--json"]).stdout)
    assert (found["trials"], found["trials_per_gpu"], found["parallel"]) == (8, sharing, 2 * sharing)
    assert ("sharing a GPU" in CliRunner().invoke(command, words).stdout) is (sharing > 1)


@pytest.mark.parametrize(("state", "is_noted"), [("running", True), ("paused", False), ("finished", False)])
def test_lists_note_that_no_agent_runs_where_one_is_needed(workspace: Workspace, state: str, is_noted: bool) -> None:
    filler = Filler(workspace)
    filler.agent()
    filler.study(state=state)
    filler.connection.execute("UPDATE runs SET state = 'stopped' WHERE state NOT IN ('succeeded', 'failed')")
    filler.close()
    for words in (["ps"], ["studies"]):
        done = CliRunner().invoke(command, ["--home", str(workspace.state.parent), *words])
        assert (done.exit_code, "gputui agent start" in done.stderr) == (0, is_noted)


def test_trials_are_shown_with_what_a_person_should_know_about_them(workspace: Workspace) -> None:
    filler = Filler(workspace)
    filler.agent()
    filler.study(state="paused", trials=6)
    filler.connection.execute("UPDATE trials SET wish = 'keep' WHERE number = 5")
    filler.connection.execute("UPDATE trials SET parent = 1, generation = 3 WHERE number = 2")
    filler.connection.execute("UPDATE trials SET parent = 1, origin = 'rerun' WHERE number = 4")
    filler.close()
    home = ["--home", str(workspace.state.parent)]
    lines = CliRunner().invoke(command, [*home, "study", "show"]).stdout.splitlines()
    found = {int(line[2:9]): line for line in lines[3:]}
    assert "from trial 1 after milestone 3" in found[2] and "trial 1 again" in found[4] and "kept" in found[5]
    assert "4/40" in CliRunner().invoke(command, [*home, "studies"]).stdout


@pytest.fixture
def searched(workspace: Workspace) -> Workspace:
    filler = Filler(workspace)
    filler.agent()
    filler.study(state="finished")
    filler.close()
    return workspace


def test_an_export_that_cannot_be_written_is_told_in_one_line(searched: Workspace, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["--home", str(searched.state.parent), "study", "export", "lr-search"]
    (tmp_path / "taken.db").write_text("mine")
    for file in (tmp_path / "none" / "out.db", tmp_path / "taken.db"):
        done = CliRunner().invoke(command, [*words, str(file)])
        assert (done.exit_code, len(done.stderr.splitlines())) == (3, 1) and str(file) in done.stderr
    assert (tmp_path / "taken.db").read_text() == "mine"


def test_nothing_is_left_of_an_export_that_fails(
    searched: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    from sqlalchemy.exc import OperationalError

    def fill_the_disk(*_: object) -> None:
        raise OperationalError("INSERT", None, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(optuna_export, "_write", fill_the_disk)
    words = ["--home", str(searched.state.parent), "study", "export", "lr-search", str(tmp_path / "out.db")]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 3 and "disk is full" in done.stderr and not (tmp_path / "out.db").exists()
