"""InfoNCE over ranks: with any number of them, the loss and gradients of one process that has all images."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.no_split import NoSplit
from tests.trainer.ranks import Ranks
from trainer.config import Settings
from trainer.data.contract import Fields, Images
from trainer.tasks.contrastive import Contrastive, info_nce
from trainer.world import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"), backend="")
SHAPE = (1, 8, 8)


class Tiny(nn.Module):
    """Images to embeddings by two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.layers(images)
        return embeddings


def objective(world: World = ALONE, **settings: Any) -> Contrastive:
    torch.manual_seed(0)
    chosen = Settings.model_validate({"task": "contrastive", **settings})
    return Contrastive(chosen, Images(NoSplit(), NoSplit(), SHAPE, ()), Tiny(), world)


def batch(task: Contrastive, start: int, count: int, training: bool = True) -> Fields:
    positions = np.arange(start, start + count)
    pictures = [
        torch.randint(0, 256, SHAPE, generator=torch.Generator().manual_seed(int(position))) for position in positions
    ]
    return task.transform(training=training)({"image": torch.stack(pictures).to(torch.uint8)}, positions)


def gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


# --- the loss ---------------------------------------------------------------------------------------------------------


def by_hand(own: Tensor, candidates: Tensor, first: int, temperature: float, hard: int) -> float:
    """The definition, term by term."""
    losses = []
    for view in (0, 1):
        for i in range(len(own)):
            similarities = (candidates[:, 1 - view] @ own[i, view] / temperature).tolist()
            partner = similarities.pop(first + i)
            others = sorted(similarities, reverse=True)[: hard or None]
            losses.append(-partner + torch.tensor([partner, *others], dtype=torch.float64).logsumexp(0).item())
    return sum(losses) / len(losses)


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
    own = candidates[first : first + count]
    loss = info_nce(own, candidates, first=first, temperature=temperature, hard_negatives=hard)
    assert float(loss) == pytest.approx(by_hand(own, candidates, first, temperature, hard), rel=1e-4, abs=1e-5)


def test_only_the_hardest_others_get_a_gradient() -> None:
    own = functional.normalize(torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    candidates = own.clone().requires_grad_()
    info_nce(own, candidates, first=0, temperature=0.1, hard_negatives=1).backward()
    similarities = (own[:, 0] @ own[:, 1].T).fill_diagonal_(-2)
    compared = set(range(6)) | set(similarities.argmax(1).tolist())
    assert candidates.grad is not None
    assert compared == set(candidates.grad[:, 1].abs().sum(-1).nonzero().flatten().tolist())
    # One negative each: rows of the others' first views that are nobody's hardest get their partner's gradient only.
    loose = functional.normalize(torch.eye(4).unsqueeze(1).repeat(1, 2, 1), dim=-1)
    full = info_nce(loose, loose, first=0, temperature=1.0)
    hardest = info_nce(loose, loose, first=0, temperature=1.0, hard_negatives=2)
    assert float(full) == pytest.approx(np.log(np.e + 3) - 1, rel=1e-5)
    assert float(hardest) == pytest.approx(np.log(np.e + 2) - 1, rel=1e-5)


def test_similarities_are_fp32_under_autocast() -> None:
    own = functional.normalize(torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = info_nce(own, own, first=0, temperature=0.02)
    assert torch.equal(reduced, info_nce(own, own, first=0, temperature=0.02))


# --- over ranks -------------------------------------------------------------------------------------------------------

Answer = tuple[float, list[Tensor], list[Tensor], bool]


def one_step(world: World, share: int, settings: dict[str, Any]) -> Answer:
    """This rank's loss, DDP's gradients, those of two accumulated micro batches, and whether ranks exchange."""
    task = objective(world, **settings)
    wrapped = DistributedDataParallel(task)
    loss = wrapped(batch(task, world.rank * share, share))
    loss.backward()
    once = gradients(task)
    wrapped.zero_grad()
    with wrapped.no_sync():
        (wrapped(batch(task, world.rank * share, share)) / 2).backward()
    (wrapped(batch(task, (world.size + world.rank) * share, share)) / 2).backward()
    return float(loss.detach()), once, gradients(task), task.exchanges


def alone(start: int, count: int, settings: dict[str, Any]) -> tuple[float, list[Tensor]]:
    task = objective(**settings)
    loss = task(batch(task, start, count))
    loss.backward()
    return float(loss.detach()), gradients(task)


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.long)])
def ranks(request: pytest.FixtureRequest, two_ranks: Ranks, four_ranks: Ranks) -> Ranks:
    return two_ranks if request.param == 2 else four_ranks


@pytest.mark.parametrize("hard_negatives", [0, 1, 3, 50])
def test_ranks_together_are_one_process_with_the_joined_batch(ranks: Ranks, hard_negatives: int) -> None:
    settings = {"hard_negatives": hard_negatives, "temperature": 0.2}
    share = 12 // ranks.size
    answers = ranks.run(one_step, share, settings)
    loss, expected = alone(0, 12, settings)
    _, further = alone(12, 12, settings)
    assert all(exchanges for *_, exchanges in answers)
    assert len({loss for loss, *_ in answers}) == ranks.size
    assert sum(loss for loss, *_ in answers) / ranks.size == pytest.approx(loss, rel=1e-5)
    assert len(expected) == 4
    for _, once, accumulated, _ in answers:
        for got, both, first, second in zip(once, accumulated, expected, further, strict=True):
            assert torch.allclose(got, first, rtol=1e-4, atol=1e-6)
            assert torch.allclose(both, (first + second) / 2, rtol=1e-4, atol=1e-6)


def compiled_step(world: World) -> list[Tensor]:
    task = objective(world)
    compiled: Any = torch.compile(task, backend="aot_eager", fullgraph=True)
    compiled(batch(task, world.rank * 4, 4)).backward()
    return gradients(task)


def test_compiled_the_gradients_are_the_same(two_ranks: Ranks) -> None:
    answers = two_ranks.run(compiled_step)
    _, expected = alone(0, 8, {})
    for i, one in enumerate(expected):
        assert torch.allclose(sum(answer[i] for answer in answers) / 2, one, rtol=1e-4, atol=1e-6)


def measured(world: World) -> dict[str, float]:
    """What rank 0 measures while the others do not take part."""
    task = objective(world)
    if not world.is_main:
        return {}
    return {name: float(value) for name, value in task.measure(batch(task, 0, 5, training=False)).items()}


def test_measuring_needs_no_other_rank(two_ranks: Ranks) -> None:
    there, _ = two_ranks.run(measured)
    task = objective()
    here = {name: float(value) for name, value in task.measure(batch(task, 0, 5, training=False)).items()}
    assert there == pytest.approx(here)


# --- alone ------------------------------------------------------------------------------------------------------------


def test_views_differ_in_training_and_are_always_the_same_held_out() -> None:
    task = objective()
    raw = {"image": torch.zeros(3, *SHAPE, dtype=torch.uint8)}
    training, held_out = (task.transform(training=training) for training in (True, False))
    first, later, held = (
        transform(raw, np.arange(start, start + 3))["changes"]
        for transform, start in ((training, 0), (training, 3), (held_out, 0))
    )
    assert first.shape == (3, 2, 6)
    assert len({str(row) for changes in (first, later, held) for row in changes.flatten(0, 1).tolist()}) == 18
    again = pickle.loads(pickle.dumps(held_out))
    assert torch.equal(again(raw, np.arange(3))["changes"], held)


def test_the_model_sees_both_views_of_each_image_side_by_side_in_one_pass() -> None:
    task = objective()
    seen: list[Tensor] = []
    task.model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    fields = batch(task, 0, 3)
    task(fields)
    assert len(seen) == 1 and seen[0].shape == (6, *SHAPE)
    assert float(seen[0].min()) >= 0 and float(seen[0].max()) <= 1
    fields["changes"][:] = torch.tensor([1.0, 0, 1, 0, 1, 1])  # nothing happens to any view
    task(fields)
    assert torch.allclose(seen[1], fields["image"].repeat_interleave(2, 0) / 255, atol=1e-5)


def test_accuracy_is_how_often_the_partner_is_the_most_similar() -> None:
    task = objective()
    fields = batch(task, 0, 9, training=False)
    sums = {name: float(value) for name, value in task.measure(fields).items()}
    own = task._embeddings(fields).detach()
    nearest = own[:, 0] @ own[:, 1].T
    right = sum(int(nearest[i].argmax() == i) + int(nearest[:, i].argmax() == i) for i in range(9))
    means = task.summary(sums)
    assert means["accuracy"] == pytest.approx(right / 18)
    assert means["loss"] == pytest.approx(by_hand(own, own, 0, 0.1, 0), rel=1e-4)
    assert set(means) == {"loss", "accuracy"}


def test_a_few_steps_make_partners_more_similar() -> None:
    task = objective()
    optimizer = torch.optim.Adam(task.parameters(), lr=0.01)
    fields = batch(task, 0, 16)
    before = float(task(fields).detach())
    for _ in range(30):
        optimizer.zero_grad()
        task(fields).backward()
        optimizer.step()
    assert float(task(fields).detach()) < before / 2


def test_each_image_costs_two_passes() -> None:
    task = objective()
    # Forward, the weights' gradients, and the gradient of the second layer's input.
    assert task.flops_per_sample() == 2 * (2 * 2 * 64 * 16 + 3 * 2 * 16 * 6)
