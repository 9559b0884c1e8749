"""Counts of parameters and of floating-point operations, against counts by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.trainer.small_models import SMALL, images, small_settings, text
from trainer.config import Settings
from trainer.models import build_model, flops_per_sample, model_facts


def test_gpt2_has_the_flops_of_palms_appendix() -> None:
    with torch.device("meta"):
        facts = model_facts(build_model(small_settings("gpt2", model_options={}), text(50304, 1024)))
    assert (facts.layers, facts.attention_width) == (12, 768)
    # 12 blocks of 12 d² + 13 d, the last norm, and the table of tokens, which is the output layer too.
    matrices = 12 * (12 * 768**2 + 13 * 768) + 2 * 768 + 50304 * 768
    assert facts.matrix_parameters == matrices
    assert facts.parameters == matrices + 1024 * 768
    assert facts.flops_per_token(1024) == 6 * matrices + 12 * 12 * 768 * 1024
    assert facts.flops_per_token(512) == 6 * matrices + 12 * 12 * 768 * 512


def test_tables_that_are_no_output_layer_do_not_count() -> None:
    settings = Settings(task="lm", width=64, depth=2)
    facts = model_facts(build_model(settings, text(256, 16)))
    assert facts.parameters - facts.matrix_parameters == (256 + 16) * 64
    assert (facts.layers, facts.attention_width) == (2, 64)


@pytest.mark.parametrize(
    ("name", "layers", "width"), [("smollm-135m", 3, 32), ("bert-base", 3, 32), ("vit-b16", 3, 32)]
)
def test_attention_of_other_networks(name: str, layers: int, width: int) -> None:
    facts = model_facts(build_model(small_settings(name), SMALL[name][1]))
    assert (facts.layers, facts.attention_width) == (layers, width)


def test_a_configuration_without_the_size_of_heads_tells_nothing() -> None:
    model = nn.Linear(2, 2)
    model.config = SimpleNamespace(num_hidden_layers=2, num_attention_heads=2)  # type: ignore[assignment]
    assert model_facts(model).flops_per_token(8) is None


def test_networks_without_known_attention_have_no_flops_per_token() -> None:
    facts = model_facts(build_model(Settings(task="classify"), images()))
    assert facts.flops_per_token(16) is None
    assert facts.parameters == facts.matrix_parameters


def test_flops_of_a_convolution_and_of_the_first_layers_missing_input_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 16, 5))
    convolution, linear = 2 * 8 * 16 * 3 * 9, 2 * 8 * 16 * 5
    # The images need no gradient: twice for the convolution, three times for the rest.
    assert flops_per_sample(model, (3, 4, 4)) == 2 * convolution + 3 * linear


def test_counting_leaves_the_network_as_it_was() -> None:
    model = build_model(small_settings("resnet18", gradient_checkpointing="full"), images(3, 32, 32))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = next(model.modules())
    list(model.modules())[3].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    assert flops_per_sample(model, (3, 32, 32)) > 0
    assert first.training
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_resnet_50_has_the_operations_of_its_paper() -> None:
    with torch.device("meta"):
        model = build_model(Settings(task="classify", model="resnet50"), images(3, 224, 224, 1000))
    # 4.1e9 multiply-adds forward (He et al. round to 3.8e9 without the shortcuts), about three times that in all.
    assert flops_per_sample(model, (3, 224, 224)) == pytest.approx(3 * 2 * 4.09e9, rel=0.02)
