"""The speed of a run: times of its steps, and the peak rates of GPUs.

On CUDA the host runs ahead of the device. Reading a loss at once would synchronize them, so results are copied to
pinned host memory and read after the next step was launched, as are times, which come from events.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:  # the benchmark asks for peaks where there is torch and nothing else
    from trainer.config import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class StepDurations:
    """Seconds of a rank's step, or means over several; None: unknown.

    Attributes:
        step: all of it.
        data: the wait for data.
        exchange: the wait for other ranks, once the rank's own gradients were ready.
        device_wait: the host's wait for the device's results.
    """

    step: float
    data: float
    exchange: float | None = None
    device_wait: float | None = None


def means(steps: Sequence[StepDurations]) -> StepDurations:
    """Means, each over the steps for which it is known."""
    figures: list[Any] = []
    for column in zip(*map(astuple, steps), strict=True):
        durations = [seconds for seconds in column if seconds is not None]
        if durations:
            figures.append(fmean(durations))
        else:
            figures.append(None)
    return StepDurations(*figures)


# From `exchange` and `device_wait`, as the caller measured them, to all times of a step whose results were read.
Pending = Callable[[float | None, float | None], StepDurations]


class StepTimer:
    """Times steps: ``start()``, ``with data():`` around every wait for a batch, ``stop()``; none of them waits."""

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._cuda = device.type == "cuda"
        self._now = now
        self._began = self._data = 0.0
        self._began_on_device: torch.cuda.Event | None = None

    def start(self) -> None:
        self._began = self._now()
        self._data = 0.0
        self._began_on_device = mark(timing=True) if self._cuda else None

    @contextlib.contextmanager
    def data(self) -> Iterator[None]:
        before = self._now()
        try:
            yield
        finally:
            self._data += self._now() - before

    def stop(self) -> Pending:
        host = self._now() - self._began
        data = self._data
        began = self._began_on_device
        if began is None:
            return lambda exchange, device_wait: StepDurations(host, data, exchange)
        ended = mark(timing=True)
        return lambda exchange, device_wait: StepDurations(began.elapsed_time(ended) / 1e3, data, exchange, device_wait)


@dataclass(frozen=True)
class Result(Generic[T]):
    """The results of a step. `waited` is how long reading them waited for the device, in seconds."""

    step: int
    values: dict[str, float]
    note: T
    waited: float


class _Unread(NamedTuple, Generic[T]):
    """The scalars of a step, which are on the host once the event `arrived` has happened; None: they are."""

    step: int
    names: tuple[str, ...]
    packed: Tensor
    arrived: torch.cuda.Event | None
    note: T


class Lagged(Generic[T]):
    """A queue of scalars on the device, which are read once `lag` more steps were pushed: 1 on CUDA, else 0."""

    def __init__(self, device: torch.device) -> None:
        self.lag = int(device.type == "cuda")
        self._unread: deque[_Unread[T]] = deque()

    def push(self, step: int, scalars: Mapping[str, Tensor], note: T) -> None:
        """Add scalars [] of one device, which may change afterwards. `note` is returned with them."""
        packed = torch.stack([scalar.detach().double() for scalar in scalars.values()])
        arrived = None
        if packed.is_cuda:  # one transfer for all of them
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            packed = host.copy_(packed, non_blocking=True)
            arrived = mark()
        self._unread.append(_Unread(step, tuple(scalars), packed, arrived, note))

    def pop_ready(self, force: bool = False) -> list[Result[T]]:
        """The steps that are `lag` pushes old, or with `force` all of them, oldest first."""
        ready: list[Result[T]] = []
        lag = 0 if force else self.lag
        while len(self._unread) > lag:
            step, names, packed, arrived, note = self._unread.popleft()
            before = time.perf_counter()
            if arrived is not None:
                arrived.synchronize()
            values = dict(zip(names, packed.tolist(), strict=True))
            ready.append(Result(step, values, note, time.perf_counter() - before))
        return ready


def mark(*, timing: bool = False) -> torch.cuda.Event:
    """An event after all work that was launched so far."""
    event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
    event.record()
    return event


# --- peaks ------------------------------------------------------------------------------------------------------------

Arithmetic = Literal["half", "tf32", "fp32"]


class Peak(NamedTuple):
    """Floating-point operations per second of dense matrix products, without sparsity, by their arithmetic."""

    half: float
    tf32: float
    fp32: float


# NVIDIA's data sheets and architecture white papers. The first name found in the device's name counts.
_PEAKS: Mapping[str, Peak] = {
    "B200": Peak(2250e12, 1100e12, 75e12),
    "GH200": Peak(989e12, 494e12, 67e12),
    "H200": Peak(989e12, 494e12, 67e12),
    "H100 PCIe": Peak(756e12, 378e12, 51e12),
    "H100 NVL": Peak(835e12, 417e12, 60e12),
    "H100": Peak(989e12, 494e12, 67e12),
    "A100": Peak(312e12, 156e12, 19.5e12),
    "A6000": Peak(155e12, 77.4e12, 38.7e12),
    "L40S": Peak(362e12, 183e12, 91.6e12),
    "RTX 5090": Peak(209.5e12, 104.8e12, 104.8e12),
    "RTX 4090": Peak(165.2e12, 82.6e12, 82.6e12),
    "RTX 3090": Peak(71e12, 35.6e12, 35.6e12),
    "V100": Peak(125e12, 15.7e12, 15.7e12),
}


def peak_flops(device_name: str, arithmetic: Arithmetic) -> float | None:
    """Peak operations per second of a GPU by its name, such as ``NVIDIA H200``; None if it is not in the table."""
    for name, peak in _PEAKS.items():
        if name in device_name:
            flops: float = getattr(peak, arithmetic)
            return flops
    return None


def peak_of(settings: Settings, device: torch.device) -> float | None:
    """Peak operations per second of the device in the arithmetic that the settings ask for; None where unknown."""
    if device.type != "cuda":
        return None
    arithmetic: Arithmetic = "half"
    if settings.precision == "fp32":
        arithmetic = "tf32" if settings.tf32 and not settings.deterministic else "fp32"
    return peak_flops(torch.cuda.get_device_name(device), arithmetic)
