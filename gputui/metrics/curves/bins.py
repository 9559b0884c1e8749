"""The bins of a metric's curve, built from lines and reduced lines as they come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap
from gputui.metrics.curves.lines import EPOCH, CurveLine
from gputui.metrics.curves.model import ChartRequest, MetricCurve
from gputui.metrics.curves.names import is_set
from gputui.metrics.draw.envelope import Bin, Buckets
from gputui.store.metrics.envelopes import Entry
from gputui.store.metrics.queries import as_float

RESOLUTION = {"step": 1.0, "time": 0.1, "trained": 0.1, "epoch": 1e-4}


class CurveBuilder:
    """A metric, fed with lines in the order in which they were written. ``cuts`` gives for each
    attempt the first step that a later one did again."""

    def __init__(self, name: str, request: ChartRequest, cuts: Mapping[int, float]) -> None:
        self.name = name
        self.last: float | None = None
        self._request = request
        self._cuts = cuts
        # By attempt, and whether a later one did these steps again.
        self._buckets: dict[tuple[int, bool], Buckets] = {}
        self._was_seen = False
        self._was_placed = False
        self._curve: MetricCurve | None = None

    def add_line(self, line: CurveLine, x: float | None) -> None:
        """Add a line that lies at ``x``."""
        value = as_float(line.values.get(self.name))
        if value is None:
            return
        self._was_seen = True
        if x is None:
            return
        self._was_placed = True
        window = self._request.window
        if window is None or window[0] <= x <= window[1]:
            self.last = value
            is_redone = line.step >= self._cuts.get(line.attempt, math.inf)
            self._changed_buckets(line.attempt, is_redone=is_redone).add(x, value)

    def add_entries(self, attempt: int, entries: Iterable[Entry], axis_map: AxisMap, *, is_redone: bool) -> None:
        """Add reduced lines."""
        place = axis_map.place
        low, high = self._request.window or (-math.inf, math.inf)
        buckets: Buckets | None = None
        for entry in entries:
            self._was_seen = True
            first_at, last_at = entry[11], entry[12]
            start = place(attempt, entry[9], first_at if first_at == first_at else None)
            end = place(attempt, entry[10], last_at if last_at == last_at else None)
            if start is None or end is None:
                continue
            self._was_placed = True
            if end < low or start > high:
                continue
            if entry.low == entry.low:
                found = Bin(start, end, *entry[5:9], *entry[1:5])
            else:
                found = Bin(start, start, None, None, None, None, *entry[1:5])
            buckets = buckets or self._changed_buckets(attempt, is_redone=is_redone)
            buckets.add_bin(found)

    def curve(self, request: ChartRequest, last: float | None) -> MetricCurve:
        """The curve now; the same object as before if nothing changed. ``last`` is the newest value
        of the metric, None to take it from the curve."""
        if self._curve is None or request != self._request:
            self._request = request
            self._curve = self._new_curve(last)
        return self._curve

    def _new_curve(self, last: float | None) -> MetricCurve:
        kept: list[Bin] = []
        redone: list[Bin] = []
        newest: list[Bin] = []
        for attempt, is_redone in sorted(self._buckets):
            newest = self._buckets[attempt, is_redone].bins()
            if newest and (is_redone or kept):
                # No line joins it to the attempt before.
                newest[0] = newest[0].copy()
                newest[0].gap_before = True
            (redone if is_redone else kept).extend(newest)
        kept.sort(key=lambda one: one.first_x)
        is_smooth = self._request.smoothing > 0 and not is_set(self.name)
        return MetricCurve(
            name=clean(self.name),
            bins=tuple(kept),
            redone=tuple(redone),
            smooth=tuple(smooth_bins(kept, self._request.smoothing)) if is_smooth else (),
            last=newest[-1].last if last is None and newest else last,
            problem=None if self._buckets else self._problem(last),
        )

    def _problem(self, last: float | None) -> str:
        if last is None and not self._was_seen:
            return "nothing measured yet"
        if self._was_placed or not self._was_seen:
            return "nothing measured in this window"
        return "no epoch is known yet" if self._request.axis == EPOCH else "its lines tell no time"

    def _changed_buckets(self, attempt: int, *, is_redone: bool) -> Buckets:
        self._curve = None
        key = attempt, is_redone
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = new_buckets(self._request)
        return found


def new_buckets(request: ChartRequest) -> Buckets:
    """Buckets for a request."""
    bins, window = max(2, request.bins), request.window
    least = RESOLUTION[request.axis]
    if request.is_log:
        least = 1e-4
        window = None if window is None or window[0] <= 0 else (math.log10(window[0]), math.log10(window[1]))
    if window is None or not window[1] > window[0]:
        return Buckets(least, bins, request.is_log)
    # Bins across the ends of the window have room beside it.
    width = (window[1] - window[0]) / max(1, bins - 2)
    return Buckets(max(least, width) if request.is_log else width, 4 * bins, request.is_log)


def smooth_bins(bins: Iterable[Bin], weight: float) -> list[Bin]:
    """The exponential average of each bin's mean of first and last value, at its middle; bins
    without a finite value are skipped. ``weight`` is that of the past, from 0 to below 1. The sum
    is divided by the total weight 1 − wⁿ of n values (the bias correction of Adam, Kingma and Ba
    2015, section 3)."""
    total, missing = 0.0, 1.0
    smoothed = []
    for each in bins:
        if each.first is None or each.last is None:
            continue
        total = weight * total + (1 - weight) * (each.first / 2 + each.last / 2)
        missing *= weight
        value, middle = total / (1 - missing), each.first_x / 2 + each.last_x / 2
        smoothed.append(Bin(middle, middle, value, value, value, value, each.points, gap_before=each.gap_before))
    return smoothed
