"""The speed of a run: times of steps, traces of single ones, the peak rates of GPUs, and what limits it.

On CUDA the host runs ahead of the device. Reading a loss at once would synchronize them, so results are copied to
pinned host memory and read after the next step was launched, as are times, which come from events.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

if TYPE_CHECKING:  # the benchmark asks for peaks where there is torch and nothing else
    from trainer.config import Settings

T = TypeVar("T")

# --- times of steps ---------------------------------------------------------------------------------------------------

KEPT_TRACES = 5  # each has tens of megabytes
_TOP = 3  # of the slowest kernels: a line of the log

# Shares of a step. Worth acting on: below it, noise would change the verdict.
NOTABLE = 0.15
# Ranks of equal hardware differ by a few per cent; a larger difference has a cause.
STRAGGLER_EXCESS = 0.15
# A device busier than this would gain at most a tenth of the step from a faster host.
BUSY = 0.90
# One that is less busy loses more than a quarter of its time in gaps between kernels.
IDLE = 0.75
# A host that waits longer for its device is ahead of it; else the device waits for the host.
HOST_AHEAD = 0.05


@dataclass(frozen=True)
class StepDurations:
    """Seconds of a rank's step, or means over several: all of it, the waits for data, for other ranks after the own
    gradients were ready, and of the host for the device's results. None: unknown.
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

    def __init__(self, device: torch.device, lag: int | None = None) -> None:
        self.lag = int(device.type == "cuda")
        if lag is not None:
            self.lag = lag
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


# --- Chrome traces, for chrome://tracing and https://ui.perfetto.dev --------------------------------------------------


@dataclass
class Trace:
    """A traced step: its wall time, the share of it in which the device was busy (None without a GPU), and `top`, the
    seconds of the costliest kernels, without a GPU operations. `error`: why the file could not be written.
    """

    path: Path
    seconds: float = 0.0
    device_busy: float | None = None
    top: Sequence[tuple[str, float]] = ()
    error: str = ""


@contextlib.contextmanager
def record(path: Path, device: torch.device) -> Iterator[Trace]:
    """Inside, record a step. The result is filled in when the step has ended without an exception."""
    # Kineto marks each recording with two lines on stderr, at a level above its errors.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    trace = Trace(path)
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if cuda:
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()  # work belongs to the step in which it was launched
    with profile(activities=activities) as profiler:
        began = time.perf_counter()
        with record_function("trainer step"):
            yield trace
            if cuda:
                torch.cuda.synchronize()
        trace.seconds = time.perf_counter() - began
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}")
        profiler.export_chrome_trace(str(scratch))
        scratch.replace(path)
        newest_last = sorted(path.parent.glob("step_*.json.gz"), key=lambda file: (file.stat().st_mtime_ns, file.name))
        for old in newest_last[:-KEPT_TRACES]:
            old.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        trace.error = f"{path} was not written: {error}"
    trace.device_busy, trace.top = summarise(profiler.events() or (), trace.seconds)


def summarise(events: Iterable[FunctionEvent], seconds: float) -> tuple[float | None, list[tuple[str, float]]]:
    """From a step's events and length: the device's busy share, None if it did nothing, and the costliest work."""
    work = [event for event in events if not event.is_user_annotation]
    on_device = [event for event in work if event.device_type.name != "CPU"]
    costs: dict[str, float] = defaultdict(float)
    for event in on_device or work:
        microseconds = event.self_cpu_time_total
        if on_device:
            microseconds = event.time_range.end - event.time_range.start
        costs[event.name] += microseconds / 1e6
    top = sorted(costs.items(), key=lambda cost: -cost[1])[:_TOP]
    if not on_device:
        return None, top
    busy = 0.0
    reached = float("-inf")
    for begin, end in sorted((event.time_range.start, event.time_range.end) for event in on_device):
        busy += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return min(busy / 1e6 / seconds, 1.0), top


# --- peaks and verdicts -----------------------------------------------------------------------------------------------

Arithmetic = Literal["half", "tf32", "fp32"]
Kind = Literal["data", "compute", "communication", "idle", "unknown"]


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


@dataclass(frozen=True)
class Bottleneck:
    """The limit of the speed: a sentence, figures (seconds, and shares 0..1), and a slow rank, if
    any."""

    kind: Kind
    sentence: str
    figures: dict[str, float]
    straggler: int | None = None


def verdict(ranks: Sequence[StepDurations], *, on_gpu: bool, device_busy: float | None = None) -> Bottleneck:
    """Find the bottleneck from each rank's mean times, by rank, and a trace's share of device time, if any."""
    mean = means(ranks)
    data = max(times.data for times in ranks) / mean.step  # the rank that waits longest for data delays all others
    waits = [times.exchange for times in ranks if times.exchange is not None]
    # Of the collectives themselves: what even the last rank to arrive waits for.
    exchange = None
    if len(ranks) > 1 and len(waits) == len(ranks):
        exchange = min(waits) / mean.step
    ahead = None if mean.device_wait is None else mean.device_wait / mean.step
    shares = {"data_share": data, "comm_share": exchange, "device_wait_share": ahead, "device_busy": device_busy}
    figures = {"step_time": mean.step, **{name: share for name, share in shares.items() if share is not None}}

    if exchange is not None and (blamed := _straggler(ranks, figures)):
        return blamed
    feed = "the host cannot feed it; larger micro batches (--batch-size) or --compile."
    if data >= max(NOTABLE, exchange or 0.0) and (device_busy or 0.0) < BUSY and (ahead or 0.0) < HOST_AHEAD:
        sentence = f"Waiting for data takes {data:.0%} of a step: more workers (--num-workers)."
        return Bottleneck("data", sentence, figures)
    if exchange is not None and exchange >= NOTABLE:
        sentence = f"Waiting for the exchange between ranks takes {exchange:.0%} of a step: exchange less often "
        return Bottleneck("communication", f"{sentence}(--grad-accum) or less (--compress-gradients).", figures)
    if on_gpu and device_busy is not None and device_busy < IDLE:
        return Bottleneck("idle", f"The device is busy for only {device_busy:.0%} of a step: {feed}", figures)
    if on_gpu and device_busy is None and ahead is None:
        sentence = "Neither data nor the exchange takes long; a trace (--trace-every) tells whether the device is busy."
        return Bottleneck("unknown", sentence, figures)
    if on_gpu and device_busy is None and (ahead or 0.0) < HOST_AHEAD:
        return Bottleneck("idle", f"The device never keeps the host waiting: {feed}", figures)
    share = "" if device_busy is None else f", the device is busy for {device_busy:.0%} of it"
    return Bottleneck("compute", f"The arithmetic sets the pace: data takes {data:.0%} of a step{share}.", figures)


def _straggler(ranks: Sequence[StepDurations], figures: dict[str, float]) -> Bottleneck | None:
    """A rank whose time without waiting for others exceeds the mean of theirs by STRAGGLER_EXCESS."""
    working = [max(times.step - (times.exchange or 0.0), 0.0) for times in ranks]
    slow = max(range(len(working)), key=working.__getitem__)
    others = (sum(working) - working[slow]) / (len(working) - 1)
    if working[slow] <= others * (1 + STRAGGLER_EXCESS):
        return None
    other_data = (sum(times.data for times in ranks) - ranks[slow].data) / (len(ranks) - 1)
    kind: Kind = "compute"
    cause = "its own work takes longer"
    if ranks[slow].data - other_data > (working[slow] - others) / 2:
        kind = "data"
        cause = "its data arrives late"
    sentence = f"Rank {slow} holds up the others: {working[slow]:.3g} s a step against {others:.3g} s, because {cause}."
    figures |= {"straggler_time": working[slow], "others_time": others}
    return Bottleneck(kind, sentence, figures, slow)
