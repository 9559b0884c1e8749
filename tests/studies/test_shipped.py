"""The studies that come with gputui: that they are valid, and that their numbers fit together."""

from __future__ import annotations

from pathlib import Path

from gputui.core.config import Workspace, shipped_studies
from gputui.studies.loading import load_study


def test_members_of_gpt2_pbt_have_a_value_and_a_checkpoint_at_each_milestone(
    workspace: Workspace, tmp_path: Path
) -> None:
    found = load_study(shipped_studies() / "gpt2-pbt.yaml", workspace, tmp_path)
    spec, defaults = found.spec, {name: one.default for name, one in found.profile.parameters.items()}
    assert spec.pbt is not None and spec.parallel == spec.pbt.members
    for name in ("validate_every", "checkpoint_every"):
        assert spec.pbt.every % int(str(spec.params[name])) == 0
    assert int(str(spec.params["steps"])) % spec.pbt.every == 0
    assert spec.pbt.members * spec.gpus_per_trial == found.profile.form.gpus.count
    # As many tokens a step as the profile has on all its GPUs.
    assert spec.params["grad_accum"] == int(str(defaults["grad_accum"])) * spec.pbt.members
    assert {"lr", "weight_decay"} == set(spec.tuned) and spec.params["schedule"] == "constant"
