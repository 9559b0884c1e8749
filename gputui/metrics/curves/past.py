"""Charts as they were at a past moment: the curves of the whole run, cut where the run was then."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.metrics.curves.axis import AxisTimeline, interpolate
from gputui.metrics.curves.bins import AttemptBins, Average, joined_curve
from gputui.metrics.curves.model import AttemptCurve, ChartData, ChartMarker, HardwareCurve, MetricCurve, RankCurve
from gputui.metrics.draw.bins import Bin
from gputui.store.attempts import Attempt, cuts_of, read_attempts
from gputui.store.metrics import queries

C = TypeVar("C", RankCurve, HardwareCurve)


class RunExtent(Struct, frozen=True):
    """The progress of a run at a moment (UTC unix seconds): its attempts, and the step that the
    newest one had reached, None if unknown."""

    at: float
    attempts: tuple[Attempt, ...]
    step: int | None = None

    @property
    def newest(self) -> int:
        """The number of the newest attempt, 0 without one."""
        return max((attempt.number for attempt in self.attempts), default=0)

    @classmethod
    def of(cls, connection: sqlite3.Connection, run_id: str, at: float) -> RunExtent:
        """Raises sqlite3.Error."""
        extent = cls(at, tuple(read_attempts(connection, run_id, at)))
        steps = [line.step for line in queries.ranks(connection, run_id, extent.newest, at) if line.step is not None]
        return replace(extent, step=max(steps, default=None))


def cut(data: ChartData, extent: RunExtent) -> ChartData:
    """The charts of the whole run without what came later. A bin across the moment ends there, but
    keeps its extremes."""
    reached = _reached(data, extent)
    curves = {name: _cut_curve(data, curve, extent, reached) for name, curve in data.curves.items()}
    hardware = tuple(_cut_bins(curve, reached) for curve in data.hardware)
    ends = [one_bin.last_x for curve in curves.values() for one_bin in (*curve.redone, *curve.bins)]
    if data.request.axis in ("time", "trained"):
        ends += [curve.bins[-1].last_x for curve in hardware if curve.bins]
    end = None
    if ends:
        end = min(max(ends), data.frame.end or math.inf)
    return replace(
        data,
        frame=dataclasses.replace(data.frame, end=end),
        curves=curves,
        hardware=hardware,
        ranked={
            name: replace(rank_curves, curves=tuple(_cut_bins(curve, reached) for curve in rank_curves.curves))
            for name, rank_curves in data.ranked.items()
        },
        markers=tuple(marker for marker in data.markers if _was_there(marker, extent, reached)),
    )


def _was_there(marker: ChartMarker, extent: RunExtent, reached: float) -> bool:
    if marker.attempt is not None and all(marker.attempt != attempt.number for attempt in extent.attempts):
        return False
    if marker.at is None:
        return marker.x <= reached
    return marker.at <= extent.at


def _reached(data: ChartData, extent: RunExtent) -> float:
    """The last x of the newest attempt; minus infinity where it has none yet."""
    axis = data.request.axis
    origin = data.frame.origin_at
    if axis in ("step", "epoch"):
        if extent.step is None or (x := _x_of_step(data, extent.newest, extent.step)) is None:
            return -math.inf
        return x
    if origin is None or not extent.attempts:
        return -math.inf
    if axis == "time":
        return extent.at - origin
    timeline = AxisTimeline.of(extent.attempts)
    newest = extent.newest
    ended = timeline.ends.get(newest, extent.at)
    return timeline.trained_before[newest] + min(extent.at, ended) - timeline.begins[newest]


def _x_of_step(data: ChartData, attempt: int, step: float) -> float | None:
    """The x of an attempt's step over steps or epochs; None if it has none."""
    if data.request.axis == "step":
        return float(step)
    return interpolate(data.frame.epochs.get(attempt, ()), step)


def _cut_curve(data: ChartData, curve: MetricCurve, extent: RunExtent, reached: float) -> MetricCurve:
    """The curve at that moment."""
    attempts = _cut_attempts(data, curve.attempts, extent, reached)
    averaged = attempts
    if curve.averaged:
        averaged = _cut_attempts(data, curve.averaged, extent, reached)
    newest = None
    problem = curve.problem
    if not attempts:
        problem = problem or "nothing measured by then"
    elif bins := (*attempts[-1].current, *attempts[-1].redone):
        newest = bins[-1].last
    average = Average(data.request.smoothing, averaged, data.request.window)
    return joined_curve(curve.name, attempts, average, newest=newest, problem=problem)


def _cut_attempts(
    data: ChartData, attempts: Sequence[AttemptCurve], extent: RunExtent, reached: float
) -> list[AttemptBins]:
    """The bins of the attempts at that moment. A step counts there until an attempt of that time did it again."""
    is_timed = data.request.axis in ("time", "trained")
    cuts: Mapping[int, float] = {}
    if not is_timed:
        cuts = cuts_of(extent.attempts)
    numbers = {attempt.number for attempt in extent.attempts}
    bins_by_attempt = []
    for attempt in attempts:
        bins = sorted(attempt.bins, key=lambda one_bin: one_bin.first_x)
        if attempt.attempt == extent.newest or is_timed:
            bins = _up_to(bins, reached)
        if not bins or attempt.attempt not in numbers:
            continue
        cut_step = cuts.get(attempt.attempt, math.inf)
        cut_x = None
        if cut_step < math.inf:
            cut_x = _x_of_step(data, attempt.attempt, cut_step)
        limit = math.inf if cut_x is None else cut_x
        current = [one_bin for one_bin in bins if one_bin.first_x < limit]
        redone = [one_bin for one_bin in bins if one_bin.first_x >= limit]
        bins_by_attempt.append(AttemptBins(attempt.attempt, current, redone))
    return bins_by_attempt


def _cut_bins(curve: C, reached: float) -> C:
    bins = tuple(_up_to(curve.bins, reached))
    last = bins[-1].last if bins else None
    return replace(curve, bins=bins, last=last)


def _up_to(bins: Sequence[Bin], reached: float) -> list[Bin]:
    """The bins up to an x; one across it ends there."""
    begun = [one_bin for one_bin in bins if one_bin.first_x <= reached]
    if begun and begun[-1].last_x > reached:
        last = begun[-1].copy()
        last.last_x = reached
        begun[-1] = last
    return begun
