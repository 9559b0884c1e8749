"""Measurements on held-out data, and their batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.ranks import ALONE, Ranks
from trainer.config import Settings
from trainer.data.contract import Fields
from trainer.session import PhaseSession, TrainingProgress
from trainer.validation import validate
from trainer.world import World

TINY = {"n_embd": 32, "n_layer": 1, "n_head": 1}
SMALL: dict[str, Any] = {"device": "cpu", "data": "synthetic", "synthetic_samples": 64, "context": 16, "batch_size": 2}


def means(world: World, **changes: Any) -> dict[str, float]:
    with PhaseSession(Settings(**{**SMALL, **changes}), world, 1, TrainingProgress()) as session:
        return validate(session)[0] or {}


def around_a_validation(world: World, **changes: Any) -> list[float]:
    """The loss of the current weights, that of averaged ones, and both again."""
    settings = Settings(**{**SMALL, **changes, "ema": 0.9})
    with PhaseSession(settings, world, 1, TrainingProgress()) as session:
        assert session.ema is not None
        for average in session.ema.state().values():
            average.mul_(3)
        losses = []
        for _ in range(2):
            session.objective.eval()
            with torch.no_grad():
                losses.append(float(session.objective.measure(session.held_out.any_sample())["loss"]))
            losses.append((validate(session)[0] or {})["val/loss"])
        return losses


def short_of_memory(world: World, rank: int, most: int, **changes: Any) -> tuple[dict[str, float], int, list[int]]:
    """Measured where a rank can take so many samples at once: the means, the batch it came to, and all it tried."""
    settings = Settings(**{**SMALL, "validate_samples": 40, **changes})
    with PhaseSession(settings, world, 1, TrainingProgress()) as session:
        measure = session.objective.measure
        tried = []

        def limited(fields: Fields) -> dict[str, torch.Tensor]:
            tried.append(len(next(iter(fields.values()))))
            if world.rank == rank and tried[-1] > most:
                raise torch.OutOfMemoryError("CUDA out of memory. (in validation)")
            return measure(fields)

        session.objective.measure = limited  # type: ignore[method-assign]
        (result, _) = validate(session)
        (again, _) = validate(session)
        assert result is not None
        assert result == again
        return result, session.held_out.reduced_batch, tried


def test_fsdp_measures_the_averaged_weights_and_then_computes_with_the_current_ones(two_ranks: Ranks) -> None:
    way: dict[str, Any] = {"task": "lm", "model": "gpt2", "model_options": TINY}
    current, averaged, *_ = expected = around_a_validation(ALONE, **way)
    assert abs(current - averaged) > 0.01
    assert expected == [current, averaged] * 2
    for reshard in (True, False):
        for means_of_rank in two_ranks.run(around_a_validation, parallel="fsdp", reshard_after_forward=reshard, **way):
            assert means_of_rank == pytest.approx(expected, rel=1e-4)


def test_ranks_without_held_out_samples_change_nothing(two_ranks: Ranks) -> None:
    gpt2 = {"task": "lm", "model": "gpt2", "model_options": TINY, "parallel": "fsdp"}
    for way in ({"task": "classify"}, {"task": "contrastive"}, {"task": "lm"}, gpt2, {"task": "mlm"}):
        expected = means(ALONE, **way, validate_samples=1)
        assert [*expected.values()] == [value for value in expected.values() if value == value]
        for means_of_rank in two_ranks.run(means, **way, validate_samples=1):
            assert means_of_rank == pytest.approx(expected, rel=1e-5), way


def test_images_are_compared_with_the_same_others_whatever_the_batch_and_the_ranks(two_ranks: Ranks) -> None:
    flags: dict[str, Any] = {"task": "contrastive", "synthetic_samples": 2000, "validate_samples": 150}
    expected = means(ALONE, **flags)
    assert 0 < expected["val/accuracy"] < 1
    for batch in (70, 150):
        assert means(ALONE, **flags, batch_size=batch) == pytest.approx(expected, rel=1e-5)
        for means_of_rank in two_ranks.run(means, **flags, batch_size=batch):
            assert means_of_rank == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("task", ["lm", "classify"])
def test_all_ranks_measure_again_in_smaller_batches_where_one_runs_out_of_memory(task: str, two_ranks: Ranks) -> None:
    flags = {"task": task, "data": "synthetic", "synthetic_samples": 400, "batch_size": "auto"}
    expected = two_ranks.run(means, **flags, validate_samples=40)[0]
    for means_of_rank, batch, tried in two_ranks.run(short_of_memory, 1, 9, **flags):
        assert means_of_rank == pytest.approx(expected, rel=1e-5)
        assert batch == 8
        assert tried[0] == 20
        assert tried[-1] <= 9


def test_measuring_by_smaller_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = means(ALONE, task="lm")
    monkeypatch.setattr("trainer.tasks.language._MEASURED_CHUNK", 7)
    assert means(ALONE, task="lm") == pytest.approx(expected, rel=1e-6)
