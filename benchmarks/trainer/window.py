"""The part of a run that counts: the steps after those in which everything warms up."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """Steps in a row, by the clock on the wall. `drift` compares the speeds of its halves: 0.01 is 1 % slower later.

    `median_seconds` and `drift` are None where only the ends of the window were timed.
    """

    steps: int
    seconds_per_step: float
    median_seconds: float | None
    drift: float | None
    loss: float
    gpu_peak_bytes: int | None


def of_times(
    times: Sequence[tuple[int, float]], warm_steps: int, loss: float, gpu_peak_bytes: int | None = None
) -> Window:
    """The window of steps that were over at these moments. Raises ValueError where there are none after warming up."""
    counted = [(step, moment) for step, moment in times if step >= warm_steps]
    if len(counted) < 2:
        raise ValueError(f"no steps were timed after the {warm_steps} to warm up")
    steps = counted[-1][0] - counted[0][0]
    apart = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(counted)]
    every = len(apart) == steps
    half = len(apart) // 2
    median_seconds = statistics.median(apart) if every else None
    drift = sum(apart[-half:]) / sum(apart[:half]) - 1 if every and half else None
    return Window(
        steps=steps,
        seconds_per_step=(counted[-1][1] - counted[0][1]) / steps,
        median_seconds=median_seconds,
        drift=drift,
        loss=loss,
        gpu_peak_bytes=gpu_peak_bytes,
    )


def of_bare(result: Path, warm_steps: int) -> Window:
    """The window of a bare loop's result."""
    printed = json.loads(result.read_text())
    return of_times(printed["times"], warm_steps, printed["loss"], printed["gpu_peak_bytes"])


def of_trainer(lines: Sequence[Line], warm_steps: int) -> Window:
    """The window of a trainer's run, by when its lines were written: what the trainer does between steps counts."""
    steps = step_lines(lines)
    peaks = [line["gpu_mem_peak"] for line in steps if line["step"] > warm_steps and "gpu_mem_peak" in line]
    times = [(line["step"], line["time"]) for line in steps]
    loss = steps[-1]["loss"] if steps else 0.0
    return of_times(times, warm_steps, loss, max(peaks, default=None))


def metrics(output: Path) -> list[Line]:
    """All metrics lines of a run of the trainer."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def step_lines(lines: Sequence[Line]) -> list[Line]:
    """Rank 0's lines of steps."""
    return [line for line in lines if "loss" in line]


def stalls(lines: Sequence[Line], usual_seconds: float) -> list[float]:
    """The extra seconds of steps that followed a checkpoint.

    A step's line is written before its checkpoint is saved; so the checkpoint lies between it and the next line.
    """
    moments = {line["step"]: line["time"] for line in step_lines(lines)}
    saved = sorted({line["step"] for line in lines if line.get("event") == "checkpoint"})
    return [moments[step + 1] - moments[step] - usual_seconds for step in saved if step + 1 in moments]
