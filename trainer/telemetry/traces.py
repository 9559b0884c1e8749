"""Chrome traces of single steps, with what they show. A trace opens in chrome://tracing and https://ui.perfetto.dev."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

KEPT_TRACES = 5
TOP = 3


@dataclass
class Trace:
    """`seconds` is the step's wall time, under the profiler; `device_busy` a share of it, None without a GPU.

    `top` has the seconds of the costliest kernels on a GPU, else of the costliest operations without those inside
    them. `error` says why the file could not be written.
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
    trace, cuda = Trace(path), device.type == "cuda"
    if cuda:  # its work belongs to the step in which it was launched
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiler:
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
        own = event.time_range.end - event.time_range.start if on_device else event.self_cpu_time_total
        costs[event.name] += own / 1e6
    top = sorted(costs.items(), key=lambda cost: -cost[1])[:TOP]
    if not on_device or not seconds:
        return None, top
    busy, reached = 0.0, float("-inf")
    for begin, end in sorted((event.time_range.start, event.time_range.end) for event in on_device):
        busy += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return min(busy / 1e6 / seconds, 1.0), top
