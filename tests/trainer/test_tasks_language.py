"""Next-token and masked-token prediction."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from tests.tables import table
from tests.trainer.splits import Rows
from trainer.config import Settings
from trainer.data.contract import Fields, Text
from trainer.tasks.language import LanguageObjective, MaskedTokens, NextToken

VOCABULARY = 20


class Tiny(nn.Module):
    """Tokens to logits of a padded vocabulary, each from its own token and the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 8)
        self.head = nn.Linear(8, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.table(tokens)
        logits: Tensor = self.head(values + values.mean(1, keepdim=True))
        return logits


def text(context: int) -> Text:
    return Text(Rows(0), Rows(0), context, VOCABULARY)


def next_token(context: int = 6, chunk: int = 0) -> NextToken:
    torch.manual_seed(0)
    return NextToken(Settings(task="lm", loss_chunk=chunk), text(context), Tiny())


def masked(context: int = 40, **settings: Any) -> MaskedTokens:
    torch.manual_seed(0)
    return MaskedTokens(Settings.model_validate({"task": "mlm", **settings}), text(context), Tiny())


def windows(count: int, context: int) -> Fields:
    random = torch.Generator().manual_seed(1)
    return {"tokens": torch.randint(0, VOCABULARY, (count, context + 1), generator=random)}


# --- next token -------------------------------------------------------------------------------------------------------


def test_each_token_is_predicted_from_those_before_and_perplexity_is_the_exponential_of_the_loss() -> None:
    task = next_token(4)
    transform = pickle.loads(pickle.dumps(task.transform(training=True)))
    fields = transform({"tokens": torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])}, np.array([0, 1]))
    assert fields["inputs"].tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
    assert fields["targets"].tolist() == [[2, 3, 4, 5], [7, 8, 9, 10]]
    assert all(field.is_contiguous() for field in fields.values())
    right = task.model(fields["inputs"]).softmax(-1).gather(2, fields["targets"].unsqueeze(2))
    expected = float(-right.log().mean().detach())
    assert float(task(fields).detach()) == pytest.approx(expected, rel=1e-5)
    sums = {name: float(value) for name, value in task.measure(fields).items()}
    assert sums["count"] == 2 * 4
    assert set(task.metrics) == set(task.summary(sums))
    assert task.summary(sums) == pytest.approx({"loss": expected, "perplexity": math.exp(expected)}, rel=1e-5)


@table("kind", [next_token, masked])
def test_the_mean_of_two_losses_is_the_loss_of_the_joined_batch(kind: Any) -> None:
    task: LanguageObjective = kind()
    fields = task.transform(training=True)(windows(8, task.context), np.arange(8))
    halves = [{name: value[part] for name, value in fields.items()} for part in (slice(4), slice(4, 8))]
    assert torch.allclose((task(halves[0]) + task(halves[1])) / 2, task(fields))


@table("chunk", [1, 5, 12, 100])
def test_a_loss_in_chunks_is_the_same_and_keeps_no_copy_of_the_logits(chunk: int) -> None:
    def measured(task: NextToken) -> tuple[Tensor, list[Tensor], int]:
        sizes: dict[int, int] = {}  # bytes of tensors in fp32 that are as large as the logits, by their place in memory

        def keep(tensor: Tensor) -> Tensor:
            if tensor.numel() == 2 * 6 * 32 and tensor.dtype == torch.float32:
                sizes[tensor.data_ptr()] = 4 * tensor.numel()
            return tensor

        fields = task.transform(training=True)(windows(2, 6), np.arange(2))
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", dtype=torch.bfloat16):
            loss = task(fields)
        loss.backward()
        gradients = [parameter.grad for parameter in task.parameters() if parameter.grad is not None]
        return loss.detach(), gradients, sum(sizes.values())

    whole, gradients, size = measured(next_token())
    loss, others, kept_in_chunks = measured(next_token(chunk=chunk))
    assert torch.allclose(loss, whole, rtol=1e-6)
    assert len(others) == len(gradients) == 3
    assert all(
        torch.allclose(gradient, reference, rtol=1e-2, atol=1e-4)
        for gradient, reference in zip(others, gradients, strict=True)
    )
    # The backward pass needs the log-probabilities of all tokens.
    assert (size, kept_in_chunks) == (2 * 6 * 32 * 4, 0)


# --- masked tokens ----------------------------------------------------------------------------------------------------


@given(
    positions=st.lists(st.integers(0, 2**40), min_size=1, max_size=5, unique=True),
    context=st.integers(1, 70),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
)
def test_as_many_tokens_of_every_sample_are_hidden_and_the_rest_stays(
    positions: list[int], context: int, share: float, seed: int
) -> None:
    task = masked(context, mask_probability=share, seed=seed)
    raw = windows(len(positions), context)
    before = raw["tokens"].clone()
    fields = task.transform(training=True)(raw, np.array(positions))
    inputs = fields["inputs"]
    places = fields["places"]
    targets = fields["targets"]
    assert torch.equal(raw["tokens"], before)
    assert places.shape == targets.shape == (len(positions), max(1, round(share * context)))
    assert (places.diff(dim=1) > 0).all()
    assert places.min() >= 0
    assert places.max() < context
    original = before[:, :-1]
    assert torch.equal(original.gather(1, places), targets)
    untouched = torch.ones_like(original, dtype=torch.bool).scatter_(1, places, False)
    assert torch.equal(inputs[untouched], original[untouched])
    assert inputs.min() >= 0
    assert inputs.max() <= VOCABULARY
    for i, position in enumerate(positions):  # the same whatever is in its batch
        alone = task.transform(training=True)({"tokens": before[i : i + 1]}, np.array([position]))
        assert all(torch.equal(alone[name][0], fields[name][i]) for name in fields)


def test_hidden_tokens_are_masked_replaced_or_kept_eight_to_one_to_one() -> None:
    raw = windows(400, 200)
    fields = masked(200).transform(training=True)(raw, np.arange(400))
    inputs = fields["inputs"].gather(1, fields["places"])
    targets = fields["targets"]
    is_mask = inputs == VOCABULARY
    is_kept = inputs == targets
    assert float(is_mask.float().mean()) == pytest.approx(0.8, abs=0.015)
    # A random token equals the target once in VOCABULARY draws.
    assert float(is_kept.float().mean()) == pytest.approx(0.1 + 0.1 / VOCABULARY, abs=0.012)
    replaced = inputs[~is_mask & ~is_kept]
    assert replaced.unique().tolist() == list(range(VOCABULARY))
    # Every place is as likely: 60 of 400 windows, with a deviation of 7.
    counts = torch.bincount(fields["places"].flatten(), minlength=200)
    assert counts.min() > 25
    assert counts.max() < 95


def test_only_hidden_places_count() -> None:
    task = masked()
    fields = task.transform(training=True)(windows(3, 40), np.arange(3))
    logits = task.model(fields["inputs"])
    labels = torch.full_like(fields["inputs"], -100).scatter_(1, fields["places"], fields["targets"])
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert torch.allclose(task(fields), expected)
    means = task.summary({name: float(value) for name, value in task.measure(fields).items()})
    loss = float(expected.detach())
    right = float((logits.argmax(-1) == labels)[labels >= 0].float().mean())
    assert means == pytest.approx({"loss": loss, "accuracy": right, "perplexity": math.exp(loss)})
    assert set(task.metrics) == set(means)
