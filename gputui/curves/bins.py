"""One metric on one axis in bins: each attempt's own, and what of them holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from gputui.charts.envelope import Bin, Buckets
from gputui.charts.safe_text import clean
from gputui.curves.axis import AxisMap
from gputui.curves.metric_names import is_set
from gputui.curves.model import AttemptCurve, ChartRequest, MetricCurve
from gputui.curves.run_lines import CurveLine
from gputui.curves.smooth import smooth_bins
from gputui.store.metrics.envelopes import Entry
from gputui.store.metrics.queries import as_float

RESOLUTION = {"step": 1.0, "time": 0.1, "trained": 0.1, "epoch": 1e-4}


class Followed:
    """A metric, fed in the order its lines were written. ``cuts`` is for each attempt the first step that a later one
    did again; bins are at least ``resolution`` wide."""

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
        """Add what was reduced already."""
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
        """What is known now; the same value as before where nothing came and nothing else is asked for. ``last`` is the
        newest value of the metric."""
        if self._curve is not None and not self._has_changed and request == self._request:
            return self._curve
        self._request, self._has_changed = request, False
        kept: list[Bin] = []
        redone: list[Bin] = []
        attempts = []
        for number in sorted({*self._kept, *self._redone}):
            own, again = self._bins(self._kept, number), self._bins(self._redone, number)
            kept += broken_off(own) if kept else own
            redone += broken_off(again)
            attempts.append(AttemptCurve(number, (*own, *again)))
        if len(attempts) > 1:
            kept.sort(key=lambda each: each.first_x)
        wants_smooth = request.smoothing > 0 and not is_set(self.name)
        self._curve = MetricCurve(
            name=clean(self.name),
            bins=tuple(kept),
            redone=tuple(redone),
            smooth=tuple(smooth_bins(kept, request.smoothing)) if wants_smooth else (),
            attempts=tuple(attempts),
            last=last,
            problem=None if attempts else self._problem(last),
        )
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
    """Buckets for what was asked for, at least ``least`` wide where the axis is linear."""
    bins, window = max(2, request.bins), request.window
    if request.is_log:
        decades = 1e-4
        if window is not None and window[1] > window[0] > 0:
            decades = max(decades, math.log10(window[1] / window[0]) / max(1, bins - 2))
        return Buckets(decades, 2 * bins if window is None else 4 * bins, is_log=True)
    if window is None or not window[1] > window[0]:
        return Buckets(max(RESOLUTION[request.axis], least), 2 * bins)
    # As many as were asked for lie in the window; what reaches over its ends has room beside them.
    return Buckets(max((window[1] - window[0]) / max(1, bins - 2), least), 4 * bins)


def broken_off(bins: Sequence[Bin]) -> list[Bin]:
    """The bins, with a gap before the first."""
    if not bins:
        return []
    first = bins[0].copy()
    first.gap_before = True
    return [first, *bins[1:]]
