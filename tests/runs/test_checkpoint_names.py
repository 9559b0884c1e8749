"""The step that a checkpoint's name tells, and what is none."""

from __future__ import annotations

from pathlib import PurePath

from gputui.runs.checkpoint_names import explicit_step, step_in_name
from tests.tables import table


@table("name, step", [
    ("step_00000040.pt", 40), ("epoch=3-step=400.ckpt", 400), ("epoch=7-step=900-v1.ckpt", 900),
    ("epoch=9-val_loss=0.12.ckpt", None), ("epoch=1-val_loss=0.93.ckpt", None), ("checkpoint-500", 500),
    ("checkpoint_epoch_12.pt", None), ("global_step500", 500), ("step_2000_fp16.pt", 2000), ("step_500_v2.pt", 500),
    ("iter_0001000-of-8.pt", 1000), ("rank_0_step_10.pt", 10), ("step_4.pt.gz", 4), ("model_500.pt", 500),
    ("0040.pt", 40), ("model_v2.pt", None), ("last-v1.ckpt", None), ("mp_rank_00_model_states.pt", None),
    ("resnet50-800.pt", None), ("last.pt", None), ("step_" + "9" * 30 + ".pt", None),
])  # fmt: skip
def test_steps_in_names(name: str, step: int | None) -> None:
    assert step_in_name(PurePath(name)) == step


def test_folders_of_a_name_tell_it_where_the_name_does_not() -> None:
    folder = PurePath("/runs/step_7")
    assert step_in_name(folder / "global_step500" / "mp_rank_00_model_states.pt", folder) == 500
    assert step_in_name(folder / "model.pt", folder) is None


def test_only_a_word_makes_a_number_a_step_for_certain() -> None:
    assert explicit_step("step_7.pt") == 7 and explicit_step("model_7.pt") is None
