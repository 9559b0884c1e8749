"""Chart requests and answers: frozen values, made by the feed's thread and drawn by the screen.

Names in an answer are harmless text; a request may use these, or the names as written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Struct

from gputui.metrics.draw.bins import Bin

Axis = Literal["step", "time", "trained", "epoch"]
"""The quantity along x.

``step``: the step of the line. ``time``: seconds since the run's first attempt began, pauses
included, so that ``Frame.origin_at + x`` is the moment in UTC unix seconds. ``trained``: the same
without the time between attempts. ``epoch``: epochs, with a fraction inside an epoch, from the
metric of that name.
"""

AXES: tuple[Axis, ...] = ("step", "time", "trained", "epoch")

Window = tuple[float, float]
"""Both ends of a stretch of x."""

HardwareField = Literal["utilization", "memory", "power", "temperature", "sm_clock", "host_cpu", "host_memory"]
"""In percent, bytes, watts, degrees Celsius, MHz; percent and bytes of the host."""

MarkerKind = Literal["start", "restart", "checkpoint", "incident", "alert", "event", "end"]


CHART_BINS = 640
"""Bins of a whole run, of which half or more are in use: one for each column of 320. They do not depend on the size
of a terminal, so that an average over them does not either."""


class ChartRequest(Struct, frozen=True):
    """The curves that the charts of a run need.

    Attributes:
        names: the metrics.
        window: None for the whole run, followed as it grows.
        bins: the most of each curve.
        smoothing: the weight of the past in a moving average over the bins of the whole run; 0 for none.
        hardware: fields of its GPUs and of the host.
        is_log: bins are equally wide on a logarithmic x axis, which has no place for x ≤ 0.
        ranked: the metrics that have a curve for each rank.
        cursor: the x at which the values of hardware are read.
    """

    names: tuple[str, ...] = ()
    axis: Axis = "step"
    window: Window | None = None
    bins: int = CHART_BINS
    smoothing: float = 0.0
    hardware: tuple[HardwareField, ...] = ()
    is_log: bool = False
    ranked: tuple[str, ...] = ()
    cursor: float | None = None


class AttemptCurve(Struct, frozen=True):
    """One metric of one attempt, including steps that a later attempt did again."""

    attempt: int
    bins: tuple[Bin, ...]


class MetricCurve(Struct, frozen=True):
    """One metric over the axis.

    Attributes:
        bins: over steps and epochs, what the newest attempt that did a step measured there.
        redone: over steps and epochs, what earlier attempts had measured, to be drawn behind ``bins``.
        smooth: the moving average at places inside the window; empty if none was asked for or the metric is set
            rather than measured.
        averaged: what ``smooth`` is the average of, if that is not ``attempts``.
        last: the newest value, finite or not, in any window.
        problem: why the curve is empty, in words; None if it is not.
    """

    name: str
    bins: tuple[Bin, ...] = ()
    redone: tuple[Bin, ...] = ()
    smooth: tuple[Bin, ...] = ()
    attempts: tuple[AttemptCurve, ...] = ()
    averaged: tuple[AttemptCurve, ...] = ()
    last: float | None = None
    problem: str | None = None


class RankCurve(Struct, frozen=True):
    """One metric of one rank, smoothed if requested; ``last`` is its newest value."""

    rank: int
    bins: tuple[Bin, ...] = ()
    last: float | None = None


class RankCurves(Struct, frozen=True):
    """One metric of all ranks. ``is_sampled``: the run is so long that only a part of its lines was
    read."""

    curves: tuple[RankCurve, ...] = ()
    is_sampled: bool = False


class HardwareCurve(Struct, frozen=True):
    """One field of one GPU, or of the host (``uuid`` is None), while the run used it. ``at_cursor``
    is the sample then, not the mean of a bin, which would depend on the window."""

    field: HardwareField
    uuid: str | None
    bins: tuple[Bin, ...] = ()
    last: float | None = None
    at_cursor: float | None = None


class ChartMarker(Struct, frozen=True):
    """An event on the axis, as harmless text.

    Attributes:
        word: a short one, such as ``↻2``, ``ckpt``, ``cuda oom``.
        at: UTC unix seconds, None if unknown.
        text: a sentence, or empty.
    """

    x: float
    kind: MarkerKind
    word: str
    at: float | None = None
    attempt: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """The x axis of the curves.

    Attributes:
        start: the lowest x of the whole run, None while it is empty.
        end: the highest x of the whole run, None while it is empty.
        origin_at: over time, the moment of x = 0 (UTC unix seconds).
        moments: pairs of x and the moment when the run was there, in order.
        epochs: over epochs, the pairs of step and x of each attempt, in order.
    """

    axis: Axis
    start: float | None = None
    end: float | None = None
    origin_at: float | None = None
    moments: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    epochs: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict, compare=False)

    def moment_at(self, x: float) -> float | None:
        """The time at which the run was at ``x``, in UTC unix seconds; None if unknown."""
        if self.axis == "time":
            if self.origin_at is None:
                return None
            return self.origin_at + x
        place = bisect_left(self.moments, (x,))
        if not self.moments or place == len(self.moments):
            if self.moments:
                return self.moments[-1][1]
            return None
        x0, at0 = self.moments[max(0, place - 1)]
        x1, at1 = self.moments[place]
        if x0 <= x < x1 and at1 >= at0:
            return at0 + (at1 - at0) * (x - x0) / (x1 - x0)
        return at1


class ChartData(Struct, frozen=True):
    """The answer to a request.

    Attributes:
        names: all metrics of the run in the order of their first appearance.
        curves: the curve of each requested metric.
        ranked: the curves of the ranks, for each metric that was requested by rank.
        rank_names: the metrics that several ranks report.
    """

    request: ChartRequest
    frame: Frame
    names: tuple[str, ...] = ()
    curves: Mapping[str, MetricCurve] = msgspec.field(default_factory=dict)
    hardware: tuple[HardwareCurve, ...] = ()
    markers: tuple[ChartMarker, ...] = ()
    rank_names: frozenset[str] = frozenset()
    ranked: Mapping[str, RankCurves] = msgspec.field(default_factory=dict)
