"""Counts of parameters and of floating-point operations, against counts by hand."""

from __future__ import annotations

import pytest
from torch import nn

from tests.trainer.small_models import images, small_settings, text
from trainer.config import Settings
from trainer.models import build, flops_per_sample, flops_per_token


def test_gpt2_has_the_flops_of_palms_appendix() -> None:
    settings = small_settings("gpt2", model_options={})
    model = build(settings, text(50304, 1024), sharded=True).model
    # 12 blocks of 12 d² + 13 d, the last norm, and the table of tokens, which is the output layer too.
    matrices = 12 * (12 * 768**2 + 13 * 768) + 2 * 768 + 50304 * 768
    assert flops_per_token(model, 1024) == 6 * matrices + 12 * 12 * 768 * 1024
    assert flops_per_token(model, 512) == 6 * matrices + 12 * 12 * 768 * 512
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.shape == (768,))
    assert flops_per_token(model, 512) == 4 * matrices + 2 * (12 * 6 + 2) * 768 + 12 * 12 * 768 * 512


def test_flops_of_a_convolution_and_of_the_first_layers_missing_input_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 16, 5))
    convolution = 2 * 8 * 16 * 3 * 9
    linear = 2 * 8 * 16 * 5
    # The images need no gradient: twice for the convolution, three times for the rest.
    assert flops_per_sample(model, (3, 4, 4)) == 2 * convolution + 3 * linear


def test_resnet_50_has_the_operations_of_its_paper() -> None:
    settings = Settings(task="classify", model="resnet50")
    model = build(settings, images(3, 224, 224, 1000), sharded=True).model
    # 4.1e9 multiply-adds forward (He et al. round to 3.8e9 without the shortcuts), about three times that in all.
    assert flops_per_sample(model, (3, 224, 224)) == pytest.approx(3 * 2 * 4.09e9, rel=0.02)
