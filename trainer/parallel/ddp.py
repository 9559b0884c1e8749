"""Strategies with full tensors on every rank: one process, DistributedDataParallel, and ZeRO stage 1.

If a rank runs out of memory within a step, the others wait inside DDP's collectives. That rank can take part with
zeros, in DDP's own order, as torch's `Join` does for ranks without data. DDP's internal state is invalid on that rank
then, so all ranks wrap the objective again.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Iterator
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from trainer.collectives import broadcast_from_main
from trainer.config import Settings
from trainer.config.schema import CUDA_GRAPH_MODES
from trainer.data.contract import Fields
from trainer.errors import RankError
from trainer.models.blocks import matrices_of_blocks
from trainer.optim import optimizer_options, parameter_groups
from trainer.parallel.exchange import Entered, Exchange
from trainer.parallel.strategy import OptimizerState, Strategy, load_state_by_name, state_by_name
from trainer.precision import HALF
from trainer.tasks.objective import Objective
from trainer.world import World


class Plain(Strategy):
    """The objective without a wrapper. With --oom-retries, batch statistics are restored after a step that failed."""

    can_settle = True  # there is no other rank

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        super().__init__(settings, objective, world)
        # Between steps, within a step, or in a step whose gradients are complete.
        self.stage: Literal["between", "within", "complete"] = "between"
        # Else torch has gradients in the memory of its CUDA graphs, which the next micro batch overwrites.
        self._keeps_gradients = settings.compile in CUDA_GRAPH_MODES
        self._buffers = list(objective.buffers()) if settings.oom_retries else []
        self._buffers_before = [buffer.clone() for buffer in self._buffers]

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        if self.stage != "within":
            self.begin()
        with self.exchanging(last):
            yield
        if last:
            self.stage = "complete"

    def exchanging(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Inside, run a micro batch; the `last` one all-reduces gradients."""
        return contextlib.nullcontext()

    def begin(self) -> None:
        """Start a step, before the first micro batch."""
        self.stage = "within"
        if self._keeps_gradients:
            for parameter in self.names:
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        if self._buffers:
            torch._foreach_copy_(self._buffers_before, self._buffers)

    def clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=not self._keeps_gradients)

    def after_update(self) -> None:
        self.stage = "between"

    @torch.no_grad()
    def renew(self) -> None:
        super().renew()
        if self._buffers and self.stage != "between":
            torch._foreach_copy_(self._buffers, self._buffers_before)
        self.stage = "between"

    def clip(self, max_norm: float) -> Tensor:
        return clip_grad_norm_(self.names, max_norm or math.inf)


class DataParallel(Plain):
    """One process drives all visible GPUs with a thread for each. DDP is faster, but needs a launcher."""

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        super().__init__(settings, objective, world)
        self._wrapped = nn.DataParallel(_Sum(objective))
        self.devices = max(1, len(self._wrapped.device_ids))

    def loss(self, fields: Fields) -> Tensor:
        samples = len(next(iter(fields.values())))
        kind = self.world.device.type
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        sums: Tensor = self._wrapped(fields, half)
        return sums.sum() / samples


class _Sum(nn.Module):
    """The sum [1] of the losses of a part of the batch; a sum, because the last part may be smaller."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, fields: Fields, half: torch.dtype | None) -> Tensor:
        first = next(iter(fields.values()))
        # Autocast is per thread: the other GPUs' threads would use its default type, fp16.
        with torch.autocast(first.device.type, dtype=half) if half else contextlib.nullcontext():
            loss: Tensor = self.objective(fields)
        return loss.reshape(1) * len(first)


class Ddp(Plain):
    """Wraps the objective in DistributedDataParallel, with `Exchange` as its communication hook."""

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        super().__init__(settings, objective, world)
        self.exchange = Exchange(world, HALF.get(settings.compress_gradients))
        # Zeros cannot answer a static graph's first exchange, nor collectives of the model itself.
        self.can_settle = not (settings.static_graph or settings.sync_batchnorm or objective.exchanges)
        self._settings = settings
        self._wrapped = self._wrap()

    def _wrap(self) -> DistributedDataParallel:
        settings = self._settings
        world = self.world
        self._graph_known = not settings.static_graph
        device_ids = [world.device] if world.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            Entered(self.objective, self.exchange),
            device_ids=device_ids,
            process_group=world.group,
            bucket_cap_mb=settings.bucket_cap_mb,
            static_graph=settings.static_graph,
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            find_unused_parameters=settings.find_unused_parameters,
        )
        # In each forward. The objective's own buffers are constants, so only the model's matter.
        wrapped.broadcast_buffers = settings.broadcast_buffers and any(True for _ in self.objective.model.buffers())
        self.register_hook(wrapped)
        return wrapped

    def register_hook(self, wrapped: DistributedDataParallel) -> None:
        """Have the wrapper's buckets exchanged."""
        wrapped.register_comm_hook(wrapped.process_group, self.exchange.average)

    def loss(self, fields: Fields) -> Tensor:
        if self._wrapped.broadcast_buffers and not self.exchange.entered:
            self.exchange.called = time.perf_counter()
        loss: Tensor = self._wrapped(fields)
        return loss

    @contextlib.contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        # DDP learns a static graph in the first backward, which must include the all-reduce.
        exchanged = last or not self._graph_known
        with contextlib.nullcontext() if exchanged else self._wrapped.no_sync():
            yield
        self._graph_known = True
        if last:
            self.exchange.finish()

    def begin(self) -> None:
        super().begin()
        self.exchange.begin()

    def measuring(self) -> contextlib.AbstractContextManager[None]:
        # Until here every rank has the batch statistics of its own batches.
        broadcast_from_main(self.objective.model.buffers(), self.world)
        return contextlib.nullcontext()

    def exchange_seconds(self) -> float | None:
        return self.exchange.seconds()

    def settle(self) -> None:
        """Take part with zeros in what other ranks wait for: DDP's collectives before forward, then the buckets.

        Raises RankError if DDP ran out of memory while it allocated its buckets: what others wait for is unknown then.
        """
        if self.stage == "complete":
            return
        self.optimizer.zero_grad()
        wrapped = self._wrapped
        exchange = self.exchange
        if not exchange.entered:
            # Both do nothing if they are not due, which they are only before a step's first forward.
            wrapped.reducer._rebuild_buckets()
            if wrapped._check_sync_bufs_pre_fwd():  # type: ignore[no-untyped-call]
                wrapped._sync_buffers()  # type: ignore[no-untyped-call]
        buckets = wrapped.reducer._get_zeros_like_grad_buckets()
        expected = sum(parameter.numel() for parameter in self.names if parameter.requires_grad)
        if sum(bucket.buffer().numel() for bucket in buckets) != expected:
            raise RankError("out of memory while the buckets of gradients were laid out: this step cannot be settled")
        missing = buckets[exchange.sent :]
        for future in [exchange.average(wrapped.process_group, bucket) for bucket in missing]:
            future.wait()
        if missing and wrapped.find_unused_parameters:
            wrapped._match_unused_params_allreduce()  # type: ignore[no-untyped-call]

    def renew(self) -> None:
        super().renew()
        # A traceback may still hold the old wrapper, which must not keep its hooks on the parameters.
        self._wrapped._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        del self._wrapped
        gc.collect()
        self._wrapped = self._wrap()


class Zero1(Ddp):
    """DDP with the optimizer's state sharded: a rank steps a part of the parameters, and broadcasts the results.

    Rajbhandari et al. (2020), "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv:1910.02054.
    """

    optimizer: ZeroRedundancyOptimizer

    def build_optimizer(self, settings: Settings) -> ZeroRedundancyOptimizer:
        kind, options = optimizer_options(settings)
        model = self.objective.model
        groups = parameter_groups(model.named_parameters(), settings, matrices_of_blocks(model))
        # Without names: groups are split over ranks, after which names would not match.
        nameless = [{**group, "params": [parameter for _, parameter in group["params"]]} for group in groups]
        return ZeroRedundancyOptimizer(
            nameless,
            optimizer_class=kind,
            process_group=self.world.group,
            # One broadcast per rank and step instead of one per parameter; its buffers support one memory order only.
            parameters_as_bucket_view=not settings.channels_last,
            **options,
        )

    def optimizer_state(self) -> OptimizerState:
        """The full state on rank 0, on the CPU; tensors are sent one at a time."""
        own_state = state_by_name(self.optimizer.optim, self.names)
        layouts = self.world.gather(
            {
                name: {key: (value.shape, value.dtype, value.device.type) for key, value in values.items()}
                for name, values in own_state.items()
            }
        )
        result: OptimizerState = {}
        for name in self.names.values():
            for owner, layout in enumerate(layouts):
                for key, (shape, dtype, device) in layout.get(name, {}).items():
                    if self.world.rank == owner:
                        sent = own_state[name][key].contiguous()
                    else:
                        sent = torch.empty(shape, dtype=dtype, device=device)
                    if owner != 0:
                        dist.broadcast(sent, src=owner, group=self.world.group)
                    if self.world.is_main:
                        result.setdefault(name, {})[key] = sent.cpu()
        return result

    def load_optimizer_state(self, state: OptimizerState) -> None:
        load_state_by_name(self.optimizer.optim, self.names, state)
