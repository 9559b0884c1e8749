"""The choice of a strategy, its refusals, and the parts that need no ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer import parallel_checks as checks
from tests.trainer.ranks import ALONE, Ranks
from tests.trainer.tiny import tiny_settings
from trainer.errors import SettingsError
from trainer.parallel.build import check
from trainer.parallel.ddp import DataParallel, Plain
from trainer.world import World

CPUS = World(rank=0, size=2, device=torch.device("cpu"), backend="gloo")
FOUR = World(rank=0, size=4, device=torch.device("cpu"), backend="gloo")
ONE_GPU = World(rank=0, size=1, device=torch.device("cuda", 0), backend="")
SCALE = "needs --precision bf16 or fp32: ranks would not agree on the scale of the loss"
SHARED = {"parallel": "fsdp", "task": "lm", "width": 32}


def test_one_process_without_a_group_has_no_wrapper() -> None:
    for parallel in ("ddp", "zero1", "fsdp", "local_sgd"):
        strategy = checks.build(ALONE, parallel=parallel)
        assert type(strategy) is Plain
        assert (strategy.data_rank, strategy.data_ranks) == (0, 1)
    assert type(checks.build(ALONE, parallel="data_parallel")) is DataParallel


def test_two_ranks_get_what_was_asked_for_with_the_weights_of_rank_0(two_ranks: Ranks) -> None:
    for parallel, name in (("ddp", "Ddp"), ("zero1", "Zero1"), ("fsdp", "Fsdp"), ("local_sgd", "LocalSgd")):
        assert two_ranks.run(checks.kind_and_place, parallel=parallel) == [(name, 0, 2), (name, 1, 2)]
        first = checks.build(ALONE, seed=10).model_state()
        for weights in two_ranks.run(checks.first_weights, 10, parallel=parallel):
            assert all(torch.equal(weights[name], first[name]) for name in weights), parallel


def test_what_does_not_work_is_refused_in_one_line() -> None:
    rows: list[tuple[World, dict[str, Any], str]] = [
        (
            CPUS,
            {"device": "auto", "sync_batchnorm": True},
            "--sync-batchnorm needs CUDA GPUs: torch has it for nothing else",
        ),
        (
            CPUS,
            {"compress_gradients": "bf16"},
            "--compress-gradients bf16 needs CUDA GPUs; fp16 works between CPUs too",
        ),
        (
            CPUS,
            {"parallel": "data_parallel"},
            "--parallel data_parallel is for one process, not 2: leave torchrun away, or use ddp",
        ),
        (CPUS, {"device": "auto", "parallel": "fsdp", "precision": "fp16"}, f"--parallel fsdp {SCALE}"),
        (FOUR, {"parallel": "fsdp", "shard_ranks": 3}, "--shard-ranks 3 does not divide the 4 ranks"),
        (
            FOUR,
            {"parallel": "fsdp", "shard_ranks": 4, "check_gradients": 5},
            "--check-gradients has nothing to compare: with --shard-ranks 4 there is one copy only",
        ),
        (FOUR, {**SHARED, "tensor_parallel": 3}, "--tensor-parallel 3 does not divide the 4 ranks"),
        (
            ONE_GPU,
            {"device": "auto", "sync_batchnorm": True, "parallel": "data_parallel"},
            "--sync-batchnorm needs --parallel ddp, zero1 or fsdp, not data_parallel",
        ),
    ]
    for flag in ("cpu_offload", "sharded_checkpoints"):
        message = f"--{flag.replace('_', '-')} needs a process group: start with torchrun --nproc-per-node 1"
        rows.append((ALONE, {"parallel": "fsdp", flag: True}, message))
    said = {}
    for world, settings, message in rows:
        with pytest.raises(SettingsError) as raised:
            check(tiny_settings(**settings), world)
        said[message] = str(raised.value)
    assert said == {message: message for message in said}
