"""`gputui study check --dry-run`, and lists of what nobody supervises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gputui.cli.main import command
from gputui.config import Workspace
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
