"""The process group: joining it, leaving it, and the few collectives that the loop needs.

Without torchrun's environment there is one process and no group, and every collective is the identity.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from trainer.config import Settings
from trainer.errors import RankError, SettingsError, TrainerError

T = TypeVar("T")

_PATIENCE = datetime.timedelta(days=365)

_PEER_GONE = re.compile(r"Connection (closed|reset) by peer|Broken pipe|ncclRemoteError|Socket ?(Closed|Timeout)")


@dataclass(frozen=True)
class World:
    """This process's rank in a group of ranks that work together.

    `group` is None for the default group, and if there is none. With CUDA it has two backends, NCCL for device tensors
    and gloo for host tensors, so that votes do not wait for the device.
    """

    rank: int
    size: int
    device: torch.device
    backend: str  # nccl, gloo, or empty for a single process without a group
    group: dist.ProcessGroup | None = None
    timeout: datetime.timedelta | None = None  # how long ranks wait for each other; None: torch's own
    writers_group: dist.ProcessGroup | None = None  # the same ranks once more, patient, see `writers`
    store: Any = None  # torch's, of a world made by `patient`: keys that all its ranks see

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, *values: float | Tensor) -> list[float]:
        """All-reduce scalars to their sums, on the device; waits for it."""
        packed = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values])
        if self.backend:
            dist.all_reduce(packed, group=self.group)
        result: list[float] = packed.tolist()
        return result

    def vote(self, *values: float) -> list[float]:
        """All-reduce scalars to their sums, between hosts; does not wait for the device."""
        return self.begin_vote(*values)()

    def begin_vote(self, *values: float) -> Callable[[], list[float]]:
        """Begin a `vote`; call the result for the sums, once other work is done."""
        packed = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(packed, group=self.group, async_op=True) if self.backend else None

        def sums() -> list[float]:
            if work is not None:
                work.wait()
            result: list[float] = packed.tolist()
            return result

        return sums

    def from_main(self, value: T) -> T:
        """Broadcast rank 0's value."""
        box = [value]
        if self.backend:
            dist.broadcast_object_list(box, src=0, group=self.group, device=torch.device("cpu"))
        return box[0]

    def on_main(self, work: Callable[[], T]) -> T:
        """Do something on rank 0, whose result or TrainerError all ranks get (collective)."""
        result: Any = None
        if self.is_main:
            try:
                result = work()
            except TrainerError as error:
                result = error
        result = self.from_main(result)
        if isinstance(result, TrainerError):
            raise result
        return cast(T, result)

    def leave_note(self, key: str, text: str) -> None:
        """Write what any rank of a world made by `patient` can read without a collective."""
        if self.store is not None:
            self.store.set(key, text)

    def note(self, key: str) -> str:
        """Read a note; empty if there is none."""
        if self.store is not None and self.store.check([key]):
            text: str = self.store.get(key).decode()
            return text
        return ""

    def gather(self, value: T) -> list[T]:
        """All-gather values, in the order of ranks."""
        values: list[Any] = [value] * self.size
        if self.backend:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.vote(0)

    def wait_for(self, seconds: float) -> None:
        """Set the timeout of collectives from now on, unless it was left to torch."""
        if self.backend and self.timeout is not None:
            set_timeout: Any = dist.distributed_c10d._set_pg_timeout
            set_timeout(datetime.timedelta(seconds=seconds), self.group)

    def wait_for_all(self, work: threading.Thread | None, sign_of_life: Callable[[], object], patience: float) -> None:
        """Wait until the threads of all ranks have ended; a rank may have none (collective).

        Ranks meet every second, so none times out. Raises RankError on all ranks if a thread shows the same
        `sign_of_life` for more than `patience` seconds.
        """
        last = sign_of_life()
        changed = time.monotonic()
        while True:
            if work is not None:
                work.join(1.0)
            alive = work is not None and work.is_alive()
            sign = sign_of_life()
            if sign != last or not alive:
                last = sign
                changed = time.monotonic()
            busy, stuck = self.vote(alive, time.monotonic() - changed > patience)
            if stuck:
                raise RankError(f"a checkpoint was not written: no progress for {patience:g} seconds; check its disk")
            if not busy:
                return

    def subgroup(self, size: int) -> World | None:
        """A world of the first `size` ranks, with a group for `writers`; None on the other ranks.

        All ranks must create all subgroups in the same order, because torch names groups by a counter.
        """
        ranks = list(range(size))
        group = self.group if size == self.size else dist.new_group(ranks, timeout=self.timeout)
        writers = dist.new_group(ranks, backend="gloo", timeout=_PATIENCE) if self.backend else None
        if self.rank < size:
            return dataclasses.replace(self, size=size, group=group, writers_group=writers)
        return None

    @property
    def writers(self) -> World:
        """The same ranks without a timeout, for threads that write: two threads must not use one group."""
        return dataclasses.replace(self, backend="gloo", group=self.writers_group)

    def patient(self) -> World:
        """All ranks in a gloo group without a timeout, for what may take one rank long (collective).

        A peer that dies still ends their waiting at once.
        """
        if not self.backend:
            return self
        group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        # A prefix of its own: the store may outlive this run, with keys of an earlier one.
        name = self.from_main(f"run/{time.time_ns()}")
        store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]
        return dataclasses.replace(self, backend="gloo", group=group, store=store)


def join(settings: Settings, environment: Mapping[str, str] = os.environ) -> World:
    """Join the group that torchrun describes in the environment; without torchrun there is none.

    Raises SettingsError if a requested GPU does not exist.
    """
    rank = int(environment.get("RANK", "0"))
    size = int(environment.get("WORLD_SIZE", "1"))
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    local_size = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    device = _choose_device(settings, local_rank, local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "RANK" not in environment:
        return World(rank=0, size=1, device=device, backend="")
    backend = backends = "gloo"
    device_id = None
    if device.type == "cuda":
        backend = "nccl"
        backends = "cpu:gloo,cuda:nccl"
        device_id = device
        record_collectives(settings.output_dir / "evidence", os.environ)
    timeout = datetime.timedelta(seconds=max(settings.timeout, settings.start_timeout))
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    # torchrun keeps its store over restarts: without a prefix, a new attempt reads the former one's addresses.
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        backends,
        store=dist.PrefixStore(f"attempt{attempt}", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=device_id,
    )
    return World(rank=rank, size=size, device=device, backend=backend, timeout=timeout)


def record_collectives(folder: Path, environment: MutableMapping[str, str]) -> None:
    """Have NCCL's flight recorder write each rank's newest collectives to a folder on a timeout; keep other values."""
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    environment.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder.absolute() / "nccl_trace_rank_"))
    environment.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    with contextlib.suppress(OSError):  # a read-only folder is reported when the run starts
        folder.mkdir(parents=True, exist_ok=True)


def leave() -> None:
    """Destroy the process group. Peers that wait for this rank through gloo fail then, instead of hanging."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leaving_may_wait() -> bool:
    """Return whether `leave` and Python's exit may wait for other ranks, so must not follow an error.

    NCCL completes pending collectives first, for which it needs all ranks.
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


def lost_a_peer(error: BaseException) -> bool:
    """Return whether an error is only the consequence of another rank's end."""
    return isinstance(error, RuntimeError) and _PEER_GONE.search(str(error)) is not None
