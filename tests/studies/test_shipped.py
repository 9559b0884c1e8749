"""The studies that come with gputui: that they are valid, and that their numbers fit together."""

from __future__ import annotations

from pathlib import Path

from gputui.config import Workspace, shipped_studies
from gputui.studies.loading import StudyFile, load_study


def shipped(name: str, workspace: Workspace, cwd: Path) -> StudyFile:
    return load_study(shipped_studies() / f"{name}.yaml", workspace, cwd)


def test_members_of_gpt2_pbt_have_a_value_and_a_checkpoint_at_each_milestone(
    workspace: Workspace, tmp_path: Path
) -> None:
    found = shipped("gpt2-pbt", workspace, tmp_path)
    spec, defaults = found.spec, {name: one.default for name, one in found.profile.parameters.items()}
    assert spec.pbt is not None and spec.parallel == spec.pbt.members
    for name in ("validate_every", "checkpoint_every"):
        assert spec.pbt.every % int(str(spec.params[name])) == 0
    assert int(str(spec.params["steps"])) % spec.pbt.every == 0
    assert spec.pbt.members * spec.gpus_per_trial == found.profile.form.gpus.count
    # As many tokens a step as the profile has on all its GPUs.
    assert spec.params["grad_accum"] == int(str(defaults["grad_accum"])) * spec.pbt.members
    assert {"lr", "weight_decay"} == set(spec.tuned) and spec.params["schedule"] == "constant"


def test_digits_lr_needs_no_gpu_and_prunes(workspace: Workspace, tmp_path: Path) -> None:
    spec = shipped("digits-lr", workspace, tmp_path).spec
    assert spec.gpus_per_trial == 0 and spec.budget.trials == 8
    assert spec.pruner.kind == "hyperband" and spec.pruner.length == spec.params["steps"]
