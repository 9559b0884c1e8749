"""Charts as they were at a past moment: what was read of the whole run, cut where the run was then."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gputui.charts.envelope import Bin
from gputui.curves.axis import AxisTimeline, cuts_of
from gputui.curves.bins import broken_off
from gputui.curves.metric_names import is_set
from gputui.curves.model import ChartData, HardwareCurve, MetricCurve, RankCurve
from gputui.curves.smooth import smooth_bins
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.metrics import queries


@dataclass(frozen=True, slots=True)
class RunExtent:
    """Where a run was: the moment in UTC unix seconds, its attempts as they were then, and the step and the epoch that
    the newest of them had reached, None if that is unknown."""

    at: float
    attempts: tuple[Attempt, ...]
    step: int | None = None
    epoch: float | None = None

    @classmethod
    def of(cls, connection: sqlite3.Connection, run_id: str, at: float) -> RunExtent:
        """Raises sqlite3.Error."""
        attempts = tuple(read_attempts(connection, run_id, at))
        newest = max((attempt.number for attempt in attempts), default=0)
        steps = [line.step for line in queries.ranks(connection, run_id, newest, at) if line.step is not None]
        return cls(at, attempts, max(steps, default=None), queries.latest(connection, run_id, at).get("epoch"))


def cut(data: ChartData, extent: RunExtent) -> ChartData:
    """The charts without what came later. A bin that lies over the moment ends there, its extremes are those of all
    of it."""
    reached = _reached(data, extent)
    curves = {name: _cut_curve(data, curve, extent, reached) for name, curve in data.curves.items()}
    ends = [bins[-1].last_x for curve in curves.values() if (bins := (*curve.redone, *curve.bins))]
    numbers = {attempt.number for attempt in extent.attempts}
    return replace(
        data,
        frame=replace(data.frame, end=min(max(ends), data.frame.end or math.inf) if ends else None),
        curves=curves,
        hardware=tuple(_cut_hardware(each, reached) for each in data.hardware),
        ranked={
            name: replace(each, curves=tuple(_cut_rank(curve, reached) for curve in each.curves))
            for name, each in data.ranked.items()
        },
        markers=tuple(
            marker
            for marker in data.markers
            if (marker.at is None or marker.at <= extent.at)
            and (marker.attempt is None or marker.attempt in numbers)
            and (marker.at is not None or marker.x <= reached)
        ),
    )


def _reached(data: ChartData, extent: RunExtent) -> float:
    """The last x of the newest attempt; minus infinity where it has none yet."""
    axis, origin = data.request.axis, data.frame.origin_at
    if axis == "step":
        return -math.inf if extent.step is None else float(extent.step)
    if axis == "epoch":
        return math.inf if extent.epoch is None else extent.epoch
    if origin is None or not extent.attempts:
        return -math.inf
    if axis == "time":
        return extent.at - origin
    timeline = AxisTimeline.of(extent.attempts)
    newest = max(attempt.number for attempt in extent.attempts)
    ended = timeline.ends.get(newest, extent.at)
    return timeline.trained_before[newest] + min(extent.at, ended) - timeline.begins[newest]


def _cut_curve(data: ChartData, curve: MetricCurve, extent: RunExtent, reached: float) -> MetricCurve:
    limits = cuts_of(extent.attempts) if data.request.axis in ("step", "epoch") else {}
    newest = max((attempt.number for attempt in extent.attempts), default=0)
    kept: list[Bin] = []
    redone: list[Bin] = []
    attempts = []
    for attempt in curve.attempts:
        if attempt.attempt not in {each.number for each in extent.attempts}:
            continue
        bins = sorted(attempt.bins, key=lambda each: each.first_x)
        if attempt.attempt == newest or data.request.axis in ("time", "trained"):
            bins = _until(bins, reached)
        if not bins:
            continue
        attempts.append(replace(attempt, bins=tuple(bins)))
        limit = limits.get(attempt.attempt, math.inf)
        own = [each for each in bins if each.first_x < limit]
        kept += broken_off(own) if kept else own
        redone += broken_off([each for each in bins if each.first_x >= limit])
    kept.sort(key=lambda each: each.first_x)
    last = attempts[-1].bins[-1].last if attempts else None
    wants_smooth = data.request.smoothing > 0 and not is_set(curve.name)
    return replace(
        curve,
        bins=tuple(kept),
        redone=tuple(redone),
        smooth=tuple(smooth_bins(kept, data.request.smoothing)) if wants_smooth else (),
        attempts=tuple(attempts),
        last=last,
        problem=curve.problem if kept or redone else curve.problem or "nothing measured by then",
    )


def _cut_rank(curve: RankCurve, reached: float) -> RankCurve:
    bins = tuple(_until(curve.bins, reached))
    return replace(curve, bins=bins, last=bins[-1].last if bins else None)


def _cut_hardware(curve: HardwareCurve, reached: float) -> HardwareCurve:
    bins = tuple(_until(curve.bins, reached))
    return replace(curve, bins=bins, last=bins[-1].last if bins else None)


def _until(bins: Sequence[Bin], reached: float) -> list[Bin]:
    found = [each for each in bins if each.first_x <= reached]
    if found and found[-1].last_x > reached:
        last = found[-1].copy()
        last.last_x = reached
        found[-1] = last
    return found
