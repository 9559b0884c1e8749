"""Models without memory for their parameters: the first values, and how much memory sharding them takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.tables import table
from trainer.config import Settings
from trainer.data import load_data
from trainer.models import build
from trainer.models.deferred import DeferredInit, NotDeferrableError

MODELS: dict[str, dict[str, Any]] = {
    "bytes": {"task": "lm"},
    "llama": {"task": "lm", "model": "smollm-135m", "model_options": {"num_hidden_layers": 2}},
    "bert": {"task": "mlm"},
    "resnet18": {"task": "classify", "model": "resnet18"},
    "vit": {"task": "classify", "model": "vit-b16", "model_options": {"num_hidden_layers": 1}},
}


@table("name", MODELS)
def test_what_is_initialised_later_has_the_values_that_it_would_have_had(name: str) -> None:
    settings = Settings(data="synthetic", synthetic_samples=16, **MODELS[name])
    data = load_data(settings)
    torch.manual_seed(0)
    model = build(settings, data).model
    after = torch.get_rng_state()
    torch.manual_seed(0)
    deferred = DeferredInit()
    with deferred:
        empty = build(settings, data).model
    assert torch.equal(torch.get_rng_state(), after)
    initial = deferred.initial(empty)
    expected = dict(model.named_parameters())
    assert initial.keys() == expected.keys() and all(parameter.is_meta for parameter in empty.parameters())
    # In any order, as often as wanted, and whatever was drawn meanwhile.
    for other in sorted(expected, key=hash):
        assert torch.equal(initial[other](), expected[other]), other
    assert torch.equal(torch.get_rng_state(), after)
    assert all(torch.equal(one, two) for one, two in zip(model.buffers(), empty.buffers(), strict=True))
    assert not nn.Linear(2, 2).weight.is_meta  # outside nothing is deferred


@table("kind", ["from another parameter", "without values", "on the way"])
def test_what_cannot_be_written_down_is_said(kind: str) -> None:
    deferred = DeferredInit()
    with pytest.raises((NotDeferrableError, RuntimeError)), deferred:
        one, other = nn.Linear(3, 3), nn.Linear(3, 3)
        with torch.no_grad():
            if kind == "from another parameter":
                other.weight.copy_(one.weight)
            elif kind == "on the way":
                other.weight.fill_(float(one.weight.sum()))
            else:
                other.register_parameter("late", nn.Parameter(torch.empty(4)))
        deferred.initial(other)
    assert not nn.Linear(2, 2).weight.is_meta
