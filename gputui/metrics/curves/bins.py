"""One metric on one axis in bins: of each attempt, and of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap
from gputui.metrics.curves.model import AttemptCurve, ChartRequest, MetricCurve, is_set
from gputui.metrics.curves.run_lines import CurveLine
from gputui.metrics.curves.smooth import smooth_bins
from gputui.metrics.draw.envelope import Bin, Buckets
from gputui.store.metrics.envelopes import Entry
from gputui.store.metrics.queries import as_float

RESOLUTION = {"step": 1.0, "time": 0.1, "trained": 0.1, "epoch": 1e-4}


class Followed:
    """A metric, fed with lines in the order in which they were written. ``cuts`` gives for each attempt the first step
    that a later one did again; bins are at least ``resolution`` wide."""

    def __init__(self, name: str, request: ChartRequest, cuts: Mapping[int, float], resolution: float = 0.0) -> None:
        self.name = name
        self._resolution = resolution
        self._request = request
        self._cuts = cuts
        self._kept: dict[int, Buckets] = {}
        self._redone: dict[int, Buckets] = {}
        self._was_seen = False
        self._was_placed = False
        self._has_changed = True
        self._curve: MetricCurve | None = None

    def take(self, line: CurveLine, x: float | None) -> None:
        """Add a line that lies at ``x``."""
        value = as_float(line.values.get(self.name))
        if value is None:
            return
        self._was_seen = True
        if x is None:
            return
        self._was_placed = True
        window = self._request.window
        if window is not None and not window[0] <= x <= window[1]:
            return
        is_redone = line.step >= self._cuts.get(line.attempt, math.inf)
        self._buckets(line.attempt, is_redone=is_redone).append(x, value)
        self._has_changed = True

    def take_entries(self, attempt: int, entries: Iterable[Entry], axis_map: AxisMap, *, is_redone: bool) -> None:
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
            if buckets is None:
                buckets = self._buckets(attempt, is_redone=is_redone)
                self._has_changed = True
            buckets.take(found)

    def curve(self, request: ChartRequest, last: float | None) -> MetricCurve:
        """The curve now; the same object as before if nothing changed. ``last`` is the newest value of the metric."""
        if self._curve is not None and not self._has_changed and request == self._request:
            return self._curve
        self._request, self._has_changed = request, False
        attempts = [
            AttemptBins(number, self._bins(self._kept, number), self._bins(self._redone, number))
            for number in sorted({*self._kept, *self._redone})
        ]
        problem = None if attempts else self._problem(last)
        self._curve = joined_curve(self.name, request, attempts, last=last, problem=problem)
        return self._curve

    def _problem(self, last: float | None) -> str:
        if last is None and not self._was_seen:
            return "nothing measured yet"
        if self._was_placed or not self._was_seen:
            return "nothing measured in this window"
        return "no epoch is known yet" if self._request.axis == "epoch" else "its lines tell no time"

    def _bins(self, of: Mapping[int, Buckets], attempt: int) -> Sequence[Bin]:
        if attempt not in of:
            return []
        start, end = self._request.window or (-math.inf, math.inf)
        return of[attempt].bins(max(2, self._request.bins), start, end)

    def _buckets(self, attempt: int, *, is_redone: bool) -> Buckets:
        of = self._redone if is_redone else self._kept
        found = of.get(attempt)
        if found is None:
            found = of[attempt] = new_buckets(self._request, self._resolution)
        return found


def new_buckets(request: ChartRequest, least: float = 0.0) -> Buckets:
    """Buckets for a request, on a linear axis at least ``least`` wide."""
    bins, window = max(2, request.bins), request.window
    if request.is_log:
        decades = 1e-4
        if window is not None and window[1] > window[0] > 0:
            decades = max(decades, math.log10(window[1] / window[0]) / max(1, bins - 2))
        return Buckets(decades, 2 * bins if window is None else 4 * bins, is_log=True)
    if window is None or not window[1] > window[0]:
        return Buckets(max(RESOLUTION[request.axis], least), 2 * bins)
    # The requested number lies in the window; bins across its ends have room beside them.
    return Buckets(max((window[1] - window[0]) / max(1, bins - 2), least), 4 * bins)


class AttemptBins(NamedTuple):
    """The bins of one attempt: those that count, and those of steps that a later attempt did again."""

    attempt: int
    kept: Sequence[Bin]
    redone: Sequence[Bin]


def joined_curve(
    name: str, request: ChartRequest, attempts: Sequence[AttemptBins], *, last: float | None, problem: str | None
) -> MetricCurve:
    """The curve of a metric from the bins of its attempts, oldest attempt first. ``last`` is the newest value."""
    kept: list[Bin] = []
    redone: list[Bin] = []
    for attempt in attempts:
        kept += _broken_off(attempt.kept) if kept else attempt.kept
        redone += _broken_off(attempt.redone)
    if len(attempts) > 1:
        kept.sort(key=lambda kept_bin: kept_bin.first_x)
    wants_smooth = request.smoothing > 0 and not is_set(name)
    return MetricCurve(
        name=clean(name),
        bins=tuple(kept),
        redone=tuple(redone),
        smooth=tuple(smooth_bins(kept, request.smoothing)) if wants_smooth else (),
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
