"""Studies before they begin, and the report of one."""

from __future__ import annotations

from pathlib import Path

from gputui.core.config import Workspace, locate
from tests.ui.cli.program import refused, said, shape
from tests.ui.tui.filling import GIB, Filler

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


def test_trials_that_fit_on_a_gpu_together_are_counted(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(PROFILE)
    (tmp_path / "s.yaml").write_text(STUDY)
    for peak_gib, sharing in ((30, 2), (20, 3), (70, 1), (None, 1)):
        workspace = locate(tmp_path / str(peak_gib))
        filler = Filler(workspace)
        filler.agent()
        filler.gpus(2)
        filler.run("small-1", "succeeded", name="small")
        filler.attempt("small-1", 1, "succeeded", gpus=(0,))
        if peak_gib is not None:
            filler.metrics("small-1", 1, [{"step": 1, "gpu_mem_peak": peak_gib * GIB}])
        filler.close()
        words = ("study", "check", str(tmp_path / "s.yaml"), "--dry-run")
        found = shape(workspace, *words)
        counted = (found["trials"], found["trials_per_gpu"], found["parallel"])
        assert counted == (8, sharing, 2 * sharing), peak_gib
        assert ("sharing a GPU" in said(workspace, *words)) is (sharing > 1), peak_gib


def test_a_grid_on_a_target_asks_for_no_gpu_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(PROFILE.replace("gpus: 1", "gpus: 4"))
    workspace = locate(tmp_path / "home")
    workspace.create()
    workspace.targets.write_text("lab: {kind: slurm}\n")
    words = ("study", "run", str(tmp_path / "small.yaml"), "--grid", "lr=1,2,3", "--on", "lab", "--parallel", "3")
    plan = shape(workspace, *words, "--dry-run")
    assert (plan["target"], plan["parallel"], plan["gpus_per_trial"]) == ("lab", 3, 4)
    assert "--parallel" in refused(workspace, *words[:-2], code=2)
    assert "--set" in refused(workspace, *words[:3], "--set", "lr=1", code=2)
    assert f"\nfrom {workspace.targets}" in said(workspace, "target", "list")
    assert "gone" in refused(workspace, *words[:6], "gone", code=2)


def test_a_report_is_printed_or_written_to_a_folder_or_json(workspace: Workspace, tmp_path: Path) -> None:
    filler = Filler(workspace)
    filler.agent()
    filler.study(state="finished", reason="its 14 trials are done")
    filler.connection.execute("UPDATE studies SET trouble = 'its process failed twice'")
    filler.close()
    for words in (("study", "list"), ("study", "show")):
        assert "its 14 trials are done; its process failed twice" in said(workspace, *words), words
    assert shape(workspace, "study", "show")["trouble"] == "its process failed twice"
    lines = said(workspace, "study", "report").splitlines()
    assert lines[0] == "# Study lr-search-1" and "## Best trials" in lines
    assert sum(line.startswith("| ") for line in lines) > 10

    found = shape(workspace, "study", "report")
    assert found["id"] == "lr-search-1" and found["best"][0]["command"].startswith("gputui run vit --set lr=")
    assert {one["state"] for one in found["not_complete"]} == {"pruned"} and 0 < found["saved_share"] < 1
    assert {one["name"] for one in found["importances"]} == {"lr", "batch_size", "optimizer"}

    out = tmp_path / "out"
    said(workspace, "study", "report", "lr-search", "--out", str(out))
    names = {path.name for path in out.iterdir()}
    assert {"report.md", "report.html", "values.svg", "courses.svg", "over-lr.svg"} <= names
    assert (out / "report.html").read_text().count("<svg") == sum(name.endswith(".svg") for name in names)
