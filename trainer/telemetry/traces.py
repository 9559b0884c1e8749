"""Chrome traces of single steps, and summaries of them. A trace opens in chrome://tracing and https://ui.perfetto.dev."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

KEPT_TRACES = 5
TOP = 10
# Kineto's categories of what runs on a device.
_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_STEP = "trainer step"


@dataclass(frozen=True)
class OperatorCost:
    """An operation or kernel: the self time of all its calls in the step, in seconds."""

    name: str
    seconds: float
    calls: int


@dataclass(frozen=True)
class TraceSummary:
    """`seconds` is the step's wall time, under the profiler; `device_busy` a share of it, None without a GPU.

    `top` are the costliest kernels on a GPU, else the costliest operations.
    """

    path: Path
    seconds: float
    device_busy: float | None
    top: tuple[OperatorCost, ...]


@dataclass
class Recording:
    """The result of recording a step: a summary, or why the trace could not be written."""

    summary: TraceSummary | None = None
    error: str = ""


class Tracer:
    """Records one step at a time and keeps the newest files."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder = folder
        self._cuda = device.type == "cuda"
        # Kineto marks each recording with two lines on stderr, at a level above its errors.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")

    @contextlib.contextmanager
    def record(self, step: int) -> Iterator[Recording]:
        """Inside, record one step. The result is filled in when the step has ended without an exception."""
        result = Recording()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        self._synchronize()
        with profile(activities=activities) as profiler, record_function(_STEP):
            yield result
            self._synchronize()
        path = self._folder / f"step_{step:08d}.json.gz"
        try:
            result.summary = self._write(profiler, path)
        except (OSError, RuntimeError, ValueError, KeyError) as error:  # torch may fail to write, or write invalid JSON
            result.error = f"{path} was not written: {error}"

    def _synchronize(self) -> None:
        """Wait for the device: its work belongs to the step in which it was launched."""
        if self._cuda:
            torch.cuda.synchronize()

    def _write(self, profiler: profile, path: Path) -> TraceSummary:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".") as scratch:
            plain, compressed = Path(scratch) / "trace.json", Path(scratch) / "trace.json.gz"
            profiler.export_chrome_trace(str(plain))
            raw = plain.read_bytes()
            # A trace is repetitive text: the lowest level already saves nine tenths.
            compressed.write_bytes(gzip.compress(raw, compresslevel=1))
            compressed.replace(path)
        for old in sorted(self._folder.glob("step_*.json.gz"), key=_age, reverse=True)[KEPT_TRACES:]:
            old.unlink(missing_ok=True)
        seconds, device_busy, top = summarise(json.loads(raw)["traceEvents"])
        return TraceSummary(path, seconds, device_busy, top)


def summarise(events: Sequence[Mapping[str, Any]]) -> tuple[float, float | None, tuple[OperatorCost, ...]]:
    """From Chrome trace events: a step's seconds, its device's busy share of them, and the costliest work."""
    complete = [event for event in events if event.get("ph") == "X"]
    marks = [event for event in complete if event.get("name") == _STEP and event.get("cat") == "user_annotation"]
    kernels = [event for event in complete if event.get("cat") in _DEVICE_WORK]
    operations = [event for event in complete if event.get("cat") == "cpu_op"]
    timed = marks or complete
    began = min((event["ts"] for event in timed), default=0.0)
    wall = max((event["ts"] + event["dur"] for event in timed), default=0.0) - began
    if not kernels:
        return wall / 1e6, None, _costliest(_self_times(operations))
    busy = busy_time((event["ts"], event["ts"] + event["dur"]) for event in kernels)
    costs = ((event["name"], event["dur"]) for event in kernels)
    return wall / 1e6, min(busy / wall, 1.0) if wall else None, _costliest(costs)


def busy_time(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of (begin, end) intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total


def _self_times(operations: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Name and duration of each operation without the operations inside it on the same thread."""
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in operations:
        threads[event["pid"], event["tid"]].append(event)
    for thread in threads.values():
        stack: list[list[Any]] = []  # [name, end, own time] of the operations that are open
        for event in sorted(thread, key=lambda operation: (operation["ts"], -operation["dur"])):
            while stack and stack[-1][1] <= event["ts"]:
                name, _, own = stack.pop()
                yield name, own
            if stack:
                stack[-1][2] -= event["dur"]
            stack.append([event["name"], event["ts"] + event["dur"], event["dur"]])
        for name, _, own in stack:
            yield name, own


def _costliest(costs: Iterable[tuple[str, float]]) -> tuple[OperatorCost, ...]:
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, microseconds in costs:
        by_name[name].append(microseconds)
    ranked = sorted(
        (OperatorCost(name, sum(times) / 1e6, len(times)) for name, times in by_name.items()),
        key=lambda cost: -cost.seconds,
    )
    return tuple(ranked[:TOP])


def _age(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, path.name
