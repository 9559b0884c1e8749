"""DistributedDataParallel: the whole model on every rank, gradients all-reduced during backward.

If a rank runs out of memory within a step, the others wait inside DDP's collectives. That rank can take part with
zeros, in DDP's own order, as torch's `Join` does for ranks without data. DDP's internal state is invalid on that rank
then, so all ranks wrap the objective again.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Settings
from trainer.data.contract import Fields
from trainer.errors import RankError
from trainer.parallel.collectives import broadcast_from_main
from trainer.parallel.exchange import Exchange
from trainer.parallel.plain import Plain
from trainer.tasks.objective import Objective
from trainer.world import World


class Ddp(Plain):
    """Wraps the objective in DistributedDataParallel, with `Exchange` as its communication hook."""

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        if settings.sync_batchnorm:
            nn.SyncBatchNorm.convert_sync_batchnorm(objective, world.group)  # type: ignore[no-untyped-call]
        super().__init__(settings, objective, world)
        self.exchange = Exchange(world, settings.compress_gradients)
        # Zeros cannot answer a static graph's first exchange, nor collectives of the model itself.
        self.can_settle = not (settings.static_graph or settings.sync_batchnorm or objective.exchanges)
        self._settings = settings
        self._graph_known = not settings.static_graph
        self._wrapped = self._wrap()

    def _wrap(self) -> DistributedDataParallel:
        settings, world = self._settings, self.world
        wrapped = DistributedDataParallel(
            _Entered(self.objective, self.exchange),
            device_ids=[world.device] if world.device.type == "cuda" else None,
            process_group=world.group,
            bucket_cap_mb=settings.bucket_cap_mb,
            static_graph=settings.static_graph,
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            find_unused_parameters=settings.find_unused_parameters,
        )
        # In each forward. The objective's own buffers are constants, so only the model's matter.
        wrapped.broadcast_buffers = settings.broadcast_buffers and any(True for _ in self.objective.model.buffers())
        wrapped.register_comm_hook(wrapped.process_group, self.exchange.average)
        return wrapped

    # --- a step -------------------------------------------------------------------------------------------------------

    def loss(self, fields: Fields) -> Tensor:
        self.exchange.call(exchanges=self._wrapped.broadcast_buffers)
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

    def before_measuring(self) -> None:
        # Until here every rank has the batch statistics of its own batches.
        broadcast_from_main(self.objective.model.buffers(), self.world)

    def exchange_seconds(self) -> float | None:
        return self.exchange.seconds()

    # --- running out of memory ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take part with zeros in what other ranks wait for: DDP's collectives before forward, then the buckets.

        Raises RankError if DDP ran out of memory while it allocated its buckets: what others wait for is unknown then.
        """
        if self.stage == "complete":
            return
        if self.stage == "between":
            self.begin()
        self.optimizer.zero_grad()
        wrapped, exchange = self._wrapped, self.exchange
        if not exchange.entered:
            # Both do nothing if they are not due, which they are only before a step's first forward.
            wrapped.reducer._rebuild_buckets()
            if wrapped._check_sync_bufs_pre_fwd():  # type: ignore[no-untyped-call]
                wrapped._sync_buffers()  # type: ignore[no-untyped-call]
        buckets = wrapped.reducer._get_zeros_like_grad_buckets()
        expected = sum(parameter.numel() for parameter in self._names if parameter.requires_grad)
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
        self._graph_known = not self._settings.static_graph


class _Entered(nn.Module):
    """The module that DDP wraps: notes that forward is reached, and calls the objective.

    Not a hook of the objective, because hooks of a compiled module are compiled, too.
    """

    def __init__(self, objective: Objective, exchange: Exchange) -> None:
        super().__init__()
        self.objective = objective
        self._exchange = exchange

    def forward(self, fields: Fields) -> Tensor:
        self._exchange.enter()
        loss: Tensor = self.objective(fields)
        return loss
