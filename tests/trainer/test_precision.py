"""Autocast, loss scaling, torch's global switches, memory order, compilation; and what CUDA reads when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.running import settings, step_lines, train
from trainer.__main__ import prepare_environment
from trainer.config import Settings
from trainer.errors import SettingsError
from trainer.precision import Precision, compile_modules, snapshot_at_out_of_memory, switch_backends
from trainer.session import PhaseSession, TrainingProgress
from trainer.world import World

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = cudnn, benchmark


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, torch.device]]:
    """What torch is told about memory fractions."""
    told: list[tuple[float, torch.device]] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *call: told.append(call))
    return told


@pytest.mark.parametrize(
    ("name", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_autocast_computes_in_the_chosen_type(name: str, expected: torch.dtype) -> None:
    precision = Precision(Settings(precision=name, device="cpu"), CPU)
    model = nn.Linear(4, 2)
    with precision.autocast():
        assert model(torch.ones(1, 4)).dtype == expected
    assert model.weight.dtype == torch.float32
    assert precision.scaler.is_enabled() == (name == "fp16")


def test_fp16_where_no_gpu_was_found_is_one_line() -> None:
    with pytest.raises(SettingsError, match=r"^--precision fp16 needs a CUDA GPU; use bf16 or fp32 here$"):
        Precision(Settings(precision="fp16"), CPU)


def test_the_scale_backs_off_and_grows_as_told() -> None:
    settings = Settings(
        precision="fp16",
        device="cpu",
        loss_scale=64,
        loss_scale_growth=4,
        loss_scale_backoff=0.25,
        loss_scale_interval=2,
    )
    scaler = Precision(settings, CPU).scaler
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scales = []
    for poison in (float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * poison).backward()
        before = weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weight, before) == (poison != 1.0)
        scales.append(scaler.get_scale())
    assert scales == [16.0, 16.0, 64.0]


@pytest.mark.parametrize(
    ("settings", "tf32"),
    [
        ({"deterministic": False}, True),
        ({"deterministic": False, "tf32": False}, False),
        ({"deterministic": True}, False),
    ],
)
def test_tf32_is_on_unless_asked_or_deterministic(
    settings: dict[str, Any], tf32: bool, fractions: list[tuple[float, torch.device]]
) -> None:
    switch_backends(Settings(**settings, memory_fraction=0.5), GPU)
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
    assert (torch.get_float32_matmul_precision() == "high") == tf32
    assert torch.backends.cudnn.benchmark == torch.are_deterministic_algorithms_enabled() ^ True
    assert fractions == [(0.5, GPU)]


def test_the_cpu_computes_as_always(fractions: list[tuple[float, torch.device]]) -> None:
    before = torch.get_float32_matmul_precision()
    switch_backends(Settings(deterministic=False), CPU)
    assert torch.get_float32_matmul_precision() == before
    assert not torch.are_deterministic_algorithms_enabled() and fractions == []
    switch_backends(Settings(), CPU)
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.parametrize("asked", [True, False])
def test_channels_last_is_the_weights_order(asked: bool) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    placed = Precision(Settings(channels_last=asked), CPU).place(model)
    assert placed is model
    weight = placed.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last) == asked
    assert placed(torch.ones(1, 2, 4, 4)).shape == (1, 2)


def test_compiling_changes_no_names_and_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: calls.append(options))
    model = nn.Linear(2, 2)
    compile_modules([model], Settings(compile="off"))
    assert calls == []
    compile_modules([model], Settings(compile="reduce-overhead"))
    assert calls == [{"mode": "reduce-overhead", "dynamic": False}]


def test_blocks_are_compiled_by_themselves_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled.append(type(self).__name__))
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append("measure") or function)
    for scope, expected in (("whole", ["NextToken", "measure"]), ("blocks", ["TransformerBlock"] * 2)):
        chosen = settings("--task", "lm", "--width", "32", "--depth", "2", "--compile", "--compile-scope", scope)
        with PhaseSession(chosen, World(rank=0, size=1, device=CPU, backend=""), 1, TrainingProgress()):
            assert compiled == expected
        compiled.clear()


@pytest.mark.long
def test_compiled_blocks_train_as_eager_ones(tmp_path: Path) -> None:
    flags = ("--task", "lm", "--width", "32", "--depth", "3", "--steps", "4", "--batch-size", "2")
    losses = {}
    for name, more in {"eager": (), "blocks": ("--compile", "--compile-scope", "blocks")}.items():
        assert train(tmp_path / name, *flags, *more) == 0
        losses[name] = [line["loss"] for line in step_lines(tmp_path / name)]
    assert losses["blocks"] == pytest.approx(losses["eager"], rel=1e-5)


def test_a_snapshot_is_written_when_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observers: list[Any] = []
    recorded: list[int] = []
    attach = "_cuda_attach_out_of_memory_observer"
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda max_entries: recorded.append(max_entries))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_text("history"))
    monkeypatch.setattr(torch._C, attach, observers.append, raising=False)
    path = tmp_path / "evidence" / "memory_rank_3.pickle"
    snapshot_at_out_of_memory(path)
    assert recorded == [100_000] and not path.exists()
    observers[0](0, 1 << 30, 1 << 30, 0)
    assert path.read_text() == "history"


def test_new_memory_is_not_filled() -> None:
    switch_backends(Settings(deterministic=True), CPU)
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_a_compiled_module_keeps_its_state() -> None:
    model = nn.Linear(2, 2)
    names = list(model.state_dict())
    compile_modules([model], Settings(compile="default"))
    assert list(model.state_dict()) == names


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"},
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False, backend:native"},
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:native,expandable_segments:True"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "backend:native,expandable_segments:True"},
            {"PYTORCH_ALLOC_CONF": "backend:native,expandable_segments:True"},
        ),
    ],
)
def test_expandable_segments_join_what_is_there(before: dict[str, str], after: dict[str, str]) -> None:
    environment = dict(before)
    prepare_environment(Settings(expandable_segments=True, deterministic=False), environment)
    assert environment == after


def test_cublas_is_told_to_be_deterministic_unless_it_was_told_something() -> None:
    environment: dict[str, str] = {}
    prepare_environment(Settings(deterministic=False), environment)
    prepare_environment(Settings(device="cpu"), environment)
    assert environment == {}
    prepare_environment(Settings(), environment)
    assert environment == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    prepare_environment(Settings(), environment)
    assert environment == {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}


@pytest.mark.gpu
def test_all_of_it_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    precision = Precision(Settings(precision="fp16", channels_last=True, memory_fraction=0.9), torch.device("cuda", 0))
    model = precision.place(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2)))
    compile_modules([model], Settings(compile="default"))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with precision.autocast():
        loss = model(torch.ones(2, 3, 8, 8, device="cuda")).float().pow(2).mean()
    precision.scaler.scale(loss).backward()
    precision.scaler.step(optimizer)
    precision.scaler.update()
    assert torch.isfinite(loss)
