"""Step times, and step results that are read without blocking the device.

On CUDA the host runs ahead of the device. Reading a loss at once would synchronize them, so results are copied to
pinned host memory asynchronously and read after the next step was launched, as are times, which come from events.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class StepDurations:
    """Seconds of a rank's step, or means over several.

    `data`: waiting for data. `exchange`: waiting for other ranks after the own gradients were ready; None: unknown.
    `device_wait`: the host waiting for the device's results; None on the CPU.
    """

    step: float
    data: float
    exchange: float | None = None
    device_wait: float | None = None


def means(steps: Sequence[StepDurations]) -> StepDurations | None:
    """Means, each over the steps for which it is known; None if there are no steps."""
    if not steps:
        return None
    names = ("step", "data", "exchange", "device_wait")
    step, data, exchange, device_wait = (mean_known([getattr(times, name) for times in steps]) for name in names)
    return StepDurations(step or 0.0, data or 0.0, exchange, device_wait)


def mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class Pending:
    """The times of a step that the device may still compute."""

    host: float
    data: float
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None

    def read(self, exchange: float | None = None, device_wait: float | None = None) -> StepDurations:
        """Return the times, with those that the caller measured. On CUDA call it after the step's results were read."""
        if self.events is None:
            return StepDurations(self.host, self.data, exchange)
        began, ended = self.events
        return StepDurations(began.elapsed_time(ended) / 1e3, self.data, exchange, device_wait)


class StepTimer:
    """Times steps: ``start()``, ``with data():`` around every wait for a batch, ``stop()``.

    On CUDA the time of a step is the device's, measured by events.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._cuda = device.type == "cuda"
        self._now = now
        self._began = self._data = 0.0
        self._began_on_device: torch.cuda.Event | None = None

    def start(self) -> None:
        self._began, self._data = self._now(), 0.0
        self._began_on_device = _mark(timing=True) if self._cuda else None

    @contextlib.contextmanager
    def data(self) -> Iterator[None]:
        """Inside, wait for data; several waits in a step add up."""
        before = self._now()
        try:
            yield
        finally:
            self._data += self._now() - before

    def stop(self) -> Pending:
        """End the step; never waits."""
        events = (self._began_on_device, _mark(timing=True)) if self._began_on_device else None
        return Pending(self._now() - self._began, self._data, events)


@dataclass(frozen=True)
class Result(Generic[T]):
    """The results of a step. `waited` is how long reading them waited for the device, in seconds."""

    step: int
    values: dict[str, float]
    note: T
    waited: float


class Lagged(Generic[T]):
    """A queue of scalars on the device, which are read once that needs no waiting.

    `lag` is how many later steps must have been pushed before one is read: 1 on CUDA, else 0.
    """

    def __init__(self, device: torch.device, lag: int | None = None) -> None:
        self.lag = lag if lag is not None else int(device.type == "cuda")
        self._held: deque[tuple[int, tuple[str, ...], Tensor, torch.cuda.Event | None, T]] = deque()

    def push(self, step: int, scalars: Mapping[str, Tensor], note: T) -> None:
        """Add scalars [] of one device, which may change afterwards. `note` is returned with them."""
        packed = torch.stack([scalar.detach().double() for scalar in scalars.values()])
        arrived = None
        if packed.is_cuda:  # one transfer for all of them
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            packed = host.copy_(packed, non_blocking=True)
            arrived = _mark()
        self._held.append((step, tuple(scalars), packed, arrived, note))

    def pop_ready(self, force: bool = False) -> list[Result[T]]:
        """The steps that are `lag` pushes old, or with `force` all of them, oldest first."""
        ready: list[Result[T]] = []
        while len(self._held) > (0 if force else self.lag):
            step, names, packed, arrived, note = self._held.popleft()
            before = time.perf_counter()
            if arrived is not None:
                arrived.synchronize()
            values = dict(zip(names, packed.tolist(), strict=True))
            ready.append(Result(step, values, note, time.perf_counter() - before))
        return ready


def _mark(*, timing: bool = False) -> torch.cuda.Event:
    """An event after all work that was launched so far."""
    event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
    event.record()
    return event
