"""Which strategy the settings choose, what they cannot have, and the parts that need no ranks."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer import parallel_checks as checks
from tests.trainer.parallel_checks import ALONE
from tests.trainer.ranks import Ranks
from tests.trainer.tiny import tiny_objective, tiny_settings
from trainer.errors import SettingsError
from trainer.parallel import collectives, exchange
from trainer.parallel.build import build_strategy, check
from trainer.parallel.plain import DataParallel, Plain
from trainer.world import World


@pytest.mark.parametrize("parallel", ["ddp", "zero1", "fsdp", "local_sgd"])
def test_one_process_without_a_group_has_no_wrapper(parallel: str) -> None:
    strategy = checks.build(ALONE, parallel=parallel)
    assert type(strategy) is Plain
    assert (strategy.data_rank, strategy.data_ranks) == (0, 1)


def test_data_parallel_is_one_process() -> None:
    assert type(checks.build(ALONE, parallel="data_parallel")) is DataParallel


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "Ddp"),
        ({"parallel": "zero1"}, "Zero1"),
        ({"parallel": "fsdp"}, "Fsdp"),
        ({"parallel": "local_sgd"}, "LocalSgd"),
    ],
)
def test_two_ranks_get_what_was_asked_for(settings: dict[str, Any], name: str, two_ranks: Ranks) -> None:
    assert two_ranks.run(checks.kind_and_place, **settings) == [(name, 0, 2), (name, 1, 2)]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"device": "auto", "sync_batchnorm": True}, "--sync-batchnorm needs CUDA GPUs: torch has it for nothing else"),
        (
            {"compress_gradients": "bf16"},
            "--compress-gradients bf16 needs CUDA GPUs; fp16 works between CPUs too",
        ),
        (
            {"parallel": "data_parallel"},
            "--parallel data_parallel is for one process, not 2: leave torchrun away, or use ddp",
        ),
        (
            {"device": "auto", "parallel": "fsdp", "precision": "fp16"},
            "--parallel fsdp needs --precision bf16 or fp32: ranks would not agree on the scale of the loss",
        ),
        (
            {"parallel": "local_sgd", "precision": "fp16"},
            "--parallel local_sgd needs --precision bf16 or fp32: ranks would not agree on the scale of the loss",
        ),
        ({"average_every": 3}, "--average-every needs --parallel local_sgd, not ddp"),
    ],
)
def test_what_does_not_work_is_refused_in_one_line(settings: dict[str, Any], complaint: str, two_ranks: Ranks) -> None:
    assert two_ranks.run(checks.refusal, **settings) == [complaint, complaint]


def test_what_old_torch_cannot_do_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = World(rank=0, size=2, device=torch.device("cpu"), backend="gloo")
    gpus = World(rank=0, size=2, device=torch.device("cuda", 0), backend="nccl")
    fsdp, shared = tiny_settings(parallel="fsdp"), tiny_settings(parallel="fsdp", task="lm", tensor_parallel=2)
    check(fsdp, cpus)
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.6.0+cpu"))
    check(fsdp, gpus)
    check(fsdp, ALONE)
    for settings, world, what in ((fsdp, cpus, "--parallel fsdp on CPUs"), (shared, gpus, "--tensor-parallel")):
        with pytest.raises(SettingsError) as raised:
            check(settings, world)
        assert str(raised.value) == f"{what} needs torch 2.7 or newer; this is 2.6.0+cpu"


def test_images_last_weights_keep_their_memory_order_or_are_refused(two_ranks: Ranks) -> None:
    (first, moments), (second, _) = two_ranks.run(checks.memory_order, parallel="ddp")
    assert first == second == (27, 1, 9, 3)
    assert two_ranks.run(checks.memory_order, parallel="zero1")[0] == ((27, 1, 9, 3), pytest.approx(moments))
    refusal = "--channels-last needs --parallel ddp or zero1: FSDP2 takes no weights in that order"
    assert two_ranks.run(checks.memory_order, parallel="fsdp") == [refusal] * 2


@pytest.mark.parametrize("flag", ["cpu_offload", "sharded_checkpoints"])
def test_what_needs_a_group_says_so(flag: str) -> None:
    with pytest.raises(SettingsError, match=f"--{flag.replace('_', '-')} needs a process group: start with torchrun"):
        build_strategy(tiny_settings(parallel="fsdp", **{flag: True}), tiny_objective(), ALONE)


def test_batch_statistics_over_all_ranks_need_an_exchange() -> None:
    on_gpu = World(rank=0, size=1, device=torch.device("cuda", 0), backend="")
    settings = tiny_settings(device="auto", sync_batchnorm=True, parallel="local_sgd")
    with pytest.raises(SettingsError, match="--sync-batchnorm needs --parallel ddp, zero1 or fsdp, not local_sgd"):
        build_strategy(settings, tiny_objective(), on_gpu)


def test_only_the_chosen_way_is_imported() -> None:
    code = (
        "import sys, trainer.parallel.build, trainer.parallel.plain; "
        "print([name for name in ('torch.distributed.fsdp', 'torch.distributed.optim') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_ranks_start_from_the_weights_of_rank_0(two_ranks: Ranks) -> None:
    for settings in ({}, {"parallel": "fsdp"}, {"parallel": "local_sgd"}):
        first = checks.build(ALONE, seed=10).model_state()
        for found in two_ranks.run(checks.first_weights, 10, **settings):
            assert all(torch.equal(found[name], first[name]) for name in found)


def test_averages_take_many_tensors_at_once_and_leave_whole_numbers_alone(
    two_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert two_ranks.run(checks.averaged) == [
        [[0.5, 0.5], [1.5], [0.0, 1.0], [0]],
        [[0.5, 0.5], [1.5], [0.0, 1.0], [1]],
    ]
    monkeypatch.setattr(collectives, "_EXCHANGE_BYTES", 8)
    packs = list(
        collectives._packs([torch.zeros(1), torch.zeros(2), torch.zeros(1, dtype=torch.int64), torch.zeros(1)])
    )
    assert [[tensor.numel() for tensor in pack] for pack in packs] == [[1, 2], [1], [1]]


class Mark:
    """Stands in for a CUDA event: the device comes to it when the test says so."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.reached = False

    def record(self) -> None:
        self.milliseconds = Mark.now

    def query(self) -> bool:
        return self.reached

    def elapsed_time(self, other: Mark) -> float:
        assert other.reached
        return other.milliseconds - self.milliseconds


def test_on_gpus_the_wait_is_read_from_events_that_the_device_has_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    measured = exchange.Exchange(World(rank=0, size=2, device=torch.device("cuda", 0), backend="nccl"), "none")
    assert measured.seconds() is None
    for milliseconds in (30.0, 50.0):
        measured.begin()
        measured._note_ready(SimpleNamespace(is_last=lambda: False))
        measured._note_ready(SimpleNamespace(is_last=lambda: True))
        Mark.now += milliseconds
        measured.finish()
    assert measured.seconds() is None  # the device is still busy with both steps
    (_, first), (_, second) = measured._marks
    first.reached = True  # type: ignore[attr-defined]
    assert measured.seconds() == pytest.approx(0.03)
    second.reached = True  # type: ignore[attr-defined]
    assert measured.seconds() == pytest.approx(0.05)
    measured.begin()
    measured.finish()  # a step without an exchange leaves no mark
    assert measured.seconds() == pytest.approx(0.05)
