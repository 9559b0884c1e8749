"""The process group: joining it, leaving it, and the few exchanges that the loop needs.

Without torchrun's environment there is one process and no group, and every exchange is the identity.
"""

import contextlib
import datetime
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Settings
from trainer.errors import SettingsError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process's place among the ranks."""

    rank: int
    size: int
    device: torch.device
    backend: str  # nccl, gloo, or empty for a single process without a group

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, *values: float | Tensor) -> list[float]:
        """The sums over all ranks, in one exchange."""
        packed = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values])
        if self.backend:
            dist.all_reduce(packed)
        result: list[float] = packed.tolist()
        return result

    def from_main(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        box = [value]
        if self.backend:
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Everybody's values by rank, on every rank."""
        everybody: list[Any] = [value] * self.size
        if self.backend:
            dist.all_gather_object(everybody, value)
        return everybody


def join(settings: Settings, environment: Mapping[str, str] = os.environ) -> World:
    """Joins the group that torchrun describes in the environment, or none where there is no torchrun.

    Raises SettingsError where a GPU is asked for that is not there.
    """
    rank, size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    local_rank, local_size = int(environment.get("LOCAL_RANK", "0")), int(environment.get("LOCAL_WORLD_SIZE", "1"))
    device = _choose_device(settings, local_rank, local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "RANK" not in environment:
        return World(rank=0, size=1, device=device, backend="")
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = datetime.timedelta(seconds=settings.timeout)
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    # torchrun keeps one store over its restarts: without a prefix a new attempt reads the addresses of the one before.
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"attempt{attempt}", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    return World(rank=rank, size=size, device=device, backend=backend)


def leave() -> None:
    """Destroys the process group; peers that still wait for this rank then fail instead of hanging."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _choose_device(settings: Settings, local_rank: int, local_size: int) -> torch.device:
    gpus = torch.cuda.device_count() if settings.device != "cpu" and torch.cuda.is_available() else 0
    if settings.device == "cuda" and not gpus:
        raise SettingsError(
            "--device cuda: no CUDA device is visible to torch; check the driver and CUDA_VISIBLE_DEVICES"
        )
    if not gpus:
        return torch.device("cpu")
    if local_size > gpus:
        raise SettingsError(f"{local_size} ranks but only {gpus} visible GPUs: start {gpus} ranks, or use --device cpu")
    return torch.device("cuda", local_rank)


_PEER_GONE = re.compile(r"Connection (closed|reset) by peer|Broken pipe|ncclRemoteError|Socket ?(Closed|Timeout)")


def lost_a_peer(error: BaseException) -> bool:
    """Whether an error says that another rank went away: a consequence, not a cause."""
    return isinstance(error, RuntimeError) and _PEER_GONE.search(str(error)) is not None


class GradientExchange:
    """Wraps a model for DDP, and measures the exchange of gradients where that can be done from the host (gloo).

    `rounds` counts exchanged buckets since the start. `seconds` is how long the last backward waited for the others
    after its own gradients were ready: long on the fast ranks and short on the slow one.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self.rounds = 0
        self._ready = self._done = 0.0
        self.measured = world.backend == "gloo" and world.size > 1
        self.model: nn.Module = model
        if not world.backend:
            return
        wrapped = DistributedDataParallel(
            model,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
        if self.measured:
            wrapped.register_comm_hook(dist.group.WORLD, self._average)
        self.model = wrapped

    def only_if(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around forward and backward of a micro batch: all but the last add up gradients without exchanging them."""
        if last or not isinstance(self.model, DistributedDataParallel):
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[None] = self.model.no_sync()
        return no_sync

    @property
    def seconds(self) -> float:
        return max(0.0, self._done - self._ready)

    def _average(
        self,
        group: dist.ProcessGroup,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        # DDP compares these annotations at run time: in this module they must not be strings.
        self.rounds += 1
        self._ready = time.perf_counter()

        buffer = bucket.buffer().div_(group.size())

        def finished(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            self._done = time.perf_counter()
            return future.value()[0]

        exchanged: torch.futures.Future[list[Tensor]] = dist.all_reduce(buffer, group=group, async_op=True).get_future()
        return exchanged.then(finished)
