"""The profiles that come with gputui: what they say of themselves, and that the trainer takes what gputui gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.core.config import shipped_profiles
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import GpuChoice, resolve
from gputui.recovery.batches import EFFECTIVE_BATCH_TOLERANCE, shrink_batch
from gputui.recovery.classify import Incident
from gputui.recovery.effects import ActionContext, AppliedAction
from gputui.runs.command import build_launch
from gputui.runs.launchers.base import Placement
from gputui.runs.spec import RunSpec, Scalar
from tests.tables import table
from trainer.config import Settings, from_arguments, unfold

PATHS = sorted(shipped_profiles().glob("*.yaml"))
OF_THE_TRAINER = [path for path in PATHS if load(path).form.module == "trainer"]

of_the_trainer = table("path", OF_THE_TRAINER)


def resolved(path: Path) -> RunSpec:
    return resolve(load(path), GpuChoice(override="0"))


def settings_of(spec: RunSpec, params: dict[str, Scalar], checkpoint: str | None = None) -> Settings:
    """The trainer's settings from the command line that gputui starts it with."""
    launch = build_launch(
        spec, run_dir="/r", attempt=1, params=params, placement=Placement.here((), 2, 1),
        checkpoint=checkpoint,
    )  # fmt: skip
    arguments = launch.argv[launch.argv.index("trainer") + 1 :]
    return from_arguments(arguments, {name: text for name, text in launch.env.items() if name.startswith("GPUTUI")})[0]


@of_the_trainer
def test_the_trainer_understands_the_command(path: Path) -> None:
    spec = resolved(path)
    settings = settings_of(spec, dict(spec.params), checkpoint="/r/checkpoints/step_00000040.pt")
    assert settings.resume == "/r/checkpoints/step_00000040.pt"
    assert str(settings.metrics) == "/r/metrics.jsonl"
    assert spec.checkpoints is not None
    assert str(settings.checkpoint_dir) == spec.checkpoints.directory.format(run_dir="/r")
    assert settings.steps == spec.params["steps"]


@of_the_trainer
def test_a_smaller_batch_keeps_the_samples_of_a_step_in_every_phase(path: Path) -> None:
    spec = resolved(path)
    shrunk = shrink_batch(
        ActionContext(Incident("cuda_oom", 0, 1, summary="", fingerprint="", evidence_lines=()), spec, spec.params)
    )
    assert isinstance(shrunk, AppliedAction)
    changed = dict(spec.params) | {change.parameter: change.after for change in shrunk.changes}
    before, after = (unfold(settings_of(spec, dict(params))) for params in (spec.params, changed))
    for old, new in zip(before, after, strict=True):
        assert isinstance(old.batch_size, int)
        assert isinstance(new.batch_size, int)
        assert new.batch_size < old.batch_size
        ratio = new.batch_size * new.grad_accum / (old.batch_size * old.grad_accum)
        assert ratio == pytest.approx(1, abs=float(EFFECTIVE_BATCH_TOLERANCE))
