"""DDP's communication hook: all-reduces buckets, counts them, and measures how long backward waits for other ranks.

DDP compares the annotations of its hook with classes at run time, so in this module they must not be strings.
"""

import time
from collections import deque
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.world import World

Compression = Literal["none", "fp16", "bf16"]

_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Exchange:
    """The hook of one DDP module, without a reference to it, so that a module that is dropped is freed.

    `rounds` counts all-reduced buckets since the start, `sent` those of this step. `entered`: this step's first forward
    is past DDP's own collectives.
    """

    def __init__(self, world: World, compression: Compression) -> None:
        self.rounds = 0
        self.sent = 0
        self.entered = False
        self._type = _TYPES.get(compression)
        self._on_device = world.device.type == "cuda"
        self._ready = self._done = 0.0
        self._called: float | None = None
        self._waited = 0.0  # seconds, before forward
        # Of several steps: the host may read one while the device still computes the next.
        self._marks: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=4)
        self._ready_mark: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Start a step."""
        self.sent = 0
        self.entered = False
        self._ready_mark = None
        self._waited = 0.0

    def call(self, *, exchanges: bool) -> None:
        """Note that the module is called. `exchanges`: DDP may have collectives before forward."""
        self._called = time.perf_counter() if exchanges and not self.entered else None

    def enter(self) -> None:
        """Note that forward is reached."""
        if self._called is not None:
            self._waited, self._called = time.perf_counter() - self._called, None
        self.entered = True

    def finish(self) -> None:
        """Note that the step's last backward has returned: later work of the device follows the all-reduce."""
        if self._ready_mark is not None:
            self._marks.append((self._ready_mark, _mark()))

    def average(
        self,
        group: dist.ProcessGroup,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """The hook: all-reduce a bucket to its mean over the group. It is divided first, to avoid overflow."""
        self._note_ready(bucket)
        gradients = bucket.buffer()
        divided = gradients.div_(group.size())
        sent = divided if self._type is None else divided.to(self._type)
        work: torch.futures.Future[list[Tensor]] = dist.all_reduce(sent, group=group, async_op=True).get_future()
        self.sent += 1
        self.rounds += 1

        def finished(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            self._done = time.perf_counter()
            total = future.value()[0]
            return gradients if total is gradients else gradients.copy_(total)

        return work.then(finished)

    def _note_ready(self, bucket: dist.GradBucket) -> None:  # type: ignore[name-defined]
        self._ready = time.perf_counter()
        if self._on_device and bucket.is_last():
            self._ready_mark = _mark()

    def seconds(self) -> float | None:
        """The wait of the newest step for which it is known, in seconds; never waits for the device."""
        if not self._on_device:
            return self._waited + max(0.0, self._done - self._ready) if self.rounds else None
        for ready, done in reversed(self._marks):
            if done.query():  # type: ignore[no-untyped-call]
                milliseconds: float = ready.elapsed_time(done)
                return milliseconds / 1000
        return None


def _mark() -> torch.cuda.Event:
    """An event at the current end of the stream."""
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark
