"""How long the parts of a step take, and results that are read without making the device wait for the host.

On CUDA the host runs ahead of the device. Reading a loss at once would stop both, so results travel to pinned host
memory in the background and are read when the next step has been launched; so do the times, which come from events.
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
    """Seconds of one step, or their means over several, as one rank saw them.

    `exchange` is how long it waited for other ranks after its own gradients were ready; None: unknown.
    `device_wait` is how long the host then waited for its device's results; None if the host is the device.
    """

    step: float
    data: float
    exchange: float | None = None
    device_wait: float | None = None


class Pending:
    """The times of a step that the device may not have finished yet."""

    def __init__(self, host: float, data: float, events: tuple[torch.cuda.Event, torch.cuda.Event] | None) -> None:
        self._host = host
        self._data = data
        self._events = events

    def read(self, exchange: float | None = None, device_wait: float | None = None) -> StepDurations:
        """The times, together with what others have measured. On CUDA only when the step's results are there."""
        if self._events is None:
            return StepDurations(self._host, self._data, exchange)
        began, ended = self._events
        return StepDurations(began.elapsed_time(ended) / 1e3, self._data, exchange, device_wait)


class StepTimer:
    """Times one step after the other: ``start()``, ``with data():`` around every wait for a batch, ``stop()``.

    On CUDA a step lasts from the moment the device begins it to the moment it ends it.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._cuda = device.type == "cuda"
        self._now = now
        self._began = 0.0
        self._data = 0.0
        self._began_on_device: torch.cuda.Event | None = None

    def start(self) -> None:
        """Begins a step."""
        self._began = self._now()
        self._data = 0.0
        self._began_on_device = _mark(timing=True) if self._cuda else None

    @contextlib.contextmanager
    def data(self) -> Iterator[None]:
        """Around a wait for data; several in a step add up."""
        before = self._now()
        try:
            yield
        finally:
            self._data += self._now() - before

    def stop(self) -> Pending:
        """Ends the step; never waits."""
        events = (self._began_on_device, _mark(timing=True)) if self._began_on_device else None
        return Pending(self._now() - self._began, self._data, events)


@dataclass(frozen=True)
class Result(Generic[T]):
    """What became of a pushed step. `waited` is how long the host waited for its device here, in seconds."""

    step: int
    values: dict[str, float]
    note: T
    waited: float


class Lagged(Generic[T]):
    """Holds scalars on the device until reading them costs no waiting; first in, first out.

    `lag` is how many later steps must have been pushed before one is read: 1 on CUDA, 0 elsewhere.
    """

    def __init__(self, device: torch.device, lag: int | None = None, now: Callable[[], float] = time.perf_counter):
        self.lag = lag if lag is not None else int(device.type == "cuda")
        self._now = now
        self._held: deque[_Held[T]] = deque()

    def push(self, step: int, tensors: Mapping[str, Tensor], note: T) -> None:
        """Takes scalars [] of one device; they may change afterwards. `note` comes back with them."""
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
    """Scalars on their way to the host: one kernel and one transfer for any number of them."""

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
    """Means of step times since they were last taken."""

    def __init__(self) -> None:
        self._seen: list[StepDurations] = []

    def add(self, times: StepDurations) -> None:
        self._seen.append(times)

    def take(self) -> StepDurations | None:
        """The means, each over the steps in which it was known, and forgets; None if there were no steps."""
        seen, self._seen = self._seen, []
        if not seen:
            return None
        return StepDurations(
            step=sum(one.step for one in seen) / len(seen),
            data=sum(one.data for one in seen) / len(seen),
            exchange=_mean([one.exchange for one in seen]),
            device_wait=_mean([one.device_wait for one in seen]),
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mark(*, timing: bool = False) -> torch.cuda.Event:
    """An event that is reached when the device has done everything given to it so far."""
    event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
    event.record()
    return event
