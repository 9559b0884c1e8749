"""Whole runs of two ranks: phases, ways of spreading, and going on from one to another."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.tables import table
from tests.texts import mentions
from tests.trainer.comparing import same
from tests.trainer.ranks import Ranks
from tests.trainer.running import (
    checkpoints,
    events,
    settings,
    step_lines,
    train,
    train_and_crash,
    train_on,
    train_until,
)
from trainer.checkpoints import load

PHASES = json.dumps(
    [
        {"name": "cold", "steps": 4, "lr": "x0.1", "validate_every": 2},
        {"name": "warm", "steps": 6, "batch_size": "x0.5", "grad_accum": 4, "parallel": "zero1", "ema": 0.9},
        {"name": "alone", "steps": 3, "ranks": 1, "precision": "bf16"},
        {"name": "spread", "steps": 3, "parallel": "fsdp", "gradient_checkpointing": "full", "reset_optimizer": True},
    ]
)
PHASED = (
    "--phases",
    PHASES,
    "--validate-every",
    "0",
    "--checkpoint-every",
    "5",
    "--dropout",
    "0.2",
    "--warmup-steps",
    "3",
)

COMMON = ("--steps", "30", "--validate-every", "0", "--checkpoint-every", "12", "--dropout", "0", "--ema", "0.9")
LONG = (("--parallel", "zero1"), ("--parallel", "fsdp"), ("--async-checkpoints",))


@pytest.fixture(scope="module")
def phased(two_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run through all PHASES."""
    output = tmp_path_factory.mktemp("phased")
    two_ranks.run(train_on, output, *PHASED)
    return output


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one process with the batch of two ranks."""
    output = tmp_path_factory.mktemp("plain")
    assert train(output, *COMMON, "--batch-size", "16", "--device", "cpu") == 0
    return output


class EndlessGradients(nn.Module):
    """A model whose loss is finite, and whose gradients are not."""

    def __init__(self, image_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(image_shape), classes)
        self.zero = nn.Parameter(torch.zeros(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(images.flatten(1)) + self.zero.sqrt()
        return logits


def test_phases_follow_each_other_with_settings_of_their_own(phased: Path) -> None:
    steps = step_lines(phased)
    assert [line["step"] for line in steps] == list(range(1, 17))
    assert [line["phase"] for line in steps] == ["cold"] * 4 + ["warm"] * 6 + ["alone"] * 3 + ["spread"] * 3
    # Batch x accumulation: 8 x 2 on two ranks, 4 x 4 on two, 8 x 2 on one, 8 x 2 on two again.
    samples = [0, *(line["samples"] for line in steps)]
    assert [after - before for before, after in itertools.pairwise(samples)] == [32] * 10 + [16] * 3 + [32] * 3
    first_rate = settings().lr / settings(*PHASED).warmup_steps  # each phase has a warm-up of its own
    assert [steps[0]["lr"], steps[4]["lr"]] == pytest.approx([0.1 * first_rate, first_rate])
    assert [event["world_size"] for event in events(phased, "phase")] == [2, 1, 2]
    assert [event["step"] for event in events(phased, "validation")] == [2, 4, 10, 13, 16]
    state = load(phased / "checkpoints" / "step_00000016.pt")
    assert (state["phase"], state["phase_step"], state["step"]) == ("spread", 3, 16)
    assert state["optimizer"]["head.weight"]["step"] == 3


def test_a_run_that_crashed_in_a_phase_goes_on_as_if_it_had_not(two_ranks: Ranks, phased: Path, tmp_path: Path) -> None:
    two_ranks.run(train_and_crash, tmp_path, 8, *PHASED)
    assert checkpoints(tmp_path)[-1] == "step_00000005.pt"
    two_ranks.run(train_on, tmp_path, *PHASED, "--resume", "auto")
    first, second = (load(output / "checkpoints" / "step_00000016.pt") for output in (phased, tmp_path))
    for part in ("model", "optimizer", "random", "samples", "metrics"):
        assert same(first[part], second[part]), part


@pytest.mark.long
@pytest.mark.parametrize("requested", [(0,), (1,), (0, 1)])
def test_a_stop_in_a_phase_that_leaves_ranks_out_ends_all_of_them(
    requested: tuple[int, ...], two_ranks: Ranks, tmp_path: Path
) -> None:
    phases = json.dumps([{"name": "a", "steps": 2}, {"name": "b", "steps": 5000, "ranks": 1}])
    flags = ("--phases", phases, "--checkpoint-every", "0", "--validate-every", "0")
    two_ranks.run(train_until, tmp_path, 5, *flags, signalled=requested)
    [stop] = events(tmp_path, "stop")
    assert stop["reason"] == "SIGTERM"
    assert 5 <= stop["step"] < 5000
    assert checkpoints(tmp_path)[-1] == f"step_{stop['step']:08d}.pt"


@pytest.mark.parametrize(
    "flags",
    [("--parallel", "fsdp", "--sharded-checkpoints"), *(pytest.param(flags, marks=pytest.mark.long) for flags in LONG)],
    ids=" ".join,
)
def test_a_checkpoint_of_any_kind_goes_on_in_one_process_without_a_jump(
    flags: tuple[str, ...], two_ranks: Ranks, plain: Path, tmp_path: Path
) -> None:
    two_ranks.run(train_and_crash, tmp_path, 26, *COMMON, *flags)
    saved = max(step for step in (12, 24) if f"step_{step:08d}.pt" in checkpoints(tmp_path))
    assert (
        saved == 24 or "--async-checkpoints" in flags
    )  # asynchronous saving skips a checkpoint while the one before is being written
    whole = ("--batch-size", "16", "--resume", "auto")  # the two ranks' batches in one
    assert train(tmp_path, *COMMON, *whole) == 0
    [resume] = events(tmp_path, "resume")
    assert resume["step"] == saved
    for line, reference in zip(step_lines(tmp_path)[-6:], step_lines(plain)[-6:], strict=True):
        assert line["step"] == reference["step"]
        assert line["samples"] == reference["samples"]
        assert line["loss"] == pytest.approx(reference["loss"], rel=1e-3)


def test_epochs_and_the_best_have_checkpoints_of_their_own(tmp_path: Path) -> None:
    flags = ("--steps", "8", "--batch-size", "120", "--grad-accum", "6", "--validate-every", "2", "--best-checkpoint")
    assert train(tmp_path, *flags, "--epoch-checkpoints", "--checkpoint-every", "0") == 0
    folder = tmp_path / "checkpoints"
    epochs = [f"phase_main/epoch_{number}.pt" for number in range(4)]
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pt"))
    assert files == ["best_model.pt", *epochs, "step_00000008.pt"]
    best = json.loads((folder / "best_model.json").read_text())
    measured = {event["step"]: event["val/loss"] for event in events(tmp_path, "validation")}
    assert best["value"] == min(measured.values()) == measured[best["step"]]
    assert best["settings"]["batch_size"] == 120
    assert load(folder / "best_model.pt")["step"] == best["step"]


@table(
    ("flags", "phrases"),
    [
        (["--phases", '[{"name": "a", "steps": 2, "ranks": 3}]'], ["--ranks 3", "the 1 "]),
        (
            [
                "--phases",
                '[{"name": "a", "steps": 2}, {"name": "b", "steps": 2, "parallel": "fsdp", "cpu_offload": true}]',
            ],
            ["--cpu-offload", "torchrun --nproc-per-node 1"],
        ),
        (
            ["--best-checkpoint", "--best-metric", "val/acuracy", "--steps", "4"],
            ["--best-metric val/acuracy", "val/accuracy, val/loss"],
        ),
    ],
)
def test_what_cannot_work_is_refused(
    flags: list[str], phrases: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, *flags) == 2
    assert mentions(capsys.readouterr().err, *phrases)
    assert step_lines(tmp_path) == []  # also where it is of a later phase


def test_a_checkpoint_of_another_optimizer_goes_on_only_with_a_fresh_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "--steps", "2") == 0
    flags = ("--steps", "4", "--resume", "auto", "--optimizer", "sgd")
    assert train(tmp_path, *flags) == 1
    assert mentions(capsys.readouterr().err, "--optimizer adamw", "sgd")
    assert train(tmp_path, *flags, "--reset-optimizer", "--grad-accum", "3") == 0
    said = capsys.readouterr().out
    assert "sgd instead of adamw" in said
    assert mentions(said, "24 samples per step", "16")
    assert [line["step"] for line in step_lines(tmp_path)] == [1, 2, 3, 4]


def test_a_scale_that_is_never_found_ends_the_run(tmp_path: Path) -> None:
    flags = ("--model", f"{__name__}:EndlessGradients", "--precision", "fp16", "--device", "cpu")
    with pytest.raises(FloatingPointError, match="with any scale of the loss"):
        train(tmp_path, *flags, "--steps", "100", "--validate-every", "0")
    # 65536 is halved until the loss itself would vanish.
    assert 35 <= step_lines(tmp_path)[-1]["step"] <= 45
