"""Models without memory for their parameters, and their first values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.tables import table
from trainer.config import Settings
from trainer.data import load_data
from trainer.errors import TrainerError
from trainer.models import build
from trainer.models.deferred import first_values, without_memory
from trainer.models.named import _network

MODELS: dict[str, dict[str, Any]] = {
    "bytes": {"task": "lm", "model": "bytes"},
    "gpt2": {"task": "lm", "model": "gpt2", "model_options": {"n_layer": 2}},
    "llama": {"task": "lm", "model": "smollm-135m", "model_options": {"num_hidden_layers": 2}},
    "bert": {"task": "mlm", "model": "bert-tiny"},
    "cnn": {"task": "classify", "model": "cnn"},
    "resnet18": {"task": "classify", "model": "resnet18"},
    "vit": {"task": "classify", "model": "vit-b16", "model_options": {"num_hidden_layers": 1}},
}


@table("name", MODELS)
def test_first_values_are_distributed_as_those_of_an_ordinary_model(name: str) -> None:
    settings = Settings(**{"data": "synthetic", "synthetic_samples": 16, **MODELS[name]})
    data = load_data(settings)
    ordinary = _network(settings, data)
    torch.manual_seed(3)
    model = build(settings, data, sharded=True).model
    assert all(parameter.is_meta for parameter in model.parameters())
    assert all(torch.equal(first, second) for first, second in zip(ordinary.buffers(), model.buffers(), strict=True))
    names = {parameter: key for key, parameter in model.named_parameters()}
    values_by_name = {names[parameter]: values for parameter, values in first_values(model)}
    torch.manual_seed(3)
    whole = dict(build(settings, data).model.named_parameters())
    expected = dict(ordinary.named_parameters())
    assert values_by_name.keys() == expected.keys()
    for key, values in values_by_name.items():
        reference = expected[key].detach()
        assert values.shape == reference.shape
        assert values.dtype == reference.dtype
        assert torch.equal(values, whole[key])
        if reference.numel() >= 1000:
            assert values.std().item() == pytest.approx(reference.std().item(), rel=0.2), key
        if reference.numel() > 1 and reference.std() == 0:  # such as norms and biases
            assert torch.equal(values, reference), key


def test_a_parameter_that_nothing_sets_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    with without_memory():
        model = nn.Sequential(nn.Linear(2, 2), Odd())
    assert model[0].weight.is_meta
    assert not nn.Linear(2, 2).weight.is_meta
    with pytest.raises(TrainerError, match="Odd does not set the first values"):
        list(first_values(model))
