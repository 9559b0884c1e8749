"""Epochs and samples per step: what they amount to with any data, ranks and resume."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import table
from tests.trainer.ranks import Ranks
from tests.trainer.running import settings, step_lines, train, train_on
from tests.trainer.test_numerics import farthest, trained
from trainer.checkpoints import load
from trainer.config import Settings
from trainer.config.lengths import Consumed, samples_per_step, settled
from trainer.config.sources import from_arguments
from trainer.errors import SettingsError

DIGITS = 1437  # the training samples of the digits
DROPPED = ("--keep", "9", "--dropout", "0", "--lr", "0.01", "--validate-every", "0", "--data", "digits")


@given(
    ranks=st.integers(1, 9),
    share=st.integers(1, 300),
    most=st.integers(1, 400),
    epochs=st.floats(0.01, 50),
    samples=st.integers(1, 10**7),
)
def test_steps_and_micro_batches_are_what_was_asked_for(
    ranks: int, share: int, most: int, epochs: float, samples: int
) -> None:
    asked = Settings(epochs=epochs, samples_per_step=ranks * share, batch_size=most)
    found = settled(asked, samples, ranks, Consumed())
    assert isinstance(found.batch_size, int)
    assert found.batch_size <= most
    assert found.batch_size * found.grad_accum == share
    assert samples_per_step(found, ranks) == ranks * share
    assert found.steps == max(1, math.ceil(round(epochs * samples) / (ranks * share)))
    assert settled(found, samples, ranks, Consumed()) == found


@given(steps=st.integers(1, 400), warmup=st.integers(0, 400))
def test_a_warm_up_ends_with_the_run_or_before(steps: int, warmup: int) -> None:
    found = settled(Settings(steps=steps, warmup_steps=warmup), 100, 1, Consumed())
    assert found.steps == steps
    assert found.warmup_steps == (warmup if warmup <= steps else steps // 10)


@given(first=st.integers(1, 8), then=st.integers(1, 8), done=st.integers(0, 40), epochs=st.integers(1, 9))
def test_a_resume_with_other_ranks_trains_what_is_left_of_the_epochs(
    first: int, then: int, done: int, epochs: int
) -> None:
    asked = Settings(epochs=epochs, batch_size=4, grad_accum=2)
    consumed = Consumed(done, done * 8 * first)
    found = settled(asked, 1000, then, consumed)
    trained_samples = consumed.samples + (found.steps - done) * 8 * then
    assert 0 <= trained_samples - epochs * 1000 < 8 * then or found.steps == done or found.steps == 1


def test_samples_that_ranks_cannot_share_are_refused_with_what_they_can() -> None:
    for asked, near in ((512, "510 or 513"), (2, "use 3")):
        with pytest.raises(SettingsError, match=near):
            settled(Settings(samples_per_step=asked), 100, 3, Consumed())


@table(
    ("flags", "phrase"),
    [
        (("--epochs", "2", "--steps", "9"), "--steps and --epochs contradict each other"),
        (("--grad-accum", "2", "--samples-per-step", "64"), "--samples-per-step and --grad-accum contradict"),
        (("--epochs", "2", "--batch-size", "auto"), "needs --samples-per-step"),
        (("--epochs", "2", "--phases", "[{name: a, steps: 3}]"), "cannot be given with phases"),
        (("--samples-per-step", "64", "--phases", "[{name: a, steps: 3, grad_accum: 2}]"), "leave it out"),
    ],
)
def test_two_ways_to_say_one_thing_are_refused(flags: tuple[str, ...], phrase: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(phrase)):
        from_arguments(flags, {})


def test_the_stronger_source_says_how_long(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("steps: 700\ngrad_accum: 5\n")
    file = ("--config", str(tmp_path / "run.yaml"))
    assert from_arguments(file, {})[0].steps == 700
    chosen, _ = from_arguments((*file, "--epochs", "2", "--samples-per-step", "64"), {})
    assert settled(chosen, DIGITS, 2, Consumed()).steps == math.ceil(2 * DIGITS / 64)
    environment = {"TRAINER_EPOCHS": "3"}
    assert from_arguments(file, environment)[0].epochs == 3
    again, _ = from_arguments((*file, "--steps", "9"), environment)
    assert (again.steps, again.epochs) == (9, 0)
    none, _ = from_arguments((*file, "--epochs", "0"), environment)
    assert none.epochs == 0


def test_epochs_that_are_resumed_with_other_ranks_are_the_undisturbed_run(two_ranks: Ranks, tmp_path: Path) -> None:
    flags = ("--epochs", "0.2", "--samples-per-step", "24", "--batch-size", "9", "--checkpoint-every", "5", *DROPPED)
    two_ranks.run(train_on, tmp_path / "straight", *flags)
    steps = math.ceil(0.2 * DIGITS / 24)
    lines = [line for line in step_lines(tmp_path / "straight") if not line["rank"]]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert lines[-1]["samples"] == steps * 24
    begin = str(tmp_path / "straight" / "checkpoints" / "step_00000005.pt")
    assert train(tmp_path / "again", *flags, "--resume", begin) == 0
    assert farthest(trained(tmp_path / "again", steps), trained(tmp_path / "straight", steps)) < 1e-5
    assert load(tmp_path / "again" / "checkpoints" / f"step_{steps:08d}.pt")["samples"] == steps * 24


def test_other_samples_per_step_are_taken_when_a_run_resumes(tmp_path: Path) -> None:
    flags = ("--batch-size", "auto", "--max-batch-size", "4", "--checkpoint-every", "2", "--resume", "auto", *DROPPED)
    assert train(tmp_path, *flags, "--samples-per-step", "12", "--steps", "2") == 0
    assert train(tmp_path, *flags, "--samples-per-step", "20", "--steps", "4") == 0
    assert [line["samples"] for line in step_lines(tmp_path)] == [12, 24, 44, 64]


def test_epochs_end_where_they_should_if_a_resumed_run_takes_larger_steps(tmp_path: Path) -> None:
    assert train(tmp_path / "first", "--epochs", "0.2", "--checkpoint-every", "5", *DROPPED) == 0
    begin = str(tmp_path / "first" / "checkpoints" / "step_00000005.pt")
    assert train(tmp_path / "again", "--epochs", "0.2", "--batch-size", "32", *DROPPED, "--resume", begin) == 0
    consumed = 5 * 16
    steps = 5 + math.ceil((round(0.2 * DIGITS) - consumed) / 64)
    assert step_lines(tmp_path / "again")[-1]["step"] == steps


def test_the_first_line_says_what_the_lengths_amount_to(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--epochs", "0.1", "--samples-per-step", "30", "--warmup-steps", "6", *DROPPED) == 0
    first, second, *_ = capfd.readouterr().out.splitlines()
    for part in ("5 steps", "30 samples", "1 x 6 x 5", "0.104 epochs", "1,437"):
        assert part in first
    assert "6" in second
    assert "0" in second


def test_a_settled_length_needs_no_data_if_steps_are_given() -> None:
    assert settled(settings("--steps", "7", "--warmup-steps", "2"), 0, 3, Consumed()).steps == 7
