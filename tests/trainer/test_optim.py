"""Optimizers and learning rates."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trainer.config import Settings
from trainer.optim import WarmupSchedule, build_optimizer, learning_rate, optimizer_options

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3))


def optimizer_for(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return build_optimizer(model.named_parameters(), Settings(**settings), CPU)


def test_the_cosine_warms_up_and_decays_to_its_last_share() -> None:
    chosen = Settings(steps=100, warmup_steps=10, lr=0.5, final_lr_ratio=0.1)
    rates = [learning_rate(step, chosen) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[9:]))
    assert rates[54] == pytest.approx(0.5 * (0.1 + 0.9 / 2))
    assert rates[-1] == pytest.approx(0.05)
    assert learning_rate(500, chosen) == pytest.approx(0.05)
    assert learning_rate(1, Settings(warmup_steps=0, steps=1)) > 0


def test_the_other_schedules() -> None:
    linear = Settings(steps=30, warmup_steps=10, lr=0.5, final_lr_ratio=0.2, schedule="linear")
    assert [learning_rate(step, linear) for step in (5, 10, 20, 25, 30)] == pytest.approx([0.25, 0.5, 0.3, 0.2, 0.1])
    constant = Settings(steps=30, warmup_steps=10, lr=0.5, schedule="constant")
    assert [learning_rate(step, constant) for step in (5, 10, 30, 99)] == [0.25, 0.5, 0.5, 0.5]
    wsd = Settings(steps=100, warmup_steps=10, lr=0.5, final_lr_ratio=0.1, schedule="wsd", decay_share=0.25)
    rates = [learning_rate(step, wsd) for step in (5, 10, 40, 75, 76, 79, 84, 91, 100, 130)]
    heights = [0.8, 0.6, 0.4, 0.2]  # a 25th, 4, 9 and 16 of 25 decaying steps done, less their roots
    decayed = [0.5 * (0.1 + 0.9 * height) for height in heights]
    assert rates == pytest.approx([0.25, 0.5, 0.5, 0.5, *decayed, 0.05, 0.05])


@given(
    st.sampled_from(["cosine", "linear", "constant", "wsd"]), st.integers(1, 50), st.integers(0, 60), st.floats(0, 1)
)
def test_no_rate_leaves_its_bounds(schedule: str, steps: int, warmup: int, ratio: float) -> None:
    chosen = Settings(schedule=schedule, steps=steps, warmup_steps=warmup, final_lr_ratio=ratio, lr=1.0)
    rates = [learning_rate(step, chosen) for step in range(1, steps + 1)]
    assert all(-1e-12 <= rate <= 1 + 1e-12 for rate in rates)
    assert all(rate >= ratio - 1e-9 for rate in rates[warmup:])


def test_a_peak_given_on_resume_wins() -> None:
    model = network()
    before, after = Settings(lr=0.5), Settings(lr=0.1)
    first = WarmupSchedule(optimizer_for(model, lr=0.5), before)
    for _ in range(30):
        first.advance()
    optimizer = optimizer_for(model, lr=0.1)
    second = WarmupSchedule(optimizer, after, step=first.step)
    assert second.advance() == pytest.approx(first.advance() / 5)
    assert {group["lr"] for group in optimizer.param_groups} == {learning_rate(31, after)}


def test_only_matrices_decay_and_all_keep_their_names() -> None:
    model = network()
    optimizer = optimizer_for(model, weight_decay=0.3)
    for group in optimizer.param_groups:
        assert all((parameter.dim() >= 2) == (group["weight_decay"] == 0.3) for parameter in group["params"])
    named = {
        name: parameter
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }
    assert named == dict(model.named_parameters())


def test_frozen_parameters_and_empty_groups_are_left_out() -> None:
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    [group] = optimizer_for(model).param_groups
    assert group["param_names"] == ["bias"]


def test_what_settings_say_reaches_the_optimizer() -> None:
    adamw = optimizer_for(network(), beta1=0.8, beta2=0.95, lr=0.3)
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.defaults["betas"] == (0.8, 0.95) and adamw.defaults["lr"] == 0.3
    sgd = optimizer_for(network(), optimizer="sgd", momentum=0.7)
    assert isinstance(sgd, torch.optim.SGD)
    assert sgd.defaults["momentum"] == 0.7 and sgd.defaults["nesterov"] is True
    assert optimizer_for(network(), optimizer="sgd", momentum=0.0).defaults["nesterov"] is False


@pytest.mark.parametrize(
    ("settings", "device", "fused"),
    [({}, "cuda", True), ({}, "cpu", None), ({"parallel": "fsdp", "cpu_offload": True}, "cuda", None)],
)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_fused_where_the_weights_are_on_a_gpu(
    name: str, settings: dict[str, Any], device: str, fused: bool | None
) -> None:
    assert optimizer_options(Settings(optimizer=name, **settings), torch.device(device))[1]["fused"] is fused


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_they_learn(name: str) -> None:
    model, inputs = network(), torch.ones(4, 1, 4, 4)
    optimizer = optimizer_for(model, optimizer=name, lr=0.05)
    losses = []
    for _ in range(20):
        loss = model(inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 10
