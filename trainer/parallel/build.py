"""Choosing the parallel strategy, and checking that the settings allow it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from trainer.config import Settings
from trainer.errors import SettingsError
from trainer.parallel.ddp import DataParallel, Ddp, Plain, Zero1
from trainer.parallel.local_sgd import LocalSgd
from trainer.parallel.strategy import Strategy
from trainer.tasks.objective import Objective
from trainer.world import World


def build_strategy(settings: Settings, objective: Objective, world: World) -> Strategy:
    """Build the strategy for an objective on the world's device, which it owns from then on (collective).

    If `shards_weights`, the model may be on the CPU or the meta device. Raises SettingsError.
    """
    # The settings have already checked conflicts that do not depend on the ranks.
    check(settings, world)
    if settings.sync_batchnorm and world.size > 1:
        nn.SyncBatchNorm.convert_sync_batchnorm(objective, world.group)  # type: ignore[no-untyped-call]
    if settings.parallel == "data_parallel":
        return DataParallel(settings, objective, world)
    # FSDP and tensor parallelism import large parts of torch, so only if they are asked for.
    if settings.tensor_parallel > 1:
        from trainer.parallel.tensor import TensorParallel

        return TensorParallel(settings, objective, world)
    if settings.parallel == "fsdp" and world.backend:
        from trainer.parallel.fsdp import Fsdp

        if not all(weight.is_contiguous() for weight in objective.parameters()):
            raise SettingsError("--channels-last needs --parallel ddp or zero1: FSDP2 takes no weights in that order")
        return Fsdp(settings, objective, world)
    if world.size == 1:
        return Plain(settings, objective, world)
    if settings.parallel == "local_sgd":
        return LocalSgd(settings, objective, world)
    if settings.parallel == "zero1":
        return Zero1(settings, objective, world)
    return Ddp(settings, objective, world)


def shards_weights(settings: Settings, world: World) -> bool:
    """Return whether weights are sharded, so that no rank needs all of them on its device."""
    return settings.parallel == "fsdp" and bool(world.backend)


def check(settings: Settings, world: World) -> None:
    """Raise SettingsError if the settings do not work with these ranks, for any model."""
    for problem in _problems(settings, world):
        raise SettingsError(problem)


def _problems(settings: Settings, world: World) -> Iterator[str]:
    parallel = settings.parallel
    shared_by = settings.tensor_parallel
    if settings.sync_batchnorm and world.device.type != "cuda":
        yield "--sync-batchnorm needs CUDA GPUs: torch has it for nothing else"
    if settings.sync_batchnorm and parallel not in ("ddp", "zero1", "fsdp"):
        yield f"--sync-batchnorm needs --parallel ddp, zero1 or fsdp, not {parallel}"
    if settings.compress_gradients == "bf16" and world.backend == "gloo":
        yield "--compress-gradients bf16 needs CUDA GPUs; fp16 works between CPUs too"
    if parallel == "data_parallel" and world.size > 1:
        yield f"--parallel data_parallel is for one process, not {world.size}: leave torchrun away, or use ddp"
    if parallel == "fsdp" and settings.precision == "fp16" and world.backend:
        yield "--parallel fsdp needs --precision bf16 or fp32: ranks would not agree on the scale of the loss"
    for name in ("cpu_offload", "sharded_checkpoints"):
        if getattr(settings, name) and not world.backend:
            yield f"--{name.replace('_', '-')} needs a process group: start with torchrun --nproc-per-node 1"
    if world.backend and settings.shard_ranks and world.size % settings.shard_ranks:
        yield f"--shard-ranks {settings.shard_ranks} does not divide the {world.size} ranks"
    if settings.check_gradients and world.backend and settings.shard_ranks == world.size:
        yield f"--check-gradients has nothing to compare: with --shard-ranks {world.size} there is one copy only"
    if world.size % shared_by:
        yield f"--tensor-parallel {shared_by} does not divide the {world.size} ranks"
