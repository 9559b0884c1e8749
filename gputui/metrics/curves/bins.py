"""The bins of a metric's curve: built from lines as they come, or from bins of past attempts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap
from gputui.metrics.curves.lines import EPOCH, CurveLine
from gputui.metrics.curves.model import AttemptCurve, ChartRequest, MetricCurve
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
        of the metric."""
        if self._curve is None or request != self._request:
            self._request = request
            attempts = [
                AttemptBins(number, self._bins((number, False)), self._bins((number, True)))
                for number in sorted({number for number, _ in self._buckets})
            ]
            problem = None if attempts else self._problem(last)
            self._curve = joined_curve(self.name, request, attempts, last=last, problem=problem)
        return self._curve

    def _problem(self, last: float | None) -> str:
        if last is None and not self._was_seen:
            return "nothing measured yet"
        if self._was_placed or not self._was_seen:
            return "nothing measured in this window"
        return "no epoch is known yet" if self._request.axis == EPOCH else "its lines tell no time"

    def _bins(self, key: tuple[int, bool]) -> Sequence[Bin]:
        if key not in self._buckets:
            return []
        start, end = self._request.window or (-math.inf, math.inf)
        return self._buckets[key].bins(max(2, self._request.bins), start, end)

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
    if request.is_log:
        decades = 1e-4
        if window is not None and window[1] > window[0] > 0:
            decades = max(decades, math.log10(window[1] / window[0]) / max(1, bins - 2))
        return Buckets(decades, 2 * bins if window is None else 4 * bins, is_log=True)
    if window is None or not window[1] > window[0]:
        return Buckets(RESOLUTION[request.axis], 2 * bins)
    # The requested number lies in the window; bins across its ends have room beside them.
    return Buckets((window[1] - window[0]) / max(1, bins - 2), 4 * bins)


class AttemptBins(NamedTuple):
    """The bins of one attempt: those that count, and those of steps that a later attempt did again."""

    attempt: int
    kept: Sequence[Bin]
    redone: Sequence[Bin]


def joined_curve(
    name: str, request: ChartRequest, attempts: Sequence[AttemptBins], *, last: float | None, problem: str | None
) -> MetricCurve:
    """The curve of a metric from the bins of its attempts, oldest attempt first. ``last`` is the
    newest value."""
    kept: list[Bin] = []
    redone: list[Bin] = []
    for attempt in attempts:
        kept += _broken_off(attempt.kept) if kept else attempt.kept
        redone += _broken_off(attempt.redone)
    if len(attempts) > 1:
        kept.sort(key=lambda kept_bin: kept_bin.first_x)
    return MetricCurve(
        name=clean(name),
        bins=tuple(kept),
        redone=tuple(redone),
        smooth=tuple(smooth_bins(kept, request.smoothing)) if request.smoothing > 0 and not is_set(name) else (),
        attempts=tuple(AttemptCurve(attempt.attempt, (*attempt.kept, *attempt.redone)) for attempt in attempts),
        last=last,
        problem=problem,
    )


def _broken_off(bins: Sequence[Bin]) -> list[Bin]:
    """The bins, with a gap before the first."""
    if not bins:
        return []
    first = bins[0].copy()
    first.gap_before = True
    return [first, *bins[1:]]


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
