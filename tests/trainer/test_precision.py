"""Autocast, loss scaling, torch's global switches, memory order, compilation; and what CUDA reads when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.tables import table
from tests.trainer.ranks import ALONE
from tests.trainer.running import settings
from trainer.__main__ import prepare_environment
from trainer.config import Settings
from trainer.precision import Precision, switch_backends
from trainer.session import PhaseSession, TrainingProgress

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """torch's global switches come back."""
    matmul = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn
    allowed = cudnn.allow_tf32
    benchmark = cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(matmul)
    cudnn.allow_tf32 = allowed
    cudnn.benchmark = benchmark


@table(("name", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_computes_in_the_chosen_type(name: str, expected: torch.dtype) -> None:
    precision = Precision(Settings(precision=name, device="cpu"), CPU)
    model = nn.Linear(4, 2)
    with precision.autocast():
        assert model(torch.ones(1, 4)).dtype == expected
    assert model.weight.dtype == torch.float32
    assert precision.scaler.is_enabled() == (name == "fp16")


@table(("deterministic", "is_requested", "tf32"), [(False, True, True), (False, False, False), (True, True, False)])
def test_tf32_is_on_unless_asked_or_deterministic(
    deterministic: bool, is_requested: bool, tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fractions: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *call: fractions.append(call))
    switch_backends(Settings(deterministic=deterministic, tf32=is_requested, memory_fraction=0.5), GPU)
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
    assert torch.are_deterministic_algorithms_enabled() == deterministic != torch.backends.cudnn.benchmark
    assert fractions == [(0.5, GPU)]


@table("is_requested", [True, False])
def test_channels_last_is_the_weights_order(is_requested: bool) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    placed = Precision(Settings(channels_last=is_requested), CPU).place(model)
    assert placed is model
    weight = placed.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last) == is_requested
    assert placed(torch.ones(1, 2, 4, 4)).shape == (1, 2)


def test_blocks_are_compiled_by_themselves_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled.append(type(self).__name__))
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append("measure") or function)
    for scope, expected in (("whole", ["NextToken", "measure"]), ("blocks", ["TransformerBlock"] * 2)):
        chosen = settings("--task", "lm", "--width", "32", "--depth", "2", "--compile", "--compile-scope", scope)
        with PhaseSession(chosen, ALONE, 1, TrainingProgress()):
            assert compiled == expected
        compiled.clear()


@table(
    ("settings", "before", "after"),
    [
        ({"expandable_segments": True}, {}, {ALLOCATOR: "expandable_segments:True"}),
        ({"expandable_segments": True}, {ALLOCATOR: "a:b"}, {ALLOCATOR: "a:b,expandable_segments:True"}),
        ({"expandable_segments": True}, {ALLOCATOR: "expandable_segments:False"}, {}),
        ({}, {}, {}),
        ({"deterministic": True, "device": "cpu"}, {}, {}),
        ({"deterministic": True}, {}, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
        ({"deterministic": True}, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, {}),
    ],
)
def test_what_cuda_reads_when_it_starts(
    settings: dict[str, Any], before: dict[str, str], after: dict[str, str]
) -> None:
    environment = dict(before)
    prepare_environment(Settings(**{"deterministic": False, **settings}), environment)
    assert environment == before | after


def test_settings_of_the_loss_scale_win_over_those_of_the_state() -> None:
    scaling = {"precision": "fp16", "loss_scale": 256.0, "loss_scale_interval": 10, "device": "cpu"}
    later = {"loss_scale_interval": 5, "loss_scale_growth": 4.0, "loss_scale_backoff": 0.25}
    small: dict[str, Any] = {"data": "synthetic", "synthetic_samples": 16, "width": 8, "depth": 1, **scaling}
    with PhaseSession(Settings(**small), ALONE, 1, TrainingProgress()) as session:
        state = session.state()
    state["scaler"] |= {"scale": 64.0, "_growth_tracker": 3}
    with PhaseSession(Settings(**{**small, **later}), ALONE, 1, TrainingProgress()) as session:
        session.load(state)
        scaler = session.precision.scaler.state_dict()
    expected = {"growth_interval": 5, "growth_factor": 4.0, "backoff_factor": 0.25}
    assert scaler == {"scale": 64.0, "_growth_tracker": 3, **expected}
