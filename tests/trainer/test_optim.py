"""Optimizers and learning rates."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.tables import table
from tests.trainer.comparing import final_state, same
from tests.trainer.running import train
from trainer.config import Settings
from trainer.errors import SettingsError
from trainer.models.blocks import matrices_of_blocks
from trainer.optim import Ema, Muon, build_optimizer, learning_rate, optimizer_options, set_learning_rate


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3))


def optimizer_for(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return build_optimizer(model.named_parameters(), Settings(**settings))


HEIGHTS = [0.8, 0.6, 0.4, 0.2]  # 1 - sqrt(n / 25) after 1, 4, 9 and 16 of 25 decaying steps


class Stack(nn.Module):
    """Two blocks with a matrix each, between layers that are in none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])
        self.leave = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        out: torch.Tensor = self.leave(x)
        return out


@table(
    ("settings", "rates"),
    [
        (
            {"steps": 100, "final_lr_ratio": 0.1, "schedule": "cosine"},
            {1: 0.05, 2: 0.1, 9: 0.45, 10: 0.5, 55: 0.275, 100: 0.05, 500: 0.05},
        ),
        (
            {"steps": 30, "final_lr_ratio": 0.2, "schedule": "linear"},
            {5: 0.25, 10: 0.5, 20: 0.3, 25: 0.2, 30: 0.1},
        ),
        ({"steps": 30, "schedule": "constant"}, {5: 0.25, 10: 0.5, 30: 0.5, 99: 0.5}),
        (
            {"steps": 100, "final_lr_ratio": 0.1, "schedule": "wsd", "decay_share": 0.25},
            {5: 0.25, 10: 0.5, 75: 0.5, 100: 0.05, 130: 0.05}
            | dict(zip((76, 79, 84, 91), [0.5 * (0.1 + 0.9 * height) for height in HEIGHTS], strict=True)),
        ),
        ({"steps": 1, "warmup_steps": 0, "final_lr_ratio": 0.1}, {1: 0.05}),
    ],
)
def test_the_rate_warms_up_and_decays(settings: dict[str, Any], rates: dict[int, float]) -> None:
    chosen = Settings(**{"lr": 0.5, "warmup_steps": 10, **settings})
    assert {step: learning_rate(step, chosen) for step in rates} == pytest.approx(rates)


def test_only_matrices_decay_and_all_keep_their_names() -> None:
    model = network()
    optimizer = optimizer_for(model, weight_decay=0.3)
    for group in optimizer.param_groups:
        assert all((parameter.dim() >= 2) == (group["weight_decay"] == 0.3) for parameter in group["params"])
    parameters = {
        name: parameter
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }
    assert parameters == dict(model.named_parameters())


@table(
    ("settings", "fused"),
    [
        ({}, True),
        ({"parallel": "fsdp", "cpu_offload": True}, None),
        ({"optimizer": "sgd"}, True),
        ({"optimizer": "sgd", "parallel": "fsdp"}, None),
        ({"optimizer": "sgd", "precision": "fp16", "device": "cpu"}, None),
    ],
)
def test_fused_where_torch_has_it(settings: dict[str, Any], fused: bool | None) -> None:
    assert optimizer_options(Settings(**settings))[1]["fused"] is fused


# --- shares of the learning rate --------------------------------------------------------------------------------------


def test_parameters_have_their_share_of_the_rate_whatever_the_schedule() -> None:
    model = network()
    chosen = Settings(lr=0.5, warmup_steps=4, lr_shares={"0.weight": 0.1, "bias": 2.0})
    optimizer = build_optimizer(model.named_parameters(), chosen)
    for step in (1, 7):
        rate = set_learning_rate(optimizer, step, chosen)
        rates = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
        assert rates == {
            "0.weight": pytest.approx(0.1 * rate),
            "0.bias": 2 * rate,
            "1.bias": 2 * rate,
            "3.bias": 2 * rate,
            "1.weight": rate,
            "3.weight": rate,
        }
        assert rate == learning_rate(step, chosen)
    assert {group["weight_decay"] for group in optimizer.param_groups if "0.weight" in group["param_names"]} == {0.01}


# --- Muon -------------------------------------------------------------------------------------------------------------


def test_muon_steps_as_torchs_muon_and_its_other_parameters_as_adamw() -> None:
    ours = Stack()
    theirs = Stack()
    names = matrices_of_blocks(ours)
    assert names == {"blocks.0.0.weight", "blocks.1.0.weight"}
    chosen = Settings(optimizer="muon", lr=0.02, weight_decay=0.1, momentum=0.95)
    optimizer = build_optimizer(ours.named_parameters(), chosen, names)
    assert isinstance(optimizer, Muon)
    matrices = [matrix for name, matrix in theirs.named_parameters() if name in names]
    others = [matrix for name, matrix in theirs.named_parameters() if name not in names]
    options = {"lr": 0.02, "weight_decay": 0.1}
    expected = [
        torch.optim.Muon(matrices, momentum=0.95, adjust_lr_fn="match_rms_adamw", **options),
        torch.optim.AdamW([parameter for parameter in others if parameter.dim() >= 2], **options),
        torch.optim.AdamW([parameter for parameter in others if parameter.dim() < 2], lr=0.02, weight_decay=0.0),
    ]
    for step in range(3):
        samples = torch.randn(64, 8, generator=torch.Generator().manual_seed(step))
        for model, steppers in ((ours, [optimizer]), (theirs, expected)):
            for stepper in steppers:
                stepper.zero_grad()
            model(samples).square().mean().backward()
            for stepper in steppers:
                stepper.step()
        # The products are in bf16: a last bit of a gradient may be several of an update.
        for name, stepper in ours.named_parameters():
            apart = stepper - theirs.get_parameter(name)
            way = stepper - Stack().get_parameter(name)
            assert apart.norm() <= (0.02 if step else 1e-4) * way.norm(), (step, name)


def test_muon_goes_on_bit_for_bit(tmp_path: Path) -> None:
    flags = ("--task", "lm", "--width", "32", "--optimizer", "muon", "--lr-shares", "bytes=0.5,head=2")
    for output, stops in (("one", ("8",)), ("two", ("5", "8"))):
        for steps in stops:
            more = ("--steps", steps, "--schedule", "constant", "--resume", "auto", "--validate-every", "0")
            assert train(tmp_path / output, *flags, *more) == 0
    first = final_state(tmp_path / "one")
    two = final_state(tmp_path / "two")
    assert same(first["model"], two["model"])
    assert same(first["optimizer"], two["optimizer"])


@table(
    ("settings", "phrase"),
    [
        ({"optimizer": "muon"}, "--optimizer muon: the model has no row of equal blocks"),
        ({"optimizer": "muon", "parallel": "fsdp"}, "not with --parallel fsdp"),
        ({"lr_shares": {"bias": 2.0, "embedding": 0.1}}, "--lr-shares: no parameter's name has embedding in it"),
        ({"lr_shares": {"bias": 0.0}}, "greater than 0"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], phrase: str) -> None:
    with pytest.raises((SettingsError, ValueError), match=phrase):
        optimizer_for(network(), **settings)


# --- averages ---------------------------------------------------------------------------------------------------------


@given(st.floats(0, 0.999), st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8))
def test_the_average_follows_its_formula(decay: float, values: list[float]) -> None:
    parameter = torch.zeros(3)
    ema = Ema({"w": parameter}, decay)
    expected = 0.0
    for step, value in enumerate(values, 1):
        parameter.fill_(value)
        ema.update(step)
        now = min(decay, (1 + step) / (10 + step))
        expected = now * expected + (1 - now) * value
    assert ema.state()["w"].tolist() == pytest.approx([expected] * 3, abs=1e-4)


def test_swapped_in_to_validate_and_out_again() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    ema = Ema(dict(model.named_parameters()), 0.5)
    averaged = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    copied = copy.deepcopy(model)
    inputs = torch.ones(1, 3)
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    with pytest.raises(ZeroDivisionError), ema.swapped():
        assert torch.equal(model(inputs), averaged(inputs))
        raise ZeroDivisionError
    assert torch.equal(model(inputs), copied(inputs))
    assert torch.equal(ema.state()["weight"], averaged.weight)
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert all(not average.requires_grad for average in ema.state().values())


def test_averages_of_half_precision_move_and_are_not_rounded() -> None:
    parameter = torch.zeros(3, dtype=torch.bfloat16)
    ema = Ema({"w": parameter}, 0.999)
    parameter.fill_(1.0)
    for step in range(10_000, 10_100):
        ema.update(step)
        with ema.swapped():
            assert float(parameter[0]) < 0.2
        assert float(parameter[0]) == 1.0
    assert ema.state()["w"].tolist() == pytest.approx([1 - 0.999**100] * 3, rel=1e-4)


def test_its_state_goes_on_elsewhere() -> None:
    first = Ema({"w": torch.ones(2)}, 0.5)
    second = Ema({"w": torch.zeros(2), "later": torch.full((2,), 9.0)}, 0.5)
    second.load(first.state())
    assert {name: average.tolist() for name, average in second.state().items()} == {"w": [1, 1], "later": [9, 9]}
