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

    Attributes:
        step: the whole step.
        data: waiting for data.
        exchange: waiting for other ranks after the own gradients were ready; None: unknown.
        device_wait: the host waiting for the device's results; None on the CPU.
    """

    step: float
    data: float
    exchange: float | None = None
    device_wait: float | None = None


class Pending:
    """The times of a step that the device may still compute."""

    def __init__(self, host: float, data: float, events: tuple[torch.cuda.Event, torch.cuda.Event] | None) -> None:
        self._host = host
        self._data = data
        self._events = events

    def read(self, exchange: float | None = None, device_wait: float | None = None) -> StepDurations:
        """Return the times, with those that the caller measured. On CUDA call it after the step's results were read."""
        if self._events is None:
            return StepDurations(self._host, self._data, exchange)
        began, ended = self._events
        return StepDurations(began.elapsed_time(ended) / 1e3, self._data, exchange, device_wait)


class StepTimer:
    """Times steps: ``start()``, ``with data():`` around every wait for a batch, ``stop()``.

    On CUDA the time of a step is the device's, measured by events.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._cuda = device.type == "cuda"
        self._now = now
        self._began = 0.0
        self._data = 0.0
        self._began_on_device: torch.cuda.Event | None = None

    def start(self) -> None:
        """Start a step."""
        self._began = self._now()
        self._data = 0.0
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

    def __init__(self, device: torch.device, lag: int | None = None, now: Callable[[], float] = time.perf_counter):
        self.lag = lag if lag is not None else int(device.type == "cuda")
        self._now = now
        self._held: deque[_Held[T]] = deque()

    def push(self, step: int, tensors: Mapping[str, Tensor], note: T) -> None:
        """Add scalars [] of one device, which may change afterwards. `note` is returned with them."""
        self._held.append(_Held(step, tuple(tensors), _Copy(tuple(tensors.values())), note))

    def pop_ready(self, force: bool = False) -> list[Result[T]]:
        """The steps that are `lag` pushes old, or with `force` all of them, oldest first."""
        ready: list[Result[T]] = []
        while len(self._held) > (0 if force else self.lag):
            held = self._held.popleft()
            before = self._now()
            values = dict(zip(held.names, held.copy.read(), strict=True))
            ready.append(Result(held.step, values, held.note, self._now() - before))
        return ready


@dataclass(frozen=True)
class _Held(Generic[T]):
    step: int
    names: tuple[str, ...]
    copy: _Copy
    note: T


class _Copy:
    """An asynchronous copy of scalars to the host: one kernel and one transfer for all of them."""

    def __init__(self, scalars: Sequence[Tensor]) -> None:
        self._arrived: torch.cuda.Event | None = None
        packed = torch.stack([scalar.detach().double() for scalar in scalars]) if scalars else torch.empty(0)
        if packed.is_cuda:
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            self._arrived = _mark()
        else:
            self._host = packed

    def read(self) -> list[float]:
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[float] = self._host.tolist()
        return values


class MeanTimes:
    """Means of step times since the last `take`."""

    def __init__(self) -> None:
        self._times: list[StepDurations] = []

    def add(self, times: StepDurations) -> None:
        self._times.append(times)

    def take(self) -> StepDurations | None:
        """Return the means, each over the steps for which it is known, and reset; None if there were no steps."""
        steps, self._times = self._times, []
        if not steps:
            return None
        return StepDurations(
            step=sum(times.step for times in steps) / len(steps),
            data=sum(times.data for times in steps) / len(steps),
            exchange=_mean([times.exchange for times in steps]),
            device_wait=_mean([times.device_wait for times in steps]),
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mark(*, timing: bool = False) -> torch.cuda.Event:
    """An event after all work that was launched so far."""
    event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
    event.record()
    return event
