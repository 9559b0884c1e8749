"""The bins of a metric's curve: built from lines as they come, or from bins of past attempts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap, interpolate
from gputui.metrics.curves.lines import EPOCH, CurveLine
from gputui.metrics.curves.model import AttemptCurve, ChartRequest, MetricCurve, Window
from gputui.metrics.curves.names import is_set
from gputui.metrics.draw.binned_series import BinnedSeries
from gputui.metrics.draw.bins import Bin
from gputui.store.metrics.envelopes import Entry
from gputui.store.metrics.stored_lines import as_float

NARROWEST_BIN = {"step": 1.0, "time": 0.1, "trained": 0.1, "epoch": 1e-4}
"""The narrowest bin of a whole run, by axis: in steps, seconds, seconds and epochs."""

NARROWEST_DECADES = 1e-4
"""The narrowest bin on a logarithmic axis, in decades: 10,000 bins from 1 to 10."""


class CurveBuilder:
    """The curve of a metric for a window, fed with lines in the order in which they were written.
    ``cuts`` gives for each attempt the first step that a later one did again. Of ``request``,
    the axis, ``is_log``, the window and the number of bins count: others need another builder."""

    def __init__(self, name: str, request: ChartRequest, cuts: Mapping[int, float]) -> None:
        self.name = name
        self.last_in_window: float | None = None
        self._request = request
        self._start, self._end = request.window or (-math.inf, math.inf)
        self._cuts = cuts
        # By attempt; redone are those of steps that a later attempt did again.
        self._kept: dict[int, BinnedSeries] = {}
        self._redone: dict[int, BinnedSeries] = {}
        self._was_seen = False
        self._was_placed = False
        self._curve: MetricCurve | None = None
        # The arguments of `curve` that gave it.
        self._built_with: tuple[float, float | None] | None = None

    @property
    def attempts(self) -> list[AttemptBins]:
        """The bins of each attempt, oldest first."""
        return [
            AttemptBins(number, self._bins(self._kept.get(number)), self._bins(self._redone.get(number)))
            for number in sorted(self._kept.keys() | self._redone.keys())
        ]

    def add_line(self, line: CurveLine, x: float | None) -> None:
        """Add a line that lies at ``x``."""
        value = as_float(line.values.get(self.name))
        if value is None:
            return
        self._was_seen = True
        if x is None:
            return
        self._was_placed = True
        if self._start <= x <= self._end:
            self.last_in_window = value
            is_redone = line.step >= self._cuts.get(line.attempt, math.inf)
            self._changed_series(line.attempt, is_redone=is_redone).add(x, value)

    def add_entries(self, attempt: int, entries: Iterable[Entry], axis_map: AxisMap, *, is_redone: bool) -> None:
        """Add reduced lines."""
        place = axis_map.place
        isnan = math.isnan
        series: BinnedSeries | None = None
        for entry in entries:
            self._was_seen = True
            first_at = None if isnan(entry.first_at) else entry.first_at
            last_at = None if isnan(entry.last_at) else entry.last_at
            start = place(attempt, entry.first_step, first_at)
            end = place(attempt, entry.last_step, last_at)
            if start is None or end is None:
                continue
            self._was_placed = True
            if end < self._start or start > self._end:
                continue
            series = series or self._changed_series(attempt, is_redone=is_redone)
            series.add_bin(bin_of(entry, start, end))

    def curve(self, smoothing: float, newest: float | None, whole: CurveBuilder | None = None) -> MetricCurve:
        """The curve now; the same object as before if nothing changed. ``smoothing`` is as in
        `ChartRequest`, ``newest`` the newest value of the metric in any window; ``whole`` has the
        bins of the whole run, if this curve has a window."""
        if self._curve is None or self._built_with != (smoothing, newest):
            attempts = self.attempts
            averaged = attempts
            if whole is not None:
                averaged = whole.attempts
            problem = None
            if not attempts:
                problem = self._problem(newest)
            average = Average(smoothing, averaged, self._request.window)
            self._curve = joined_curve(self.name, attempts, average, newest=newest, problem=problem)
            self._built_with = smoothing, newest
        return self._curve

    def _problem(self, newest: float | None) -> str:
        if newest is None and not self._was_seen:
            return "nothing measured yet"
        if self._was_placed or not self._was_seen:
            return "nothing measured in this window"
        if self._request.axis == EPOCH:
            return "no epoch is known yet"
        return "its lines tell no time"

    def _bins(self, series: BinnedSeries | None) -> Sequence[Bin]:
        if series is None:
            return []
        return series.bins(max(2, self._request.bins), self._start, self._end)

    def _changed_series(self, attempt: int, *, is_redone: bool) -> BinnedSeries:
        self._curve = None
        by_attempt = self._redone if is_redone else self._kept
        series = by_attempt.get(attempt)
        if series is None:
            series = by_attempt[attempt] = new_series(self._request)
        return series


def bin_of(entry: Entry, start: float, end: float) -> Bin:
    """Reduced lines from one x to another as a bin."""
    values = Bin(start, start, points=entry.points)
    values.nan = entry.nan
    values.positive_infinite = entry.positive_infinite
    values.negative_infinite = entry.negative_infinite
    if entry.has_finite:
        values.last_x = end
        values.low = entry.low
        values.high = entry.high
        values.first = entry.first
        values.last = entry.last
    return values


def new_series(request: ChartRequest) -> BinnedSeries:
    """An empty series whose bins are fine enough for the bins of a request."""
    bins = max(2, request.bins)
    narrowest = NARROWEST_DECADES if request.is_log else NARROWEST_BIN[request.axis]
    if request.window is None:
        # When the capacity is reached, pairs of bins merge, and the requested number is left.
        return BinnedSeries(narrowest, 2 * bins, is_log=request.is_log)
    start, end = request.window
    # A bin at each end lies across it. Reduced lines that reach beyond the ends need more room: they
    # must not make the bins in the window wider.
    inner = max(1, bins - 2)
    capacity = 4 * bins
    if request.is_log:
        if end > start > 0:
            narrowest = max(narrowest, math.log10(end / start) / inner)
        return BinnedSeries(narrowest, capacity, is_log=True)
    if end > start:
        return BinnedSeries((end - start) / inner, capacity)
    return BinnedSeries(narrowest, capacity)


class Average(NamedTuple):
    """A moving average over the bins of the whole run in ``attempts``, and the window that it is shown in."""

    weight: float
    attempts: Sequence[AttemptBins]
    window: Window | None


class AttemptBins(NamedTuple):
    """The bins of one attempt: those that count, and those of steps that a later attempt did again."""

    attempt: int
    current: Sequence[Bin]
    redone: Sequence[Bin]


def joined_curve(
    name: str, attempts: Sequence[AttemptBins], average: Average, *, newest: float | None, problem: str | None
) -> MetricCurve:
    """The curve of a metric from the bins of its attempts, oldest attempt first. ``newest`` is its
    newest value, ``problem`` why there are no bins."""
    current, redone = _joined(attempts)
    smooth: Sequence[Bin] = ()
    if average.weight > 0 and not is_set(name):
        smooth = smooth_bins(_joined(average.attempts)[0], average.weight, average.window)
    averaged: Sequence[AttemptBins] = ()
    if average.attempts is not attempts:
        averaged = average.attempts
    return MetricCurve(
        name=clean(name),
        bins=tuple(current),
        redone=tuple(redone),
        smooth=tuple(smooth),
        attempts=tuple(AttemptCurve(attempt.attempt, (*attempt.current, *attempt.redone)) for attempt in attempts),
        averaged=tuple(AttemptCurve(attempt.attempt, (*attempt.current, *attempt.redone)) for attempt in averaged),
        last=newest,
        problem=problem,
    )


def _joined(attempts: Sequence[AttemptBins]) -> tuple[list[Bin], list[Bin]]:
    """The bins that count and the redone ones, of all attempts in order of x."""
    current: list[Bin] = []
    redone: list[Bin] = []
    for attempt in attempts:
        if current:
            current += _broken_off(attempt.current)
        else:
            current += attempt.current
        redone += _broken_off(attempt.redone)
    if len(attempts) > 1:
        current.sort(key=lambda kept_bin: kept_bin.first_x)
    return current, redone


def _broken_off(bins: Sequence[Bin]) -> list[Bin]:
    """The bins, with a gap before the first."""
    if not bins:
        return []
    first = bins[0].copy()
    first.gap_before = True
    return [first, *bins[1:]]


def smooth_bins(bins: Iterable[Bin], weight: float, window: Window | None = None) -> list[Bin]:
    """The exponential average of each bin's mean of first and last value, at its middle; bins
    without a finite value are skipped. ``weight`` is that of the past, from 0 to below 1. The sum
    is divided by the sum of all weights, 1 − wⁿ for n values (the bias correction of Adam, Kingma
    and Ba 2015, section 3). Of a ``window``, those inside and one at each of its ends."""
    value = 0.0
    missing_weight = 1.0
    smoothed = []
    for one_bin in bins:
        if one_bin.first is None or one_bin.last is None:
            continue
        missing_weight *= weight
        # The average of equal values is exactly that value. Halves, because a difference may overflow.
        half_change = (1 - weight) / (1 - missing_weight) * ((one_bin.first / 2 + one_bin.last / 2) / 2 - value / 2)
        value += half_change
        value += half_change
        middle = one_bin.first_x / 2 + one_bin.last_x / 2
        smoothed.append(
            Bin(
                middle,
                middle,
                value,
                high=value,
                first=value,
                last=value,
                points=one_bin.points,
                gap_before=one_bin.gap_before,
            )
        )
    if window is None or not smoothed:
        return smoothed
    inside = [one_bin for one_bin in smoothed if window[0] < one_bin.first_x < window[1]]
    for x in window:
        if smoothed[0].first_x <= x <= smoothed[-1].first_x:
            value_there = average_at(smoothed, x)
            inside.append(Bin(x, x, value_there, high=value_there, first=value_there, last=value_there))
    return sorted(inside, key=lambda one_bin: one_bin.first_x)


def average_at(smooth: Sequence[Bin], x: float) -> float | None:
    """The value of a moving average at ``x``; None without one."""
    return interpolate([(one_bin.first_x, one_bin.last) for one_bin in smooth if one_bin.last is not None], x)
