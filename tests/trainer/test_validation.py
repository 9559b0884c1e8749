"""What is measured on held-out data, and in which batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.ranks import Ranks
from trainer.config import Settings
from trainer.session import Progress, Session
from trainer.validation import validate
from trainer.world import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"), backend="")

SMALL: dict[str, Any] = {"device": "cpu", "data": "synthetic", "synthetic_samples": 64, "context": 16, "batch_size": 2}


def means(world: World, **changes: Any) -> dict[str, float]:
    settings = Settings(**{**SMALL, **changes})
    with Session(settings, world, 1, Progress()) as session:
        found, _ = validate(session)
    assert found is not None
    return found


def given_up(world: World) -> bool:
    settings = Settings(**{**SMALL, "task": "classify", "ema": 0.9})
    with Session(settings, world, 1, Progress()) as session:
        found, _ = validate(session, stopping=lambda: world.rank == 1)
        return found is None and session.objective.training


def test_all_ranks_give_up_when_one_is_asked_to_stop(two_ranks: Ranks) -> None:
    assert two_ranks.run(given_up) == [True, True]


@pytest.mark.parametrize(
    "way",
    [
        {"task": "classify"},
        {"task": "contrastive"},
        {"task": "lm"},
        {"task": "lm", "model": "gpt2", "model_options": {"n_embd": 32, "n_layer": 1, "n_head": 1}, "parallel": "fsdp"},
        {"task": "mlm"},
    ],
)
def test_ranks_without_held_out_samples_change_nothing(way: dict[str, Any], two_ranks: Ranks) -> None:
    expected = means(ALONE, **way, validate_samples=1)
    assert [*expected.values()] == [value for value in expected.values() if value == value]
    for found in two_ranks.run(means, **way, validate_samples=1):
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"task": "classify"}, 64),
        ({"task": "classify", "max_batch_size": 8}, 8),
        ({"task": "classify", "batch_size": 100}, 100),
        ({"task": "lm"}, 64),
        ({"task": "lm", "context": 512}, 16),
        ({"task": "lm", "context": 512, "batch_size": 20}, 20),
    ],
)
def test_batches_are_large_but_not_those_of_long_texts(
    settings: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(Settings(**{**SMALL, "synthetic_samples": 2000, **settings}), ALONE, 1, Progress()) as session:
        sizes: list[int] = []
        batches = session.held_out.batches
        monkeypatch.setattr(session.held_out, "batches", lambda size: sizes.append(size) or batches(1))
        monkeypatch.setattr(session.held_out, "samples", 1)
        validate(session)
    assert sizes == [size]
