"""Averaged weights: the average itself, validating with it, and its way through a checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from trainer.optim import Ema


def weights(*values: float) -> dict[str, Tensor]:
    return {f"w{n}": torch.full((n + 1, 2), value) for n, value in enumerate(values)}


@given(st.floats(0, 0.999), st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8))
def test_the_average_follows_its_formula(decay: float, values: list[float]) -> None:
    parameter = torch.zeros(3)
    ema, expected = Ema({"w": parameter}, decay), 0.0
    for step, value in enumerate(values, 1):
        parameter.fill_(value)
        ema.update(step)
        now = min(decay, (1 + step) / (10 + step))
        expected = now * expected + (1 - now) * value
    assert ema.state()["w"].tolist() == pytest.approx([expected] * 3, abs=1e-4)


def test_the_first_steps_are_soon_forgotten() -> None:
    parameter = torch.full((1,), 100.0)
    ema = Ema({"w": parameter}, 0.9999)
    parameter.zero_()
    for step in range(1, 101):
        ema.update(step)
    assert float(ema.state()["w"]) < 0.01  # 99 with the full decay from the beginning


def test_swapped_in_to_validate_and_out_again() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    ema = Ema(dict(model.named_parameters()), 0.5)
    averaged = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    own, inputs = copy.deepcopy(model), torch.ones(1, 3)
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    with pytest.raises(ZeroDivisionError), ema.swapped():
        assert torch.equal(model(inputs), averaged(inputs))
        raise ZeroDivisionError
    assert torch.equal(model(inputs), own(inputs))
    assert torch.equal(ema.state()["weight"], averaged.weight)
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert all(not average.requires_grad for average in ema.state().values())


def test_its_state_goes_on_elsewhere() -> None:
    values = weights(1.0, 2.0)
    first = Ema(values, 0.5)
    values["w0"].fill_(3.0)
    first.update(8)  # the first step whose share is not below the decay
    second = Ema(weights(9.0, 9.0), 0.5)
    second.load(first.state())
    assert {name: float(average.mean()) for name, average in second.state().items()} == {"w0": 2.0, "w1": 2.0}


def test_an_average_that_begins_in_the_middle_starts_at_the_weights() -> None:
    values = weights(1.0)
    ema = Ema(values, 0.5)
    values["w0"].fill_(4.0)
    ema.load({})
    assert torch.equal(ema.state()["w0"], values["w0"])


def test_nothing_to_average_is_no_error() -> None:
    ema = Ema({}, 0.5)
    ema.update(1)
    assert ema.state() == {}
