"""The all-reduce of gradients under DistributedDataParallel, and how long a step waits in it for other ranks.

DDP compares the annotations of its hook with classes at run time, so in this module they must not be strings.
"""

import time
from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.data.contract import Fields
from trainer.tasks.objective import Objective
from trainer.telemetry.speed import mark
from trainer.world import World


class Exchange:
    """DDP's communication hook: all-reduces buckets, and measures how long a step waits for other ranks.

    In the order of a step: `begin`; of each micro batch `called` is set if DDP may exchange buffers before its forward,
    and then `enter`; within the last backward `average` once for each bucket; `finish`.

    Attributes:
        sent: the buckets of this step so far.
        entered: the step's first forward is past DDP's own collectives.
        called: when these began.
    """

    def __init__(self, world: World, compressed: torch.dtype | None) -> None:
        self.sent = 0
        self.entered = False
        self.called: float | None = None
        self._compressed = compressed
        self._on_device = world.device.type == "cuda"
        self._ready: float | None = None
        self._done = self._waited = 0.0  # `waited`: seconds before forward
        # Of several steps: the host may read one while the device still computes the next.
        self._marks: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=4)
        self._ready_mark: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Start a step."""
        self.sent = 0
        self.entered = False
        self._ready_mark = None
        self._waited = 0.0

    def enter(self) -> None:
        """Note that forward is reached."""
        if self.called is not None:
            self._waited = time.perf_counter() - self.called
            self.called = None
        self.entered = True

    def finish(self) -> None:
        """Note that the step's last backward has returned: later work of the device follows the all-reduce."""
        if self._ready_mark is not None:
            self._marks.append((self._ready_mark, mark(timing=True)))

    def average(
        self,
        group: dist.ProcessGroup,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """The hook: all-reduce a bucket to its mean over the group. It is divided first, to avoid overflow."""
        self._ready = time.perf_counter()
        if self._on_device and bucket.is_last():
            self._ready_mark = mark(timing=True)
        gradients: Tensor = bucket.buffer()
        divided = gradients.div_(group.size())
        sent = divided if self._compressed is None else divided.to(self._compressed)
        work: torch.futures.Future[list[Tensor]] = dist.all_reduce(sent, group=group, async_op=True).get_future()
        self.sent += 1

        def finished(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            self._done = time.perf_counter()
            total = future.value()[0]
            if total is not gradients:
                gradients.copy_(total)
            return gradients

        return work.then(finished)

    def seconds(self) -> float | None:
        """The wait of the newest step for which it is known, in seconds; never waits for the device."""
        if not self._on_device:
            if self._ready is None:
                return None
            return self._waited + max(0.0, self._done - self._ready)
        for ready, done in reversed(self._marks):
            if done.query():  # type: ignore[no-untyped-call]
                milliseconds: float = ready.elapsed_time(done)
                return milliseconds / 1000
        return None


class Entered(nn.Module):
    """Notes that forward is reached. Not a hook of the objective, because those of a compiled module are compiled."""

    def __init__(self, objective: Objective, exchange: Exchange) -> None:
        super().__init__()
        self.objective = objective
        self._exchange = exchange

    def forward(self, fields: Fields) -> Tensor:
        self._exchange.enter()
        loss: Tensor = self.objective(fields)
        return loss
