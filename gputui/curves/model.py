"""What is asked for a chart, and what is answered: frozen values, made by the feed's thread and drawn by the screen.

Names in an answer are harmless text; a request may use them, or the names as they were written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gputui.charts.envelope import Bin

Axis = Literal["step", "time", "trained", "epoch"]
"""What runs along x.

``step``: the step of the line. ``time``: seconds since the run's first attempt began, pauses included, so that
``Frame.origin_at + x`` is the moment in UTC unix seconds. ``trained``: the same without the time between attempts.
``epoch``: epochs, with a fraction inside an epoch, from the metric of that name.
"""

AXES: tuple[Axis, ...] = ("step", "time", "trained", "epoch")

Window = tuple[float, float]
"""Both ends of a stretch of x."""

HardwareField = Literal["utilization", "memory", "power", "temperature", "sm_clock", "host_cpu", "host_memory"]
"""In percent, bytes, watts, degrees Celsius, MHz; percent and bytes of the host."""

MarkerKind = Literal["start", "restart", "checkpoint", "incident", "alert", "event", "end"]


@dataclass(frozen=True, slots=True)
class ChartRequest:
    """What the charts of a run are to show.

    ``window`` is the stretch of x looked at; None is all of the run, followed as it grows. ``bins`` is how many bins a
    curve has at most: twice the columns of a chart show all that braille can. ``smoothing`` is the weight of the past
    of a moving average, from 0 (none) to below 1. ``hardware`` are fields of the run's GPUs and of the host. With
    ``ranked`` are metrics whose ranks are to be separated; with
    ``is_log`` the bins of metrics are equally wide on a logarithmic axis, where nothing at 0 or before has a place.
    """

    names: tuple[str, ...] = ()
    axis: Axis = "step"
    window: Window | None = None
    bins: int = 480
    smoothing: float = 0.0
    hardware: tuple[HardwareField, ...] = ()
    is_log: bool = False
    ranked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptCurve:
    """One metric of one attempt, all of it: what a later attempt did again is in it too."""

    attempt: int
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """One metric over the axis.

    Over steps and epochs an attempt that continues from an older step does some steps again: ``bins`` hold what the
    newest attempt that did a step measured there, ``redone`` what earlier ones had measured, to be drawn behind it.
    Over time nothing is done twice and ``redone`` is empty. ``smooth`` is the moving average of ``bins``, a place in
    the middle of each that has a finite value; empty when none was asked for, or when the metric is set rather than
    measured (a learning rate). ``last`` is the newest value, finite or not, in any window.
    """

    name: str
    bins: tuple[Bin, ...] = ()
    redone: tuple[Bin, ...] = ()
    smooth: tuple[Bin, ...] = ()
    attempts: tuple[AttemptCurve, ...] = ()
    last: float | None = None
    problem: str | None = None
    """Why there is nothing to show, in words; None if there is something."""


@dataclass(frozen=True, slots=True)
class RankCurve:
    """One metric of one rank, averaged where an average was asked for; ``last`` is its newest value."""

    rank: int
    bins: tuple[Bin, ...] = ()
    last: float | None = None


@dataclass(frozen=True, slots=True)
class RankCurves:
    """One metric of all ranks. ``is_sampled``: the run is so long that a part of its lines was looked at."""

    curves: tuple[RankCurve, ...] = ()
    is_sampled: bool = False


@dataclass(frozen=True, slots=True)
class HardwareCurve:
    """One field of one GPU, or of the host (``uuid`` is None), while the run was there."""

    field: HardwareField
    uuid: str | None
    bins: tuple[Bin, ...] = ()
    last: float | None = None


@dataclass(frozen=True, slots=True)
class ChartMarker:
    """Something that happened: where on the axis, what kind, a short word (``↻2``, ``ckpt``, ``cuda oom``), when in UTC
    unix seconds where that is known, and a sentence where there is more to say. All harmless text."""

    x: float
    kind: MarkerKind
    word: str
    at: float | None = None
    attempt: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """The axis that the curves lie on. ``start`` and ``end`` are those of the whole run, in any window; None
    where nothing lies on it yet. ``origin_at`` is the moment of x = 0 over time, in UTC unix seconds; ``moments`` are
    pairs of x and the moment when the run was there, in order of x, as finely as was read."""

    axis: Axis
    start: float | None = None
    end: float | None = None
    origin_at: float | None = None
    moments: tuple[tuple[float, float], ...] = field(default=(), compare=False)

    def moment_at(self, x: float) -> float | None:
        """When the run was at this place, in UTC unix seconds; None if that is unknown."""
        if self.axis == "time":
            return None if self.origin_at is None else self.origin_at + x
        place = bisect_left(self.moments, (x,))
        if not self.moments or place == len(self.moments):
            return self.moments[-1][1] if self.moments else None
        (x0, at0), (x1, at1) = self.moments[max(0, place - 1)], self.moments[place]
        return at0 + (at1 - at0) * (x - x0) / (x1 - x0) if x0 <= x < x1 and at1 >= at0 else at1


@dataclass(frozen=True, slots=True)
class ChartData:
    """The answer to a request. ``names`` are all metrics of the run in the order of their first appearance,
    ``rank_names`` those that several ranks tell."""

    request: ChartRequest
    frame: Frame
    names: tuple[str, ...] = ()
    curves: Mapping[str, MetricCurve] = field(default_factory=dict)
    hardware: tuple[HardwareCurve, ...] = ()
    markers: tuple[ChartMarker, ...] = ()
    rank_names: frozenset[str] = frozenset()
    ranked: Mapping[str, RankCurves] = field(default_factory=dict)
