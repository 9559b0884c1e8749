"""What limits the speed of a run: traces of single steps, and a verdict from the times of all ranks."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.telemetry.speed import StepDurations, means

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

Kind = Literal["data", "compute", "communication", "idle", "unknown"]

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


# --- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bottleneck:
    """The limit of the speed: a sentence, figures (seconds, or shares of 1), and a slow rank, if any."""

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
