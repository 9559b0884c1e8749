"""Charts as they were at a past moment: the curves of the whole run, cut where the run was then."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.metrics.curves.axis import AxisTimeline, interpolate
from gputui.metrics.curves.bins import AttemptBins, Average, joined_curve
from gputui.metrics.curves.model import AttemptCurve, ChartData, HardwareCurve, MetricCurve, RankCurve
from gputui.metrics.draw.envelope import Bin
from gputui.store.attempts import Attempt, cuts_of, read_attempts
from gputui.store.metrics import queries


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
        found = cls(at, tuple(read_attempts(connection, run_id, at)))
        steps = [line.step for line in queries.ranks(connection, run_id, found.newest, at) if line.step is not None]
        return replace(found, step=max(steps, default=None))


def cut(data: ChartData, extent: RunExtent) -> ChartData:
    """The charts of the whole run without what came later. A bin across the moment ends there, but
    keeps its extremes."""
    reached = _reached(data, extent)
    curves = {name: _cut_curve(data, curve, extent, reached) for name, curve in data.curves.items()}
    hardware = tuple(_cut_bins(each, reached) for each in data.hardware)
    ends = [each.last_x for curve in curves.values() for each in (*curve.redone, *curve.bins)]
    if data.request.axis in ("time", "trained"):
        ends += [curve.bins[-1].last_x for curve in hardware if curve.bins]
    numbers = {attempt.number for attempt in extent.attempts}
    return replace(
        data,
        frame=dataclasses.replace(data.frame, end=min(max(ends), data.frame.end or math.inf) if ends else None),
        curves=curves,
        hardware=hardware,
        ranked={
            name: replace(each, curves=tuple(_cut_bins(curve, reached) for curve in each.curves))
            for name, each in data.ranked.items()
        },
        markers=tuple(
            marker
            for marker in data.markers
            if (marker.x <= reached if marker.at is None else marker.at <= extent.at)
            and (marker.attempt is None or marker.attempt in numbers)
        ),
    )


def _reached(data: ChartData, extent: RunExtent) -> float:
    """The last x of the newest attempt; minus infinity where it has none yet."""
    axis, origin = data.request.axis, data.frame.origin_at
    if axis in ("step", "epoch"):
        x = None if extent.step is None else _x_of_step(data, extent.newest, extent.step)
        if x is None:
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
    newest = (*attempts[-1].kept, *attempts[-1].redone) if attempts else ()
    return joined_curve(
        curve.name,
        attempts,
        Average(data.request.smoothing, averaged, data.request.window),
        newest=newest[-1].last if newest else None,
        problem=curve.problem or (None if attempts else "nothing measured by then"),
    )


def _cut_attempts(
    data: ChartData, attempts: Sequence[AttemptCurve], extent: RunExtent, reached: float
) -> list[AttemptBins]:
    """The bins of the attempts at that moment. A step counts there until an attempt of that time did it again."""
    is_timed = data.request.axis in ("time", "trained")
    cuts = {} if is_timed else cuts_of(extent.attempts)
    numbers = {attempt.number for attempt in extent.attempts}
    shown = []
    for attempt in attempts:
        bins = sorted(attempt.bins, key=lambda one: one.first_x)
        if attempt.attempt == extent.newest or is_timed:
            bins = _until(bins, reached)
        if not bins or attempt.attempt not in numbers:
            continue
        cut_step = cuts.get(attempt.attempt, math.inf)
        cut_x = _x_of_step(data, attempt.attempt, cut_step) if cut_step < math.inf else None
        limit = math.inf if cut_x is None else cut_x
        kept, redone = [one for one in bins if one.first_x < limit], [one for one in bins if one.first_x >= limit]
        shown.append(AttemptBins(attempt.attempt, kept, redone))
    return shown


C = TypeVar("C", RankCurve, HardwareCurve)


def _cut_bins(curve: C, reached: float) -> C:
    bins = tuple(_until(curve.bins, reached))
    return replace(curve, bins=bins, last=bins[-1].last if bins else None)


def _until(bins: Sequence[Bin], reached: float) -> list[Bin]:
    """The bins up to an x; one across it ends there."""
    begun = [one for one in bins if one.first_x <= reached]
    if begun and begun[-1].last_x > reached:
        last = begun[-1].copy()
        last.last_x = reached
        begun[-1] = last
    return begun
