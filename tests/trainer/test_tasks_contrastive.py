"""InfoNCE over ranks: with any number of them, the loss and gradients of one process that has all images."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.ranks import ALONE, Ranks
from tests.trainer.splits import Rows
from trainer.config import Settings
from trainer.data.contract import Fields, Images
from trainer.errors import SettingsError
from trainer.tasks.contrastive import Contrastive, info_nce
from trainer.world import World

SHAPE = (1, 8, 8)
IMAGES = Images(Rows(0), Rows(0), SHAPE, ())
OTHERS = {0: (1, 2, 4), 1: (0, 2, 3, 4), 2: (0, 1, 3, 4), 3: (1, 2, 4), 4: (0, 1, 2, 3)}


def tiny() -> nn.Module:
    """Images to embeddings by two matrices."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 6))


def objective(world: World = ALONE, **settings: Any) -> Contrastive:
    torch.manual_seed(0)
    chosen = Settings.model_validate({"task": "contrastive", **settings})
    return Contrastive(chosen, IMAGES, tiny(), world)


def batch(task: Contrastive, start: int, count: int, training: bool = True) -> Fields:
    positions = np.arange(start, start + count)
    pictures = [
        torch.randint(0, 256, SHAPE, generator=torch.Generator().manual_seed(int(position))) for position in positions
    ]
    return task.transform(training=training)({"image": torch.stack(pictures).to(torch.uint8)}, positions)


# --- the loss ---------------------------------------------------------------------------------------------------------


def by_hand(embeddings: Tensor, candidates: Tensor, first: int, temperature: float, hard: int, terms: int = 0) -> float:
    """The definition, term by term; or its mean over the first `terms` of `own`."""
    losses = []
    for view in (0, 1):
        for i in range(terms or len(embeddings)):
            similarities = (candidates[:, 1 - view] @ embeddings[i, view] / temperature).tolist()
            partner = similarities.pop(first + i)
            others = sorted(similarities, reverse=True)[: hard or None]
            losses.append(-partner + torch.tensor([partner, *others], dtype=torch.float64).logsumexp(0).item())
    return sum(losses) / len(losses)


def two_micro_batches(world: World, share: int, settings: dict[str, Any]) -> tuple[float, list[Tensor]]:
    """The mean of the losses, and the gradients as DDP exchanges them."""
    task = objective(world, **settings)
    assert task.exchanges == (world.size > 1)
    wrapped = DistributedDataParallel(task) if task.exchanges else task
    total = 0.0
    for micro in (0, 1):
        waits = task.exchanges and micro == 0
        with wrapped.no_sync() if waits else contextlib.nullcontext():
            loss = wrapped(batch(task, (micro * world.size + world.rank) * share, share)) / 2
            loss.backward()
        total += float(loss.detach())
    return total, [parameter.grad.clone() for parameter in task.parameters() if parameter.grad is not None]


@given(
    count=st.integers(1, 4),
    further=st.integers(0, 6),
    first=st.integers(0, 6),
    temperature=st.sampled_from([0.05, 0.5, 1.0]),
    hard=st.integers(0, 12),
)
def test_the_loss_is_its_definition(count: int, further: int, first: int, temperature: float, hard: int) -> None:
    random = torch.Generator().manual_seed(count * 100 + further)
    candidates = functional.normalize(torch.randn(count + further, 2, 5, generator=random), dim=-1)
    first = min(first, further)
    embeddings = candidates[first : first + count]
    loss = info_nce(embeddings, candidates, first, temperature, hardest=hard)
    assert float(loss) == pytest.approx(by_hand(embeddings, candidates, first, temperature, hard), rel=1e-4, abs=1e-5)


def test_an_image_is_no_negative_of_itself() -> None:
    task = objective(temperature=0.2)
    fields = {name: values[[0, 1, 2, 0, 3]] for name, values in batch(task, 0, 4).items()}
    fields["changes"] = batch(task, 10, 5)["changes"]
    embeddings = task._embeddings(fields).detach()
    without = [
        by_hand(embeddings[[n, *rest]], embeddings[[n, *rest]], 0, 0.2, 0, terms=1) for n, rest in OTHERS.items()
    ]
    assert float(task(fields).detach()) == pytest.approx(sum(without) / 5, rel=1e-4)


# --- over ranks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", ["two_ranks", pytest.param("four_ranks", marks=pytest.mark.long)])
@pytest.mark.parametrize("hardest", [0, 1, 3, 50])
def test_ranks_together_are_one_process_with_the_joined_batch(
    ranks: str, hardest: int, request: pytest.FixtureRequest
) -> None:
    several: Ranks = request.getfixturevalue(ranks)
    settings = {"hard_negatives": hardest, "temperature": 0.2}
    loss, expected = two_micro_batches(ALONE, 12, settings)
    answers = several.run(two_micro_batches, 12 // several.size, settings)
    assert len({share for share, _ in answers}) == several.size
    assert len(expected) == 4
    assert sum(share for share, _ in answers) / several.size == pytest.approx(loss, rel=1e-5)
    for _, gradients in answers:
        assert all(torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in zip(gradients, expected, strict=True))


# --- alone ------------------------------------------------------------------------------------------------------------


def test_accuracy_is_how_often_the_partner_is_the_most_similar() -> None:
    task = objective()
    fields = batch(task, 0, 9, training=False)
    sums = {name: float(value) for name, value in task.joined(task.measure(fields)).items()}
    embeddings = task._embeddings(fields).detach()
    nearest = embeddings[:, 0] @ embeddings[:, 1].T
    right = sum(int(nearest[i].argmax() == i) + int(nearest[:, i].argmax() == i) for i in range(9))
    means = task.summary(sums)
    assert means["accuracy"] == pytest.approx(right / 18)
    assert means["loss"] == pytest.approx(by_hand(embeddings, embeddings, 0, 0.1, 0), rel=1e-4)
    assert set(means) == set(task.metrics) == {"loss", "accuracy"}


def test_one_image_has_nothing_to_be_compared_with() -> None:
    with pytest.raises(SettingsError, match="use a larger --batch-size"):
        objective(batch_size=1)
