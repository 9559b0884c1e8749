"""The process group: joining it, leaving it, and the few exchanges that the loop needs.

Without torchrun's environment there is one process and no group, and every exchange is the identity.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import re
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from trainer.config import Settings
from trainer.errors import SettingsError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process's place among the ranks that work together.

    `group` is None for the default group and if there is none. With CUDA it has two backends, NCCL for tensors on
    the device and gloo for those on the host, so that agreeing on something does not wait for the device.
    """

    rank: int
    size: int
    device: torch.device
    backend: str  # nccl, gloo, or empty for a single process without a group
    group: dist.ProcessGroup | None = None
    timeout: datetime.timedelta | None = None  # how long ranks wait for each other; None: torch's own
    writers_group: dist.ProcessGroup | None = None  # the same ranks once more, see `writers`
    store: Any = None  # torch's, of a world made by `patient`: keys that all its ranks see

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, *values: float | Tensor) -> list[float]:
        """The sums over all ranks, in one exchange on the device; waits for it."""
        return self._sum(values, self.device)

    def vote(self, *values: float) -> list[float]:
        """The sums over all ranks, in one exchange between hosts; does not wait for the device."""
        return self._sum(values, torch.device("cpu"))

    def _sum(self, values: tuple[float | Tensor, ...], device: torch.device) -> list[float]:
        packed = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
        if self.backend:
            dist.all_reduce(packed, group=self.group)
        result: list[float] = packed.tolist()
        return result

    def from_main(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        box = [value]
        if self.backend:
            dist.broadcast_object_list(box, src=0, group=self.group, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Everybody's values by rank, on every rank."""
        everybody: list[Any] = [value] * self.size
        if self.backend:
            dist.all_gather_object(everybody, value, group=self.group)
        return everybody

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        self.vote(0)

    def wait_for(self, seconds: float) -> None:
        """How long the ranks wait for each other from now on; nothing if that was left to torch."""
        if self.backend and self.timeout is not None:
            set_timeout: Any = dist.distributed_c10d._set_pg_timeout
            set_timeout(datetime.timedelta(seconds=seconds), self.group)

    def subgroup(self, size: int, *, writers: bool = False) -> World | None:
        """The first `size` ranks as a world of their own, with `writers` where asked for; None on the other ranks.

        Collective: every rank makes every subgroup, in the same order. torch names a group by how many were made before
        it in this process, so a group that only some ranks make leaves all later ones with names that do not match, and
        their ranks wait for each other until the timeout.
        """
        ranks = list(range(size))
        group = self.group if size == self.size else dist.new_group(ranks, timeout=self.timeout)
        apart = dist.new_group(ranks, backend="gloo", timeout=self.timeout) if writers and self.backend else None
        return dataclasses.replace(self, size=size, group=group, writers_group=apart) if self.rank < size else None

    @property
    def writers(self) -> World:
        """The same ranks, for the threads that write checkpoints: exchanges of two threads must not meet in one group.

        Raises ValueError if `subgroup` was not asked for them.
        """
        if self.writers_group is None:
            raise ValueError("this world was made without a group for writers")
        return dataclasses.replace(self, backend="gloo", group=self.writers_group)

    def patient(self) -> World:
        """All ranks of the run in a gloo group whose exchanges may wait for as long as a run lasts (collective).

        For ranks that have nothing to do for a while: a peer that dies still ends their waiting at once.
        """
        if not self.backend:
            return self
        group = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=365))
        # Its own prefix, which all ranks agree on: the store may outlive a run that ends in it.
        name = self.from_main(f"run/{time.time_ns()}")
        store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]
        return dataclasses.replace(self, backend="gloo", group=group, store=store)

    def broadcast(self, state: Any) -> Any:
        """Rank 0's nested dictionaries and lists of tensors and plain values, on every rank (collective).

        Tensors travel one at a time, between hosts.
        """
        if not self.backend:
            return state
        tensors: list[Tensor] = []
        plan = self.from_main(_without_tensors(state, tensors) if self.is_main else None)
        received: list[Tensor] = []
        for number, (shape, dtype) in enumerate(self.from_main([(tuple(t.shape), t.dtype) for t in tensors])):
            tensor = tensors[number].contiguous() if self.is_main else torch.empty(shape, dtype=dtype)
            if tensor.numel():
                dist.broadcast(tensor.view(-1).view(torch.uint8), src=0, group=self.group)
            received.append(tensor)
        return _with_tensors(plan, received)


@dataclass(frozen=True)
class _Place:
    """Stands for the tensor of this number."""

    number: int


def _without_tensors(state: Any, tensors: list[Tensor]) -> Any:
    if isinstance(state, Tensor):
        tensors.append(state.detach().cpu())
        return _Place(len(tensors) - 1)
    if isinstance(state, dict):
        return {key: _without_tensors(value, tensors) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_without_tensors(value, tensors) for value in state)
    return state


def _with_tensors(plan: Any, tensors: list[Tensor]) -> Any:
    if isinstance(plan, _Place):
        return tensors[plan.number]
    if isinstance(plan, dict):
        return {key: _with_tensors(value, tensors) for key, value in plan.items()}
    if isinstance(plan, list | tuple):
        return type(plan)(_with_tensors(value, tensors) for value in plan)
    return plan


def join(settings: Settings, environment: Mapping[str, str] = os.environ) -> World:
    """Joins the group that torchrun describes in the environment, or none if there is no torchrun.

    Raises SettingsError if a GPU is asked for that is not there.
    """
    rank, size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    local_rank, local_size = int(environment.get("LOCAL_RANK", "0")), int(environment.get("LOCAL_WORLD_SIZE", "1"))
    device = _choose_device(settings, local_rank, local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "RANK" not in environment:
        return World(rank=0, size=1, device=device, backend="")
    cuda = device.type == "cuda"
    if cuda:
        record_collectives(settings.output_dir / "evidence", os.environ)
    timeout = datetime.timedelta(seconds=max(settings.timeout, settings.start_timeout))
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    # torchrun keeps one store over its restarts: without a prefix a new attempt reads the addresses of the one before.
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=dist.PrefixStore(f"attempt{attempt}", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=device if cuda else None,
    )
    return World(rank=rank, size=size, device=device, backend="nccl" if cuda else "gloo", timeout=timeout)


def record_collectives(folder: Path, environment: MutableMapping[str, str]) -> None:
    """Has NCCL's flight recorder leave the newest collectives of each rank in a folder when one of them times out.

    torch has two names for each of its variables. What is set already stays.
    """
    prefix = str(folder.absolute() / "nccl_trace_rank_")
    for names, value in (
        (("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "2000"),
        (("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), prefix),
        (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"),
    ):
        if not any(name in environment for name in names):
            environment.update(dict.fromkeys(names, value))
    with contextlib.suppress(OSError):  # a folder that cannot be written to is reported where the run begins
        folder.mkdir(parents=True, exist_ok=True)


def leave() -> None:
    """Destroys the process group; peers that still wait for this rank through gloo then fail instead of hanging."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leaving_may_wait() -> bool:
    """Whether `leave`, and even the end of the interpreter, may wait for other ranks, and so must not follow an error.

    NCCL finishes what it was given before it goes, and for that needs all ranks of the group to do the same.
    """
    return dist.is_initialized() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


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
