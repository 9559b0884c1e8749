"""The visible stretch of the x axis, and steps of the crosshair. Immutable: each key gives a new
value."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.scales import AxisKind, round_outward, stable_end

ZOOM_FACTOR = 2.0  # two steps back and forth end at the same window
PAN_SHARE = 0.25
"""The fraction of its span that the window is moved by."""

_FOLLOW_SHARE = 0.25
"""A window that follows the newest point moves by this fraction of its span at once, not with every
point."""

_LEAST_SPACINGS = 4  # of points: a smaller window is nearly empty

# A window that begins so near to zero, in shares of its end, begins with it: that costs a tenth of the width.
_NEAR_ZERO_SHARE = 0.1


class Extent(Struct, frozen=True):
    """The first and the newest x of the data, and the smallest useful stretch. On a logarithmic
    axis, x is positive."""

    first: float
    newest: float
    resolution: float = 1.0
    kind: AxisKind = "linear"

    def logarithmic(self) -> Extent:
        """The extent on a logarithmic axis, which begins at the resolution at the earliest;
        unchanged if all x lie below it."""
        if not self.newest > self.resolution:
            return self
        return replace(self, first=max(self.first, self.resolution), kind="log")

    @property
    def whole(self) -> tuple[float, float]:
        """The window that shows everything, with an end that seldom moves."""
        if self.kind == "log":
            return round_outward(self.first, self.newest, "log")
        start = self.first
        end = stable_end(self.newest)
        begins_near_zero = 0 <= start <= _NEAR_ZERO_SHARE * self.newest
        if begins_near_zero:
            start = 0.0
        if end > start:
            return (start, end)
        return (start, start + self.resolution)

    def along(self, x: float) -> float:
        """The position of an x along the axis, in which equal distances look equal."""
        if self.kind == "log":
            return math.log10(max(x, 1e-300))
        return x

    def at(self, along: float) -> float:
        """The x at a position along the axis."""
        if self.kind == "log":
            return float(10.0 ** min(along, 300.0))
        return along

    def beside(self, x: float, window: tuple[float, float], share: float) -> float:
        """The x that is ``share`` of the window further along the axis than ``x``."""
        start, end = (self.along(edge) for edge in window)
        return self.at(self.along(x) + share * (end - start))

    def between(self, window: tuple[float, float], share: float) -> float:
        """The x at ``share`` of the way through a window, from 0 to 1."""
        start, end = (self.along(x) for x in window)
        return self.at(start + share * (end - start))


class Viewport(Struct, frozen=True):
    """A window, as positions along the axis (`Extent.along`). `span` None shows everything; `end`
    None follows the newest point."""

    span: float | None = None
    end: float | None = None

    def window(self, extent: Extent) -> tuple[float, float]:
        """The ends of the x axis now."""
        if self.span is None:
            return extent.whole
        start, end = self._ends(extent)
        return extent.at(start), extent.at(end)

    def _ends(self, extent: Extent) -> tuple[float, float]:
        """The ends of the window, along the axis."""
        if self.span is None:
            start, end = extent.whole
            return extent.along(start), extent.along(end)
        if self.end is not None:
            return self.end - self.span, self.end
        pace = self.span * _FOLLOW_SHARE
        end = (math.floor(extent.along(extent.newest) / pace) + 1) * pace
        return end - self.span, end

    def zoomed_in(self, extent: Extent, about: float | None) -> Viewport:
        """Half the span around `about` (an x); without it, the end of the window stays."""
        start, end = self._ends(extent)
        span = (end - start) / ZOOM_FACTOR
        zoomed = replace(self, span=span)
        place = _place_within(extent, about, start, end)
        if place is not None:
            zoomed = Viewport(span, end=place + (end - place) / ZOOM_FACTOR)
        first, last = zoomed.window(extent)
        if last - first < _LEAST_SPACINGS * extent.resolution:
            return self
        return zoomed

    def zoomed_out(self, extent: Extent, about: float | None) -> Viewport:
        """Twice the span around `about` (an x), at most everything."""
        start, end = self._ends(extent)
        whole_start, whole_end = Viewport()._ends(extent)
        span = (end - start) * ZOOM_FACTOR
        if self.span is None or span >= whole_end - whole_start:
            return Viewport()
        if self.end is None:
            return Viewport(span)
        fixed = _place_within(extent, about, start, end)
        if fixed is None:
            fixed = (start + end) / 2
        wished_end = fixed + (end - fixed) * ZOOM_FACTOR
        return Viewport(span, end=min(max(wished_end, whole_start + span), whole_end))

    def panned(self, extent: Extent, by: int) -> Viewport:
        """Moved by `by` quarters of the span; at the right end, the window follows the newest
        point."""
        if self.span is None:
            return self
        whole_start, _ = Viewport()._ends(extent)
        _, end = self._ends(extent)
        moved = max(end + by * PAN_SHARE * self.span, whole_start + self.span)
        if by > 0 and moved >= extent.along(extent.newest):
            return Viewport(self.span)
        return Viewport(self.span, moved)

    def holding(self, extent: Extent, x: float) -> Viewport:
        """Moved to have `x` in the middle, if it is outside."""
        start, end = self._ends(extent)
        place = extent.along(x)
        if self.span is None or start <= place <= end:
            return self
        return Viewport(self.span, place + self.span / 2)


def _place_within(extent: Extent, x: float | None, start: float, end: float) -> float | None:
    """The position of an x along the axis; None without an x, or if it is outside of a window."""
    if x is None:
        return None
    place = extent.along(x)
    if start <= place <= end:
        return place
    return None


def next_point(bins: Sequence[Bin], x: float, by: int, least: float) -> float:
    """The x of the next point in direction `by`, at least `least` away, within the data."""
    if not bins:
        return x
    nearest = x + by * least
    last_xs = [one_bin.last_x for one_bin in bins]
    if by > 0:
        following = bisect.bisect_left(last_xs, nearest)
        if following == len(bins):
            return max(last_xs[-1], x)
        return max(last_xs[following], x)
    following = bisect.bisect_right(last_xs, nearest)
    if following == 0:
        return bins[0].first_x
    return min(last_xs[following - 1], x)
